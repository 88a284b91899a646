"""Aggregates over time: buckets from rollups where they cover the time range, from rows elsewhere.

Hourly rollups answer as much as they can (`RollupQuery`). Rows answer the rest: the ends of the time range, stale
hours, and filters and groups that rollups lack. Means come from `statistics`. Percentiles are exact for up to
`MAX_EXACT_TRACES` traces. Beyond that they come from the bins of the rollups, and the bucket states their relative
error.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Bucket
from spanwise.collector.stores.sqlite.database.column_values import INT_MAX, dumps
from spanwise.collector.stores.sqlite.query.query_plan import QueryPlan, plan_experiments, plan_latencies, plan_query
from spanwise.collector.stores.sqlite.rollups import latency_histogram
from spanwise.collector.stores.sqlite.rollups.hourly_rollups import SEALED
from spanwise.collector.stores.sqlite.rollups.latency_histogram import MAX_EXACT_TRACES, ExactPercentiles, unpack_bins
from spanwise.collector.stores.sqlite.rollups.rollup_delta import (
    ALL_MODELS,
    CHECKS_JUDGE_SQL,
    DAY_NS,
    EVALUATOR_TRACE,
    EXPERIMENT_TRACE,
    HOUR_NS,
    LIVE_TRACE,
    get_period_range,
)
from spanwise.collector.stores.sqlite.rollups.sealed_rollups import (
    BY_MODEL,
    BY_NAME,
    UNGROUPED,
    BucketTotals,
    HourBucket,
    decode_buckets,
)

BucketKey: TypeAlias = tuple[int, str | None]  # start of a bucket, group
TimeRange: TypeAlias = tuple[int | None, int | None]  # since, until
ALL_TIME: TimeRange = (None, None)

_ROLLUP_FILTERS = ("project", "environment", "name")
_ROLLUP_GROUPS = {None: "NULL", "project": "s.project", "environment": "s.environment", "name": "s.name"}
_ROLLUP_GROUPS["model"] = "substr(s.model, 2)"
_SIDES: dict[str | None, int] = {"name": BY_NAME, "model": BY_MODEL}
_EMPTY_FILTER = Filter()


class _RollupLevel(NamedTuple):
    """Rollup tables of hours, or of sealed days (see `sealed_rollups`)."""

    source: str  # FROM clause: rollup rows `s`, joined with the row `p` of their hour or day
    start: str  # SQL expression: start of `p` in nanoseconds
    first: str  # SQL expressions: first and last hour with traces
    last: str
    said: str  # table of feedback
    ordered: str  # column with sorted latencies
    with_ordered: str


_HOUR_LEVEL = _RollupLevel(
    "sums_hours p CROSS JOIN sums s ON s.hour = p.hour",
    f"p.hour * {HOUR_NS}",
    *("s.hour", "s.hour", "sums_said", "l.data", " CROSS JOIN sums_latencies l ON l.cell = s.id"),
)
_DAY_LEVEL = _RollupLevel(
    "sums_days p CROSS JOIN sums_of_days s ON s.day = p.day",
    f"p.day * {DAY_NS}",
    *("s.first", "s.last", "sums_said_of_days", "s.ordered", ""),
)
_ROLLUP_COUNTS = (
    "SELECT {bucket} AS b, {group} AS g, sum(s.n), sum(s.errors), total(s.input_tokens), total(s.output_tokens),"
    " total(s.cost), min({level.first}), max({level.last}) FROM {level.source} WHERE {where} GROUP BY b, g"
)
_ROLLUP_LATENCIES = "SELECT {bucket} AS b, {group} AS g, s.latencies FROM {level.source} WHERE {where}"
_SEALED_LATENCIES = (
    "SELECT {bucket} AS b, {group} AS g, {level.ordered} FROM {level.source}{level.with_ordered}"
    f" WHERE {{where}} AND p.rest = {SEALED} AND {{level.ordered}} IS NOT NULL"
)
_ROLLUP_FEEDBACK = (
    "SELECT {bucket} AS b, {group} AS g, f.key, nullif(f.label, ''), sum(f.said), sum(f.n), total(f.total),"
    " min(f.minimum), max(f.maximum), sum(f.failed), sum(f.skipped)"
    " FROM {level.source} CROSS JOIN {level.said} f ON f.cell = s.id WHERE {where}"
    " GROUP BY b, g, f.key, f.label ORDER BY b, g, f.key, f.label"
)
_SEALED_HOURS = (
    "SELECT {bucket}, h.project, h.data FROM sums_hours p CROSS JOIN sums_of_hours h ON h.hour = p.hour AND h.side = ?"
    f" WHERE {{where}} AND p.rest = {SEALED}"
)


@dataclass(frozen=True, slots=True)
class RollupQuery:
    """Query that the rollups of hours `first` to `last` (inclusive, None: unbounded) answer in part."""

    filter: Filter
    bucket_ns: int | None
    group_by: str | None
    first: int | None = None
    last: int | None = None
    by_cells: bool = False  # read the cells of all hours, even where sealed totals exist

    @property
    def side(self) -> int | None:
        """Return which rows of sealed hours answer the query (`side`, see `sealed_rollups`); None if only the cells
        can.
        """
        if self.by_cells or self.filter.name is not None:
            return None
        return _SIDES.get(self.group_by, UNGROUPED)

    def parts(self, db: sqlite3.Connection) -> Iterator[tuple[BucketKey, HourBucket]]:
        """Yield the totals of sealed hours with their bucket and group. Raises `ValueError` if one is damaged."""
        least, most = self._shown()
        environment = self.filter.environment
        if self.side is None:
            return
        where, bounds = self._within(_HOUR_LEVEL)
        only, values = ("", []) if self.filter.project is None else (" AND h.project = ?", [self.filter.project])
        sql = _SEALED_HOURS.format(bucket=self._bucket(_HOUR_LEVEL), where=where + only)
        for bucket, project, data in db.execute(sql, (self.side, *bounds, *values)):
            for part in decode_buckets(data):
                if least <= part.shown <= most and environment in (None, part.environment):
                    if self.group_by in ("project", "environment"):
                        part.group = project if self.group_by == "project" else part.environment
                    yield (bucket, part.group), part

    def counts(self, db: sqlite3.Connection) -> Iterator[Any]:
        """Yield rows of bucket, group, traces, errors, input and output tokens, cost, first and last hour.

        A bucket and group may have more than one row.
        """
        return self._ask(db, _ROLLUP_COUNTS)

    def said(self, db: sqlite3.Connection) -> Iterator[Any]:
        """Yield aggregated feedback in the columns of `_ROW_FEEDBACK`."""
        for row in self._ask(db, _ROLLUP_FEEDBACK):
            yield row if row[3] is None else (*row[:3], row[3][1:], *row[4:])

    def latencies(self, db: sqlite3.Connection, places: set[BucketKey]) -> dict[BucketKey, Counter[int]]:
        """Return the latency bins of these buckets and groups."""
        blobs: dict[BucketKey, list[bytes]] = {place: [] for place in places}
        for bucket, group, blob in self._ask(db, _ROLLUP_LATENCIES, added_up=True) if blobs else ():
            if (bucket, group) in blobs:
                blobs[bucket, group].append(blob)
        return {place: unpack_bins(some) for place, some in blobs.items()}

    def ordered(self, db: sqlite3.Connection) -> Iterator[tuple[int, str | None, bytes]]:
        """Yield bucket, group and sorted latencies (see `pack_latencies`) of the cells of sealed hours and days."""
        return self._ask(db, _SEALED_LATENCIES)

    def not_in_order(self, db: sqlite3.Connection) -> Iterator[TimeRange]:
        """Yield the time ranges for which `ordered` lacks some or all latencies."""
        where, values = self._within(_HOUR_LEVEL)
        sql = f"SELECT p.hour FROM sums_hours p WHERE {where} AND p.rest <> {SEALED} ORDER BY p.hour"
        return join_ranges([get_period_range(row[0]) for row in db.execute(sql, values)])

    def _ask(self, db: sqlite3.Connection, sql: str, added_up: bool = False) -> Iterator[Any]:
        """Run a query on each level. With `added_up`, include the hours whose totals `parts` yields."""
        conditions = [f"s.model {'<>' if self.group_by == 'model' else '='} '{ALL_MODELS}'"]
        conditions.append("s.shown BETWEEN {} AND {}".format(*self._shown()))
        asked = [(name, getattr(self.filter, name)) for name in _ROLLUP_FILTERS]
        conditions += [f"s.{name} = ?" for name, value in asked if value is not None]
        wanted, values = " AND ".join(conditions), [value for _, value in asked if value is not None]
        for level in self._levels():
            where, bounds = self._within(level)
            if level is _HOUR_LEVEL and self.side is not None and not added_up:
                where = f"{where} AND p.rest <> {SEALED}"
            parts = {"level": level, "bucket": self._bucket(level), "group": _ROLLUP_GROUPS[self.group_by]}
            yield from db.execute(sql.format(**parts, where=f"{where} AND {wanted}"), (*bounds, *values))

    def _bucket(self, level: _RollupLevel) -> str:
        return f"{level.start} / {self.bucket_ns} * {self.bucket_ns}" if self.bucket_ns else "0"

    def _levels(self) -> tuple[_RollupLevel, ...]:
        """Return the levels to query. Days are included only if no day belongs to several buckets."""
        return (_HOUR_LEVEL,) if (self.bucket_ns or 0) % DAY_NS else (_HOUR_LEVEL, _DAY_LEVEL)

    def _within(self, level: _RollupLevel) -> tuple[str, list[Any]]:
        """Return the condition, with its values, that selects the hours or days of a level. Hours of selected days are
        left out.
        """
        first = self.first if self.first is not None else -(2**62)
        last = self.last if self.last is not None else 2**62
        days = [max(1, -(-first // 24)), (last + 1) // 24 - 1]  # only days that are completely within the range
        if level is _DAY_LEVEL:
            return f"p.rest = {SEALED} AND p.day BETWEEN ? AND ?", days
        where, bounds = "p.state = 0 AND p.hour BETWEEN ? AND ?", [first, last]
        if _DAY_LEVEL in self._levels():
            ready = f"SELECT day FROM sums_days WHERE rest = {SEALED} AND day BETWEEN ? AND ?"
            where, bounds = f"{where} AND p.hour / 24 NOT IN ({ready})", [*bounds, *days]
        return where, bounds

    def _shown(self) -> tuple[int, int]:
        """Return the smallest and the largest value of `shown` that the filter selects."""
        least = LIVE_TRACE if self.filter.leaves_out_judgements else EVALUATOR_TRACE
        return least, LIVE_TRACE if self.filter.experiment is not None else EXPERIMENT_TRACE


def plan_rollup_query(filter: Filter, bucket_ns: int | None, group_by: str | None) -> RollupQuery | None:
    """Return the part of a query that rollups can answer; None if there is no such part."""
    if group_by not in _ROLLUP_GROUPS or (bucket_ns is not None and bucket_ns % HOUR_NS):
        return None
    since, until = filter.since_ns, filter.until_ns
    answered: dict[str, Any] = dict.fromkeys(("since_ns", "until_ns", "experiment", *_ROLLUP_FILTERS))
    # `experiment=""` selects traces of no experiment, which rollups can do
    if filter.experiment or replace(filter, **answered) != _EMPTY_FILTER:
        return None
    if (since is not None and not 0 <= since <= INT_MAX - HOUR_NS) or (until is not None and until < HOUR_NS):
        return None  # SQL rounds hours before 1970 up, and the last hour that a column can hold has no end
    first = max(1, -(-since // HOUR_NS)) if since is not None else None
    last = until // HOUR_NS - 1 if until is not None else None
    if first is not None and last is not None and last < first:
        return None
    return RollupQuery(filter, bucket_ns, group_by, first, last)


def count_uncovered_traces(
    db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, enough: int
) -> int:
    """Count the traces of an aggregate that must be read one by one because rollups do not cover them.

    Stops counting at `enough` + 1.
    """
    question = plan_rollup_query(filter, bucket_ns, group_by)
    if question is None:
        return enough + 1
    started = "SELECT 1 FROM traces INDEXED BY traces_by_start WHERE start_ns >= ? AND start_ns < ? LIMIT ?"
    found = 0
    for since, until in find_uncovered_ranges(db, question):
        asked_for = (since, min(until or INT_MAX, INT_MAX), enough + 1)
        found += db.execute(f"SELECT count(*) FROM ({started})", asked_for).fetchone()[0]
        if found > enough:
            break
    return found


def find_uncovered_ranges(db: sqlite3.Connection, question: RollupQuery) -> list[TimeRange]:
    """Return the time ranges of a query that its rollups do not cover: incomplete hours at both ends, and stale
    hours.
    """
    found: list[TimeRange] = []
    since, until, first, last = question.filter.since_ns, question.filter.until_ns, question.first, question.last
    if since is not None and first is not None and since < first * HOUR_NS:
        found.append((since, first * HOUR_NS))
    sql = "SELECT hour FROM sums_hours WHERE state > 0 AND hour >= ? AND hour <= ? ORDER BY hour"
    bounds = (first if first is not None else -(2**62), last if last is not None else 2**62)
    found += [get_period_range(row[0]) for row in db.execute(sql, bounds)]
    if until is not None and last is not None and (last + 1) * HOUR_NS < until:
        found.append(((last + 1) * HOUR_NS, until))
    return list(join_ranges(found))


def join_ranges(stretches: Sequence[TimeRange]) -> Iterator[TimeRange]:
    """Yield the time ranges, with adjacent ranges joined."""
    rest = iter(stretches)
    current = next(rest, None)
    if current is None:
        return
    for since, until in rest:
        if since == current[1]:
            current = (current[0], until)
        else:
            yield current
            current = (since, until)
    yield current


MAX_NEWEST = 100_000  # limit of `newest`, because the ids are held in memory
DEFAULT_NEWEST = 10_000  # default number of traces read one by one; takes a tenth of a second
MAX_BUCKETS = 10_000  # limit of an answer (2 KB per bucket); with narrow buckets, there could be one for each trace
ALL_TRACES: Final = "all"

_ROW_GROUPS = {
    "project": "t.project",
    "environment": "t.environment",
    "name": "t.name",
    "user": "t.user_id",
    "session": "t.session_id",
    "experiment": "t.experiment_id",
    "model": "m.key",
    "error": "error_group(t.error)",
}

# SQLite converts an array of numbers to JSON much faster than it concatenates text.
_ROW_TOTALS = """
SELECT {bucket} AS b, {group} AS g, count(*), sum(t.status = 'error'), total({tokens_in}), total({tokens_out}),
  total({cost}), min(t.start_ns), max(t.start_ns), json_group_array(max(0, t.end_ns - t.start_ns))
FROM {source} WHERE {where} GROUP BY b, g
"""
_ROW_LATENCIES = """
SELECT {bucket} AS b, {group} AS g, json_group_array(max(0, t.end_ns - t.start_ns))
FROM {source} WHERE {where} GROUP BY b, g
"""
_ROW_STARTS = "SELECT t.start_ns FROM {source} WHERE {where} ORDER BY t.start_ns "

# One row per label; a `Tally` combines the rows of a key.
_ROW_FEEDBACK = """
SELECT {bucket} AS b, {group} AS g, f.key, f.label, sum(f.outcome = 'score'), count(f.score), total(f.score),
  min(f.score), max(f.score), sum(f.outcome = 'error'), sum(f.outcome = 'skip')
FROM {source} CROSS JOIN feedback f ON f.trace = t.id WHERE {where} AND f.standing >= 1 AND NOT {checks}
GROUP BY b, g, f.key, f.label ORDER BY b, g, f.key, f.label
"""


def compute_buckets(
    db: sqlite3.Connection,
    filter: Filter,
    bucket_ns: int | None,
    group_by: str | None,
    newest: int | Literal["all"] | None = None,
) -> list[Bucket]:
    """Return buckets in order of time, then group, without those that have no traces. See `TraceStore.aggregate`.

    Raises `Refused` for an invalid argument, and for more than `MAX_BUCKETS` buckets.
    """
    if bucket_ns is not None and bucket_ns <= 0:
        raise Refused(f"a bucket is some nanoseconds wide, not {bucket_ns!r}")
    if group_by is not None and group_by not in _ROW_GROUPS:
        raise Refused(f"cannot group by {group_by!r}; use one of {', '.join(_ROW_GROUPS)}")
    most = DEFAULT_NEWEST if newest is None else newest
    if most != ALL_TRACES and not 1 <= most <= MAX_NEWEST:
        raise Refused(f"the newest traces are 1 to {MAX_NEWEST:,}, not {newest!r}; 'all' counts all of them")
    if group_by == "experiment" and not filter.experiment:  # the filter names no experiment
        live = plan_rollup_query(replace(filter, experiment=""), bucket_ns, None)
        if live is not None and (most == ALL_TRACES or not _has_more_than(db, plan_experiments(filter), most)):
            # Rollups answer for traces of no experiment, rows for the others
            rest = _Aggregation(db, filter, live.bucket_ns, "experiment", plan_experiments).buckets(None)
            counted = _Aggregation(db, live.filter, live.bucket_ns, None).buckets(live)
            both = sorted([*counted, *rest], key=lambda bucket: _group_order(bucket.group))
            return sorted(both, key=lambda bucket: bucket.start_ns) if live.bucket_ns else both
    if most != ALL_TRACES and count_uncovered_traces(db, filter, bucket_ns, group_by, most) > most:
        return _aggregate_newest(db, filter, bucket_ns, group_by, most)
    try:
        return _Aggregation(db, filter, bucket_ns, group_by).buckets(plan_rollup_query(filter, bucket_ns, group_by))
    except _TooManyBuckets:
        if newest is None or newest == ALL_TRACES:
            raise
        return _aggregate_newest(db, filter, bucket_ns, group_by, newest)


def _has_more_than(db: sqlite3.Connection, chosen: QueryPlan, than: int) -> bool:
    sql = f"SELECT 1 FROM {chosen.source} WHERE {chosen.where} LIMIT 1 OFFSET ?"
    return db.execute(sql, (*chosen.values, than)).fetchone() is not None


def _aggregate_newest(
    db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int
) -> list[Bucket]:
    """Aggregate only the `newest` traces. If there are more, set `Bucket.newest` to that number."""
    chosen = plan_query(db, filter)
    sql = f"SELECT t.id FROM {chosen.source} WHERE {chosen.where} ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    found = [row[0] for row in db.execute(sql, (*chosen.values, newest + 1))]
    only = QueryPlan("traces t NOT INDEXED", "t.id IN (SELECT value FROM json_each(?))", (dumps(found[:newest]),))
    if len(found) <= newest:
        return _Aggregation(db, filter, bucket_ns, group_by, lambda _: only).buckets(None)
    since = replace(filter, since_ns=None)  # without buckets, the range starts with the first of these traces
    counted = _Aggregation(db, since, bucket_ns, group_by, lambda _: only).buckets(None)
    return [replace(bucket, newest=newest) for bucket in counted]


class _TooManyBuckets(Refused):
    """More buckets than one answer may have."""


def _check_bucket_count(count: int) -> None:
    if count > MAX_BUCKETS:
        way = "make them wider, ask for a shorter time, without groups, or for the `newest` traces alone"
        raise _TooManyBuckets(f"more than {MAX_BUCKETS:,} buckets in one answer: {way}")


def _group_order(group: str | None) -> tuple[bool, str]:
    """Return the sort key of a group."""
    return group is not None, group or ""


class _Aggregation:
    """Aggregation of one query. `way` plans the query for traces that are read one by one."""

    def __init__(
        self,
        db: sqlite3.Connection,
        filter: Filter,
        bucket_ns: int | None,
        group_by: str | None,
        way: Callable[[Filter], QueryPlan] | None = None,
    ) -> None:
        self._db, self._filter, self._bucket_ns, self._group_by = db, filter, bucket_ns, group_by
        self._way = way or partial(plan_query, db, in_order=False)
        self._totals: dict[BucketKey, BucketTotals] = {}
        self._alone: dict[BucketKey, HourBucket] = {}  # buckets that consist of the totals of one sealed hour

    def buckets(self, question: RollupQuery | None) -> list[Bucket]:
        """Compute all buckets, from rollups as far as `question` allows."""
        if question is not None:
            question = self._add_parts(question)
            for start, group, *counts, first, last in question.counts(self._db):
                total = self._of((start, group))
                total.add(*counts)
                total.add_hours(first, last)
            self._count(question.said(self._db))
        for stretch_ in find_uncovered_ranges(self._db, question) if question is not None else [ALL_TIME]:
            self._add_rows(stretch_)
        if question is not None:
            self._add_latencies(question)
            if not self._bucket_ns and (self._filter.since_ns is None or self._filter.until_ns is None):
                # neither buckets nor the filter define the range: find the first and the last start time of each group
                for (_, group), total in self._totals.items():
                    if total.first is not None and total.last is not None:
                        total.starts += [self._end(group, total.first, "ASC"), self._end(group, total.last, "DESC")]
        places = sorted([*self._totals, *self._alone], key=lambda place: (place[0], *_group_order(place[1])))
        return [self._bucket(place) for place in places]

    def _of(self, place: BucketKey) -> BucketTotals:
        """Return the totals of a bucket; create them if missing. Raises `_TooManyBuckets`."""
        total = self._totals.get(place)
        if total is None:
            _check_bucket_count(len(self._totals) + len(self._alone) + 1)
            total = self._totals[place] = BucketTotals()
        return total

    def _add_parts(self, question: RollupQuery) -> RollupQuery:
        """Add the totals of sealed hours; return the query for the remaining rollups."""
        try:
            for place, part in question.parts(self._db):
                self._add_part(place, part)
        except ValueError:  # a row is damaged: read the cells instead
            self._alone.clear()
            self._totals.clear()
            return replace(question, by_cells=True)
        return question

    def _add_part(self, place: BucketKey, part: HourBucket) -> None:
        """Add the totals of a sealed hour to its bucket. If no others belong to the bucket, keep them unchanged."""
        if self._bucket_ns == HOUR_NS and place not in self._alone and place not in self._totals:
            _check_bucket_count(len(self._totals) + len(self._alone) + 1)
            self._alone[place] = part
            return
        first = self._alone.pop(place, None)
        for one in (first, part) if first is not None else (part,):
            one.add_to(self._of(place))

    def _add_rows(self, within: TimeRange) -> None:
        filter = self._filter if within == ALL_TIME else replace(self._filter, since_ns=within[0], until_ns=within[1])
        chosen = self._way(filter)
        rows = self._ask(_ROW_TOTALS, chosen).fetchmany(MAX_BUCKETS + 1)
        _check_bucket_count(len(rows))  # checked before the rows are processed
        for start, group, *counts, first, last, latencies in rows:
            total = self._of((start, group))
            total.add(*counts)
            total.starts += [first, last]
            total.latencies += orjson.loads(latencies)
        self._count(self._ask(_ROW_FEEDBACK, chosen))

    def _count(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows with the columns of `_ROW_FEEDBACK`, each of which counts the outcomes of one key and label."""
        for start, group, *said in rows:
            self._of((start, group)).add_said(*said)

    def _ask(self, sql: str, chosen: QueryPlan, where: str = "", values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        by_model = self._group_by == "model"
        parts = {
            "bucket": f"t.start_ns / {self._bucket_ns} * {self._bucket_ns}" if self._bucket_ns else "0",
            "group": _ROW_GROUPS[self._group_by] if self._group_by else "NULL",
            "source": f"{chosen.source} CROSS JOIN json_each(t.models) m" if by_model else chosen.source,
            "where": chosen.where + where,
            "checks": CHECKS_JUDGE_SQL,
            "tokens_in": "json_extract(m.value, '$[1]')" if by_model else "t.input_tokens",
            "tokens_out": "json_extract(m.value, '$[2]')" if by_model else "t.output_tokens",
            "cost": "json_extract(m.value, '$[3]')" if by_model else "t.cost",
        }
        return self._db.execute(sql.format(**parts), (*chosen.values, *values))

    def _add_latencies(self, question: RollupQuery) -> None:
        """Add exact latencies for buckets of few traces, and the bins of rollups for others."""
        summed = {place: total.traces for place, total in self._totals.items() if total.is_summed}
        few = {place: ExactPercentiles(n) for place, n in summed.items() if n <= MAX_EXACT_TRACES}
        for place, bins in question.latencies(self._db, summed.keys() - few.keys()).items():
            total = self._totals[place]
            bins.update(map(latency_histogram.find_bin, total.latencies))
            total.bins = bins
        if few:
            self._rank(few, question)

    def _rank(self, few: Mapping[BucketKey, ExactPercentiles], question: RollupQuery) -> None:
        """Compute exact percentiles from sealed hours and days, and from the rows of other hours."""
        for start, group, ordered in question.ordered(self._db):
            if (start, group) in few:
                few[start, group].add_ordered(ordered)
        for place, ranks in few.items():
            for part in self._totals[place].ordered:
                ranks.add_ordered(part)
            ranks.add(self._totals[place].latencies)
        where, values = self._in_groups({group for _, group in few})
        for within in self._within(question.not_in_order(self._db), {start for start, _ in few}):
            for start, group, latencies in self._exact(within, where, values):
                if (start, group) in few:
                    few[start, group].add(orjson.loads(latencies))
        left = set()
        for place, ranks in few.items():
            if (found := ranks.found()) is not None:
                self._totals[place].percentiles = found
            else:
                left.add(place)
        if left:
            self._add_exact(left)

    def _within(self, hours: Iterable[TimeRange], starts: set[int]) -> Iterator[TimeRange]:
        """Yield the parts of time ranges that are inside the buckets."""
        buckets = list(self._stretches(starts))
        for since, until in hours:
            for first, last in buckets:
                start, end = _latest(since, first), _earliest(until, last)
                if start is None or end is None or start < end:
                    yield start, end

    def _add_exact(self, few: set[BucketKey]) -> None:
        """Replace the latencies of these buckets by all latencies read from rows."""
        for place in few:
            self._totals[place].latencies.clear()
        where, values = self._in_groups({group for _, group in few})
        for within in self._stretches({start for start, _ in few}):
            for start, group, latencies in self._exact(within, where, values):
                if (start, group) in few:
                    self._totals[start, group].latencies += orjson.loads(latencies)

    def _exact(self, within: TimeRange, where: str, values: tuple[Any, ...]) -> Iterator[Any]:
        """Return the latencies of traces that start within a time range and within the filter's range."""
        since, until = _latest(within[0], self._filter.since_ns), _earliest(within[1], self._filter.until_ns)
        chosen = plan_latencies(replace(self._filter, since_ns=since, until_ns=until))
        return self._ask(_ROW_LATENCIES, chosen, where, values)

    def _in_groups(self, groups: set[str | None]) -> tuple[str, tuple[Any, ...]]:
        """Return a condition that excludes groups whose latencies are not needed. It is empty if all groups are
        needed.
        """
        if not self._group_by or len(groups) == len({group for _, group in self._totals}):
            return "", ()
        sql = f" AND {_ROW_GROUPS[self._group_by]} IN (SELECT value FROM json_each(?))"
        return sql, (orjson.dumps(list(groups)).decode(),)

    def _stretches(self, starts: set[int]) -> Iterable[TimeRange]:
        """Return the time ranges of buckets, with adjacent ranges joined."""
        if not self._bucket_ns or len(starts) == len({start for start, _ in self._totals}):
            return [ALL_TIME]
        width = self._bucket_ns
        return join_ranges([get_period_range(start // width, width) for start in sorted(starts)])

    def _end(self, group: str | None, hour: int, order: str) -> int:
        since, until = get_period_range(hour)
        # A filter by model could miss traces, because SQLite ends a JSON key at a zero byte
        by_model = self._group_by == "model"
        theirs: dict[str, Any] = {self._group_by: group} if self._group_by and not by_model else {}
        chosen = plan_query(self._db, replace(self._filter, since_ns=since, until_ns=until, **theirs))
        where, values = (f" AND {_ROW_GROUPS['model']} = ?", (group,)) if by_model else ("", ())
        return int(next(self._ask(_ROW_STARTS + order, chosen, where, values))[0])

    def _bucket(self, place: BucketKey) -> Bucket:
        if place in self._alone:
            return self._alone[place].bucket()
        total, start, width = self._totals[place], place[0], self._bucket_ns
        if width is None:
            since, until = self._filter.since_ns, self._filter.until_ns
            start = since if since is not None else min(total.starts)
            width = (until if until is not None else max(total.starts) + 1) - start
        return Bucket(
            start_ns=start,
            width_ns=width,
            group=place[1],
            traces=total.traces,
            errors=total.errors,
            p50_ms=total.percentile_ms(50),
            p95_ms=total.percentile_ms(95),
            latency_error=total.latency_error,
            input_tokens=int(total.input_tokens),
            output_tokens=int(total.output_tokens),
            cost=total.cost,
            feedback=total.stats(),
        )


def _latest(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


def _earliest(one: int | None, other: int | None) -> int | None:
    return min((time for time in (one, other) if time is not None), default=None)
