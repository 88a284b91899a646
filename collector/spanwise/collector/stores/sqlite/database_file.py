"""Open database file: readers, writer thread and statistics; read-only variant; base class of both backends."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from spanwise.collector.address_parsing import check_database_path
from spanwise.collector.errors import Halted, Refused
from spanwise.collector.stores.sqlite.database.connections import (
    Reader,
    ReaderPool,
    connect_read_only,
    connect_without_lock,
    open_writable,
    translate_file_errors,
)
from spanwise.collector.stores.sqlite.database.file_lock import FileLock, OwnerProcess, protect_from_fork, real_path
from spanwise.collector.stores.sqlite.database.file_watch import FileWatch
from spanwise.collector.stores.sqlite.database.group_commit import DiskReserve, WriteJob, Writer
from spanwise.collector.stores.sqlite.database.schema import MIGRATIONS, read_version
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.maintenance import integrity
from spanwise.collector.stores.sqlite.search import fulltext_index
from spanwise.collector.stores.sqlite.write import feedback_table
from spanwise.collector.stores.sqlite.write.span_writer import Appender

T = TypeVar("T")
_frees_space = ContextVar("makes_room", default=False)
_uses_reserved_readers = ContextVar("aside", default=False)
CLOSE_WAIT_MS = 100  # that `close` waits for readers in other processes
RESERVED_READERS = 3  # readers that no question takes: work behind the writer, what is due hourly, and the numbers


class DatabaseFile:
    """Holds the file at `path`, which it makes if there is none, until `close`.

    Raises `Refused` when another process (or another store in this one) writes the file, when the file is damaged,
    newer than this Spanwise, or not Spanwise's.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = check_database_path(path)
        self.path = real_path(path)
        self.origin = OwnerProcess()
        self._closed, self._in_vain = threading.Lock(), False
        with ExitStack() as opened:  # closes what was opened if the rest cannot be
            self._lock = FileLock(self.path)
            opened.callback(self._lock.undo)
            reserve = DiskReserve(self.path)
            reserve.open_on_a_full_disk()
            self._db = opened.enter_context(closing(open_writable(self.path)))
            with translate_file_errors(self.name):
                fulltext_index.configure_merging(self._db)
                self.clock = StoreClock(self._db)
                self._readers = opened.enter_context(closing(ReaderPool(self.path, self.clock.now)))
                self._aside = opened.enter_context(
                    closing(ReaderPool(self.path, self.clock.now, places=RESERVED_READERS))
                )
                self.appender = Appender(Reader(self._db), self.clock)
                self.watch = opened.enter_context(closing(FileWatch(self._db, self._lock)))
            self._refuse_unreadable()
            opened.pop_all()
        self.announce, self.announce_again = self._lock.announce, self._lock.announce_again
        self.writer = Writer(
            self._db, self.watch, reserve, partial(feedback_table.append_batches, self.appender), self.appender.forget
        )
        self._readers.damaged = self._aside.damaged = self._halt
        protect_from_fork(self)

    def _refuse_unreadable(self) -> None:
        """Raises `Refused` unless readers, on connections of their own, find what the writer makes."""
        with translate_file_errors(self.name), closing(connect_read_only(self.path)) as db:
            if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'spans'").fetchone():
                raise Refused(f"what is written to {self.name!r} cannot be read back; name another file")

    def _halt(self, why: Halted) -> None:
        self.writer.halted = self.writer.halted or why

    def read(self) -> AbstractContextManager[Reader]:
        """A reader in one consistent snapshot of the file. Not to be asked for twice by one thread."""
        return self._aside.one() if _uses_reserved_readers.get() else self._readers.one()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread reads within it reads beside all questions, and waits for none of them."""
        before = _uses_reserved_readers.set(True)
        try:
            yield
        finally:
            _uses_reserved_readers.reset(before)

    def put(self, job: WriteJob) -> Future[Any]:
        """Queue a job for the writer. Raises `Unavailable`."""
        if job.batch is not None:
            self.appender.check(job.batch)
        return self.writer.put(job)

    def put_all(self, jobs: Sequence[WriteJob]) -> list[Future[Any]]:
        """Queue jobs for the writer, or none of them. Raises `Unavailable`."""
        return self.writer.put_all(jobs)

    def write(self, action: Callable[[sqlite3.Connection], T], *, patient: bool = False) -> T:
        """Do something on the writing connection and wait until it is durable; `patient` shares the writer's time with
        all others. May raise `Unavailable`.
        """
        return self.writer.call(action, frees=_frees_space.get(), patient=patient)

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """What this thread writes within makes room: it may take what is kept for that on a full disk."""
        before = _frees_space.set(True)
        try:
            yield
        finally:
            _frees_space.reset(before)

    @property
    def is_full(self) -> bool:
        """Whether nothing but what makes room can be written, and even that in small pieces."""
        return not (self.writer.writable and self.writer.reserve.held)

    def trouble(self) -> str | None:
        """Why nothing can be kept now, in words that name no path; None while all is well."""
        return self.writer.trouble

    def health(self) -> dict[str, float]:
        """Numbers for whoever watches: what waits, how fast it is written, how far the text index is behind."""
        with self._aside.one() as reader:
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
        """Sizes in bytes, counts of rows, and projects with their share of the file."""
        with self.read() as reader:
            return integrity.collect_stats(reader.db, self.path)

    def check(self, *, deep: bool = False) -> list[str]:
        """What is wrong with the file, in words; empty if it is sound. `deep` also reads every payload."""
        with self.read() as reader:
            return integrity.check_integrity(reader, deep)

    def checkpoint(self) -> None:
        """Move what the write-ahead log holds into the file, and cut the log to nothing."""
        self.writer.alone(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def vacuum(self) -> int:
        """Drop what nothing refers to any more, and give its space back; returns how many bytes."""
        self.checkpoint()
        before = self._database_bytes()
        self.write(self._drop_unused)
        self.writer.alone(lambda db: db.execute("VACUUM"))
        freed = max(0, before - self._database_bytes())
        self.checkpoint()
        return freed

    def _database_bytes(self) -> int:
        """Bytes of the database's pages. The file may be longer while a reader keeps the log from being copied."""
        with self.read() as reader:
            pages, size = (
                int(reader.db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size")
            )
        return pages * size

    def _drop_unused(self, db: sqlite3.Connection) -> None:
        integrity.delete_unused(db)
        self.appender.forget()  # what it remembers may be gone

    def was_in_vain(self) -> None:
        """A file that was made for what was refused then goes when it is closed, unless anything was written."""
        self._in_vain = True

    def _empty_log(self) -> None:
        """Copy the write-ahead log into the file, as far as readers in other processes allow."""
        if self.writer.halted:
            return
        with suppress(sqlite3.Error):  # a full disk, a damaged file
            self._db.execute(f"PRAGMA busy_timeout = {CLOSE_WAIT_MS}").fetchall()
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Write what is queued, then let go. Closing twice is harmless, and so it is in a fork: the parent goes on."""
        if not self.origin.is_here or not self._closed.acquire(blocking=False):
            return
        self.writer.close()
        self.appender.held.close()
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
    """Reads the file at `path`. Raises `Refused` where it is damaged, not Spanwise's, or not of this version."""

    def __init__(self, path: str | Path) -> None:
        self.name, self.path, self.origin = check_database_path(path), real_path(path), OwnerProcess()
        with translate_file_errors(self.name), closing(connect_without_lock(self.path)) as db:
            if (version := read_version(db, self.name)) < len(MIGRATIONS):
                raise Refused(
                    f"{self.name!r} is of file version {version}, and cannot be brought up to {len(MIGRATIONS)} where"
                    " it may not be written; copy it to where it may"
                )
            self.clock = StoreClock(db)
        self._readers = ReaderPool(self.path, self.clock.now, connect_without_lock)

    def announce(self, url: str | None) -> None:
        """Nobody needs to ask this process: whoever may read the file can."""

    @property
    def is_full(self) -> bool:
        """No disk is meant here."""
        return False

    def put(self, job: WriteJob) -> Future[Any]:
        raise self._refusal()

    def put_all(self, jobs: Sequence[WriteJob]) -> list[Future[Any]]:
        raise self._refusal()

    def write(self, action: Callable[[sqlite3.Connection], T], *, patient: bool = False) -> T:
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
        """Nothing is ever kept here."""
        return "the database can only be read: this user may not write it"

    def health(self) -> dict[str, float]:
        """Numbers for whoever watches."""
        return {"writable": 0}

    def close(self) -> None:
        """Let go."""
        if self.origin.is_here:
            self._readers.close()


P = ParamSpec("P")
H = TypeVar("H", bound="Backend")
Operation = Callable[Concatenate[H, sqlite3.Connection, P], T]  # is given a connection of the file


class Backend:
    """Verbs over one file."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    @property
    def where(self) -> str:
        """The path of the file, as it was given."""
        return self._file.name

    def close(self) -> None:
        """Write what is queued, then let go of the file. Closing twice is harmless."""
        self._file.close()


def read_operation(verb: Operation[H, P, T]) -> Callable[Concatenate[H, P], T]:
    """A verb that reads: its connection is in one consistent snapshot of the file."""

    def read(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._file.read() as reader:
            return verb(self, reader.db, *args, **kwargs)

    update_wrapper(read, verb)
    return read


def write_operation(verb: Operation[H, P, T]) -> Callable[Concatenate[H, P], T]:
    """A verb that writes: durable, all of it, when it returns; nothing of it stays when it raises."""

    def write(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._file.write(lambda db: verb(self, db, *args, **kwargs))

    update_wrapper(write, verb)
    return write
