"""Open database file: readers, writer thread and statistics; read-only variant; base class of both backends."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from spanwise.collector.address_parsing import check_database_path
from spanwise.collector.errors import Halted, Refused
from spanwise.collector.stores.fork_protection import OwnerProcess, protect_from_fork
from spanwise.collector.stores.sqlite.database.connections import (
    Reader,
    ReaderPool,
    connect_beside_writer,
    connect_read_only,
    connect_without_lock,
    open_writable,
    translate_error,
    translate_file_errors,
)
from spanwise.collector.stores.sqlite.database.file_lock import (
    FileLock,
    FileWatch,
    real_path,
)
from spanwise.collector.stores.sqlite.database.group_commit import DiskReserve, WriteJob, Writer
from spanwise.collector.stores.sqlite.database.schema import FILE_VERSION, read_version
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.maintenance import integrity
from spanwise.collector.stores.sqlite.search import fulltext_index
from spanwise.collector.stores.sqlite.write import feedback_table
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.sqlite.write_connection import SQLiteWriteConnection

T = TypeVar("T")
_frees_space = ContextVar("makes_room", default=False)
_uses_reserved_readers = ContextVar("aside", default=False)
CLOSE_WAIT_MS = 100  # how long `close` waits for readers in other processes
FULL_MEMORY_S = 300.0
RESERVED_READERS = 3  # readers for the background thread, the hourly thread and the metrics, never for queries


class DatabaseFile:
    """Database file at `path`, open for writing until `close`. It is created if it does not exist.

    Raises `Refused` if another process (or another store in this one) has the file open for writing. It also does so
    if the file is damaged, newer than this Spanwise, or not a Spanwise file.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = check_database_path(path)
        self.path = real_path(path)
        self.origin = OwnerProcess()
        self._closed, self._in_vain = threading.Lock(), False
        with ExitStack() as opened:  # closes whatever was opened if a later step fails
            self._lock = FileLock(self.path)
            opened.callback(self._lock.undo)
            reserve = DiskReserve(self.path)
            reserve.open_on_a_full_disk()
            self._db = opened.enter_context(closing(open_writable(self.path, kind=SQLiteWriteConnection)))
            with translate_file_errors(self.name):
                fulltext_index.configure_merging(self._db)
                self.clock = StoreClock(self._db)
                self._readers = opened.enter_context(closing(ReaderPool(self.path, self.clock.now)))
                self._aside = opened.enter_context(
                    closing(ReaderPool(self.path, self.clock.now, places=RESERVED_READERS))
                )
                self.appender = Appender(Reader(self._db), self.clock)
                self.watch = opened.enter_context(closing(FileWatch(self._db, self._lock)))
            # A separate read connection must see the schema that the writer created
            with translate_file_errors(self.name), closing(connect_read_only(self.path)) as db:
                if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'spans'").fetchone():
                    raise Refused(f"data written to {self.name!r} cannot be read back; use another file")
            opened.pop_all()
        self.announce, self.announce_again = self._lock.announce, self._lock.announce_again
        self.writer = Writer(
            self._db, self.watch, reserve, partial(feedback_table.append_batches, self.appender), self.appender.forget
        )
        self._readers.damaged = self._aside.damaged = self._halt
        protect_from_fork(self)

    def _halt(self, why: Halted) -> None:
        self.writer.halted = self.writer.halted or why

    def read(self) -> AbstractContextManager[Reader]:
        """Return a reader in one consistent snapshot of the file. A thread must not open a second one meanwhile."""
        return self._aside.acquire() if _uses_reserved_readers.get() else self._readers.acquire()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Use the reserved readers in this thread, so that its reads do not wait for queries."""
        before = _uses_reserved_readers.set(True)
        try:
            yield
        finally:
            _uses_reserved_readers.reset(before)

    def put(self, job: WriteJob) -> Future[Any]:
        """Queue a job for the writer. Raise `Unavailable` if it cannot take the job."""
        if job.batch is not None:
            self.appender.check(job.batch)
        return self.writer.put(job)

    def put_all(self, jobs: Sequence[WriteJob]) -> list[Future[Any]]:
        """Queue all jobs for the writer or none of them. Raise `Unavailable` if it cannot take them."""
        return self.writer.put_all(jobs)

    def write(self, action: Callable[[SQLiteWriteConnection], T], *, patient: bool = False) -> T:
        """Run an action on the write connection, and return its result when it is durable. May raise `Unavailable`.

        A `patient` action shares the writer's time with all other jobs.
        """
        run = cast(Callable[[sqlite3.Connection], T], action)
        return self.writer.call(run, frees=_frees_space.get(), patient=patient)

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Let writes of this thread use the disk reserve, because they free space on a full disk."""
        before = _frees_space.set(True)
        try:
            yield
        finally:
            _frees_space.reset(before)

    @property
    def is_full(self) -> bool:
        """Return whether only writes that free space are possible, and only in small batches."""
        return not (self.writer.writable and self.writer.reserve.is_available)

    @property
    def was_full_lately(self) -> bool:
        """Return whether a commit of the last five minutes found the disk full. A small one may succeed after it."""
        return time.monotonic() - self.writer.last_full < FULL_MEMORY_S

    def trouble(self) -> str | None:
        """Return the reason why nothing can be stored now, without paths; None if writing works."""
        return self.writer.trouble

    def health(self) -> dict[str, float]:
        """Return metrics: queue length, commits and their duration, lag of the full-text index, and file sizes."""
        with self._aside.acquire() as reader:
            waiting, since = reader.db.execute(fulltext_index.SELECT_LAG).fetchone()
        return {
            "queued_spans": self.writer.depth,
            "commits": self.writer.commits,
            "last_commit_seconds": self.writer.last_commit_ns / 1e9,
            "writable": int(self.writer.trouble is None),
            "halted": int(self.writer.halted is not None),
            "text_index_waiting_traces": waiting,
            "text_index_lag_seconds": max(0.0, (self.clock.now() - since) / 1e9) if since else 0.0,
            "came_after_deletion_total": self.appender.tombstones.late,
            "amendments_waiting": len(self.appender.waiting),
            "amendments_given_up_total": self.appender.waiting.given_up,
            "file_bytes": integrity.file_size(self.path),
            "log_bytes": integrity.file_size(self.path + "-wal"),
            "log_waiting_bytes": self.watch.log().waiting,
        }

    def stats(self) -> dict[str, Any]:
        """Return sizes in bytes, row counts, and projects with their share of the file."""
        with self.read() as reader:
            return integrity.collect_stats(reader.db, self.path)

    def check(self, *, deep: bool = False) -> list[str]:
        """Return a message for each problem of the file. `deep` also reads every payload."""
        with self.read() as reader:
            return integrity.check_integrity(reader, deep)

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the database file, and truncate the log."""
        self.writer.alone(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def vacuum(self) -> int:
        """Delete unreferenced rows and return free space to the disk. Return the number of bytes freed."""
        self.checkpoint()
        before = self._database_bytes()
        self.write(self._drop_unused)
        self.writer.alone(lambda db: db.execute("VACUUM"))
        freed = max(0, before - self._database_bytes())
        self.checkpoint()
        return freed

    def _database_bytes(self) -> int:
        """Return the bytes of the database's pages. The file may be longer while a reader delays a checkpoint."""
        with self.read() as reader:
            pages, size = (
                int(reader.db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size")
            )
        return pages * size

    def _drop_unused(self, db: sqlite3.Connection) -> None:
        integrity.delete_unused(db)
        self.appender.forget()  # the appender's caches may refer to deleted rows

    def was_in_vain(self) -> None:
        """Delete the file on close if it is new and nothing was written. Called if the process stops with `Refused`."""
        self._in_vain = True

    def _empty_log(self) -> None:
        """Copy the write-ahead log into the file, as far as readers in other processes allow."""
        if self.writer.halted:
            return
        with suppress(sqlite3.Error):  # the disk may be full, or the file damaged
            self._db.execute(f"PRAGMA busy_timeout = {CLOSE_WAIT_MS}").fetchall()
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Write queued jobs, then close the file. Repeated calls, and calls in a forked child, do nothing."""
        if not self.origin.is_here or not self._closed.acquire(blocking=False):
            return
        self.writer.close()
        self.appender.text_buffer.close()
        self._readers.close()
        self._aside.close()
        self._empty_log()
        self._db.close()
        self.watch.close()
        if self._in_vain and self.writer.commits == 0:
            self._lock.undo()
        else:
            self._lock.release()


class ReadOnlyFile(DatabaseFile):
    """Database file opened for reading only.

    Raises `Refused` if the file is damaged, not a Spanwise file, or of another file version.
    """

    _connect: Callable[[str], sqlite3.Connection] = staticmethod(connect_without_lock)

    def __init__(self, path: str | Path) -> None:
        self.name, self.path, self.origin = check_database_path(path), real_path(path), OwnerProcess()
        with translate_file_errors(self.name), closing(connect_without_lock(self.path)) as db:
            if (version := read_version(db, self.name)) < FILE_VERSION:
                raise Refused(
                    f"{self.name!r} has file version {version} and needs a migration to {FILE_VERSION}, but it is opened"
                    " for reading only; open it with write access, or copy it to a writable folder and open it there"
                )
            self.clock = StoreClock(db)
        self._readers = ReaderPool(self.path, self.clock.now, self._connect)

    def announce(self, url: str | None) -> None:
        """Do nothing, because other processes can read the file themselves."""

    is_full = was_full_lately = False  # nothing is written

    def put(self, job: WriteJob) -> Future[Any]:
        raise self._refusal()

    def put_all(self, jobs: Sequence[WriteJob]) -> list[Future[Any]]:
        raise self._refusal()

    def write(self, action: Callable[[SQLiteWriteConnection], T], *, patient: bool = False) -> T:
        raise self._refusal()

    def checkpoint(self) -> None:
        raise self._refusal()

    def vacuum(self) -> int:
        raise self._refusal()

    def _refusal(self) -> Refused:
        return Refused(
            f"{self.name!r} can only be read: this user may not write it, or not in its folder; copy it to where it may"
        )

    def trouble(self) -> str | None:
        return "the database can only be read: this user may not write it"

    def health(self) -> dict[str, float]:
        return {"writable": 0}

    def close(self) -> None:
        if self.origin.is_here:
            self._readers.close()


class SnapshotFile(ReadOnlyFile):
    """Database file opened for reading. All reads see the snapshot of the moment when it was opened. For one thread."""

    _connect = staticmethod(connect_beside_writer)

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._snapshot = ExitStack()
        self._reader = self._snapshot.enter_context(self._readers.acquire())
        with translate_file_errors(self.name):
            self._reader.db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the first read starts it

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """Yield the reader of the snapshot."""
        try:
            yield self._reader
        except sqlite3.Error as error:
            raise translate_error(error) from error

    def close(self) -> None:
        self._snapshot.close()
        super().close()


P = ParamSpec("P")
H = TypeVar("H", bound="Backend")
Operation = Callable[Concatenate[H, sqlite3.Connection, P], T]  # a method that receives a connection to the file


class Backend:
    """Base class of both backends: operations on one database file."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    @property
    def where(self) -> str:
        """Return the path of the file, as the caller gave it."""
        return self._file.name

    def close(self) -> None:
        """Write queued jobs, then close the file. Repeated calls do nothing."""
        self._file.close()


def read_operation(verb: Operation[H, P, T]) -> Callable[Concatenate[H, P], T]:
    """Wrap a read operation: its connection is in one consistent snapshot of the file."""

    def read(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._file.read() as reader:
            return verb(self, reader.db, *args, **kwargs)

    update_wrapper(read, verb)
    return read


def write_operation(verb: Operation[H, P, T]) -> Callable[Concatenate[H, P], T]:
    """Wrap a write operation: its changes are durable when it returns, and are rolled back if it raises."""

    def write(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._file.write(lambda db: verb(self, db, *args, **kwargs))

    update_wrapper(write, verb)
    return write
