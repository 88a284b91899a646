"""Runs that have started and of which no end has come: beside the runs, and gone with the first sign of their end."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from spanwise.collector.records import OpenRun
from spanwise.collector.stores.sqlite._clock import Clock
from spanwise.collector.stores.sqlite._sql import find_many, insert_many
from spanwise.collector.stores.sqlite._values import INT_MAX, clean

MOST = 10_000  # are kept
OLDEST_NS = 7 * 86_400 * 10**9  # since it was said: by then its process has died
LONGEST = 1000  # characters of a text
COLUMNS = tuple(field.name for field in fields(OpenRun))
_ALONE = "NOT EXISTS (SELECT 1 FROM traces t WHERE t.trace_id = o.trace_id AND t.span_count > 0)"
_SELECT = f"SELECT {','.join(f'o.{name}' for name in COLUMNS)} FROM open_runs o"


class Running:
    """What the writer remembers of its table, so that a trace without open runs costs one look into a dict."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock, self.most = db, clock, MOST
        self._of: dict[str, dict[str, str | None]] = {}  # trace → span → local root
        self._next_look = 0.0  # for old ones
        self.forget()

    def __bool__(self) -> bool:
        """Whether any is open."""
        return bool(self._of)

    def forget(self) -> None:
        """Read the table again: after a rollback what is remembered may be wrong."""
        self._of.clear()
        for trace, span, local_root in self._db.execute("SELECT trace_id, span_id, local_root FROM open_runs"):
            self._of.setdefault(trace, {})[span] = local_root

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Drop what is remembered of traces that went."""
        for trace_id in trace_ids:
            self._of.pop(trace_id, None)

    def left(self, trace_id: str, key: int, new: Iterable[str], *, settled: bool) -> int:
        """How many runs of a trace are open, now that these spans have come; those that have ended are removed.

        Where a trace is settled, a run below a local root that has arrived has been dropped by its process.
        """
        still_open = self._of.get(trace_id)
        if still_open is None:
            return 0
        ended = {span for span in new if span in still_open}
        if settled:
            roots = {root for root in still_open.values() if root is not None}
            sql = "SELECT span_id FROM spans WHERE trace = ? AND span_id IN (%s)"
            here = {row[0] for row in find_many(self._db, sql, roots, (key,))}
            ended |= {span for span, root in still_open.items() if root in here}
        self._remove([(trace_id, span) for span in ended])
        return len(still_open)

    def add(self, runs: Sequence[OpenRun]) -> tuple[set[str], set[str]]:
        """Keep those that are news. Returns their traces, and those that must be rolled up again, as old runs of theirs
        went.
        """
        news = {(run.trace_id, run.span_id): run for run in map(_kept, runs) if self._is_news(run)}
        now = self._clock.now()
        insert_many(self._db, "open_runs", (*COLUMNS, "seen_ns"), [(*_row(run), now) for run in news.values()])
        for run in news.values():
            self._of.setdefault(run.trace_id, {})[run.span_id] = run.local_root
        mark = "UPDATE traces SET running = running + 1, complete = 0, updated_ns = ? WHERE trace_id = ?"
        self._db.executemany(mark, [(now, trace_id) for trace_id, _ in news])
        return {trace_id for trace_id, _ in news}, self._trim()

    def expire(self, before_ns: int, project: str | None) -> None:
        """Remove those that began before a time, of traces that have nothing else; others go with their traces."""
        sql = f"SELECT o.trace_id, o.span_id FROM open_runs o WHERE {_ALONE} AND o.start_ns < ?"
        asked = "" if project is None else " AND o.project = ?"
        self._remove(self._db.execute(sql + asked, (before_ns, *([project] if asked else ()))).fetchall())

    def _is_news(self, run: OpenRun) -> bool:
        if run.span_id in self._of.get(run.trace_id, ()):
            return False
        here = "EXISTS (SELECT 1 FROM spans s WHERE s.trace = t.id AND s.span_id = ?)"
        sql = f"SELECT {here} OR (t.complete IS 1 AND {here}) FROM traces t WHERE t.trace_id = ?"
        row = self._db.execute(sql, (run.span_id, run.local_root, run.trace_id)).fetchone()
        return row is None or not row[0]

    def _trim(self) -> set[str]:
        """Remove what is too old, and a tenth more than is too much, as looking for it takes a walk over the table."""
        count = sum(map(len, self._of.values()))
        beyond = count - self.most + self.most // 10 if count > self.most else 0
        if not beyond and time.monotonic() < self._next_look:
            return set()
        self._next_look = time.monotonic() + 60
        sql = "SELECT trace_id, span_id, seen_ns < ? FROM open_runs ORDER BY seen_ns, start_ns"
        oldest = self._db.execute(sql, (self._clock.now() - OLDEST_NS,)).fetchall()
        going = [(trace, span) for place, (trace, span, old) in enumerate(oldest) if old or place < beyond]
        self._remove(going)
        return {trace for trace, _ in going}

    def _remove(self, keys: Sequence[tuple[str, str]]) -> None:
        self._db.executemany("DELETE FROM open_runs WHERE trace_id = ? AND span_id = ?", keys)
        for trace_id, span_id in keys:
            del self._of[trace_id][span_id]
            if not self._of[trace_id]:
                del self._of[trace_id]


def _kept(run: OpenRun) -> OpenRun:
    """As a table can hold it."""
    given = {name: clean(getattr(run, name)) for name in COLUMNS}
    texts = {name: value[:LONGEST] for name, value in given.items() if isinstance(value, str)}
    return OpenRun(**{**given, **texts, "start_ns": max(0, min(run.start_ns, INT_MAX))})


def _row(run: OpenRun) -> tuple[Any, ...]:
    return tuple(getattr(run, name) for name in COLUMNS)


def stored(
    db: sqlite3.Connection, trace_id: str | None, project: str | None, environment: str | None, limit: int
) -> list[OpenRun]:
    """Open runs, latest start first."""
    asked = {"trace_id": trace_id, "project": project, "environment": environment}
    given = {name: value for name, value in asked.items() if value is not None}
    where = [f"o.{name} = ?" for name in given]
    sql = f"{_SELECT} WHERE {' AND '.join(where) or '1'} ORDER BY o.start_ns DESC, o.span_id LIMIT ?"
    return [_read(row) for row in db.execute(sql, (*given.values(), limit))]


def of_traces(db: sqlite3.Connection, trace_ids: Iterable[str]) -> dict[str, list[OpenRun]]:
    """Open runs by trace, by start time."""
    by_trace: dict[str, list[OpenRun]] = {}
    for row in find_many(db, f"{_SELECT} WHERE o.trace_id IN (%s) ORDER BY o.start_ns", trace_ids):
        by_trace.setdefault(row[0], []).append(_read(row))
    return by_trace


def _read(row: Sequence[Any]) -> OpenRun:
    return OpenRun(**dict(zip(COLUMNS, row, strict=True)))
