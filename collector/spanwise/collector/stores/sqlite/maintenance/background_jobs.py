"""Background threads: full-text indexing, rollups, rebuilds, compression dictionaries, retention."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TypeVar

import zstandard

from spanwise.collector.errors import StoreError, Unavailable
from spanwise.collector.filters import Filter
from spanwise.collector.record_corrections import DAY_NS
from spanwise.collector.records import Retention
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database.group_commit import Checkpointer, WriteJob
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.maintenance.integrity import used_bytes
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
from spanwise.collector.stores.sqlite.score_sums.background_sums import ScoreSummer
from spanwise.collector.stores.sqlite.search import fulltext_index
from spanwise.collector.stores.sqlite.write import side_tables
from spanwise.collector.stores.sqlite.write.incremental_summary import IncrementalSummary, LocalRootUpdate
from spanwise.collector.stores.sqlite.write.span_tree import COST_FLAG, TOKENS_FLAG, TraceNodes
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.sqlite.write.trace_cache import MAX_REBUILD_SPANS, read_flags
from spanwise.collector.stores.table_rows import insert_many

# Background jobs: rebuild trace summaries and stale hourly rollups, seal finished hours and days.
#
# Trace summaries: a job reads the spans of a trace in a snapshot. The appender notes spans that arrive meanwhile, and
# the job adds them at the end. If there are too many, or one replaces a span that was read, the job is retried later.
# The row that marks the trace for a rebuild (`states.data` is NULL) stays until the job succeeds, even if the process
# dies.
#
# Stale hours: `HourlyRollups.start_recording` records changes during a recount, and they are added to its result. So
# an hour with constant writes can be recounted, too. The snapshot and the recording begin between the same two
# commits.
#
# Sealing: an hour is sealed when it is over and nothing has changed in it between two searches for due hours. A
# sealed hour stores the totals of its cells (see `sealed_rollups`) and the names of its runs, possibly with some that
# were deleted. A sealed day stores the totals of its hours. A later change unseals the hour and its day in the same
# transaction (`HourlyRollups`, the column `rest`). Queries then read the cells of the hour, and it is sealed again
# later.

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


REBUILD_PAUSE_SECONDS = 0.002  # leaves CPU time to other threads
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
            return sum_hour(reader.db, hour, lambda: self._stop.wait(REBUILD_PAUSE_SECONDS))

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


# Retention: traces that the rules expire, and the thread that prunes them every hour.

FIRST_RUN_SECONDS, INTERVAL_SECONDS = 60.0, 3600.0  # seconds from the start to the first round, then between rounds


def find_expired(db: sqlite3.Connection, rule: Retention) -> Filter | None:
    """Return a filter for the traces that a retention rule expires now; None if the rule has no limits."""
    cutoffs = []
    if rule.max_age_ns is not None:
        cutoffs.append(time.time_ns() - rule.max_age_ns)
    if rule.max_bytes is not None:
        cutoffs.append(_cutoff_by_size(db, rule.project, rule.max_bytes))
    return Filter(project=rule.project, until_ns=max(cutoffs)) if cutoffs else None


def find_future_traces(db: sqlite3.Connection, rule: Retention) -> Filter | None:
    """Return a filter for at most 5,000 expired traces with a start time after tomorrow; None if there are none.

    Such traces were ingested before start times were limited. Whether they expire depends on the time of their last
    change.
    """
    if rule.max_age_ns is None:
        return None
    now = time.time_ns()
    sql = "SELECT trace_id FROM traces WHERE start_ns > ? AND updated_ns < ? AND (? IS NULL OR project = ?) LIMIT 5000"
    found = db.execute(sql, (now + DAY_NS, now - rule.max_age_ns, rule.project, rule.project)).fetchall()
    return Filter(trace_ids=tuple(row[0] for row in found)) if found else None


def _cutoff_by_size(db: sqlite3.Connection, project: str | None, max_bytes: int) -> int:
    """Return the start time before which traces expire so that a project uses at most `max_bytes`.

    The bytes that a project uses in the file are estimated from its share of all payloads.
    """
    where = "span_count > 0 AND (:project IS NULL OR project = :project)"
    of_project = {"project": project}
    total = int(db.execute("SELECT coalesce(sum(size), 0) FROM traces").fetchone()[0])
    own = int(db.execute(f"SELECT coalesce(sum(size), 0) FROM traces WHERE {where}", of_project).fetchone()[0])
    share = used_bytes(db) * own // max(total, 1)
    excess = own * max(0, share - max_bytes) // max(share, 1)
    cutoff = 0
    for start, size in db.execute(f"SELECT start_ns, size FROM traces WHERE {where} ORDER BY start_ns", of_project):
        if excess <= 0:
            break
        excess -= size
        cutoff = start + 1
    return cutoff


class RetentionThread:
    """Thread that calls `prune` about hourly until `stop` is set, and deletes expired tombstones and pending data."""

    def __init__(self, file: DatabaseFile, prune: Callable[[], object], stop: threading.Event) -> None:
        self._file, self._prune, self._stop = file, prune, stop
        self._thread = threading.Thread(target=self._run, name="spanwise-hourly", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the current round. The caller has set `stop`."""
        self._thread.join()

    def _run(self) -> None:
        wait = FIRST_RUN_SECONDS
        with self._file.aside():
            while not self._stop.wait(wait):
                wait = INTERVAL_SECONDS
                try:
                    self.round()
                except Unavailable:
                    pass
                except Exception:
                    log.exception("hourly maintenance failed; retrying in an hour")

    def round(self) -> None:
        """Run all hourly jobs."""
        appender, call = self._file.appender, self._file.writer.call
        self._prune()
        while not self._stop.is_set() and call(lambda _: appender.tombstones.prune()):
            pass
        call(lambda _: appender.waiting.trim())
        call(side_tables.prune_response_ids)


# Background maintenance thread: full-text indexing, rollups and compression dictionaries.

PAUSE_SECONDS = 0.25  # seconds between rounds
BUSY_RATE, BUSY_SHARE = 2_000, 0.4  # thresholds of high load: spans per second, and share of the writer's time
IDLE_SECONDS = 2.0  # seconds between rounds while nothing is written: some jobs become due by time
WRITE_INTERVAL_SECONDS = 1.0  # seconds between transactions of the full-text index
LOADED_LOOK_SECONDS = 5.0  # seconds between searches of `unindexed` under load
BURST_FACTOR = 3  # after a burst, batches may be this many times larger
LOOK_REST_FACTOR = 20  # pause after a search of `unindexed`, as a multiple of the time that the search took
# For each dictionary: number of stored spans at which it is trained, and its size in bytes. The database file stores
# the dictionary, too
DICTIONARIES = ((1_000, 65_536), (20_000, 262_144), (500_000, 262_144))
MAX_SAMPLES = 4_000
MAX_SAMPLE_BYTES = 4_096  # longer payloads are not used as samples, because dictionaries help short ones


class BackgroundWorker:
    """Background maintenance thread. It runs until `close`. After a restart, it finds and continues unfinished work."""

    def __init__(self, file: DatabaseFile, prune: Callable[[], None]) -> None:
        self._file = file
        self._appender, self._writer = file.appender, file.writer
        self._checkpointer = Checkpointer(file.path, file.writer, file.watch)
        self._looked, self._written, self._spent, self._under_load = time.monotonic(), 0, 0.0, False
        self._next_put = self._next_look = self._next_work = 0.0
        # `Writer.commits` when nothing was left to index, and when no other work was left
        self._all_indexed, self._all_done = -1, -1
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._dictionaries: int | None = None
        # characters per transaction of the full-text index at its current speed
        self._piece = fulltext_index.MIN_TRANSACTION_CHARACTERS
        self._summary_rebuilder = SummaryRebuilder(file.appender, file.read, self._do, self._stop)
        self._rollup_recounter = RollupRecounter(file, self._stop)
        self._period_sealer = PeriodSealer(file, self._stop)
        self._score_summer = ScoreSummer(file, self._stop)
        self._retention = RetentionThread(file, prune, self._stop)
        self._thread = threading.Thread(target=self._run, name="spanwise-behind", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the threads after their current round."""
        self._stop.set()
        self._thread.join()
        self._retention.close()
        self._checkpointer.close()

    def _run(self) -> None:
        with self._file.aside():
            while not self._stop.is_set():
                try:
                    busy = self._round()
                except Unavailable:
                    busy = False
                except Exception:
                    log.exception("background maintenance failed; retrying in %d s", RETRY_SECONDS)
                    self._stop.wait(RETRY_SECONDS)
                    busy = False
                if not busy:
                    self._stop.wait(PAUSE_SECONDS)

    def _round(self) -> bool:
        """Run one round of all jobs, and return whether there may be more to do."""
        self._file.announce_again()
        # Check if the disk has free space again. Clients send nothing to a server that reports not ready, so there
        # would be no write that detects it.
        if self._writer.reserve.keep(self._file.watch.log().database) and not self._writer.writable:
            self._writer.call(_rewrite_version)
        busy = self.index_round()
        return self._work_round() or busy

    def _work_round(self) -> bool:
        """Run one round of all jobs except indexing, and return whether there may be more to do.

        Without new commits, the next round starts after `IDLE_SECONDS`.
        """
        commits = self._writer.commits
        if commits == self._all_done and time.monotonic() < self._next_work:
            return False
        busy = self._summary_rebuilder.round()
        busy = self._rollup_recounter.round() or busy
        busy = self._period_sealer.round() or busy
        busy = self._score_summer.round() or busy
        self.train_if_due()
        self._all_done, self._next_work = -1 if busy else commits, time.monotonic() + IDLE_SECONDS
        return busy

    def index_round(self) -> bool:
        """Index one round of due traces, and return whether there may be more."""
        with self._lock:
            later = self._is_busy()
            more = self._from_memory(later)
            return self._from_file(later) or more

    def _from_memory(self, later: bool) -> bool:
        """Index buffered text, about once a second, in one transaction.

        Under load, this runs only if the buffer fills up or text in it is overdue, because spans need the writer's
        time.
        """
        buffer, now = self._appender.text_buffer, time.monotonic()
        if not (len(buffer) and (buffer.is_filling or now >= self._next_put)):
            return False
        overdue = now - fulltext_index.OVERDUE_NS / 1e9
        settled = overdue if later else now - fulltext_index.SETTLE_NS / 1e9
        most = self._most
        write = partial(fulltext_index.write_buffered, self._appender.reader, buffer, most, settled, overdue)
        characters: int = self._writer.put(
            WriteJob(weight=64, action=partial(self._timed, write), patient=True)
        ).result()
        self._merge(characters)
        more = 2 * characters >= most
        if characters and not more:
            self._next_put = now + WRITE_INTERVAL_SECONDS
        return more

    def _from_file(self, later: bool) -> bool:
        """Index traces that are not buffered, if it is time to look for them."""
        commits, began = self._writer.commits, time.monotonic()
        if began < self._next_look or commits == self._all_indexed:
            return False
        # Let the writer clear the set between two commits. The snapshot read below lacks the changes of a commit that
        # is still running, so the traces of that commit must stay in the set
        disturbed, buffer = self._appender.disturbed, self._appender.text_buffer
        if disturbed:
            self._writer.call(lambda _: disturbed.clear())
        with self._file.read() as reader:
            due = fulltext_index.find_due_traces(
                reader, self._file.clock.now(), buffer, overdue_only=later and not buffer.is_filling
            )
            looked = time.monotonic()
            entries = list(fulltext_index.read_entries(reader, due))
            self._all_indexed = commits if fulltext_index.is_empty(reader) else -1
        self._put_in_pieces(entries)
        pause = max(LOADED_LOOK_SECONDS if later else 0.0, LOOK_REST_FACTOR * (looked - began))
        self._next_look = 0.0 if due else time.monotonic() + pause
        return bool(due)

    def _put_in_pieces(self, entries: Sequence[fulltext_index.IndexEntry]) -> None:
        """Queue all batches at once and wait for all of them, even after a failure. Otherwise a batch could be written
        in a later round.
        """
        queued: list[Future[int]] = []
        try:
            for batch in fulltext_index.split_by_size([(entry, entry.characters) for entry in entries], self._most):
                write = partial(fulltext_index.write_entries, self._appender.reader, batch, self._appender.disturbed)
                action = partial(self._timed, write)
                queued.append(self._writer.put(WriteJob(weight=1 + len(batch) // 2, action=action, patient=True)))
        finally:
            wait(queued)
        for future in queued:
            self._merge(future.result())

    def _merge(self, characters: int) -> None:
        """Merge segments of the full-text index in steps, so that other writes run in between.

        Usually nothing is pending, and an unnecessary step would cost a commit.
        """
        for _ in range(fulltext_index.count_pending_merges(characters)):
            if not self._do(fulltext_index.merge_segments):
                return

    @property
    def _most(self) -> int:
        """Return the maximum number of characters per transaction.

        The maximum is small if little text waits, because larger batches gain nothing then. It is large after a
        burst.
        """
        buffered, batch = self._appender.text_buffer.bytes, self._piece
        if self._under_load or batch < buffered <= BURST_FACTOR * batch:
            return batch
        return BURST_FACTOR * batch if buffered > batch else max(batch // 4, fulltext_index.MIN_TRANSACTION_CHARACTERS)

    def _timed(self, write: Callable[[], int], _: sqlite3.Connection) -> int:
        # CPU time of this thread, not wall time: on busy cores, wall time would shrink the batches, which costs even
        # more CPU
        began = time.thread_time()
        characters = write()
        self._fit(characters, max(time.thread_time() - began, 1e-6))
        return characters

    def _fit(self, characters: int, seconds: float) -> None:
        """Update the batch size so that a transaction takes about `TRANSACTION_SECONDS`.

        Batches far below the wanted size are ignored, because they say little about the speed.
        """
        if 2 * characters >= self._most:
            fitting = int(characters * fulltext_index.TRANSACTION_SECONDS / seconds)
            least, most = fulltext_index.MIN_TRANSACTION_CHARACTERS, fulltext_index.MAX_TRANSACTION_CHARACTERS
            self._piece = min(max((self._piece + fitting) // 2, least), most)

    def _do(self, action: Callable[[sqlite3.Connection], bool]) -> bool:
        return bool(self._writer.put(WriteJob(weight=64, action=action, patient=True)).result())

    def _is_busy(self) -> bool:
        """Return whether the load is so high that full-text indexing should wait. `fulltext_index.OVERDUE_NS` limits
        the delay.
        """
        now, written, spent = time.monotonic(), self._writer.written, self._writer.spent
        if (passed := now - self._looked) >= 1.0:
            rate, share = (written - self._written) / passed, (spent - self._spent) / passed
            self._under_load = rate > BUSY_RATE and share > BUSY_SHARE
            self._looked, self._written, self._spent = now, written, spent
        return self._under_load

    def train_if_due(self) -> None:
        """Train the next compression dictionary if enough spans are stored."""
        with self._file.read() as reader:
            if self._dictionaries is None:
                self._dictionaries = reader.db.execute("SELECT count(*) FROM dictionaries").fetchone()[0]
            stored = reader.db.execute("SELECT coalesce(max(id), 0) FROM spans").fetchone()[0]
        if self._dictionaries < len(DICTIONARIES) and stored >= DICTIONARIES[self._dictionaries][0]:
            self._dictionaries += 1
            self._train(DICTIONARIES[self._dictionaries - 1][1])

    def _train(self, size: int) -> None:
        with self._file.read() as reader:
            blobs = reader.db.execute(
                "SELECT payload FROM spans WHERE size <= ? ORDER BY id DESC LIMIT ?", (MAX_SAMPLE_BYTES, MAX_SAMPLES)
            ).fetchall()
            samples: list[bytes | bytearray | memoryview] = [reader.decoder(blob).raw(blob) for (blob,) in blobs]
            # Explicit number: zstd derives one from the content alone. Two dictionaries of repetitive payloads that
            # differ only in their entropy tables would share it, and each would corrupt the payloads that the other
            # compressed.
            number = reader.db.execute("SELECT coalesce(max(id), 0) + 1 FROM dictionaries").fetchone()[0]
        try:
            trained = zstandard.train_dictionary(size, samples, k=1024, d=8, dict_id=number)
        except zstandard.ZstdError as error:
            log.info("cannot train a compression dictionary from %d payloads: %s", len(samples), error)
            return
        data = trained.as_bytes()
        self._writer.call(
            lambda db: db.execute("INSERT INTO dictionaries VALUES (?, ?, ?)", (number, data, time.time_ns()))
        )
        self._appender.adopt(number, data)


def _rewrite_version(db: sqlite3.Connection) -> None:
    """Write a page unchanged, to test if writing works. An empty transaction would write nothing and prove nothing."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.execute(f"PRAGMA user_version = {version}")
