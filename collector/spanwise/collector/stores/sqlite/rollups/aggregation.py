"""Aggregates over time: buckets from rollups where they cover the time range, from rows elsewhere.

Hourly rollups answer as much as they can (`RollupQuery`). Rows answer the rest: the ends of the time range, stale
hours, and filters and groups that rollups lack. Means come from `statistics`. Percentiles are exact if at most
`MAX_EXACT_TRACES` traces must be read for them. Beyond that they come from the bins of the rollups, and the bucket
states their relative error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import orjson

from spanwise.collector.filters import Filter
from spanwise.collector.records import Bucket
from spanwise.collector.stores.bucket_totals import (
    MAX_BUCKETS,
    TRACE_GROUPS,
    BucketKey,
    TooManyBuckets,
    check_arguments,
    get_place_order,
)
from spanwise.collector.stores.sqlite.query.filter_sql import (
    VERSION_SQL,
    QueryPlan,
    plan_experiments,
    plan_latencies,
    plan_query,
)
from spanwise.collector.stores.sqlite.rollups.hourly_rollups import SEALED
from spanwise.collector.stores.sqlite.rollups.rollup_delta import (
    ALL_MODELS,
    CHECKS_JUDGE_SQL,
    COUNTED_KEY_SQL,
    DAY_NS,
    EVALUATOR_TRACE,
    EXPERIMENT_TRACE,
    HOUR_NS,
    LIVE_TRACE,
    get_period_range,
)
from spanwise.collector.stores.sqlite.rollups.sealed_rollups import (
    BINARY_SQL,
    BY_MODEL,
    BY_NAME,
    DAYS,
    HOURS,
    UNGROUPED,
    BucketTotals,
    Period,
    SealedBucket,
    decode_buckets,
)
from spanwise.collector.stores.table_rows import INT_MAX, dumps

TimeRange: TypeAlias = tuple[int | None, int | None]  # since, until
ALL_TIME: TimeRange = (None, None)

_ROLLUP_FILTERS = ("project", "environment", "name")
_ROLLUP_GROUPS = {None: "NULL", "project": "s.project", "environment": "s.environment", "name": "s.name"}
_ROLLUP_GROUPS["model"] = "substr(s.model, 2)"
_EMPTY_FILTER = Filter()


_ROLLUP_COUNTS = (
    "SELECT {bucket} AS b, {group} AS g, sum(s.n), sum(s.errors), total(s.input_tokens), total(s.output_tokens),"
    " total(s.cost), min(s.hour), max(s.hour) FROM {source} WHERE {where} GROUP BY b, g"
)
_ROLLUP_LATENCIES = "SELECT {bucket} AS b, {group} AS g, s.latencies FROM {source} WHERE {where}"
_ROLLUP_FEEDBACK = (
    "SELECT {bucket} AS b, {group} AS g, f.key, nullif(f.label, ''), sum(f.said), sum(f.n), total(f.total),"
    f" sum({BINARY_SQL}),"
    " min(f.minimum), max(f.maximum), sum(f.failed), sum(f.skipped)"
    " FROM {source} CROSS JOIN sums_said f ON f.cell = s.id WHERE {where}"
    " GROUP BY b, g, f.key, f.label ORDER BY b, g, f.key, f.label"
)
_SEALED = (
    "SELECT {bucket}, s.project, s.data FROM {period.states} p"
    " CROSS JOIN {period.totals} s ON s.{period.column} = p.{period.column} AND s.side = ?"
    f" WHERE p.rest = {SEALED} AND {{where}}"
)
_SEALED_DAYS = f"SELECT day FROM sums_days WHERE rest = {SEALED} AND day BETWEEN ? AND ?"


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
        """Return which rows of sealed hours and days answer the query (`side`, see `sealed_rollups`); None if only the
        cells can.
        """
        if self.by_cells or (self.group_by == "model" and self.filter.name is not None):
            return None
        if self.group_by == "model":
            return BY_MODEL
        return BY_NAME if self.group_by == "name" or self.filter.name is not None else UNGROUPED

    def sealed_buckets(self, db: sqlite3.Connection) -> Iterator[tuple[BucketKey, SealedBucket]]:
        """Yield the totals of sealed days and of the other sealed hours, with their bucket and group.

        Raises `ValueError` if one is damaged.
        """
        if self.side is None:
            return
        least, most = self._shown()
        wanted = self.filter
        for period, where, values in self._periods():
            if wanted.project is not None:
                where, values = f"{where} AND s.project = ?", [*values, wanted.project]
            sql = _SEALED.format(bucket=self._bucket(period), period=period, where=where)
            for bucket, project, data in db.execute(sql, (self.side, *values)):
                for part in decode_buckets(data):
                    if (
                        least <= part.shown <= most
                        and wanted.environment in (None, part.environment)
                        and wanted.name in (None, part.group)
                    ):
                        if self.group_by in (None, "project", "environment"):
                            part.group = {"project": project, "environment": part.environment}.get(self.group_by or "")
                        yield (bucket, part.group), part

    def _periods(self) -> Iterator[tuple[Period, str, list[Any]]]:
        """Yield days, unless a day may belong to several buckets, and the hours of other days, each with a condition
        that selects them.
        """
        first, last = self.hours()
        if (self.bucket_ns or 0) % DAY_NS:
            yield HOURS, "p.hour BETWEEN ? AND ?", [first, last]
        else:
            days = [max(1, -(-first // 24)), (last + 1) // 24 - 1]  # only days that are completely within the range
            yield DAYS, "p.day BETWEEN ? AND ?", days
            yield HOURS, f"p.hour BETWEEN ? AND ? AND p.hour / 24 NOT IN ({_SEALED_DAYS})", [first, last, *days]

    def counts(self, db: sqlite3.Connection) -> Iterator[Any]:
        """Yield rows of bucket, group, traces, errors, input and output tokens, cost, first and last hour, from the
        cells of hours that `sealed_buckets` leaves out.
        """
        return self._run(db, _ROLLUP_COUNTS)

    def feedback(self, db: sqlite3.Connection) -> Iterator[Any]:
        """Yield aggregated feedback of the same cells in the columns of `_ROW_FEEDBACK`."""
        for row in self._run(db, _ROLLUP_FEEDBACK):
            yield row if row[3] is None else (*row[:3], row[3][1:], *row[4:])

    def latencies(self, db: sqlite3.Connection) -> Iterator[tuple[int, str | None, bytes]]:
        """Yield bucket, group and latency bins of the same cells."""
        return self._run(db, _ROLLUP_LATENCIES)

    def _run(self, db: sqlite3.Connection, sql: str) -> Iterator[Any]:
        conditions = ["p.state = 0 AND p.hour BETWEEN ? AND ?", "s.shown BETWEEN ? AND ?"]
        conditions.append(f"s.model {'<>' if self.group_by == 'model' else '='} '{ALL_MODELS}'")
        values: list[Any] = [*self.hours(), *self._shown()]
        if self.side is not None:  # hours of sealed days are sealed, too
            conditions.append(f"p.rest <> {SEALED}")
        for name in _ROLLUP_FILTERS:
            if (value := getattr(self.filter, name)) is not None:
                conditions.append(f"s.{name} = ?")
                values.append(value)
        parts = {
            "bucket": self._bucket(HOURS),
            "group": _ROLLUP_GROUPS[self.group_by],
            "source": "sums_hours p CROSS JOIN sums s ON s.hour = p.hour",
            "where": " AND ".join(conditions),
        }
        return db.execute(sql.format(**parts), values)

    def _bucket(self, period: Period) -> str:
        start = f"p.{period.column} * {period.width_ns}"
        return f"{start} / {self.bucket_ns} * {self.bucket_ns}" if self.bucket_ns else "0"

    def hours(self) -> tuple[int, int]:
        """Return the first and the last hour."""
        return self.first if self.first is not None else -(2**62), self.last if self.last is not None else 2**62

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
    query = plan_rollup_query(filter, bucket_ns, group_by)
    if query is None:
        return enough + 1
    started = "SELECT 1 FROM traces INDEXED BY traces_by_start WHERE start_ns >= ? AND start_ns < ? LIMIT ?"
    found = 0
    for since, until in find_uncovered_ranges(db, query):
        asked_for = (since, min(until or INT_MAX, INT_MAX), enough + 1)
        found += db.execute(f"SELECT count(*) FROM ({started})", asked_for).fetchone()[0]
        if found > enough:
            break
    return found


def find_uncovered_ranges(db: sqlite3.Connection, query: RollupQuery) -> list[TimeRange]:
    """Return the time ranges of a query that its rollups do not cover: incomplete hours at both ends, and stale
    hours.
    """
    found: list[TimeRange] = []
    since, until, first, last = query.filter.since_ns, query.filter.until_ns, query.first, query.last
    if since is not None and first is not None and since < first * HOUR_NS:
        found.append((since, first * HOUR_NS))
    sql = "SELECT hour FROM sums_hours WHERE state > 0 AND hour >= ? AND hour <= ? ORDER BY hour"
    found += [get_period_range(row[0]) for row in db.execute(sql, query.hours())]
    if until is not None and last is not None and (last + 1) * HOUR_NS < until:
        found.append(((last + 1) * HOUR_NS, until))
    return list(join_ranges(found))


def join_ranges(ranges: Sequence[TimeRange]) -> Iterator[TimeRange]:
    """Yield the time ranges, with adjacent ranges joined."""
    rest = iter(ranges)
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


MAX_EXACT_TRACES = 10_000  # percentiles are exact if an answer can be computed from at most this many traces
DEFAULT_NEWEST = 10_000  # default number of traces read one by one; takes a tenth of a second
ALL_TRACES: Final = "all"

_ROW_GROUPS = {
    **TRACE_GROUPS,
    "model": "m.key",
    "error": "error_group(t.error)",
    "prompt": "nullif(m.key, '')",
    "prompt_version": "m.key || coalesce('@' || v.value, '')",
    "agent": "m.value",
    "finish_reason": "m.value",
    "tag": "m.value",
    "version": VERSION_SQL,
}
# Groups of which a trace may belong to several: what a query joins to `traces t`. A trace without any is in no group
_GROUP_JOINS = {
    "model": " CROSS JOIN json_each(t.models) m",
    "prompt": " CROSS JOIN json_each(t.prompts) m",
    "prompt_version": " CROSS JOIN json_each(t.prompts) m CROSS JOIN json_each(m.value) v",
    "agent": " CROSS JOIN json_each(t.agents) m",
    "finish_reason": " CROSS JOIN json_each(t.finish_reasons) m",
    "tag": " CROSS JOIN json_each(t.tags) m",
}

# Traces that rules have scored
_ROW_SCORED = (
    "SELECT {bucket}, {group}, t.id FROM {source} WHERE {where}"
    " AND EXISTS (SELECT 1 FROM feedback f WHERE f.trace = t.id AND f.rule IS NOT NULL)"
)

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
SELECT {bucket} AS b, {group} AS g, {key} AS k, f.label, sum(f.outcome = 'score'), count(f.score), total(f.score),
  count(CASE WHEN f.score IN (0, 1) THEN 1 END),
  min(f.score), max(f.score), sum(f.outcome = 'error'), sum(f.outcome = 'skip')
FROM {source} CROSS JOIN feedback f ON f.trace = t.id WHERE {where} AND f.standing >= 1 AND NOT {checks}
GROUP BY b, g, k, f.label ORDER BY b, g, k, f.label
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
    check_arguments(bucket_ns, group_by, _ROW_GROUPS, newest)
    most = DEFAULT_NEWEST if newest is None else newest
    if group_by == "experiment" and not filter.experiment:  # the filter names no experiment
        # Rollups answer for traces of no experiment, rows for the others
        live = plan_rollup_query(replace(filter, experiment=""), bucket_ns, None)
        others = plan_experiments(filter)
        more = f"SELECT 1 FROM {others.source} WHERE {others.where} LIMIT 1 OFFSET ?"
        if live is not None and (most == ALL_TRACES or not db.execute(more, (*others.values, most)).fetchone()):
            buckets = _Aggregation(db, filter, live.bucket_ns, "experiment", plan_experiments).buckets(None)
            buckets += _Aggregation(db, live.filter, live.bucket_ns, None).buckets(live)
            buckets.sort(key=lambda bucket: get_place_order((0, bucket.group)))
            return sorted(buckets, key=lambda bucket: bucket.start_ns) if live.bucket_ns else buckets
    if most != ALL_TRACES and count_uncovered_traces(db, filter, bucket_ns, group_by, most) > most:
        return _aggregate_newest(db, filter, bucket_ns, group_by, most)
    try:
        return _Aggregation(db, filter, bucket_ns, group_by).buckets(plan_rollup_query(filter, bucket_ns, group_by))
    except TooManyBuckets:
        if newest is None or newest == ALL_TRACES:
            raise
        return _aggregate_newest(db, filter, bucket_ns, group_by, newest)


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


def list_scored_traces(
    db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int | None
) -> Iterator[tuple[int, str | None, int]]:
    """Yield start of the bucket, group and key of each trace of an aggregate that rules have scored.

    Without buckets, the start is 0. `newest` is that of the aggregate's buckets.
    """
    plan = None
    if newest is not None:
        chosen = plan_query(db, filter)
        sql = f"SELECT t.id FROM {chosen.source} WHERE {chosen.where} ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
        found = [row[0] for row in db.execute(sql, (*chosen.values, newest))]
        only = QueryPlan("traces t NOT INDEXED", "t.id IN (SELECT value FROM json_each(?))", (dumps(found),))
        plan = lambda _: only  # noqa: E731
    return _Aggregation(db, filter, bucket_ns, group_by, plan).scored_traces()


def _check_bucket_count(count: int) -> None:
    if count > MAX_BUCKETS:
        raise TooManyBuckets(MAX_BUCKETS)


class _Aggregation:
    """Aggregation of one query. `plan` plans the query for traces that are read one by one."""

    def __init__(
        self,
        db: sqlite3.Connection,
        filter: Filter,
        bucket_ns: int | None,
        group_by: str | None,
        plan: Callable[[Filter], QueryPlan] | None = None,
    ) -> None:
        self._db, self._filter, self._bucket_ns, self._group_by = db, filter, bucket_ns, group_by
        self._plan = plan or partial(plan_query, db, in_order=False)
        self._totals: dict[BucketKey, BucketTotals] = {}
        # Buckets that consist of the totals of one sealed hour or day
        self._complete: dict[BucketKey, SealedBucket] = {}

    def buckets(self, query: RollupQuery | None) -> list[Bucket]:
        """Compute all buckets, from rollups as far as `query` allows."""
        if query is not None:
            query = self._add_sealed_buckets(query)
            for start, group, *counts, first, last in query.counts(self._db):
                total = self._totals_of((start, group))
                total.add(*counts)
                total.add_hours(first, last)
            self._add_feedback(query.feedback(self._db))
        for time_range in find_uncovered_ranges(self._db, query) if query is not None else [ALL_TIME]:
            self._add_rows(time_range)
        if query is not None:
            self._add_latencies(query)
            if not self._bucket_ns and (self._filter.since_ns is None or self._filter.until_ns is None):
                # neither buckets nor the filter define the range: find the first and the last start time of each group
                for (_, group), total in self._totals.items():
                    for hour, order in ((total.first, "ASC"), (total.last, "DESC")):
                        if hour is not None:
                            total.starts.append(self._find_start(group, hour, order))
        places = sorted([*self._totals, *self._complete], key=get_place_order)
        return [self._bucket(place) for place in places]

    def scored_traces(self) -> Iterator[tuple[int, str | None, int]]:
        """Yield start of the bucket, group and key of each trace that rules have scored."""
        return self._run(_ROW_SCORED, self._plan(self._filter))

    def _totals_of(self, place: BucketKey) -> BucketTotals:
        """Return the totals of a bucket; create them if missing. Raises `TooManyBuckets`."""
        total = self._totals.get(place)
        if total is None:
            _check_bucket_count(len(self._totals) + len(self._complete) + 1)
            total = self._totals[place] = BucketTotals()
        return total

    def _add_sealed_buckets(self, query: RollupQuery) -> RollupQuery:
        """Add the totals of sealed hours and days; return the query for the remaining rollups."""
        try:
            for place, part in query.sealed_buckets(self._db):
                self._add_sealed_bucket(place, part)
        except ValueError:  # a row is damaged: read the cells instead
            self._complete.clear()
            self._totals.clear()
            return replace(query, by_cells=True)
        return query

    def _add_sealed_bucket(self, place: BucketKey, part: SealedBucket) -> None:
        """Add the totals of a sealed hour or day to its bucket. If no others belong to the bucket, keep them unchanged."""
        if part.width_ns == self._bucket_ns and place not in self._complete and place not in self._totals:
            _check_bucket_count(len(self._totals) + len(self._complete) + 1)
            self._complete[place] = part
            return
        first = self._complete.pop(place, None)
        for one in (first, part) if first is not None else (part,):
            one.add_to(self._totals_of(place))

    def _add_rows(self, within: TimeRange) -> None:
        filter = self._filter if within == ALL_TIME else replace(self._filter, since_ns=within[0], until_ns=within[1])
        chosen = self._plan(filter)
        rows = self._run(_ROW_TOTALS, chosen).fetchmany(MAX_BUCKETS + 1)
        _check_bucket_count(len(rows))  # checked before the rows are processed
        for start, group, *counts, first, last, latencies in rows:
            total = self._totals_of((start, group))
            total.add(*counts)
            total.starts += [first, last]
            total.latencies += orjson.loads(latencies)
        self._add_feedback(self._run(_ROW_FEEDBACK, chosen))

    def _add_feedback(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows with the columns of `_ROW_FEEDBACK`, each of which counts the outcomes of one key and label."""
        for start, group, *said in rows:
            self._totals_of((start, group)).add_feedback(*said)

    def _run(self, sql: str, chosen: QueryPlan, where: str = "", values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        by_model, filter = self._group_by == "model", self._filter
        if self._group_by in ("prompt", "prompt_version"):  # only groups that the filter asks for
            wanted = (("m.key", filter.prompt), ("v.value", filter.prompt_version))
            for column, value in wanted[: 1 + (self._group_by == "prompt_version")]:
                if value is not None:
                    where, values = f"{where} AND {column} = ?", (*values, value)
        parts = {
            "bucket": f"t.start_ns / {self._bucket_ns} * {self._bucket_ns}" if self._bucket_ns else "0",
            "group": _ROW_GROUPS[self._group_by] if self._group_by else "NULL",
            "source": chosen.source + _GROUP_JOINS.get(self._group_by or "", ""),
            "where": chosen.where + where,
            "checks": CHECKS_JUDGE_SQL,
            "key": COUNTED_KEY_SQL,
            "tokens_in": "json_extract(m.value, '$[1]')" if by_model else "t.input_tokens",
            "tokens_out": "json_extract(m.value, '$[2]')" if by_model else "t.output_tokens",
            "cost": "json_extract(m.value, '$[3]')" if by_model else "t.cost",
        }
        return self._db.execute(sql.format(**parts), (*chosen.values, *values))

    def _add_latencies(self, query: RollupQuery) -> None:
        """Add the latencies of rollups: exact ones from rows if these are few, otherwise bins."""
        traces = sum(one.traces for one in self._totals.values()) + sum(one.traces for one in self._complete.values())
        if traces > MAX_EXACT_TRACES or not self._walks_few_traces():
            for start, group, blob in query.latencies(self._db):
                self._totals[start, group].blobs.append(blob)
            return
        while self._complete:
            place, part = self._complete.popitem()
            part.add_to(self._totals_of(place))
        if not any(total.first is not None for total in self._totals.values()):
            return
        for total in self._totals.values():
            total.blobs.clear()
            total.latencies.clear()
        for start, group, latencies in self._run(_ROW_LATENCIES, plan_latencies(self._filter)):
            if (start, group) in self._totals:  # not if the rollups lack these traces
                self._totals[start, group].latencies += orjson.loads(latencies)

    def _walks_few_traces(self) -> bool:
        """Return whether reading all traces of the answer walks at most `MAX_EXACT_TRACES` index entries.

        No index has an environment, or a name and a project, so a rare one may be among a million others.
        """
        filter = self._filter
        if filter.name is not None:
            walked = Filter(name=filter.name, since_ns=filter.since_ns, until_ns=filter.until_ns)
            chosen = plan_query(self._db, walked, judgements=True)
        else:
            chosen = plan_latencies(replace(filter, environment=None, experiment=None))
        sql = f"SELECT 1 FROM {chosen.source} WHERE {chosen.where} LIMIT 1 OFFSET {MAX_EXACT_TRACES}"
        return self._db.execute(sql, chosen.values).fetchone() is None

    def _find_start(self, group: str | None, hour: int, order: str) -> int:
        since, until = get_period_range(hour)
        # A filter by model could miss traces, because SQLite ends a JSON key at a zero byte
        by_model = self._group_by == "model"
        in_group: dict[str, Any] = {self._group_by: group} if self._group_by and not by_model else {}
        chosen = plan_query(self._db, replace(self._filter, since_ns=since, until_ns=until, **in_group))
        where, values = (f" AND {_ROW_GROUPS['model']} = ?", (group,)) if by_model else ("", ())
        return int(next(self._run(_ROW_STARTS + order, chosen, where, values))[0])

    def _bucket(self, place: BucketKey) -> Bucket:
        if place in self._complete:
            return self._complete[place].bucket()
        return self._totals[place].bucket(place, self._filter, self._bucket_ns)
