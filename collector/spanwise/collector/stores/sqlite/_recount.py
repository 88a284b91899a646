"""Hours whose sums are to be counted anew: from rows, behind the writer, in a snapshot of the file.

What changes in an hour meanwhile is noted by `Sums.watch` and put on top, so that an hour into which something is
written all the time is counted, too. The snapshot and the notes begin between the same two commits.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from functools import partial

from spanwise.collector.stores.sqlite._counted import Delta, count
from spanwise.collector.stores.sqlite._file import File
from spanwise.collector.stores.sqlite._sums import STALE, Sums

PAUSE = 0.002  # seconds: others compute, too
REST = 20  # times as long as it took, an hour is left alone before it is counted again
ROUND = 0.5  # seconds after which no other hour is begun before what else there is to do


class Recount:
    """Counts hours anew, one after the other, the latest first."""

    def __init__(self, file: File, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._not_before: dict[int, float] = {}

    def round(self) -> bool:
        """Count what is due, for about `ROUND` seconds; whether there was any."""
        due, start = self._due(), time.monotonic()
        for hour, state in due:
            began = time.monotonic()
            if self._stop.is_set() or began > start + ROUND:
                break
            if state == STALE:
                self.ended(hour, self.begun(hour))
            else:
                self._file.writer.call(partial(self._empty, hour))
            now = time.monotonic()
            self._not_before[hour] = now + REST * (now - began)
        return bool(due)

    def _due(self) -> list[tuple[int, int]]:
        now = time.monotonic()
        self._not_before = {hour: then for hour, then in self._not_before.items() if then > now}
        with self._file.read() as reader:
            # One that is wild is only emptied
            sql = "SELECT hour, state FROM sums_hours WHERE state > 0 AND (state = 1 OR rows <> 0) ORDER BY hour DESC"
            return [row for row in reader.db.execute(sql) if row[0] not in self._not_before]

    def begun(self, hour: int) -> Delta | None:
        """What the rows of an hour add up to, from when on its changes are noted."""
        sums = self._file.appender.sums
        with self._file.read() as reader:
            self._file.writer.alone(lambda _: _begin(reader.db, sums, hour))
            return count(reader.db, hour, lambda: self._stop.wait(PAUSE))

    def ended(self, hour: int, counted: Delta | None) -> None:
        """Put it in place of the sums of the hour."""
        self._file.writer.call(partial(self._put, hour, counted))

    def _empty(self, hour: int, _: sqlite3.Connection) -> None:
        self._file.appender.sums.empty(hour)

    def _put(self, hour: int, counted: Delta | None, _: sqlite3.Connection) -> None:
        sums = self._file.appender.sums
        changed = sums.watched(hour)
        if changed is not None:  # else something was rolled back, or cannot be counted: once more, later
            sums.put(hour, counted, changed)


def _begin(db: sqlite3.Connection, sums: Sums, hour: int) -> None:
    """Have the reader's transaction see the file as it is now, and note what changes from now on."""
    db.execute("SELECT 1 FROM sums_hours LIMIT 1").fetchall()
    sums.watch(hour)
