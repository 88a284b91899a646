"""One SQLite file that this process holds: read on connections of their own, written by the one writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from spanwise.collector._names import named
from spanwise.collector.errors import Halted, Refused
from spanwise.collector.stores.sqlite import _feedback, _maintenance, _words
from spanwise.collector.stores.sqlite._append import Appender
from spanwise.collector.stores.sqlite._beside import connect_read_only
from spanwise.collector.stores.sqlite._clock import Clock
from spanwise.collector.stores.sqlite._errors import explained
from spanwise.collector.stores.sqlite._fork import Origin, keep_in_forks
from spanwise.collector.stores.sqlite._lock import Lock, real
from spanwise.collector.stores.sqlite._open import open_writable
from spanwise.collector.stores.sqlite._pool import Readers
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._reserve import Reserve
from spanwise.collector.stores.sqlite._watch import Watch
from spanwise.collector.stores.sqlite._writer import Job, Writer

T = TypeVar("T")
_makes_room = ContextVar("makes_room", default=False)
_aside = ContextVar("aside", default=False)
CLOSING_MS = 100  # that `close` waits for readers in other processes
ASIDE = 3  # readers that no question takes: work behind the writer, what is due hourly, and the numbers


class File:
    """Holds the file at `path`, which it makes if there is none, until `close`.

    Raises `Refused` when another process (or another store in this one) writes the file, when the file is damaged,
    newer than this Spanwise, or not Spanwise's.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = named(path)
        self.path = real(path)
        self.origin = Origin()
        self._closed, self._in_vain = threading.Lock(), False
        with ExitStack() as opened:  # closes what was opened if the rest cannot be
            self._lock = Lock(self.path)
            opened.callback(self._lock.undo)
            reserve = Reserve(self.path)
            reserve.open_on_a_full_disk()
            self._db = opened.enter_context(closing(open_writable(self.path)))
            with explained(self.name):
                _words.settle(self._db)
                self.clock = Clock(self._db)
                self._readers = opened.enter_context(closing(Readers(self.path, self.clock.now)))
                self._aside = opened.enter_context(closing(Readers(self.path, self.clock.now, places=ASIDE)))
                self.appender = Appender(Reader(self._db), self.clock)
                self.watch = opened.enter_context(closing(Watch(self._db, self._lock)))
            self._refuse_unreadable()
            opened.pop_all()
        self.announce, self.announce_again = self._lock.announce, self._lock.announce_again
        self.writer = Writer(
            self._db, self.watch, reserve, partial(_feedback.append, self.appender), self.appender.forget
        )
        self._readers.damaged = self._aside.damaged = self._halt
        keep_in_forks(self)

    def _refuse_unreadable(self) -> None:
        """Raises `Refused` unless readers, on connections of their own, find what the writer makes."""
        with explained(self.name), closing(connect_read_only(self.path)) as db:
            if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'spans'").fetchone():
                raise Refused(f"what is written to {self.name!r} cannot be read back; name another file")

    def _halt(self, why: Halted) -> None:
        self.writer.halted = self.writer.halted or why

    def read(self) -> AbstractContextManager[Reader]:
        """A reader in one consistent snapshot of the file. Not to be asked for twice by one thread."""
        return self._aside.one() if _aside.get() else self._readers.one()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread reads within it reads beside all questions, and waits for none of them."""
        before = _aside.set(True)
        try:
            yield
        finally:
            _aside.reset(before)

    def put(self, job: Job) -> Future[Any]:
        """Queue a job for the writer. Raises `Unavailable`."""
        if job.batch is not None:
            self.appender.check(job.batch)
        return self.writer.put(job)

    def put_all(self, jobs: Sequence[Job]) -> list[Future[Any]]:
        """Queue jobs for the writer, or none of them. Raises `Unavailable`."""
        return self.writer.put_all(jobs)

    def write(self, action: Callable[[sqlite3.Connection], T], *, patient: bool = False) -> T:
        """Do something on the writing connection and wait until it is durable; `patient` shares the writer's time with
        all others. May raise `Unavailable`.
        """
        return self.writer.call(action, frees=_makes_room.get(), patient=patient)

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """What this thread writes within makes room: it may take what is kept for that on a full disk."""
        before = _makes_room.set(True)
        try:
            yield
        finally:
            _makes_room.reset(before)

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
            waiting, since = reader.db.execute(_words.LAG).fetchone()
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
            "file_bytes": _maintenance.size_of(self.path),
            "log_bytes": _maintenance.size_of(self.path + "-wal"),
            "log_waiting_bytes": self.watch.log().waiting,
        }

    def stats(self) -> dict[str, Any]:
        """Sizes in bytes, counts of rows, and projects with their share of the file."""
        with self.read() as reader:
            return _maintenance.stats(reader.db, self.path)

    def check(self, *, deep: bool = False) -> list[str]:
        """What is wrong with the file, in words; empty if it is sound. `deep` also reads every payload."""
        with self.read() as reader:
            return _maintenance.check(reader, deep)

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
        _maintenance.drop_unused(db)
        self.appender.forget()  # what it remembers may be gone

    def was_in_vain(self) -> None:
        """A file that was made for what was refused then goes when it is closed, unless anything was written."""
        self._in_vain = True

    def _empty_log(self) -> None:
        """Copy the write-ahead log into the file, as far as readers in other processes allow."""
        if self.writer.halted:
            return
        with suppress(sqlite3.Error):  # a full disk, a damaged file
            self._db.execute(f"PRAGMA busy_timeout = {CLOSING_MS}").fetchall()
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
