"""Hours and days at rest: what charts over months ask of them is made ready behind the writer.

Of an hour these are the latencies of each cell in order, so that exact percentiles read no rows, what its cells add up
to (`_hours`), and which names its runs have (it may be said of more); of a day its sums, with latencies in order. An
hour is at rest when it is over and nothing has changed in it between two looks. Who changes it afterwards says so in
the same transaction (`Sums`, the column `rest`): then it is asked as before, and made ready again later.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from functools import partial

from spanwise.collector.stores.sqlite import _hours
from spanwise.collector.stores.sqlite._counted import HOUR_NS, MOST_ROWS
from spanwise.collector.stores.sqlite._days import Day, added_up, in_order, insert, names
from spanwise.collector.stores.sqlite._file import File
from spanwise.collector.stores.sqlite._sql import insert_many
from spanwise.collector.stores.sqlite._sums import BARE, READY, STIRRED

EVERY = 30.0  # seconds between two looks
ROUND = 0.5  # seconds after which there is time for what else there is to do
PAUSE = 0.002  # seconds: others compute, too
MOST_OF_A_DAY = 5 * MOST_ROWS  # rows of its hours, that are read to make a day of them

_DUE_DAYS = (
    "SELECT day FROM sums_days WHERE rest = 0"
    " UNION SELECT DISTINCT hour / 24 FROM sums_hours WHERE hour >= 24 AND hour / 24 NOT IN (SELECT day FROM sums_days)"
    " ORDER BY 1 DESC"
)
_OF_DAY = "SELECT state, rest, rows FROM sums_hours WHERE hour BETWEEN ? AND ?"
_NAMES = "SELECT name, hour FROM sums_names WHERE hour BETWEEN ? AND ?"
_ONCE = "ON CONFLICT DO NOTHING"
_INSTEAD = "ON CONFLICT (cell) DO UPDATE SET data = excluded.data"


class Rest:
    """Makes ready what is at rest, the latest first."""

    def __init__(self, file: File, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._next = time.monotonic() + EVERY
        self._hours: list[int] = []
        self._days: list[int] = []

    def round(self) -> bool:
        """Make ready what is due, for about `ROUND` seconds; whether there is more."""
        began = time.monotonic()
        if not (self._hours or self._days):
            if began < self._next:
                return False
            self.look()
            self._next = time.monotonic() + EVERY
        while (self._hours or self._days) and time.monotonic() < began + ROUND and not self._stop.is_set():
            if self._hours:
                self.make_hour(self._hours.pop())
            else:
                self.make_day(self._days.pop())
        return bool(self._hours or self._days)

    def look(self) -> None:
        """Find what is due: days after their hours."""
        stirred = set[int]()
        self._file.writer.alone(lambda _: stirred.update(self._file.appender.sums.rested()))
        now = self._file.clock.now() // HOUR_NS
        with self._file.read() as reader:
            hours = reader.db.execute("SELECT hour FROM sums_hours WHERE state = 0 AND rest = 0 ORDER BY hour")
            self._hours = [hour for (hour,) in hours if hour < now and hour not in stirred]
            days = reader.db.execute(_DUE_DAYS).fetchall()
        moved = {hour // 24 for hour in stirred}
        self._days = [day for (day,) in reversed(days) if day < now // 24 and day not in moved]

    def make_hour(self, hour: int) -> None:
        """Put the latencies of an hour in order, add up its cells, and note the names of its runs."""
        with self._file.read() as reader:
            latencies = in_order(reader.db, hour, lambda: self._stop.wait(PAUSE))
            rows = None if latencies is None else _hours.added_up(reader.db, hour, latencies)
            named = names(reader.db, hour)
        self._file.writer.call(partial(self._put_hour, hour, latencies, rows, named), patient=True)

    def _put_hour(
        self,
        hour: int,
        latencies: dict[int, bytes] | None,
        rows: Sequence[_hours.Row] | None,
        named: Sequence[str] | None,
        db: sqlite3.Connection,
    ) -> None:
        sums = self._file.appender.sums
        if hour in sums.stirred:
            return
        insert_many(db, "sums_latencies", ("cell", "data"), list((latencies or {}).items()), _INSTEAD)
        _hours.put(db, hour, rows or ())
        insert_many(db, "sums_names", ("name", "hour"), [(name, hour) for name in named or ()], _ONCE)
        rest = BARE if rows is None else READY
        sql = "UPDATE sums_hours SET rest = ?, named = ? WHERE hour = ? AND state = 0"
        db.execute(sql, (rest, named is not None, hour))
        sums.made_ready()

    def make_day(self, day: int) -> None:
        """Add up the hours of a day."""
        with self._file.read() as reader:
            hours = reader.db.execute(_OF_DAY, (24 * day, 24 * day + 23)).fetchall()
            if any(state > 0 or rest == STIRRED for state, rest, _ in hours):
                return
            found = added_up(reader.db, day) if sum(row[2] for row in hours) <= MOST_OF_A_DAY else None
            gone = reader.db.execute(_NAMES, (24 * day, 24 * day + 23)).fetchall() if not hours else []
        self._file.writer.call(partial(self._put_day, day, found, gone), patient=True)

    def _put_day(self, day: int, found: Day | None, gone: list[tuple[str, int]], db: sqlite3.Connection) -> None:
        sums = self._file.appender.sums
        if any(hour // 24 == day for hour in sums.stirred):
            return
        db.execute("DELETE FROM sums_said_of_days WHERE cell IN (SELECT id FROM sums_of_days WHERE day = ?)", (day,))
        db.execute("DELETE FROM sums_of_days WHERE day = ?", (day,))
        db.execute("DELETE FROM sums_days WHERE day = ?", (day,))
        db.executemany("DELETE FROM sums_names WHERE name = ? AND hour = ?", gone)
        if found is None or len(found.rows) + len(found.said) > MOST_ROWS:
            db.execute("INSERT INTO sums_days VALUES (?, ?)", (day, BARE))
        elif found.rows:
            insert(db, day, found)
            db.execute("INSERT INTO sums_days VALUES (?, ?)", (day, READY))
        sums.made_ready()
