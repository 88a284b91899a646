"""Rows of a damaged table: all that SQLite can still read, before, between and behind what it cannot."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any

Row = tuple[Any, ...]

LAST = 2**63 - 1  # rows are numbered from 1 on
BEYOND = 2**20  # rows looked for behind the last one that is known, where no index says how far they go
TRIES = 50_000  # at places between two that can be read, of some microseconds each; then the rest is given up


class Table:
    """The rows of a table, once: iterate, then see whether it was `damaged`."""

    def __init__(self, db: sqlite3.Connection, name: str, columns: Sequence[str]) -> None:
        self._db, self.name, self._columns = db, name, ",".join(columns)
        self.damaged = False

    def __iter__(self) -> Iterator[Row]:
        return self._by_number() if self._is_numbered() else self._from_both_ends()

    def count(self) -> int | None:
        """How many rows there were; None if nothing that can be read says so."""
        with suppress(sqlite3.Error):
            return int(self._db.execute(f"SELECT count(*) FROM {self.name}").fetchone()[0])
        return None

    def _is_numbered(self) -> bool:
        with suppress(sqlite3.OperationalError):  # of a table that has no such column
            self._db.execute(f"SELECT rowid FROM {self.name} LIMIT 0")
            return True
        return False

    def _by_number(self) -> Iterator[Row]:
        """Upwards until a row cannot be read, then downwards from the end; in what is left, from its middle on."""
        gaps, tries = deque([(0, LAST)]), 0
        while gaps and tries < TRIES:
            low, high = gaps.popleft()
            tries += 1
            low = yield from self._walk(low, high, 1)
            if low > high:
                continue
            self.damaged = True
            high = yield from self._walk(low, high, -1)
            if high == LAST:
                high = self._end(low)
            if low < high:
                middle = (low + high) // 2
                gaps += [(low, middle), (middle + 1, high)]

    def _walk(self, low: int, high: int, step: int) -> Generator[Row, None, int]:
        """Rows from one end of a gap; returns where it then begins (or ends), beyond its other end if all is read."""
        order = "ASC" if step > 0 else "DESC"
        sql = f"SELECT rowid, {self._columns} FROM {self.name} WHERE rowid BETWEEN ? AND ? ORDER BY rowid {order}"
        at = low if step > 0 else high
        with suppress(sqlite3.Error):
            for number, *row in self._db.execute(sql, (low, high)):
                if not low <= number <= high or (number - at) * step < 0:  # a page that leads back to an earlier one
                    return at
                at = number + step
                yield tuple(row)
            return high + 1 if step > 0 else low - 1
        return at

    def _end(self, low: int) -> int:
        for sql in (f"SELECT max(rowid) FROM {self.name} INDEXED BY {index}" for index in self._indexes()):
            with suppress(sqlite3.Error):
                return int(self._db.execute(sql).fetchone()[0] or low)
        return low + BEYOND

    def _indexes(self) -> list[str]:
        with suppress(sqlite3.Error):
            return [row[1] for row in self._db.execute(f"PRAGMA index_list({self.name})") if not row[4]]
        return []

    def _from_both_ends(self) -> Iterator[Row]:
        """Of a table that is ordered by texts: a row may come twice."""
        keys = [row[1] for row in self._db.execute(f"PRAGMA table_info({self.name})") if row[5]]
        for order in ("ASC", "DESC"):
            ordered = ",".join(f"{key} {order}" for key in keys)
            with suppress(sqlite3.Error):
                yield from self._db.execute(f"SELECT {self._columns} FROM {self.name} ORDER BY {ordered}")
                return
            self.damaged = True
