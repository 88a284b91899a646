"""The connections that read: how many there are, who waits for one, and what ends a query that runs.

A query belongs to the question that its thread was asked (`spanwise.collector._asking`), and ends with it. SQLite's
progress handler looks between two steps of a query, in the thread that runs it; what is one step to it, as a beginning
of a word that the text index looks up, ends when whoever keeps the question interrupts the connection. A connection
that was in use by a question that was stopped is closed: nobody else meets an interrupt that came late.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spanwise.collector._asking import ASKED, Question
from spanwise.collector.error_text import error_group
from spanwise.collector.errors import Closed, Halted, Unavailable
from spanwise.collector.stores.sqlite._beside import connect_read_only
from spanwise.collector.stores.sqlite._errors import translate
from spanwise.collector.stores.sqlite._fork import Origin
from spanwise.collector.stores.sqlite._reader import Reader

CLOSED = "the store is closed"
STEPS = 200_000  # of SQLite between two looks at whether it is to stop; some milliseconds
READERS = 8  # more would only share the same cores, and each has a page cache
IDLE = 3  # kept open for the next question; what a rush has opened beyond them would keep its cache for ever
WAIT, LOOK = 30.0, 0.1  # seconds for a reader to become free; between looks at whether anybody still waits


class Readers:
    """A pool of at most `places` connections; who finds all in use waits. Not to be taken twice by one thread.

    `wait` is in seconds, `now` the store's clock, `store_now()` in SQL. `damaged` is called when the file turns out to
    be.
    """

    def __init__(
        self,
        path: str,
        now: Callable[[], int],
        connect: Callable[[str], sqlite3.Connection] = connect_read_only,
        places: int = READERS,
        wait: float = WAIT,
    ) -> None:
        self._path, self._now, self._origin = path, now, Origin()
        self._connect, self._most, self._longest = connect, places, wait
        self.damaged: Callable[[Halted], object] = lambda _: None
        self._places = threading.BoundedSemaphore(places)
        self._lock = threading.Lock()
        self._free: list[Reader] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Reader]:
        """A reader in one consistent snapshot of the file.

        Raises `Unavailable` where none becomes free, `TooSlow` once the question has taken too long, and `Closed` once
        the store is, or nobody waits for the answer any more; the last two in mid-query, too.
        """
        self._origin.check()
        question = ASKED.get()
        self._wait(question)
        try:
            reader = self._take()
            try:
                self._begin(reader, question)
                yield reader
            except sqlite3.Error as error:
                raise self._why(error, question) from error
            finally:
                self._give_back(reader, question)
        finally:
            self._places.release()

    def _wait(self, question: Question | None) -> None:
        until = time.monotonic() + self._longest
        while not self._places.acquire(timeout=LOOK):
            if question is not None:
                question.check()
            if time.monotonic() > until:
                told = f"all {self._most} readers of the database have been busy for {self._longest:g} seconds"
                raise Unavailable(f"{told}; ask again in a moment", retry_after=2.0)

    def _take(self) -> Reader:
        with self._lock:
            if self._closed:
                raise Closed(CLOSED)
            return self._free.pop() if self._free else self._new()

    def _new(self) -> Reader:
        try:
            db = self._connect(self._path)
        except sqlite3.Error as error:
            raise self._why(error, None) from error
        db.create_function("store_now", 0, self._now)
        db.create_function("error_group", 1, error_group, deterministic=True)
        reader = Reader(db)
        db.set_progress_handler(lambda: self._closed or reader.is_over, STEPS)
        return reader

    def _begin(self, reader: Reader, question: Question | None) -> None:
        if question is not None:
            question.begin(reader.db.interrupt)
        reader.question = question
        reader.look()
        reader.db.execute("BEGIN")

    def _give_back(self, reader: Reader, question: Question | None) -> None:
        reader.question = None
        if question is not None:
            question.end(reader.db.interrupt)
        sound = not (question is not None and question.is_over) and _ended(reader.db)
        with self._lock:
            if sound and not self._closed and len(self._free) < IDLE:
                self._free.append(reader)
                return
        reader.db.close()

    def _why(self, error: sqlite3.Error, question: Question | None) -> Exception:
        if self._closed:
            return Closed(CLOSED)
        if question is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            return question.refusal()
        translated = translate(error)
        if isinstance(translated, Halted):
            self.damaged(translated)
        return translated

    def close(self) -> None:
        """Close every connection, and give no more. One in use is closed by whoever gives it back, soon: closed under a
        thread that is inside of SQLite it would take the process with it.
        """
        with self._lock:
            self._closed = True
            while self._free:
                self._free.pop().db.close()


def _ended(db: sqlite3.Connection) -> bool:
    """End the snapshot; whether the connection is as it was before."""
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True
