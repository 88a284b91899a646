"""Writer thread: group commit, fsync of the write-ahead log, reserved disk space, checkpoints.

Deletions need disk space, too: SQLite first writes the changes to the log, and a checkpoint then grows the database.
The file `<file>.reserve` occupies that space and holds no data. While the reserve is given up, the writer accepts
only jobs that free space.

With `synchronous = FULL`, SQLite would wait for the disk within COMMIT, and block the writer for milliseconds. The
store uses `NORMAL`: SQLite still syncs where the order of log and database matters, before it copies pages and when
the log restarts. A separate thread syncs the log while the writer continues, once for all commits made meanwhile.
SQLite reads the log in order up to the first gap, so no commit survives a crash without the commits before it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from spanwise.collector.errors import Closed, Halted, StoreError, Unavailable
from spanwise.collector.stores.fork_protection import OwnerProcess, protect_from_fork
from spanwise.collector.stores.sqlite.database.connections import is_disk_full, translate_error
from spanwise.collector.stores.sqlite.database.file_lock import PRIVATE_MODE, FileWatch
from spanwise.collector.stores.sqlite.maintenance.integrity import file_size
from spanwise.collector.stores.sqlite.write.run_codec import Batch

# Writer thread: group commit, fsync of the write-ahead log, and disk space reserved for deletions.

OPEN_BYTES = 2**20  # free disk space below which a database cannot stay open for long
RESERVE_FROM_BYTES = 4 * 2**20  # smallest database that has a reserve
# The reserve is 1/8 of database and log together, within these limits.
RESERVE_SHARE, MIN_RESERVE_BYTES, MAX_RESERVE_BYTES = 8, 4 * 2**20, 64 * 2**20
# A checkpoint may grow the database by the size of the log, so the reserve covers that much of the log.
MAX_WAL_RESERVE_BYTES = 512 * 2**20


class DiskReserve:
    """Reserved disk space of the database at `path`. Only the process that holds the lock uses it.

    `is_available` is true while the reserve exists, or none is needed.
    """

    def __init__(self, path: str) -> None:
        self._database_path, self._path = path, path + ".reserve"
        self._bytes = file_size(self._path)
        self.is_available = True

    def open_on_a_full_disk(self) -> None:
        """Give up the reserve if the disk is too full even to open the database."""
        if self._bytes and not self.has_room_for(file_size(self._database_path) + OPEN_BYTES, 1):
            self.give_up()

    def give_up(self) -> bool:
        """Remove the reserve so that deletions have space; return whether there was one."""
        had, self._bytes = self._bytes > 0, 0
        with suppress(OSError):
            os.unlink(self._path)
        self.is_available = not had and self.is_available
        return had

    def keep(self, database: int) -> bool:
        """Ensure that the reserve has the size that the database requires; return False if the disk lacks the space.

        `database` is the size in bytes that the database file will have when the log is copied into it. If the disk has
        room for that, but not for a larger reserve too, the log comes first: until it is copied, the reserve keeps its
        size, or gets the smallest one.
        """
        size, log = file_size(self._database_path), file_size(self._database_path + "-wal")
        share = min(MAX_RESERVE_BYTES, max(MIN_RESERVE_BYTES, (size + log) // RESERVE_SHARE))
        wanted = 0 if size + log < RESERVE_FROM_BYTES else max(share, min(log, MAX_WAL_RESERVE_BYTES))
        if wanted >= self._bytes + self._bytes // 4 + 1 or not self.is_available:
            free = self._get_free_bytes()
            wanted, growth = max(wanted, MIN_RESERVE_BYTES), max(0, database - size)
            is_copying = file_size(self._database_path) != size
            if is_copying or growth <= free < growth + wanted - self._bytes:
                wanted = max(self._bytes, MIN_RESERVE_BYTES)
            self.is_available = wanted == self._bytes or self._allocate(wanted)
        return self.is_available

    def has_room_for(self, pages: int, page_size: int) -> bool:
        """Return whether the disk has space for a database of `pages` pages.

        Called before a checkpoint, because one that fails halfway would use up the remaining space.
        """
        return pages * page_size - file_size(self._database_path) <= self._get_free_bytes()

    def _get_free_bytes(self) -> int:
        disk = os.statvfs(os.path.dirname(self._database_path) or ".")
        return disk.f_bavail * disk.f_frsize

    def _allocate(self, size: int) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_MODE)
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.truncate(descriptor, self._bytes)
            return False
        finally:
            os.close(descriptor)
        self._bytes = size
        return True


T = TypeVar("T")

_fsync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class WalSync(Generic[T]):
    """Sync of the write-ahead log at `path` to disk, in a thread.

    Calls `done` with the items that are now durable, in order, or with the `Halted` error if the sync failed.
    """

    def __init__(self, path: str, done: Callable[[Sequence[T], Halted | None], object]) -> None:
        self._path, self._done = path, done
        self._log: int | None = None
        self._waiting: list[T] = []
        self._ready = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def sync_now(self, item: T) -> None:
        """Sync the log in the calling thread, then pass the item to `done`. Requires that no other sync is running."""
        self._settle([item])

    def sync_soon(self, item: T) -> None:
        """Queue the item for the sync thread and return at once.

        Syncs in the calling thread if no thread can be started, as at interpreter exit.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="spanwise-sync", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self.sync_now(item)
                return
            self._thread = thread
        with self._ready:
            self._waiting.append(item)
            self._ready.notify()

    def close(self) -> None:
        """Sync the waiting items, then stop the thread."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join()
        if self._log is not None:
            os.close(self._log)

    def _run(self) -> None:
        while True:
            with self._ready:
                while not (self._waiting or self._closing):
                    self._ready.wait()
                items, self._waiting = self._waiting, []
            if not items:  # closing, and all items are synced
                return
            self._settle(items)

    def _settle(self, items: Sequence[T]) -> None:
        failed = None
        try:
            if self._log is None:
                self._log = os.open(self._path, os.O_RDWR)
            _fsync(self._log)
        # the kernel may drop pages whose write failed, so a second fsync would prove nothing
        except OSError as error:
            problem = f"the disk failed to store data: {error}"
            failed = Halted(f"{problem}; check the disk, restart, then run `spanwise db check`")
        self._done(items, failed)


# maximum weight of waiting jobs, in spans (most other jobs count as 64); beyond it, callers must retry
QUEUED_WEIGHT = 20_000
COMMIT_WEIGHT = 4_000  # maximum weight of one commit
HEAVY_WEIGHT = 250  # a batch of this weight is committed alone, so that smaller jobs need not wait for it
# A group below the first weight waits a moment for the callers of the last group. A group of batches only does so
# below the second weight: with 200 spans per commit, a span costs the writer 20 % less than with 100.
SMALL_WEIGHT, ENOUGH_WEIGHT = 64, 200
PATIENT_TURN_SECONDS = 0.05  # maximum seconds per turn for patient jobs while others wait
GATHER_SECONDS = 0.002  # wait for further callers: about the cost of the extra commit that a late caller would need
DISK_FULL = "the disk is full: delete something (`spanwise db delete`, `spanwise db prune`)"


@dataclass(slots=True)
class WriteJob:
    """A batch of runs, or another action on the writing connection."""

    weight: int
    batch: Batch | None = None
    action: Callable[[sqlite3.Connection], Any] | None = None
    alone: Callable[[sqlite3.Connection], Any] | None = None
    frees: bool = False  # frees disk space: runs even if only the reserve is left
    patient: bool = False  # is committed alone, and gets at most half of the writer's time while other jobs wait
    future: Future[Any] = field(default_factory=Future)
    result: Any = None

    @property
    def lets_pass(self) -> bool:
        """Return whether the job is patient or heavy. The writer alternates between such jobs and all others."""
        return self.patient or (self.batch is not None and self.weight >= HEAVY_WEIGHT)


class CommitGroup(NamedTuple):
    """Jobs of one commit. They are acknowledged once the commit is on disk."""

    jobs: list[WriteJob]
    weight: int
    started_ns: int


class Writer:
    """Writer thread with group commit: each transaction takes all waiting jobs except patient and heavy ones.

    It writes the next transaction while the disk syncs the last one. `append` writes batches on the connection, and
    `reset` is called after a rollback. Before a commit is acknowledged, `watch` checks that the files are still those
    at the path.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        watch: FileWatch,
        reserve: DiskReserve,
        append: Callable[[list[Batch]], None],
        reset: Callable[[], None],
    ) -> None:
        self._db, self._watch, self._append, self._reset = db, watch, append, reset
        self.reserve = reserve
        self._jobs: deque[WriteJob] = deque()
        self._patient: deque[WriteJob] = deque()
        self._owed = 0.0  # seconds that patient and heavy jobs may still take before it is the other jobs' turn
        self._weight = 0
        self._ready = threading.Condition()
        self._closing = False
        self._company = 1  # number of callers that recently waited at the same time
        self.commits = self.written = 0
        self.spent = 0.0  # seconds spent on jobs that are not patient
        self.last_commit_ns = 0
        self.writable = True  # False after a commit that found the disk full, until a commit succeeds
        self.last_full = -inf  # monotonic time of the last commit that found the disk full
        self.halted: Halted | None = None  # why writing has stopped for good
        self._begun, self._failure = False, ""
        self._wal_sync = WalSync[CommitGroup](watch.log_path, self._acknowledge)
        self._unsynced = 0  # weight that is committed but not yet synced to disk
        self._origin = OwnerProcess()
        self._thread = threading.Thread(target=self._run, name="spanwise-writer", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Number of spans and feedback that wait to be written, without other jobs."""
        with self._ready:
            return sum(job.weight for job in (*self._jobs, *self._patient) if job.batch is not None)

    @property
    def trouble(self) -> str | None:
        """Return why writes fail at present; None if they work."""
        if self.halted:
            return str(self.halted)
        if not self.reserve.is_available:
            return DISK_FULL
        return None if self.writable else self._failure

    def put(self, job: WriteJob) -> Future[Any]:
        """Queue a job.

        Raises `Unavailable` if too many jobs wait or the disk is full, `Halted` if writing has stopped for good, and
        `Closed` once the store is closed.
        """
        return self.put_all([job])[0]

    def put_all(self, jobs: Sequence[WriteJob]) -> list[Future[Any]]:
        """Queue all jobs, to run in this order, or none. Each patient or heavy job has its own transaction.

        Raises the same errors as `put`.
        """
        self._origin.check()
        with self._ready:
            self._admit(sum(job.weight for job in jobs), frees=all(job.frees for job in jobs))
            for job in jobs:
                (self._patient if job.lets_pass else self._jobs).append(job)
                self._weight += job.weight
            if len(self._jobs) + len(self._patient) <= len(jobs) or self._is_enough():
                self._ready.notify()
        return [job.future for job in jobs]

    def _admit(self, weight: int, *, frees: bool) -> None:
        """Refuse jobs beyond the limits.

        Jobs that free space are exempt from the limit of the queue: each caller has at most one.
        """
        if self._closing:
            raise Closed("the store is closed")
        if self.halted:
            raise Halted(str(self.halted))
        if not self.reserve.is_available and not frees:
            raise Unavailable(DISK_FULL, retry_after=5.0)
        if self._weight and self._weight + weight > QUEUED_WEIGHT and not frees:
            raise Unavailable(f"the write queue is full ({self._weight} spans); send again in a moment")

    def call(self, action: Callable[[sqlite3.Connection], T], *, frees: bool = False, patient: bool = False) -> T:
        """Run an action on the writing connection and wait until its commit is durable."""
        result: T = self.put(WriteJob(weight=64, action=action, frees=frees, patient=patient)).result()
        return result

    def alone(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """Run an action outside any transaction, between two commits, and wait for it."""
        self.put(WriteJob(weight=64, alone=action)).result()

    def close(self) -> None:
        """Write the waiting jobs, then stop the thread."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join()
        self._wal_sync.close()

    def _run(self) -> None:
        while True:
            jobs = self._take()
            if jobs:
                began = time.monotonic()
                self._commit(jobs)
                elapsed = time.monotonic() - began
                self.spent += 0.0 if jobs[0].patient else elapsed
                # Patient and heavy jobs get as much time as the other jobs took (at most `PATIENT_TURN_SECONDS`), but
                # at least one turn
                self._owed = self._owed - elapsed if jobs[0].lets_pass else min(elapsed, PATIENT_TURN_SECONDS)
            elif self._closing:
                return

    def _take(self) -> list[WriteJob]:
        """Wait for work and return the jobs of the next commit."""
        with self._ready:
            while not (self._jobs or self._patient or self._closing) or self._unsynced > COMMIT_WEIGHT:
                self._ready.wait()
            if self._patient and (not self._jobs or self._owed > 0):
                jobs = [self._patient.popleft()]
                weight = jobs[0].weight
            else:
                self._wait_for_company()
                jobs, weight = [], 0
                while self._jobs:
                    job = self._jobs[0]
                    is_alone = job.alone is not None or (jobs and jobs[0].alone is not None)
                    if jobs and (is_alone or weight + job.weight > COMMIT_WEIGHT):
                        break
                    weight += job.weight
                    jobs.append(self._jobs.popleft())
            self._weight -= weight
            return jobs

    def _wait_for_company(self) -> None:
        """Wait a moment for the callers of the last commit. They usually send another job soon, and one commit for all
        is cheaper than several.
        """
        began = None
        while not self._is_enough():
            if self._unsynced:  # the callers of that commit still wait for the sync
                self._ready.wait()
                continue
            began = began or time.monotonic()
            remaining = began + GATHER_SECONDS - time.monotonic()
            if remaining <= 0:
                self._company = len(self._jobs)
                return
            self._ready.wait(remaining)

    def _is_enough(self) -> bool:
        enough = ENOUGH_WEIGHT if all(job.batch is not None for job in self._jobs) else SMALL_WEIGHT
        return self._closing or len(self._jobs) >= self._company or self._weight >= enough

    def _commit(self, jobs: list[WriteJob]) -> None:
        started = time.perf_counter_ns()
        try:
            self._do(jobs)
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            with contextlib.suppress(sqlite3.Error):
                # no other program could write during the transaction, so only this process changed the counters
                if self._begun:
                    self._watch.accept_current_state()
                self._reset()
            self._failed(jobs, error)
        else:
            committed, weight = jobs[0].alone is None, sum(job.weight for job in jobs)
            self.commits += committed
            self.written += weight
            self.writable = self.writable or committed
            self._company = max(self._company, len(jobs) + len(self._jobs))
            if not self.reserve.is_available:
                self._empty_log()
            for job in jobs:
                job.batch = None  # frees the memory of a large batch
            with self._ready:
                idle = not self._unsynced and not (self._patient or self._is_enough())
                self._unsynced += weight
            # Sync in this thread if few other jobs wait, else in the sync thread
            (self._wal_sync.sync_now if idle else self._wal_sync.sync_soon)(CommitGroup(jobs, weight, started))

    def _acknowledge(self, groups: Sequence[CommitGroup], failed: Halted | None) -> None:
        """Resolve the futures of groups that are on disk, or fail them if the sync failed."""
        if failed:
            self.halted = self.halted or failed
        for group in groups:
            self.last_commit_ns = time.perf_counter_ns() - group.started_ns
            for job in group.jobs:
                if failed:
                    job.result = failed
                if not job.future.set_running_or_notify_cancel():
                    continue
                if isinstance(job.result, Exception):
                    job.future.set_exception(job.result)
                else:
                    job.future.set_result(job.result)
        with self._ready:
            self._unsynced -= sum(group.weight for group in groups)
            self._ready.notify()

    def _empty_log(self) -> None:
        """Truncate the log to free its space on a full disk."""
        with contextlib.suppress(sqlite3.Error, OSError):
            pages, size = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
            if self.reserve.has_room_for(pages, size):
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _do(self, jobs: list[WriteJob]) -> None:
        self._begun = False
        if self.halted:
            raise Halted(str(self.halted))
        self._db.execute("BEGIN IMMEDIATE")
        self._watch.check_before_write()
        self._begun = True
        if jobs[0].alone is not None:
            self._db.execute("COMMIT")
            jobs[0].alone(self._db)
            self._watch.accept_current_state()
        else:
            self._work(jobs)
            self._db.execute("COMMIT")
            self._watch.check_after_commit()

    def _work(self, jobs: list[WriteJob]) -> None:
        """Run the jobs in order; write consecutive batches together."""
        batches: list[Batch] = []
        for job in jobs:
            if job.batch is not None:
                batches.append(job.batch)
                continue
            if batches:
                self._append(batches)
                batches = []
            self._act(job)
        if batches:
            self._append(batches)

    def _act(self, job: WriteJob) -> None:
        """Run an action in a savepoint, so that a refused action is rolled back without the other jobs of the commit."""
        assert job.action is not None
        self._db.execute("SAVEPOINT action")
        try:
            job.result = job.action(self._db)
        except (StoreError, ValueError) as error:
            self._db.execute("ROLLBACK TO action")
            self._reset()
            job.result = error
        self._db.execute("RELEASE action")

    def _failed(self, jobs: list[WriteJob], error: Exception) -> None:
        """Retry the jobs of a failed group one by one, so that only the faulty job fails.

        If nothing can be written, fail all jobs. On a full disk, first give up the reserve and run the jobs that free
        space.
        """
        translated = translate_error(error)
        if isinstance(translated, Halted):
            self.halted = translated
        self.writable = not isinstance(translated, Unavailable)
        if not self.writable:
            self.last_full = time.monotonic()
        self._failure = str(translated)
        if len(jobs) > 1 and not isinstance(translated, Unavailable):
            for job in jobs:
                self._commit([job])
            return
        freeing = [job for job in jobs if job.frees]
        if freeing and is_disk_full(error) and self.reserve.give_up():
            self._empty_log()
            jobs = [job for job in jobs if not job.frees]
            for job in freeing:
                self._commit([job])
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(translated)


# Checkpoint thread: copies the write-ahead log into the database while the writer continues.
#
# SQLite would checkpoint within a commit, and every caller that waits for that commit would wait for the disk. Here a
# separate connection copies most pages. Then the writer copies the few that were added meanwhile, so that the log
# restarts from its beginning.
#
# A restart requires that no reader uses the log. The writer waits briefly for readers, and longer once the log is
# large. If readers stay, the log grows; it is truncated to `connections.WAL_SIZE_LIMIT` after they leave. If the
# thread falls behind, SQLite checkpoints within a commit at `connections.AUTOCHECKPOINT_BYTES`.

log = logging.getLogger("spanwise.collector")

DUE_BYTES = 16 * 2**20  # size of the log from which a checkpoint is due
RESTART_BYTES = 2 * 2**20  # maximum number of bytes that the writer copies itself; takes a few milliseconds
# the same for a large log, to which the writer adds pages faster than they are copied
LARGE_WAL_RESTART_BYTES = 8 * 2**20
COPY_ROUNDS = 4  # rounds of copying; each round finds fewer new pages
RESTART_WAIT_MS, LARGE_WAL_WAIT_MS = 20, 100  # longest wait of the writer for readers: normally, and for a large log
DUE_SECONDS = 30.0  # interval after which even a small log is copied
LARGE_WAL_BYTES = 2 * DUE_BYTES
# Seconds between two checks; the longest interval while readers keep the log from restarting; the same for a large
# log.
CHECK_SECONDS, MAX_BACKOFF_SECONDS, LARGE_WAL_BACKOFF_SECONDS = 0.1, 2.0, 0.5


class Checkpointer:
    """Checkpoint thread of the file at `path`, with its own connection. Runs until `close`."""

    def __init__(self, path: str, writer: Writer, watch: FileWatch) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._writer, self._watch = writer, watch
        protect_from_fork(self)
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spanwise-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the current checkpoint, stop the thread and close the connection."""
        self._stop.set()
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        wait = CHECK_SECONDS
        while not self._stop.wait(wait):
            now = self._watch.log()
            if not (now.waiting > 0 and (now.bytes > DUE_BYTES or time.monotonic() - self._last > DUE_SECONDS)):
                wait = CHECK_SECONDS
                continue
            wait = min(
                LARGE_WAL_BACKOFF_SECONDS if self._watch.log().bytes > LARGE_WAL_BYTES else MAX_BACKOFF_SECONDS,
                2 * wait,
            )
            try:
                # The log restarted, so check again soon. If readers prevented it, the interval stays longer.
                if self._move():
                    wait = CHECK_SECONDS
            except (StoreError, sqlite3.Error) as error:  # a full disk or a damaged file is reported by the writer
                log.debug("the log could not be copied: %s", error)

    def _move(self) -> bool:
        """Copy as many pages as possible; return whether all are copied.

        If no reader uses the log, the next commit restarts it.
        """
        self._last = time.monotonic()
        for _ in range(COPY_ROUNDS):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            now = self._watch.log()
            is_large = now.bytes > LARGE_WAL_BYTES
            if now.waiting <= (LARGE_WAL_RESTART_BYTES if is_large else RESTART_BYTES):
                self._writer.alone(partial(_restart_wal, LARGE_WAL_WAIT_MS if is_large else RESTART_WAIT_MS))
                return self._watch.log().waiting == 0
        return False


def _restart_wal(moment_ms: int, db: sqlite3.Connection) -> None:
    """Copy the remaining pages, and wait at most `moment_ms` for readers to leave the log.

    Readers that begin after the copying read the database file and do not use the log.
    """
    [patience] = db.execute("PRAGMA busy_timeout").fetchone()
    db.execute(f"PRAGMA busy_timeout = {moment_ms}").fetchall()
    try:
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    finally:
        db.execute(f"PRAGMA busy_timeout = {patience}").fetchall()
