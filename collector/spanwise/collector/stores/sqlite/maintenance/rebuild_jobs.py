"""Background jobs: rebuild trace summaries and stale hourly rollups, seal finished hours and days.

Trace summaries: a job reads the spans of a trace in a snapshot. The appender notes spans that arrive meanwhile, and
the job adds them at the end. If there are too many, or one replaces a span that was read, the job is retried later.
The row that marks the trace for a rebuild (`states.data` is NULL) stays until the job succeeds, even if the process
dies.

Stale hours: `HourlyRollups.start_recording` records changes during a recount, and they are added to its result. So an hour with
constant writes can be recounted, too. The snapshot and the recording begin between the same two commits.

Sealing: an hour is sealed when it is over and nothing has changed in it between two searches for due hours. A sealed
hour stores the totals of its cells (see `sealed_rollups`) and the names of its runs, possibly with some that were
deleted. A sealed day stores the totals of its hours. A later change unseals the hour and its day in the same
transaction (`HourlyRollups`, the column `rest`). Queries then read the cells of the hour, and it is sealed again later.
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
from spanwise.collector.stores.sqlite.rollups.hourly_rollups import CHANGED, SEALED, SEALED_EMPTY, STALE
from spanwise.collector.stores.sqlite.rollups.rollup_delta import HOUR_NS, MAX_HOUR_ROWS, RollupDelta, sum_hour
from spanwise.collector.stores.sqlite.rollups.sealed_rollups import (
    DAYS,
    HOURS,
    SealedRow,
    build_day,
    build_hour,
    collect_names,
    put_rows,
)
from spanwise.collector.stores.sqlite.write.incremental_summary import IncrementalSummary, LocalRootUpdate
from spanwise.collector.stores.sqlite.write.span_nodes import COST_FLAG, TOKENS_FLAG, TraceNodes
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.sqlite.write.trace_cache import MAX_REBUILD_SPANS, read_flags

log = logging.getLogger("spanwise.collector")

T = TypeVar("T")
OpenReader = Callable[[], AbstractContextManager[Reader]]
RunOnWriter = Callable[[Callable[[sqlite3.Connection], bool]], bool]

ROWS_PER_STEP = 500  # spans, flags or records read or written per step
RETRY_SECONDS = 30  # seconds until a failed rebuild is repeated
SUMMARY_REST_FACTOR = 4  # pause after a rebuild, as a multiple of its duration
_SELECT_DUE_TRACE = (
    "SELECT s.trace, t.trace_id FROM states s JOIN traces t ON t.id = s.trace"
    " WHERE s.data IS NULL AND s.trace > ? AND t.span_count <= ? ORDER BY s.trace LIMIT 1"
)


class SummarizedTrace(NamedTuple):
    """Trace read from the file: its summary, its spans, and the stored flags of the spans by row."""

    state: IncrementalSummary
    spans: TraceNodes
    flags: dict[int, int]
    last: int  # highest row id read


class RebuildCancelled(Exception):
    """The store was closed during a rebuild."""


class SummaryRebuilder:
    """Rebuild of trace summaries, one trace per round, on the background thread.

    `read` opens a reader in a snapshot of the file. `do` runs an action on the writer and waits until it is durable.
    """

    def __init__(self, appender: Appender, read: OpenReader, do: RunOnWriter, stop: threading.Event) -> None:
        self._appender, self._read_file, self._do, self._stop = appender, read, do, stop
        self._next, self._last = 0.0, 0

    def round(self) -> bool:
        """Rebuild the summary of one trace if one is due, and return whether there was one."""
        if time.monotonic() < self._next:
            return False
        due = self._find_due()
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
            log.warning("cannot rebuild the summary of trace %s: %s; retrying in %d s", due[1], error, RETRY_SECONDS)
            began -= RETRY_SECONDS / SUMMARY_REST_FACTOR
        self._next = time.monotonic() + SUMMARY_REST_FACTOR * (time.monotonic() - began)
        return True

    def _find_due(self) -> tuple[int, str] | None:
        with self._read_file() as reader:
            found: tuple[int, str] | None = reader.db.execute(
                _SELECT_DUE_TRACE, (self._last, MAX_REBUILD_SPANS)
            ).fetchone()
        return found

    def sum_up(self, key: int, trace_id: str) -> bool:
        """Rebuild the summary of a trace, and return whether it was written."""
        recent_rows = self._appender.recent_rows

        def start(_: sqlite3.Connection) -> bool:
            recent_rows[trace_id] = set()  # from now on, the appender notes the spans that arrive for the trace
            return True

        def run_step(step: Callable[[sqlite3.Connection], object], db: sqlite3.Connection) -> bool:
            if recent_rows.get(trace_id) is None or self._stop.is_set():
                return False
            step(db)
            return True

        def install(_: sqlite3.Connection) -> bool:
            rows = recent_rows.get(trace_id)
            if rows is None or any(-row <= read.last for row in rows if row < 0):
                return False
            new = sorted({abs(row) for row in rows if abs(row) > read.last})
            return self._appender.install(trace_id, read.state, new)

        self._do(start)
        try:
            with self._read_file() as reader:
                read = self._read(reader, key)
            return all(self._do(partial(run_step, step)) for step in _write_steps(key, read)) and self._do(install)
        except RebuildCancelled:
            return False
        finally:
            recent_rows.pop(trace_id, None)

    def _read(self, reader: Reader, key: int) -> SummarizedTrace:
        rows = [row[0] for row in reader.db.execute("SELECT id FROM spans WHERE trace = ? ORDER BY id", (key,))]
        read = SummarizedTrace(IncrementalSummary(key), TraceNodes(), {}, rows[-1] if rows else 0)
        due: list[LocalRootUpdate] = []
        for batch in _split_rows(rows):
            began = time.monotonic()
            due += read.state.gather([(stored.row, stored.fact) for stored in reader.in_rows("", batch)], read.spans)
            read.flags.update(read_flags(reader.db, batch))
            read.spans.facts.clear()
            if self._stop.wait(min(time.monotonic() - began, 0.1)):  # leaves CPU time to the writer
                raise RebuildCancelled
        read.state.settle(due, read.spans)
        return read


def _write_flags(rows: Sequence[tuple[int, int, int]], db: sqlite3.Connection) -> None:
    db.executemany("UPDATE spans SET tokens_below = ?, cost_below = ? WHERE id = ?", rows)


def _write_steps(key: int, read: SummarizedTrace) -> Iterator[Callable[[sqlite3.Connection], object]]:
    """Yield actions that write the changed flags of the spans, and the records of the trace."""
    nodes = [node for node in read.spans.known.values() if node is not None]
    changed = [
        (node.below & TOKENS_FLAG, node.below // COST_FLAG, node.row)
        for node in nodes
        if node.below != read.flags[node.row]
    ]
    for rows in _split_rows(changed):
        yield partial(_write_flags, rows)
    for table in (read.state.orphans, read.state.local_roots):
        yield table.clear(key)
        yield from table.writes(key, ROWS_PER_STEP)


def _split_rows(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), ROWS_PER_STEP):
        yield rows[start : start + ROWS_PER_STEP]


PAUSE_SECONDS = 0.002  # leaves CPU time to other threads
# pause before the same hour is recounted, as a multiple of the time that its last recount took
RECOUNT_REST_FACTOR = 20
ROUND_SECONDS = 0.5  # seconds after which a round starts no further hour


class RollupRecounter:
    """Recount of stale hourly rollups, one hour after the other, latest first."""

    def __init__(self, file: DatabaseFile, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._not_before: dict[int, float] = {}

    def round(self) -> bool:
        """Rebuild due hours for about `ROUND_SECONDS`, and return whether there were any."""
        due, start = self._find_due(), time.monotonic()
        for hour, state in due:
            began = time.monotonic()
            if self._stop.is_set() or began > start + ROUND_SECONDS:
                break
            if state == STALE:
                self.store(hour, self.count(hour))
            else:
                self._clear(hour)
            now = time.monotonic()
            self._not_before[hour] = now + RECOUNT_REST_FACTOR * (now - began)
        return bool(due)

    def _find_due(self) -> list[tuple[int, int]]:
        now = time.monotonic()
        self._not_before = {hour: then for hour, then in self._not_before.items() if then > now}
        with self._file.read() as reader:
            # Hours with too many rows (state 2) are only emptied
            sql = "SELECT hour, state FROM sums_hours WHERE state > 0 AND (state = 1 OR rows <> 0) ORDER BY hour DESC"
            return [row for row in reader.db.execute(sql) if row[0] not in self._not_before]

    def _clear(self, hour: int) -> None:
        self._file.writer.call(lambda _: self._file.appender.sums.clear_hour(hour))

    def count(self, hour: int) -> RollupDelta | None:
        """Return the totals of an hour, computed from its rows in a snapshot. From then on, record changes to the
        hour.
        """
        with self._file.read() as reader:

            def start(_: sqlite3.Connection) -> None:
                reader.db.execute("SELECT 1 FROM sums_hours LIMIT 1").fetchall()  # starts the snapshot of the reader
                self._file.appender.sums.start_recording(hour)

            self._file.writer.alone(start)
            return sum_hour(reader.db, hour, lambda: self._stop.wait(PAUSE_SECONDS))

    def store(self, hour: int, counted: RollupDelta | None) -> None:
        """Replace the rollup of the hour by the recounted totals."""

        def replace_rollup(_: sqlite3.Connection) -> None:
            sums = self._file.appender.sums
            changed = sums.stop_recording(hour)
            if changed is not None:  # None after a rollback or a change that cannot be added: retried later
                sums.store_recount(hour, counted, changed)

        self._file.writer.call(replace_rollup)


LOOK_SECONDS = 30.0  # seconds between two searches for due hours and days
MAX_DAY_ROWS = 5 * MAX_HOUR_ROWS  # maximum number of hourly rows that are read to build a day

_SELECT_DUE_DAYS = (
    "SELECT day FROM sums_days WHERE rest = 0"
    " UNION SELECT DISTINCT hour / 24 FROM sums_hours WHERE hour >= 24 AND hour / 24 NOT IN (SELECT day FROM sums_days)"
    " ORDER BY 1 DESC"
)
_SELECT_HOURS_OF_DAY = "SELECT state, rest, rows FROM sums_hours WHERE hour BETWEEN ? AND ?"
_SELECT_NAMES = "SELECT name, hour FROM sums_names WHERE hour BETWEEN ? AND ?"
_IGNORE_CONFLICT = "ON CONFLICT DO NOTHING"


class PeriodSealer:
    """Sealing of hours and days, latest first."""

    def __init__(self, file: DatabaseFile, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._next = time.monotonic() + LOOK_SECONDS
        self._hours: list[int] = []
        self._days: list[int] = []

    def round(self) -> bool:
        """Seal due hours and days for about `ROUND_SECONDS`, and return whether there are more."""
        began = time.monotonic()
        if not (self._hours or self._days):
            if began < self._next:
                return False
            self.find_due()
            self._next = time.monotonic() + LOOK_SECONDS
        while (self._hours or self._days) and time.monotonic() < began + ROUND_SECONDS and not self._stop.is_set():
            if self._hours:
                self.make_hour(self._hours.pop())
            else:
                self.make_day(self._days.pop())
        return bool(self._hours or self._days)

    def find_due(self) -> None:
        """Find the hours that are due, and the days to be sealed after them."""
        changed = set[int]()
        self._file.writer.alone(lambda _: changed.update(self._file.appender.sums.take_changed_hours()))
        now = self._file.clock.now() // HOUR_NS
        with self._file.read() as reader:
            hours = reader.db.execute("SELECT hour FROM sums_hours WHERE state = 0 AND rest = 0 ORDER BY hour")
            self._hours = [hour for (hour,) in hours if hour < now and hour not in changed]
            days = reader.db.execute(_SELECT_DUE_DAYS).fetchall()
        moved = {hour // 24 for hour in changed}
        self._days = [day for (day,) in reversed(days) if day < now // 24 and day not in moved]

    def make_hour(self, hour: int) -> None:
        """Seal an hour: add up its cells, and store the names of its runs."""
        with self._file.read() as reader:
            rows, named = build_hour(reader.db, hour), collect_names(reader.db, hour)
        self._file.writer.call(partial(self._put_hour, hour, rows, named), patient=True)

    def _put_hour(
        self, hour: int, rows: Sequence[SealedRow] | None, names: Sequence[str] | None, db: sqlite3.Connection
    ) -> None:
        sums = self._file.appender.sums
        if hour in sums.changed_hours:
            return
        put_rows(db, HOURS, hour, rows or ())
        insert_many(db, "sums_names", ("name", "hour"), [(name, hour) for name in names or ()], _IGNORE_CONFLICT)
        seal = SEALED_EMPTY if rows is None else SEALED
        sql = "UPDATE sums_hours SET rest = ?, named = ? WHERE hour = ? AND state = 0"
        db.execute(sql, (seal, names is not None, hour))
        sums.clear_unsealed()

    def make_day(self, day: int) -> None:
        """Seal a day: add up its hours."""
        with self._file.read() as reader:
            hours = reader.db.execute(_SELECT_HOURS_OF_DAY, (24 * day, 24 * day + 23)).fetchall()
            if any(state > 0 or rest == CHANGED for state, rest, _ in hours):
                return
            is_small = sum(row[2] for row in hours) <= MAX_DAY_ROWS and all(rest == SEALED for _, rest, _ in hours)
            rows = build_day(reader.db, day) if is_small else None
            gone = reader.db.execute(_SELECT_NAMES, (24 * day, 24 * day + 23)).fetchall() if not hours else []
        self._file.writer.call(partial(self._put_day, day, rows, gone), patient=True)

    def _put_day(
        self, day: int, rows: Sequence[SealedRow] | None, obsolete_names: list[tuple[str, int]], db: sqlite3.Connection
    ) -> None:
        sums = self._file.appender.sums
        if any(hour // 24 == day for hour in sums.changed_hours):
            return
        put_rows(db, DAYS, day, rows or ())
        db.execute("DELETE FROM sums_days WHERE day = ?", (day,))
        db.executemany("DELETE FROM sums_names WHERE name = ? AND hour = ?", obsolete_names)
        if rows != []:  # [] if all traces of the day were deleted
            db.execute("INSERT INTO sums_days VALUES (?, ?)", (day, SEALED_EMPTY if rows is None else SEALED))
        sums.clear_unsealed()
