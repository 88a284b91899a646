"""What the hourly sums answer, and for which stretches of time the rows have to."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.filters import Filter
from spanwise.collector.stores.sqlite._counted import DAY_NS, HOUR_NS, LIVE, OF_EXPERIMENT, OWN, WHOLE, stretch
from spanwise.collector.stores.sqlite._hours import AS_WHOLE, BY_MODEL, BY_NAME, Part, parts
from spanwise.collector.stores.sqlite._latencies import unpacked
from spanwise.collector.stores.sqlite._sums import READY
from spanwise.collector.stores.sqlite._values import INT_MAX

Place: TypeAlias = tuple[int, str | None]  # start of a bucket, group
Stretch: TypeAlias = tuple[int | None, int | None]  # since, until
EVERYTHING: Stretch = (None, None)

_ANSWERED = ("project", "environment", "name")
_GROUPS = {None: "NULL", "project": "s.project", "environment": "s.environment", "name": "s.name"}
_GROUPS["model"] = "substr(s.model, 2)"
_SIDES: dict[str | None, int] = {"name": BY_NAME, "model": BY_MODEL}
_NOTHING = Filter()


class _Level(NamedTuple):
    """Sums of hours, or of days that are at rest (see `_rest`)."""

    source: str  # rows `s`, and `p` of the hour or the day
    start: str  # of these, in nanoseconds
    first: str  # hours that have something
    last: str
    said: str  # a table
    ordered: str  # latencies in order
    with_ordered: str


_HOURS = _Level(
    "sums_hours p CROSS JOIN sums s ON s.hour = p.hour",
    f"p.hour * {HOUR_NS}",
    *("s.hour", "s.hour", "sums_said", "l.data", " CROSS JOIN sums_latencies l ON l.cell = s.id"),
)
_DAYS = _Level(
    "sums_days p CROSS JOIN sums_of_days s ON s.day = p.day",
    f"p.day * {DAY_NS}",
    *("s.first", "s.last", "sums_said_of_days", "s.ordered", ""),
)
_COUNTS = (
    "SELECT {bucket} AS b, {group} AS g, sum(s.n), sum(s.errors), total(s.input_tokens), total(s.output_tokens),"
    " total(s.cost), min({level.first}), max({level.last}) FROM {level.source} WHERE {where} GROUP BY b, g"
)
_LATENCIES = "SELECT {bucket} AS b, {group} AS g, s.latencies FROM {level.source} WHERE {where}"
_ORDERED = (
    "SELECT {bucket} AS b, {group} AS g, {level.ordered} FROM {level.source}{level.with_ordered}"
    f" WHERE {{where}} AND p.rest = {READY} AND {{level.ordered}} IS NOT NULL"
)
_SAID = (
    "SELECT {bucket} AS b, {group} AS g, f.key, nullif(f.label, ''), sum(f.said), sum(f.n), total(f.total),"
    " min(f.minimum), max(f.maximum), sum(f.failed), sum(f.skipped)"
    " FROM {level.source} CROSS JOIN {level.said} f ON f.cell = s.id WHERE {where}"
    " GROUP BY b, g, f.key, f.label ORDER BY b, g, f.key, f.label"
)
_ADDED_UP = (
    "SELECT {bucket}, h.project, h.data FROM sums_hours p CROSS JOIN sums_of_hours h ON h.hour = p.hour AND h.side = ?"
    f" WHERE {{where}} AND p.rest = {READY}"
)


@dataclass(frozen=True, slots=True)
class Question:
    """An aggregate that the sums of hours `first` to `last` (both included, None: all) answer in part."""

    filter: Filter
    bucket_ns: int | None
    group_by: str | None
    first: int | None = None
    last: int | None = None
    by_cells: bool = False  # of all hours, also where these are added up

    @property
    def side(self) -> int | None:
        """Where hours that are added up answer it (see `_hours`); None: their cells have to."""
        if self.by_cells or self.filter.name is not None:
            return None
        return _SIDES.get(self.group_by, AS_WHOLE)

    def parts(self, db: sqlite3.Connection) -> Iterator[tuple[Place, Part]]:
        """What hours that are added up have in a bucket and group. Raises `ValueError` where one is damaged."""
        least, most = self._shown()
        environment = self.filter.environment
        for bucket, project, data in self._added_up(db) if self.side is not None else ():
            for part in parts(data):
                if least <= part.shown <= most and environment in (None, part.environment):
                    if self.group_by in ("project", "environment"):
                        part.group = project if self.group_by == "project" else part.environment
                    yield (bucket, part.group), part

    def _added_up(self, db: sqlite3.Connection) -> Iterator[tuple[int, str, bytes]]:
        where, bounds = self._within(_HOURS)
        project = self.filter.project
        only, values = ("", []) if project is None else (" AND h.project = ?", [project])
        sql = _ADDED_UP.format(bucket=self._bucket(_HOURS), where=where + only)
        return db.execute(sql, (self.side, *bounds, *values))

    def counts(self, db: sqlite3.Connection) -> Iterator[Any]:
        """Rows of bucket, group, traces, errors, input and output tokens, cost, first and last hour; of a bucket and
        group there may be more than one.
        """
        return self._ask(db, _COUNTS)

    def said(self, db: sqlite3.Connection) -> Iterator[Any]:
        """As the rows of `_aggregate._FEEDBACK`."""
        for row in self._ask(db, _SAID):
            yield row if row[3] is None else (*row[:3], row[3][1:], *row[4:])

    def latencies(self, db: sqlite3.Connection, places: set[Place]) -> dict[Place, Counter[int]]:
        """Bins of buckets and groups."""
        blobs: dict[Place, list[bytes]] = {place: [] for place in places}
        for bucket, group, blob in self._ask(db, _LATENCIES, added_up=True) if blobs else ():
            if (bucket, group) in blobs:
                blobs[bucket, group].append(blob)
        return {place: unpacked(some) for place, some in blobs.items()}

    def ordered(self, db: sqlite3.Connection) -> Iterator[tuple[int, str | None, bytes]]:
        """Latencies in order, by bucket and group, where these are ready."""
        return self._ask(db, _ORDERED)

    def not_in_order(self, db: sqlite3.Connection) -> Iterator[Stretch]:
        """The stretches of time of which `ordered` has nothing, or not all."""
        where, values = self._within(_HOURS)
        sql = f"SELECT p.hour FROM sums_hours p WHERE {where} AND p.rest <> {READY} ORDER BY p.hour"
        return joined([stretch(row[0]) for row in db.execute(sql, values)])

    def _ask(self, db: sqlite3.Connection, sql: str, added_up: bool = False) -> Iterator[Any]:
        """`added_up`: also of hours of which there are `parts`."""
        wanted, values = self._wanted()
        for level in self._levels():
            where, bounds = self._within(level)
            if level is _HOURS and self.side is not None and not added_up:
                where = f"{where} AND p.rest <> {READY}"
            parts = {"level": level, "bucket": self._bucket(level), "group": _GROUPS[self.group_by]}
            yield from db.execute(sql.format(**parts, where=f"{where} AND {wanted}"), (*bounds, *values))

    def _bucket(self, level: _Level) -> str:
        return f"{level.start} / {self.bucket_ns} * {self.bucket_ns}" if self.bucket_ns else "0"

    def _levels(self) -> tuple[_Level, ...]:
        """Days only where they are in one bucket each."""
        return (_HOURS,) if (self.bucket_ns or 0) % DAY_NS else (_HOURS, _DAYS)

    def _within(self, level: _Level) -> tuple[str, list[Any]]:
        """Which hours, or which days: none that is in the other, too."""
        first = self.first if self.first is not None else -(2**62)
        last = self.last if self.last is not None else 2**62
        days = [max(1, -(-first // 24)), (last + 1) // 24 - 1]  # whole ones
        if level is _DAYS:
            return f"p.rest = {READY} AND p.day BETWEEN ? AND ?", days
        where, bounds = "p.state = 0 AND p.hour BETWEEN ? AND ?", [first, last]
        if _DAYS in self._levels():
            ready = f"SELECT day FROM sums_days WHERE rest = {READY} AND day BETWEEN ? AND ?"
            where, bounds = f"{where} AND p.hour / 24 NOT IN ({ready})", [*bounds, *days]
        return where, bounds

    def _shown(self) -> tuple[int, int]:
        """The least and the greatest `shown` of what is asked for."""
        least = LIVE if self.filter.leaves_out_judgements else OWN
        return least, LIVE if self.filter.experiment is not None else OF_EXPERIMENT

    def _wanted(self) -> tuple[str, list[Any]]:
        wanted = [f"s.model {'<>' if self.group_by == 'model' else '='} '{WHOLE}'"]
        wanted.append("s.shown BETWEEN {} AND {}".format(*self._shown()))
        asked = [(name, getattr(self.filter, name)) for name in _ANSWERED]
        wanted += [f"s.{name} = ?" for name, value in asked if value is not None]
        return " AND ".join(wanted), [value for _, value in asked if value is not None]


def asked(filter: Filter, bucket_ns: int | None, group_by: str | None) -> Question | None:
    """What the sums are asked; None where they cannot answer any of it."""
    if group_by not in _GROUPS or (bucket_ns is not None and bucket_ns % HOUR_NS):
        return None
    since, until = filter.since_ns, filter.until_ns
    answered: dict[str, Any] = dict.fromkeys(("since_ns", "until_ns", "experiment", *_ANSWERED))
    if filter.experiment or replace(filter, **answered) != _NOTHING:  # "" is of no experiment
        return None
    if (since is not None and not 0 <= since <= INT_MAX - HOUR_NS) or (until is not None and until < HOUR_NS):
        return None  # before 1970 hours are not cut as they are later; after the last there is none to begin with
    first = max(1, -(-since // HOUR_NS)) if since is not None else None
    last = until // HOUR_NS - 1 if until is not None else None
    if first is not None and last is not None and last < first:
        return None
    return Question(filter, bucket_ns, group_by, first, last)


def in_rows(db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, enough: int) -> int:
    """How many traces of an aggregate have to be counted one by one, as far as the hours tell; no more than `enough`
    and one are looked for.
    """
    question = asked(filter, bucket_ns, group_by)
    if question is None:
        return enough + 1
    started = "SELECT 1 FROM traces INDEXED BY traces_by_start WHERE start_ns >= ? AND start_ns < ? LIMIT ?"
    found = 0
    for since, until in from_rows(db, question):
        asked_for = (since, min(until or INT_MAX, INT_MAX), enough + 1)
        found += db.execute(f"SELECT count(*) FROM ({started})", asked_for).fetchone()[0]
        if found > enough:
            break
    return found


def from_rows(db: sqlite3.Connection, question: Question) -> list[Stretch]:
    """The stretches of time of a question that its sums do not cover: its ends, and hours that are not counted now."""
    found: list[Stretch] = []
    since, until, first, last = question.filter.since_ns, question.filter.until_ns, question.first, question.last
    if since is not None and first is not None and since < first * HOUR_NS:
        found.append((since, first * HOUR_NS))
    sql = "SELECT hour FROM sums_hours WHERE state > 0 AND hour >= ? AND hour <= ? ORDER BY hour"
    bounds = (first if first is not None else -(2**62), last if last is not None else 2**62)
    found += [stretch(row[0]) for row in db.execute(sql, bounds)]
    if until is not None and last is not None and (last + 1) * HOUR_NS < until:
        found.append(((last + 1) * HOUR_NS, until))
    return list(joined(found))


def joined(stretches: Sequence[Stretch]) -> Iterator[Stretch]:
    """Those that touch as one."""
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
