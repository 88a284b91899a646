"""Clock of a file: monotonic store time and change numbers, persisted in the table `feed`.

The one row of `feed` holds both. The transaction that uses them updates it, so time and numbers never go back after a
restart, even if the system clock does. A restored copy of the file lacks the numbers that were assigned after the
backup. Therefore each opening continues from the current time in microseconds, if that is higher.
"""

from __future__ import annotations

import sqlite3
import threading
import time


class StoreClock:
    """Clock and change counter of a file that is open for writing.

    Any thread may call `now`; only the writer thread may take change numbers.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._lock = threading.Lock()
        self._number: int
        self._now: int
        self._number, self._now = db.execute("SELECT change, clock_ns FROM feed").fetchone()
        self._ticked = time.monotonic_ns()
        self._number = max(self._number, self.now() // 1000)

    def now(self) -> int:
        """Return nanoseconds since 1970.

        The time advances at least as fast as the monotonic clock, even if the system clock is set back.
        """
        with self._lock:
            ticked = time.monotonic_ns()
            self._now = max(time.time_ns(), self._now + ticked - self._ticked)
            self._ticked = ticked
            return self._now

    def take(self, db: sqlite3.Connection, count: int) -> tuple[range, int]:
        """Return the next `count` change numbers and the time, and persist both in the current transaction.

        A rollback loses the numbers; they are not assigned again.
        """
        numbers = range(self._number + 1, self._number + count + 1)
        self._number += count
        return numbers, self.keep(db)

    def skip_to(self, db: sqlite3.Connection, number: int) -> None:
        """Leave out the change numbers up to `number`."""
        self._number = max(self._number, number)
        self.keep(db)

    def return_to(self, db: sqlite3.Connection, number: int) -> None:
        """Continue with the change numbers after `number`. None of them may be in use."""
        self._number = number
        self.keep(db)

    def keep(self, db: sqlite3.Connection) -> int:
        """Save and return the time, so that it does not go back after a restart."""
        now = self.now()
        db.execute("UPDATE feed SET change = ?, clock_ns = ?", (self._number, now))
        return now
