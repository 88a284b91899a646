"""Monotonic store time and change numbers, persisted in the `feed` table.

Both are kept in the one row of `feed`, written in the transaction that uses them: what was committed is below what
comes after a restart, whatever the system's clock says then. A restored copy of the file knows nothing of the numbers
that were given out since it was made; hence each opening goes on from the time in microseconds, if that is higher.
"""

from __future__ import annotations

import sqlite3
import threading
import time


class StoreClock:
    """Of one file that is open for writing. `now` from any thread; numbers are for the writer's."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._lock = threading.Lock()
        self._number: int
        self._now: int
        self._number, self._now = db.execute("SELECT change, clock_ns FROM feed").fetchone()
        self._ticked = time.monotonic_ns()
        self._number = max(self._number, self.now() // 1000)

    def now(self) -> int:
        """Nanoseconds since 1970. Goes on at least as a stopwatch does, also where the system's clock is set back."""
        with self._lock:
            ticked = time.monotonic_ns()
            self._now = max(time.time_ns(), self._now + ticked - self._ticked)
            self._ticked = ticked
            return self._now

    def take(self, db: sqlite3.Connection, count: int) -> tuple[range, int]:
        """The next numbers, and the time, within the transaction that uses them. If it is rolled back they are lost."""
        numbers = range(self._number + 1, self._number + count + 1)
        self._number += count
        return numbers, self.keep(db)

    def keep(self, db: sqlite3.Connection) -> int:
        """The time, so that it will not be earlier after a restart."""
        now = self.now()
        db.execute("UPDATE feed SET change = ?, clock_ns = ?", (self._number, now))
        return now
