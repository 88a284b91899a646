"""What the hourly sums answer, and for which stretches of time the rows have to."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from assay.collector.filters import Filter
from assay.collector.stores.sqlite._counted import HOUR_NS, OF_EXPERIMENT, OWN, WHOLE, stretch
from assay.collector.stores.sqlite._latencies import unpacked
from assay.collector.stores.sqlite._values import INT_MAX

Place: TypeAlias = tuple[int, str | None]  # start of a bucket, group
Stretch: TypeAlias = tuple[int | None, int | None]  # since, until
EVERYTHING: Stretch = (None, None)

_ANSWERED = ("project", "environment", "name")
_GROUPS = {None: "NULL", "project": "s.project", "environment": "s.environment", "name": "s.name"}
_GROUPS["model"] = "substr(s.model, 2)"
_NOTHING = Filter()
_COUNTS = (
    "SELECT {bucket} AS b, {group} AS g, sum(s.n), sum(s.errors), total(s.input_tokens), total(s.output_tokens),"
    " total(s.cost), min(s.hour), max(s.hour) FROM sums s WHERE {where} GROUP BY b, g"
)
_LATENCIES = "SELECT {bucket} AS b, {group} AS g, s.latencies FROM sums s WHERE {where}"
_SAID = (
    "SELECT {bucket} AS b, {group} AS g, f.key, f.label, sum(f.said), sum(f.n), total(f.total), min(f.minimum),"
    " max(f.maximum), sum(f.failed), sum(f.skipped) FROM sums s CROSS JOIN sums_said f ON f.cell = s.id WHERE {where}"
    " GROUP BY b, g, f.key, f.label ORDER BY b, g, f.key, f.label"
)


@dataclass(frozen=True, slots=True)
class Question:
    """An aggregate that the sums of hours `first` to `last` (both included, None: all) answer in part."""

    filter: Filter
    bucket_ns: int | None
    group_by: str | None
    first: int | None = None
    last: int | None = None

    def counts(self, db: sqlite3.Connection) -> list[Any]:
        """Rows of bucket, group, traces, errors, input and output tokens, cost, first and last hour."""
        sql, values = self._sql(_COUNTS)
        return db.execute(sql, values).fetchall()

    def traces(self, db: sqlite3.Connection) -> int:
        """How many traces the sums of all hours asked for have, whatever their project, environment and name."""
        whole = replace(self, filter=replace(self.filter, project=None, environment=None, name=None))
        return sum(row[2] for row in whole.counts(db))

    def said(self, db: sqlite3.Connection) -> Iterator[Any]:
        """As the rows of `_aggregate._FEEDBACK`."""
        sql, values = self._sql(_SAID)
        for bucket, group, key, label, *counts in db.execute(sql, values):
            yield bucket, group, key, label[1:] if label else None, *counts

    def latencies(self, db: sqlite3.Connection, places: set[Place]) -> dict[Place, Counter[int]]:
        """Bins of buckets and groups."""
        sql, values = self._sql(_LATENCIES)
        blobs: dict[Place, list[bytes]] = {place: [] for place in places}
        for bucket, group, blob in db.execute(sql, values):
            if (bucket, group) in blobs:
                blobs[bucket, group].append(blob)
        return {place: unpacked(some) for place, some in blobs.items()}

    def _sql(self, sql: str) -> tuple[str, list[Any]]:
        where, values = self._where()
        bucket = f"s.hour * {HOUR_NS} / {self.bucket_ns} * {self.bucket_ns}" if self.bucket_ns else "0"
        return sql.format(bucket=bucket, group=_GROUPS[self.group_by], where=where), values

    def _where(self) -> tuple[str, list[Any]]:
        kept = f"s.model {'<>' if self.group_by == 'model' else '='} '{WHOLE}'"
        wanted = [kept, "s.hour NOT IN (SELECT hour FROM sums_hours WHERE state > 0)"]
        if self.filter.leaves_out_judgements:
            wanted.append(f"s.shown > {OWN}")
        if self.filter.experiment is not None:
            wanted.append(f"s.shown < {OF_EXPERIMENT}")
        values: list[Any] = []
        for sql, value in (
            ("s.hour >= ?", self.first),
            ("s.hour <= ?", self.last),
            *((f"s.{name} = ?", getattr(self.filter, name)) for name in _ANSWERED),
        ):
            if value is not None:
                wanted.append(sql)
                values.append(value)
        return " AND ".join(wanted), values


def asked(filter: Filter, bucket_ns: int | None, group_by: str | None) -> Question | None:
    """What the sums are asked; None where they cannot answer any of it."""
    if group_by not in _GROUPS or (bucket_ns is not None and bucket_ns % HOUR_NS):
        return None
    since, until = filter.since_ns, filter.until_ns
    answered: dict[str, Any] = dict.fromkeys(("since_ns", "until_ns", "experiment", *_ANSWERED))
    if filter.experiment or replace(filter, **answered) != _NOTHING:  # "" is of no experiment
        return None
    if (since is not None and since < 0) or (until is not None and until < HOUR_NS):
        return None  # before 1970: hours are not cut as they are later
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
    found: list[tuple[int, int]] = []
    since, until, first, last = question.filter.since_ns, question.filter.until_ns, question.first, question.last
    if since is not None and first is not None and since < first * HOUR_NS:
        found.append((since, first * HOUR_NS))
    sql = "SELECT hour FROM sums_hours WHERE state > 0 AND hour >= ? AND hour <= ? ORDER BY hour"
    bounds = (first if first is not None else -(2**62), last if last is not None else 2**62)
    found += [stretch(row[0]) for row in db.execute(sql, bounds)]
    if until is not None and last is not None and (last + 1) * HOUR_NS < until:
        found.append(((last + 1) * HOUR_NS, until))
    return list(joined(found))


def joined(stretches: Sequence[tuple[int, int]]) -> Iterator[Stretch]:
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
