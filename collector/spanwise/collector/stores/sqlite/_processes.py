"""Processes that send spans: how many of theirs were stored, and what they said last of all of theirs."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from spanwise.collector.records import JSON, Process, ProcessReport
from spanwise.collector.stores.sqlite._clock import Clock
from spanwise.collector.stores.sqlite._sql import overwrite
from spanwise.collector.stores.sqlite._values import INT_MAX, clean, dumps, loads
from spanwise.tracer import attributes as names

MOST = 10_000
REASONS = 50  # of a report, for dropping spans
LONGEST = 200  # characters of an instance's name
_COUNTS = ("started", "open", "delivered", "spilled", "pending")
_WHOSE = ("service", "project", "environment", "pid")
_REPORT = ("instance", "seen_ns", *_WHOSE, "reported_ns", "progress", "report")
_STORED = (
    f"INSERT INTO processes (instance, stored, seen_ns, {','.join(_WHOSE)}) VALUES (?,?,?,?,?,?,?)"
    " ON CONFLICT (instance) DO UPDATE SET stored = stored + excluded.stored, seen_ns = excluded.seen_ns"
)
_REPORTED = (
    f"INSERT INTO processes ({','.join(_REPORT)}) VALUES (?,?,?,?,?,?,?,?,?) {overwrite(_REPORT)}"
    " WHERE excluded.progress >= coalesce(processes.progress, 0)"
)
_OLDEST = "instance IN (SELECT instance FROM processes ORDER BY seen_ns DESC LIMIT -1 OFFSET ?)"


class Origin(NamedTuple):
    """The process that a resource names."""

    instance: str
    service: str | None
    pid: int | None


def origin(resource: Mapping[str, JSON]) -> Origin | None:
    """The process of a resource; None for one that names none."""
    instance, service, pid = (resource.get(name) for name in (names.INSTANCE, "service.name", names.REPORT_PID))
    if not isinstance(instance, str) or not 0 < len(instance) <= LONGEST:
        return None
    return Origin(instance, service if isinstance(service, str) else None, pid if isinstance(pid, int) else None)


class Processes:
    """The writer's hand on its table."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock, self.most = db, clock, MOST
        self._untrimmed = MOST

    def count(self, arrived: Counter[tuple[Origin, str, str]]) -> None:
        """Count spans that are new here, by process, project and environment."""
        now = self._clock.now()
        rows = [
            (whose.instance, count, now, whose.service, project, environment, whose.pid)
            for (whose, project, environment), count in arrived.items()
        ]
        self._db.executemany(_STORED, rows)
        self._trim(len(rows))

    def report(self, reports: Sequence[ProcessReport]) -> None:
        """Keep reports that are newer than what is here."""
        now = self._clock.now()
        self._db.executemany(_REPORTED, [_row(report, now) for report in reports])
        self._trim(len(reports))

    def _trim(self, written: int) -> None:
        self._untrimmed += written
        if self._untrimmed > self.most // 10:
            self._untrimmed = 0
            self._db.execute(f"DELETE FROM processes WHERE {_OLDEST}", (self.most,))


def _row(report: ProcessReport, now: int) -> tuple[Any, ...]:
    counts: dict[str, JSON] = {name: _count(getattr(report, name)) for name in _COUNTS}
    dropped = {str(reason)[:64]: _count(count) for reason, count in islice(report.dropped.items(), REASONS)}
    whose = (clean(getattr(report, name)) for name in _WHOSE)
    # A process's clock may be set back; these never fall, so that they tell which of two reports is the later one
    progress = _count(report.started + report.delivered + sum(report.dropped.values()))
    said = dumps({**counts, "dropped": dropped})
    return (clean(report.instance), now, *whose, _count(report.reported_ns), progress, said)


def _count(value: int) -> int:
    return max(0, min(value, INT_MAX))


def stored(db: sqlite3.Connection, since_ns: int | None, limit: int) -> list[Process]:
    """Processes, latest first."""
    columns = f"instance, stored, seen_ns, {','.join(_WHOSE)}, reported_ns, report"
    sql = f"SELECT {columns} FROM processes WHERE seen_ns >= ? ORDER BY seen_ns DESC, instance LIMIT ?"
    return [_read(row) for row in db.execute(sql, (since_ns or 0, limit))]


def _read(row: Sequence[Any]) -> Process:
    instance, count, seen_ns = row[:3]
    whose: dict[str, Any] = dict(zip(_WHOSE, row[3:7], strict=True))
    said = None
    if row[8] is not None:
        said = ProcessReport(instance=instance, reported_ns=row[7], **whose, **loads(row[8]))
    return Process(instance=instance, stored=count, seen_ns=seen_ns, **whose, report=said)
