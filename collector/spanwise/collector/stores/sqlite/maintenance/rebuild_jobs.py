"""Background jobs: rebuild trace summaries and stale hourly rollups, seal finished hours and days.

What comes for such a trace while it is read is noted, and taken in at the end. If that is too much, or takes the place
of what was read, it is tried again. The mark (`states.data` is None) stays until then, also when the process dies.

What changes in an hour meanwhile is noted by `Sums.watch` and put on top, so that an hour into which something is
written all the time is counted, too. The snapshot and the notes begin between the same two commits.

Of an hour these are the latencies of each cell in order, so that exact percentiles read no rows, what its cells add up
to (`_hours`), and which names its runs have (it may be said of more); of a day its sums, with latencies in order. An
hour is at rest when it is over and nothing has changed in it between two looks. Who changes it afterwards says so in
the same transaction (`Sums`, the column `rest`): then it is asked as before, and made ready again later.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TypeVar

from spanwise.collector.errors import StoreError, Unavailable
from spanwise.collector.stores.sqlite.database.bulk_statements import insert_many
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.rollups import sealed_rollups
from spanwise.collector.stores.sqlite.rollups.hourly_rollups import CHANGED, SEALED, SEALED_EMPTY, STALE, HourlyRollups
from spanwise.collector.stores.sqlite.rollups.rollup_delta import HOUR_NS, MAX_HOUR_ROWS, RollupDelta, sum_hour
from spanwise.collector.stores.sqlite.rollups.sealed_rollups import (
    DayRows,
    build_day,
    collect_latencies,
    collect_names,
    insert_day,
)
from spanwise.collector.stores.sqlite.write.incremental_summary import IncrementalSummary, LocalRootUpdate
from spanwise.collector.stores.sqlite.write.span_nodes import COST_FLAG, TOKENS_FLAG, TraceNodes
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.sqlite.write.trace_cache import MAX_REBUILD_SPANS, read_flags

log = logging.getLogger("spanwise.collector")

T = TypeVar("T")
OpenReader = Callable[[], AbstractContextManager[Reader]]
RunOnWriter = Callable[[Callable[[sqlite3.Connection], bool]], bool]

ROWS_PER_STEP = 500  # spans, flags or records that are read, or written, at once
RETRY_SECONDS = 30  # seconds
SUMMARY_REST_FACTOR = 4  # times as long as it took nothing is summed up then
_SELECT_DUE_TRACE = (
    "SELECT s.trace, t.trace_id FROM states s JOIN traces t ON t.id = s.trace"
    " WHERE s.data IS NULL AND s.trace > ? AND t.span_count <= ? ORDER BY s.trace LIMIT 1"
)


class SummarizedTrace(NamedTuple):
    """A trace as it was read: its state, its spans, and the flags that these have had in the file, by row."""

    state: IncrementalSummary
    spans: TraceNodes
    flags: dict[int, int]
    last: int  # row


class RebuildCancelled(Exception):
    """The store is closed meanwhile."""


class SummaryRebuilder:
    """Sums up one trace a round, if one is due. For the thread behind the writer.

    `read` gives a reader in a snapshot of the file, `do` has the writer do something and waits until it is durable.
    """

    def __init__(self, appender: Appender, read: OpenReader, do: RunOnWriter, stop: threading.Event) -> None:
        self._appender, self._read_file, self._do, self._stop = appender, read, do, stop
        self._next, self._last = 0.0, 0

    def round(self) -> bool:
        """Whether there was one."""
        if time.monotonic() < self._next:
            return False
        due = self._due()
        if due is None:
            self._last = 0
            return False
        began = time.monotonic()
        self._last = due[0]
        try:
            self.sum_up(*due)
        except Unavailable:
            raise
        except StoreError as error:
            log.warning("trace %s cannot be summed up anew: %s; it is tried again", due[1], error)
            began -= RETRY_SECONDS / SUMMARY_REST_FACTOR
        self._next = time.monotonic() + SUMMARY_REST_FACTOR * (time.monotonic() - began)
        return True

    def _due(self) -> tuple[int, str] | None:
        with self._read_file() as reader:
            found: tuple[int, str] | None = reader.db.execute(
                _SELECT_DUE_TRACE, (self._last, MAX_REBUILD_SPANS)
            ).fetchone()
        return found

    def sum_up(self, key: int, trace_id: str) -> bool:
        """Sum up a trace; whether that is written now."""
        noted = self._appender.noted
        self._do(partial(self._note, trace_id))
        try:
            with self._read_file() as reader:
                read = self._read(reader, key)
            steps = (partial(self._unless_overtaken, trace_id, step) for step in self._steps(key, read))
            return all(map(self._do, steps)) and self._do(partial(self._install, trace_id, read))
        except RebuildCancelled:
            return False
        finally:
            noted.pop(trace_id, None)

    def _note(self, trace_id: str, _: sqlite3.Connection) -> bool:
        """Have it noted what comes to a trace from now on."""
        self._appender.noted[trace_id] = set()
        return True

    def _unless_overtaken(
        self, trace_id: str, step: Callable[[sqlite3.Connection], object], db: sqlite3.Connection
    ) -> bool:
        if self._appender.noted.get(trace_id) is None or self._stop.is_set():
            return False
        step(db)
        return True

    def _read(self, reader: Reader, key: int) -> SummarizedTrace:
        rows = [row[0] for row in reader.db.execute("SELECT id FROM spans WHERE trace = ? ORDER BY id", (key,))]
        read = SummarizedTrace(IncrementalSummary(key), TraceNodes(), {}, rows[-1] if rows else 0)
        due: list[LocalRootUpdate] = []
        for some in _split_rows(rows):
            began = time.monotonic()
            due += read.state.gather([(one.row, one.fact) for one in reader.in_rows("", some)], read.spans)
            read.flags.update(read_flags(reader.db, some))
            read.spans.facts.clear()
            if self._stop.wait(min(time.monotonic() - began, 0.1)):  # the writer's turn
                raise RebuildCancelled
        read.state.settle(due, read.spans)
        return read

    def _steps(self, key: int, read: SummarizedTrace) -> Iterator[Callable[[sqlite3.Connection], object]]:
        nodes = [one for one in read.spans.known.values() if one is not None]
        changed = [(one.row, one.below) for one in nodes if one.below != read.flags[one.row]]
        for flags in _split_rows(changed):
            yield partial(_write_flags, flags)
        for ledger in (read.state.orphans, read.state.local_roots):
            yield ledger.clear(key)
            yield from ledger.writes(key, ROWS_PER_STEP)

    def _install(self, trace_id: str, read: SummarizedTrace, _: sqlite3.Connection) -> bool:
        noted = self._appender.noted.get(trace_id)
        if noted is None or any(-row <= read.last for row in noted if row < 0):
            return False
        rows = sorted({abs(row) for row in noted if abs(row) > read.last})
        return self._appender.install(trace_id, read.state, rows)


def _split_rows(some: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(some), ROWS_PER_STEP):
        yield some[start : start + ROWS_PER_STEP]


def _write_flags(flags: Sequence[tuple[int, int]], db: sqlite3.Connection) -> None:
    rows = [(below & TOKENS_FLAG, below // COST_FLAG, row) for row, below in flags]
    db.executemany("UPDATE spans SET tokens_below = ?, cost_below = ? WHERE id = ?", rows)


PAUSE_SECONDS = 0.002  # seconds: others compute, too
RECOUNT_REST_FACTOR = 20  # times as long as it took, an hour is left alone before it is counted again
ROUND_SECONDS = 0.5  # seconds after which no other hour is begun before what else there is to do


class RollupRecounter:
    """Counts hours anew, one after the other, the latest first."""

    def __init__(self, file: DatabaseFile, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._not_before: dict[int, float] = {}

    def round(self) -> bool:
        """Count what is due, for about `ROUND` seconds; whether there was any."""
        due, start = self._due(), time.monotonic()
        for hour, state in due:
            began = time.monotonic()
            if self._stop.is_set() or began > start + ROUND_SECONDS:
                break
            if state == STALE:
                self.ended(hour, self.begun(hour))
            else:
                self._file.writer.call(partial(self._empty, hour))
            now = time.monotonic()
            self._not_before[hour] = now + RECOUNT_REST_FACTOR * (now - began)
        return bool(due)

    def _due(self) -> list[tuple[int, int]]:
        now = time.monotonic()
        self._not_before = {hour: then for hour, then in self._not_before.items() if then > now}
        with self._file.read() as reader:
            # One that is wild is only emptied
            sql = "SELECT hour, state FROM sums_hours WHERE state > 0 AND (state = 1 OR rows <> 0) ORDER BY hour DESC"
            return [row for row in reader.db.execute(sql) if row[0] not in self._not_before]

    def begun(self, hour: int) -> RollupDelta | None:
        """What the rows of an hour add up to, from when on its changes are noted."""
        sums = self._file.appender.sums
        with self._file.read() as reader:
            self._file.writer.alone(lambda _: _begin_recount(reader.db, sums, hour))
            return sum_hour(reader.db, hour, lambda: self._stop.wait(PAUSE_SECONDS))

    def ended(self, hour: int, counted: RollupDelta | None) -> None:
        """Put it in place of the sums of the hour."""
        self._file.writer.call(partial(self._put, hour, counted))

    def _empty(self, hour: int, _: sqlite3.Connection) -> None:
        self._file.appender.sums.empty(hour)

    def _put(self, hour: int, counted: RollupDelta | None, _: sqlite3.Connection) -> None:
        sums = self._file.appender.sums
        changed = sums.watched(hour)
        if changed is not None:  # else something was rolled back, or cannot be counted: once more, later
            sums.put(hour, counted, changed)


def _begin_recount(db: sqlite3.Connection, sums: HourlyRollups, hour: int) -> None:
    """Have the reader's transaction see the file as it is now, and note what changes from now on."""
    db.execute("SELECT 1 FROM sums_hours LIMIT 1").fetchall()
    sums.watch(hour)


LOOK_SECONDS = 30.0  # seconds between two looks
MAX_DAY_ROWS = 5 * MAX_HOUR_ROWS  # rows of its hours, that are read to make a day of them

_SELECT_DUE_DAYS = (
    "SELECT day FROM sums_days WHERE rest = 0"
    " UNION SELECT DISTINCT hour / 24 FROM sums_hours WHERE hour >= 24 AND hour / 24 NOT IN (SELECT day FROM sums_days)"
    " ORDER BY 1 DESC"
)
_SELECT_HOURS_OF_DAY = "SELECT state, rest, rows FROM sums_hours WHERE hour BETWEEN ? AND ?"
_SELECT_NAMES = "SELECT name, hour FROM sums_names WHERE hour BETWEEN ? AND ?"
_IGNORE_CONFLICT = "ON CONFLICT DO NOTHING"
_REPLACE_LATENCIES = "ON CONFLICT (cell) DO UPDATE SET data = excluded.data"


class PeriodSealer:
    """Makes ready what is at rest, the latest first."""

    def __init__(self, file: DatabaseFile, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._next = time.monotonic() + LOOK_SECONDS
        self._hours: list[int] = []
        self._days: list[int] = []

    def round(self) -> bool:
        """Make ready what is due, for about `ROUND` seconds; whether there is more."""
        began = time.monotonic()
        if not (self._hours or self._days):
            if began < self._next:
                return False
            self.look()
            self._next = time.monotonic() + LOOK_SECONDS
        while (self._hours or self._days) and time.monotonic() < began + ROUND_SECONDS and not self._stop.is_set():
            if self._hours:
                self.make_hour(self._hours.pop())
            else:
                self.make_day(self._days.pop())
        return bool(self._hours or self._days)

    def look(self) -> None:
        """Find what is due: days after their hours."""
        stirred = set[int]()
        self._file.writer.alone(lambda _: stirred.update(self._file.appender.sums.rested()))
        now = self._file.clock.now() // HOUR_NS
        with self._file.read() as reader:
            hours = reader.db.execute("SELECT hour FROM sums_hours WHERE state = 0 AND rest = 0 ORDER BY hour")
            self._hours = [hour for (hour,) in hours if hour < now and hour not in stirred]
            days = reader.db.execute(_SELECT_DUE_DAYS).fetchall()
        moved = {hour // 24 for hour in stirred}
        self._days = [day for (day,) in reversed(days) if day < now // 24 and day not in moved]

    def make_hour(self, hour: int) -> None:
        """Put the latencies of an hour in order, add up its cells, and note the names of its runs."""
        with self._file.read() as reader:
            latencies = collect_latencies(reader.db, hour, lambda: self._stop.wait(PAUSE_SECONDS))
            rows = None if latencies is None else sealed_rollups.build_hour(reader.db, hour, latencies)
            named = collect_names(reader.db, hour)
        self._file.writer.call(partial(self._put_hour, hour, latencies, rows, named), patient=True)

    def _put_hour(
        self,
        hour: int,
        latencies: dict[int, bytes] | None,
        rows: Sequence[sealed_rollups.HourRow] | None,
        named: Sequence[str] | None,
        db: sqlite3.Connection,
    ) -> None:
        sums = self._file.appender.sums
        if hour in sums.stirred:
            return
        insert_many(db, "sums_latencies", ("cell", "data"), list((latencies or {}).items()), _REPLACE_LATENCIES)
        sealed_rollups.put_hour(db, hour, rows or ())
        insert_many(db, "sums_names", ("name", "hour"), [(name, hour) for name in named or ()], _IGNORE_CONFLICT)
        rest = SEALED_EMPTY if rows is None else SEALED
        sql = "UPDATE sums_hours SET rest = ?, named = ? WHERE hour = ? AND state = 0"
        db.execute(sql, (rest, named is not None, hour))
        sums.made_ready()

    def make_day(self, day: int) -> None:
        """Add up the hours of a day."""
        with self._file.read() as reader:
            hours = reader.db.execute(_SELECT_HOURS_OF_DAY, (24 * day, 24 * day + 23)).fetchall()
            if any(state > 0 or rest == CHANGED for state, rest, _ in hours):
                return
            found = build_day(reader.db, day) if sum(row[2] for row in hours) <= MAX_DAY_ROWS else None
            gone = reader.db.execute(_SELECT_NAMES, (24 * day, 24 * day + 23)).fetchall() if not hours else []
        self._file.writer.call(partial(self._put_day, day, found, gone), patient=True)

    def _put_day(self, day: int, found: DayRows | None, gone: list[tuple[str, int]], db: sqlite3.Connection) -> None:
        sums = self._file.appender.sums
        if any(hour // 24 == day for hour in sums.stirred):
            return
        db.execute("DELETE FROM sums_said_of_days WHERE cell IN (SELECT id FROM sums_of_days WHERE day = ?)", (day,))
        db.execute("DELETE FROM sums_of_days WHERE day = ?", (day,))
        db.execute("DELETE FROM sums_days WHERE day = ?", (day,))
        db.executemany("DELETE FROM sums_names WHERE name = ? AND hour = ?", gone)
        if found is None or len(found.rows) + len(found.said) > MAX_HOUR_ROWS:
            db.execute("INSERT INTO sums_days VALUES (?, ?)", (day, SEALED_EMPTY))
        elif found.rows:
            insert_day(db, day, found)
            db.execute("INSERT INTO sums_days VALUES (?, ?)", (day, SEALED))
        sums.made_ready()
