"""Counts, latency, tokens, cost and feedback over time.

Hourly sums answer what they can (`_summed`), rows the rest: the ends of the time asked for, hours that are not counted
now, and all that is not grouped and filtered as the sums are. Means are those of `statistics`, as everywhere, and
percentiles, too, of up to `EXACT` traces; of more they come from the bins of the sums, and say how far they may be off.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import orjson

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Bucket
from spanwise.collector.stores.sqlite import _latencies, _summed
from spanwise.collector.stores.sqlite._counted import CHECKS, HOUR_NS, stretch
from spanwise.collector.stores.sqlite._hours import Part
from spanwise.collector.stores.sqlite._latencies import EXACT
from spanwise.collector.stores.sqlite._plan import Plan, lean, of_experiments, plan
from spanwise.collector.stores.sqlite._ranks import Ranks
from spanwise.collector.stores.sqlite._summed import EVERYTHING, Place, Question, Stretch
from spanwise.collector.stores.sqlite._total import Total
from spanwise.collector.stores.sqlite._values import dumps

NEWEST = 100_000  # traces, whose ids are in memory
COUNTED = 10_000  # traces that are counted one by one where nobody says how many: in a tenth of a second
MOST = 10_000  # buckets of an answer: with one for each nanosecond there are as many as traces, of 2 KB each
ALL: Final = "all"

_GROUPS = {
    "project": "t.project",
    "environment": "t.environment",
    "name": "t.name",
    "user": "t.user_id",
    "session": "t.session_id",
    "experiment": "t.experiment_id",
    "model": "m.key",
    "error": "error_group(t.error)",
}

# Of an array SQLite makes JSON far faster than a text of its own
_TRACES = """
SELECT {bucket} AS b, {group} AS g, count(*), sum(t.status = 'error'), total({tokens_in}), total({tokens_out}),
  total({cost}), min(t.start_ns), max(t.start_ns), json_group_array(max(0, t.end_ns - t.start_ns))
FROM {source} WHERE {where} GROUP BY b, g
"""
_LATENCIES = """
SELECT {bucket} AS b, {group} AS g, json_group_array(max(0, t.end_ns - t.start_ns))
FROM {source} WHERE {where} GROUP BY b, g
"""
_STARTS = "SELECT t.start_ns FROM {source} WHERE {where} ORDER BY t.start_ns "

# Each label has a row of its own: a tally puts the parts of a key together
_FEEDBACK = """
SELECT {bucket} AS b, {group} AS g, f.key, f.label, sum(f.outcome = 'score'), count(f.score), total(f.score),
  min(f.score), max(f.score), sum(f.outcome = 'error'), sum(f.outcome = 'skip')
FROM {source} CROSS JOIN feedback f ON f.trace = t.id WHERE {where} AND f.standing >= 1 AND NOT {checks}
GROUP BY b, g, f.key, f.label ORDER BY b, g, f.key, f.label
"""


def buckets(
    db: sqlite3.Connection,
    filter: Filter,
    bucket_ns: int | None,
    group_by: str | None,
    newest: int | Literal["all"] | None = None,
) -> list[Bucket]:
    """Buckets in order of time, then group; those without traces are left out. See `TraceStore.aggregate`.

    Raises `Refused` for what cannot be asked for, and for more buckets than an answer holds.
    """
    if bucket_ns is not None and bucket_ns <= 0:
        raise Refused(f"a bucket is some nanoseconds wide, not {bucket_ns!r}")
    if group_by is not None and group_by not in _GROUPS:
        raise Refused(f"cannot group by {group_by!r}; use one of {', '.join(_GROUPS)}")
    most = COUNTED if newest is None else newest
    if most != ALL and not 1 <= most <= NEWEST:
        raise Refused(f"the newest traces are 1 to {NEWEST:,}, not {newest!r}; 'all' counts all of them")
    if group_by == "experiment" and not filter.experiment:  # it asks for no certain one
        live = _summed.asked(replace(filter, experiment=""), bucket_ns, None)
        if live is not None and (most == ALL or not _are_more(db, of_experiments(filter), most)):
            return _by_experiment(db, filter, live)
    if most != ALL and _summed.in_rows(db, filter, bucket_ns, group_by, most) > most:
        return _of_newest(db, filter, bucket_ns, group_by, most)
    try:
        return _Aggregate(db, filter, bucket_ns, group_by).buckets(_summed.asked(filter, bucket_ns, group_by))
    except _TooMany:
        if newest is None or newest == ALL:
            raise
        return _of_newest(db, filter, bucket_ns, group_by, newest)


def _are_more(db: sqlite3.Connection, chosen: Plan, than: int) -> bool:
    sql = f"SELECT 1 FROM {chosen.source} WHERE {chosen.where} LIMIT 1 OFFSET ?"
    return db.execute(sql, (*chosen.values, than)).fetchone() is not None


def _of_newest(
    db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int
) -> list[Bucket]:
    """Of the newest traces alone, if there are more."""
    chosen = plan(db, filter)
    sql = f"SELECT t.id FROM {chosen.source} WHERE {chosen.where} ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    found = [row[0] for row in db.execute(sql, (*chosen.values, newest + 1))]
    only = Plan("traces t NOT INDEXED", "t.id IN (SELECT value FROM json_each(?))", (dumps(found[:newest]),))
    if len(found) <= newest:
        return _Aggregate(db, filter, bucket_ns, group_by, lambda _: only).buckets(None)
    since = replace(filter, since_ns=None)  # they begin with the first of them, whatever was asked for
    counted = _Aggregate(db, since, bucket_ns, group_by, lambda _: only).buckets(None)
    return [replace(bucket, newest=newest) for bucket in counted]


def _by_experiment(db: sqlite3.Connection, filter: Filter, live: Question) -> list[Bucket]:
    """Sums answer for what is of no experiment, rows for what is."""
    rest = _Aggregate(db, filter, live.bucket_ns, "experiment", of_experiments).buckets(None)
    counted = _Aggregate(db, live.filter, live.bucket_ns, None).buckets(live)
    both = sorted([*counted, *rest], key=lambda bucket: _group(bucket.group))
    return sorted(both, key=lambda bucket: bucket.start_ns) if live.bucket_ns else both


class _TooMany(Refused):
    """More buckets than one answer holds."""


def _check_few(count: int) -> None:
    if count > MOST:
        way = "make them wider, ask for a shorter time, without groups, or for the `newest` traces alone"
        raise _TooMany(f"more than {MOST:,} buckets in one answer: {way}")


def _group(group: str | None) -> tuple[bool, str]:
    """In which order groups come."""
    return group is not None, group or ""


class _Aggregate:
    """An aggregate under way. `way`: how to find those of its traces that are counted one by one."""

    def __init__(
        self,
        db: sqlite3.Connection,
        filter: Filter,
        bucket_ns: int | None,
        group_by: str | None,
        way: Callable[[Filter], Plan] | None = None,
    ) -> None:
        self._db, self._filter, self._bucket_ns, self._group_by = db, filter, bucket_ns, group_by
        self._way = way or partial(plan, db, in_order=False)
        self._totals: dict[Place, Total] = {}
        self._alone: dict[Place, Part] = {}  # buckets that are a part of an hour, and nothing else

    def buckets(self, question: Question | None) -> list[Bucket]:
        """All of it, with the sums' help if they can."""
        if question is not None:
            question = self._add_parts(question)
            self._add_sums(question)
        for stretch_ in _summed.from_rows(self._db, question) if question is not None else [EVERYTHING]:
            self._add_rows(stretch_)
        if question is not None:
            self._add_latencies(question)
            self._find_ends()
        places = sorted([*self._totals, *self._alone], key=lambda place: (place[0], *_group(place[1])))
        return [self._bucket(place) for place in places]

    def _of(self, place: Place) -> Total:
        """Raises `_TooMany`."""
        total = self._totals.get(place)
        if total is None:
            _check_few(len(self._totals) + len(self._alone) + 1)
            total = self._totals[place] = Total()
        return total

    def _add_parts(self, question: Question) -> Question:
        """What hours that are added up have; what is to be asked then."""
        try:
            for place, part in question.parts(self._db):
                self._add_part(place, part)
        except ValueError:  # one is damaged
            self._alone.clear()
            self._totals.clear()
            return replace(question, by_cells=True)
        return question

    def _add_part(self, place: Place, part: Part) -> None:
        """As it is, if it is all that an hour has in this place."""
        if self._bucket_ns == HOUR_NS and place not in self._alone and place not in self._totals:
            _check_few(len(self._totals) + len(self._alone) + 1)
            self._alone[place] = part
            return
        first = self._alone.pop(place, None)
        for one in (first, part) if first is not None else (part,):
            one.add_to(self._of(place))

    def _add_sums(self, question: Question) -> None:
        for start, group, *counts, first, last in question.counts(self._db):
            total = self._of((start, group))
            total.add(*counts)
            total.add_hours(first, last)
        self._count(question.said(self._db))

    def _add_rows(self, within: Stretch) -> None:
        filter = self._filter if within == EVERYTHING else replace(self._filter, since_ns=within[0], until_ns=within[1])
        chosen = self._way(filter)
        rows = self._ask(_TRACES, chosen).fetchmany(MOST + 1)
        _check_few(len(rows))  # before anything is made of them
        for start, group, *counts, first, last, latencies in rows:
            total = self._of((start, group))
            total.add(*counts)
            total.starts += [first, last]
            total.latencies += orjson.loads(latencies)
        self._count(self._ask(_FEEDBACK, chosen))

    def _count(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add outcomes that share a key and a label, as `_FEEDBACK` has them."""
        for start, group, *said in rows:
            self._of((start, group)).add_said(*said)

    def _ask(self, sql: str, chosen: Plan, where: str = "", values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        by_model = self._group_by == "model"
        parts = {
            "bucket": f"t.start_ns / {self._bucket_ns} * {self._bucket_ns}" if self._bucket_ns else "0",
            "group": _GROUPS[self._group_by] if self._group_by else "NULL",
            "source": f"{chosen.source} CROSS JOIN json_each(t.models) m" if by_model else chosen.source,
            "where": chosen.where + where,
            "checks": CHECKS,
            "tokens_in": "json_extract(m.value, '$[1]')" if by_model else "t.input_tokens",
            "tokens_out": "json_extract(m.value, '$[2]')" if by_model else "t.output_tokens",
            "cost": "json_extract(m.value, '$[3]')" if by_model else "t.cost",
        }
        return self._db.execute(sql.format(**parts), (*chosen.values, *values))

    def _add_latencies(self, question: Question) -> None:
        """Of few traces as they are, of many from the sums."""
        summed = {place: total.traces for place, total in self._totals.items() if total.is_summed}
        few = {place: Ranks(n) for place, n in summed.items() if n <= EXACT}
        for place, bins in question.latencies(self._db, summed.keys() - few.keys()).items():
            total = self._totals[place]
            bins.update(map(_latencies.bin_of, total.latencies))
            total.bins = bins
        if few:
            self._rank(few, question)

    def _rank(self, few: Mapping[Place, Ranks], question: Question) -> None:
        """Find percentiles by what is ready of them, and by the rows of other hours."""
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

    def _within(self, hours: Iterable[Stretch], starts: set[int]) -> Iterator[Stretch]:
        """Of stretches of hours what lies in buckets."""
        buckets = list(self._stretches(starts))
        for since, until in hours:
            for first, last in buckets:
                start, end = _latest(since, first), _earliest(until, last)
                if start is None or end is None or start < end:
                    yield start, end

    def _add_exact(self, few: set[Place]) -> None:
        """All their latencies."""
        for place in few:
            self._totals[place].latencies.clear()
        where, values = self._in_groups({group for _, group in few})
        for within in self._stretches({start for start, _ in few}):
            for start, group, latencies in self._exact(within, where, values):
                if (start, group) in few:
                    self._totals[start, group].latencies += orjson.loads(latencies)

    def _exact(self, within: Stretch, where: str, values: tuple[Any, ...]) -> Iterator[Any]:
        """Latencies of traces that start within a stretch, and when they are asked for."""
        since, until = _latest(within[0], self._filter.since_ns), _earliest(within[1], self._filter.until_ns)
        chosen = lean(replace(self._filter, since_ns=since, until_ns=until))
        return self._ask(_LATENCIES, chosen, where, values)

    def _in_groups(self, groups: set[str | None]) -> tuple[str, tuple[Any, ...]]:
        """A condition that leaves out groups of which no latencies are wanted, if there are any."""
        if not self._group_by or len(groups) == len({group for _, group in self._totals}):
            return "", ()
        sql = f" AND {_GROUPS[self._group_by]} IN (SELECT value FROM json_each(?))"
        return sql, (orjson.dumps(list(groups)).decode(),)

    def _stretches(self, starts: set[int]) -> Iterable[Stretch]:
        """The time that buckets take; those that touch in one."""
        if not self._bucket_ns or len(starts) == len({start for start, _ in self._totals}):
            return [EVERYTHING]
        width = self._bucket_ns
        return _summed.joined([stretch(start // width, width) for start in sorted(starts)])

    def _find_ends(self) -> None:
        """When the first and the last trace of each group began, where nothing else says from when to when it goes."""
        if self._bucket_ns or (self._filter.since_ns is not None and self._filter.until_ns is not None):
            return
        for (_, group), total in self._totals.items():
            if total.first is not None and total.last is not None:
                total.starts += [self._end(group, total.first, "ASC"), self._end(group, total.last, "DESC")]

    def _end(self, group: str | None, hour: int, order: str) -> int:
        since, until = stretch(hour)
        by_model = self._group_by == "model"  # a filter finds fewer: SQLite ends a key of JSON at a zero byte
        theirs: dict[str, Any] = {self._group_by: group} if self._group_by and not by_model else {}
        chosen = plan(self._db, replace(self._filter, since_ns=since, until_ns=until, **theirs))
        where, values = (f" AND {_GROUPS['model']} = ?", (group,)) if by_model else ("", ())
        return int(next(self._ask(_STARTS + order, chosen, where, values))[0])

    def _bucket(self, place: Place) -> Bucket:
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
