"""Writer thread: group commit, fsync of the write-ahead log, and disk space reserved for deletions.

To delete, too, takes room: SQLite writes what changes into the log first, and to empty the log it takes what the
database then grows by. That much is kept beside the database, as `<file>.reserve`, which holds nothing. While it is
given up only what makes room is written.

SQLite would wait for the disk within COMMIT (`synchronous = FULL`), and the writer with it, for milliseconds. Here it
writes the log (`NORMAL`, with which it still waits wherever the order of log and file is at stake: before it copies
pages, and when the log begins anew), and the log is brought to the disk in a thread of its own while the writer goes
on, for all commits that came meanwhile at once. As the log is read in order and up to the first gap, a commit is never
kept without those before it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from spanwise.collector.errors import Closed, Halted, StoreError, Unavailable
from spanwise.collector.stores.sqlite.database.connections import is_disk_full, translate_error
from spanwise.collector.stores.sqlite.database.file_lock import PRIVATE_MODE, OwnerProcess
from spanwise.collector.stores.sqlite.database.file_watch import FileWatch
from spanwise.collector.stores.sqlite.maintenance.integrity import file_size
from spanwise.collector.stores.sqlite.write.run_codec import Batch

OPEN_BYTES = 2**20  # bytes, with which a database cannot even be opened for long
RESERVE_FROM_BYTES = 4 * 2**20  # bytes of a database from which on it has one
RESERVE_SHARE, MIN_RESERVE_BYTES, MAX_RESERVE_BYTES = (
    8,
    4 * 2**20,
    64 * 2**20,
)  # one part in so many of database and log, within these bytes
MAX_WAL_RESERVE_BYTES = 512 * 2**20  # bytes of log for which there is room: the database may grow by all of the log


class DiskReserve:
    """Of the database at `path`. For its holder; `held` says whether there is one now, or none is needed."""

    def __init__(self, path: str) -> None:
        self._of, self._path = path, path + ".reserve"
        self._bytes = file_size(self._path)
        self.held = True

    def open_on_a_full_disk(self) -> None:
        """Give it up where there would be no room even to open the database."""
        if self._bytes and not self.has_room_for(file_size(self._of) + OPEN_BYTES, 1):
            self.give_up()

    def give_up(self) -> bool:
        """Leave the room to what makes more; whether there was any."""
        had, self._bytes = self._bytes > 0, 0
        with suppress(OSError):
            os.unlink(self._path)
        self.held = not had and self.held
        return had

    def keep(self) -> bool:
        """Have the room that the database's size asks for; False where the disk has none to spare."""
        size, log = file_size(self._of), file_size(self._of + "-wal")
        share = min(MAX_RESERVE_BYTES, max(MIN_RESERVE_BYTES, (size + log) // RESERVE_SHARE))
        wanted = 0 if size + log < RESERVE_FROM_BYTES else max(share, min(log, MAX_WAL_RESERVE_BYTES))
        if wanted >= self._bytes + self._bytes // 4 + 1 or not self.held:
            self.held = self._allocate(max(wanted, MIN_RESERVE_BYTES))
        return self.held

    def has_room_for(self, pages: int, page_size: int) -> bool:
        """Whether the database can grow to so many pages: to begin and fail would eat up the room."""
        disk = os.statvfs(os.path.dirname(self._of) or ".")
        return pages * page_size - file_size(self._of) <= disk.f_bavail * disk.f_frsize

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

_fsync = getattr(os, "fdatasync", os.fsync)  # macOS knows only the other


class WalSync(Generic[T]):
    """Syncs the log at `path`. `done` is told what has become durable, in order, or why nobody knows whether it has."""

    def __init__(self, path: str, done: Callable[[Sequence[T], Halted | None], object]) -> None:
        self._path, self._done = path, done
        self._log: int | None = None
        self._waiting: list[T] = []
        self._ready = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def now(self, one: T) -> None:
        """Sync in this thread. Not while others are under way in the other."""
        self._settle([one])

    def soon(self, one: T) -> None:
        """Sync in a thread of its own, and return at once; here where there can be none, as when the process ends."""
        if self._thread is None and not self._start():
            self.now(one)
            return
        with self._ready:
            self._waiting.append(one)
            self._ready.notify()

    def close(self) -> None:
        """Sync what waits, then end."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join()
        if self._log is not None:
            os.close(self._log)

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="spanwise-sync", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while some := self._taken():
            self._settle(some)

    def _taken(self) -> list[T]:
        """All that waits, once there is some; nothing at the end."""
        with self._ready:
            while not (self._waiting or self._closing):
                self._ready.wait()
            some, self._waiting = self._waiting, []
            return some

    def _settle(self, some: Sequence[T]) -> None:
        failed = None
        try:
            if self._log is None:
                self._log = os.open(self._path, os.O_RDWR)
            _fsync(self._log)
        except OSError as error:  # what the system has failed to write it may have dropped: to ask again tells nothing
            told = f"the disk does not keep what is written to it: {error}"
            failed = Halted(f"{told}; see to the disk, then start this anew, and `spanwise db check`")
        self._done(some, failed)


QUEUED_WEIGHT = 20_000  # spans (or 64th parts of other jobs) that wait at most; more are told to come again
COMMIT_WEIGHT = 4_000  # of them, how many go into one commit at most
HEAVY_WEIGHT = 250  # a batch of so many spans does not go into one commit with others, which would wait for it
# Below it a group waits a moment for the callers that the last one had; of batches alone below the second, as with 200
# spans a commit a span costs the writer a fifth less than with 100
SMALL_WEIGHT, ENOUGH_WEIGHT = 64, 200
PATIENT_TURN_SECONDS = 0.05  # seconds that what is patient may take at once while others wait
GATHER_SECONDS = 0.002  # seconds: a commit costs as much, and as much again for each that comes too late for it
DISK_FULL = "the disk is full; the reserve is for deleting: free space (`spanwise db delete`, `spanwise db prune`)"


@dataclass(slots=True)
class WriteJob:
    """A batch of runs, or anything else to be done on the writing connection."""

    weight: int
    batch: Batch | None = None
    action: Callable[[sqlite3.Connection], Any] | None = None
    alone: Callable[[sqlite3.Connection], Any] | None = None
    frees: bool = False  # it makes room: done even where there is none but the reserve
    patient: bool = False  # it has a commit of its own, and of the time no more than all others, if any wait
    future: Future[Any] = field(default_factory=Future)
    result: Any = None

    @property
    def lets_pass(self) -> bool:
        """Whether it takes turns with all that is neither patient nor heavy."""
        return self.patient or (self.batch is not None and self.weight >= HEAVY_WEIGHT)


class CommitGroup(NamedTuple):
    """Jobs of one commit, which are acknowledged when it is on the disk."""

    jobs: list[WriteJob]
    weight: int
    started_ns: int


class Writer:
    """Group commit: everything that waits goes into the next transaction, but for what is patient. It is written while
    the disk still takes the last one.

    `append` writes batches on the connection; `reset` is called when a transaction was rolled back. `watch` says before
    a commit is acknowledged whether it is where it will be looked for.
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
        self._owed = 0.0  # seconds that the patient may take before it is others' turn
        self._weight = 0
        self._ready = threading.Condition()
        self._closing = False
        self._company = 1  # callers that lately waited at the same time
        self.commits = self.written = 0
        self.spent = 0.0  # seconds on all that is not patient
        self.last_commit_ns = 0
        self.writable = True  # false from a commit that found no room on the disk until the next that succeeds
        self.halted: Halted | None = None  # why nothing more is written
        self._begun, self._why = False, ""
        self._durable = WalSync[CommitGroup](watch.log_path, self._acknowledge)
        self._unsynced = 0  # weight of what is committed, and not yet on the disk
        self._origin = OwnerProcess()
        self._thread = threading.Thread(target=self._run, name="spanwise-writer", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Spans and feedback that wait to be written, but not what else is to be done."""
        with self._ready:
            return sum(job.weight for job in (*self._jobs, *self._patient) if job.batch is not None)

    @property
    def trouble(self) -> str | None:
        """Why nothing is kept now; None while all is well."""
        if self.halted:
            return str(self.halted)
        if not self.reserve.held:
            return DISK_FULL
        return None if self.writable else self._why

    def put(self, job: WriteJob) -> Future[Any]:
        """Queue a job. Raises `Unavailable` if too much waits already, `Halted`, and `Closed` once the store is."""
        return self.put_all([job])[0]

    def put_all(self, jobs: Sequence[WriteJob]) -> list[Future[Any]]:
        """Queue jobs that are done in turn, each in a transaction of its own if it is patient or heavy; or none."""
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
        """What makes room is never too much: there is one of it for each caller."""
        if self._closing:
            raise Closed("the store is closed")
        if self.halted:
            raise Halted(str(self.halted))
        if not self.reserve.held and not frees:
            raise Unavailable(DISK_FULL, retry_after=5.0)
        if self._weight and self._weight + weight > QUEUED_WEIGHT and not frees:
            raise Unavailable(f"{self._weight} spans wait to be written already; send again in a moment")

    def call(self, action: Callable[[sqlite3.Connection], T], *, frees: bool = False, patient: bool = False) -> T:
        """Do something on the writing connection and wait until it is durable."""
        result: T = self.put(WriteJob(weight=64, action=action, frees=frees, patient=patient)).result()
        return result

    def alone(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """Do something that no transaction may surround, between two commits, and wait for it."""
        self.put(WriteJob(weight=64, alone=action)).result()

    def close(self) -> None:
        """Write what waits, then end."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join()
        self._durable.close()

    def _run(self) -> None:
        while True:
            jobs = self._take()
            if jobs:
                began = time.monotonic()
                self._commit(jobs)
                took = time.monotonic() - began
                self.spent += 0.0 if jobs[0].patient else took
                self._share(jobs, took)
            elif self._closing:
                return

    def _share(self, jobs: list[WriteJob], took: float) -> None:
        """The patient may take as long as the others have taken, and begin once in any case."""
        self._owed = self._owed - took if jobs[0].lets_pass else min(took, PATIENT_TURN_SECONDS)

    def _take(self) -> list[WriteJob]:
        """What goes into the next commit; waits for work."""
        with self._ready:
            while not (self._jobs or self._patient or self._closing) or self._unsynced > COMMIT_WEIGHT:
                self._ready.wait()
            jobs = self._next_patient() or self._next_group()
            self._weight -= sum(job.weight for job in jobs)
            return jobs

    def _next_patient(self) -> list[WriteJob]:
        if not self._patient or (self._jobs and self._owed <= 0):
            return []
        return [self._patient.popleft()]

    def _next_group(self) -> list[WriteJob]:
        self._wait_for_company()
        jobs: list[WriteJob] = []
        weight = 0
        while self._jobs and (not jobs or self._may_join(jobs, weight)):
            weight += self._jobs[0].weight
            jobs.append(self._jobs.popleft())
        return jobs

    def _wait_for_company(self) -> None:
        """Callers that were answered by one commit soon come again: together they cost one commit, not several."""
        began = None
        while not self._is_enough():
            if self._unsynced:  # they cannot have come yet
                self._ready.wait()
                continue
            began = began or time.monotonic()
            left = began + GATHER_SECONDS - time.monotonic()
            if left <= 0:
                self._company = len(self._jobs)
                return
            self._ready.wait(left)

    def _is_enough(self) -> bool:
        enough = ENOUGH_WEIGHT if all(job.batch is not None for job in self._jobs) else SMALL_WEIGHT
        return self._closing or len(self._jobs) >= self._company or self._weight >= enough

    def _may_join(self, jobs: list[WriteJob], weight: int) -> bool:
        next = self._jobs[0]
        return weight + next.weight <= COMMIT_WEIGHT and next.alone is None and jobs[0].alone is None

    def _commit(self, jobs: list[WriteJob]) -> None:
        started = time.perf_counter_ns()
        try:
            self._do(jobs)
        except Exception as error:
            self._undo()
            self._failed(jobs, error)
        else:
            committed, weight = jobs[0].alone is None, sum(job.weight for job in jobs)
            self.commits += committed
            self.written += weight
            self.writable = self.writable or committed
            self._company = max(self._company, len(jobs) + len(self._jobs))
            if not self.reserve.held:
                self._empty_log()
            self._have_durable(CommitGroup(jobs, weight, started))

    def _have_durable(self, group: CommitGroup) -> None:
        """Have it on the disk, and acknowledged: here if there is not enough else to do, else while that is done."""
        for job in group.jobs:
            job.batch = None  # it may be large
        with self._ready:
            idle = not self._unsynced and not (self._patient or self._is_enough())
            self._unsynced += group.weight
        (self._durable.now if idle else self._durable.soon)(group)

    def _acknowledge(self, groups: Sequence[CommitGroup], failed: Halted | None) -> None:
        """Tell whoever waits that it is on the disk, or that it cannot be said."""
        if failed:
            self.halted = self.halted or failed
        for group in groups:
            self.last_commit_ns = time.perf_counter_ns() - group.started_ns
            for job in group.jobs:
                if failed:
                    job.result = failed
                _resolve_future(job)
        with self._ready:
            self._unsynced -= sum(group.weight for group in groups)
            self._ready.notify()

    def _empty_log(self) -> None:
        """Give the log's room back to a disk that is full."""
        with contextlib.suppress(sqlite3.Error, OSError):
            pages, size = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
            if self.reserve.has_room_for(pages, size):
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _do(self, jobs: list[WriteJob]) -> None:
        self._begun = False
        if self.halted:
            raise Halted(str(self.halted))
        self._db.execute("BEGIN IMMEDIATE")
        self._watch.begun()
        self._begun = True
        if jobs[0].alone is not None:
            self._db.execute("COMMIT")
            jobs[0].alone(self._db)
            self._watch.settled()
        else:
            self._work(jobs)
            self._db.execute("COMMIT")
            self._watch.committed()

    def _work(self, jobs: list[WriteJob]) -> None:
        """Do the jobs in order; batches that follow each other are written together."""
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
        """Run an action; one that is refused leaves no trace and does not disturb its neighbours."""
        assert job.action is not None
        self._db.execute("SAVEPOINT action")
        try:
            job.result = job.action(self._db)
        except (StoreError, ValueError) as error:
            self._db.execute("ROLLBACK TO action")
            self._reset()
            job.result = error
        self._db.execute("RELEASE action")

    def _undo(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        with contextlib.suppress(sqlite3.Error):
            if self._begun:  # nobody else can have written since
                self._watch.settled()
            self._reset()

    def _failed(self, jobs: list[WriteJob], error: Exception) -> None:
        """A group that fails is tried job by job, so that only the bad one fails; not if nothing can be written."""
        translated = translate_error(error)
        if isinstance(translated, Halted):
            self.halted = translated
        self.writable = not isinstance(translated, Unavailable)
        self._why = str(translated)
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


def _resolve_future(job: WriteJob) -> None:
    if not job.future.set_running_or_notify_cancel():
        return
    if isinstance(job.result, Exception):
        job.future.set_exception(job.result)
    else:
        job.future.set_result(job.result)
