"""Small records of a trace, by id: in memory, or in a table where the trace is large, of which only what a batch asks
for is read, and only what it changes is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from spanwise.collector.stores.sqlite._sql import insert_many

WHOLE = 512  # records of a trace that are kept in memory


class Orphans(NamedTuple):
    """Spans whose parent, a key of the ledger, is not here: the earliest, and what the parent must know of them."""

    start_ns: int
    span_id: str
    row: int
    below: int  # flags, see `_state`
    callers: int  # of what is below it and not below a local root: local roots of other processes
    members: int  # and spans


class LocalRoot(NamedTuple):
    """What is known of a local root, a key of the ledger, from the spans that name it or are below it."""

    members: int
    started: int | None  # of the latest counts, None where none has come
    open: int
    dropped: int
    calls_sent: int
    answered: int  # calls: local roots of other processes below its members

    @property
    def has_arrived(self) -> bool:
        """Whether all of its spans are here."""
        return self.started is not None and self.open == 0 and self.members + self.dropped >= self.started

    @property
    def waits(self) -> bool:
        """Whether it has sent out more calls than were answered."""
        return self.answered < self.calls_sent


Record = TypeVar("Record", bound=Orphans | LocalRoot)
TABLES: dict[type, str] = {Orphans: "orphans", LocalRoot: "local_roots"}


class Ledger(Generic[Record]):
    """Records of one kind, of one trace. `keep` gives them a table, from then on `flush` writes what has changed."""

    def __init__(self, kind: type[Record], whole: int = WHOLE) -> None:
        self.most = whole  # that are kept in memory
        self._kind: type[Record] = kind
        self._table = TABLES[kind]
        self._known: dict[str, Record | None] = {}
        self._whole = True  # all that there are is known
        self._dirty: set[str] = set()
        self._db: sqlite3.Connection | None = None
        self._key = 0

    def __len__(self) -> int:
        """Of those that take memory."""
        return len(self._known)

    def get(self, id: str) -> Record | None:
        """The record under an id, None if there is none."""
        if self._whole or id in self._known:
            return self._known.get(id)
        assert self._db is not None
        sql = f"SELECT {','.join(self._kind._fields)} FROM {self._table} WHERE trace = ? AND id = ?"
        row = self._db.execute(sql, (self._key, id)).fetchone()
        found = self._known[id] = self._kind(*row) if row else None
        return found

    def put(self, id: str, record: Record | None) -> None:
        """Set the record under an id, or remove it."""
        if record is None and self._whole:
            self._known.pop(id, None)
        else:
            self._known[id] = record
        self._dirty.add(id)

    def records(self) -> list[tuple[str, Record]]:
        """All that are known."""
        found: list[tuple[str, Record]] = []
        for id, record in self._known.items():
            if record is not None:
                found.append((id, record))
        return found

    def earliest(self) -> tuple[int, str, int, str] | None:
        """Of orphans: start, span, row and parent of the one that began first."""
        known = [(*record[:3], id) for id, record in self.records()]
        if not self._whole:
            assert self._db is not None
            sql = "SELECT start_ns, span_id, row, id FROM orphans WHERE trace = ? ORDER BY start_ns, span_id LIMIT ?"
            rows = self._db.execute(sql, (self._key, len(self._dirty) + 1)).fetchall()
            known += [row for row in rows if row[3] not in self._known]
        return min(known, default=None)

    def keep(self, db: sqlite3.Connection, key: int) -> None:
        """Have it all in the table from now on, whatever that has of the trace."""
        db.execute(f"DELETE FROM {self._table} WHERE trace = ?", (key,))
        self._dirty = set(self._known)
        self._db, self._key = db, key

    def load(self, db: sqlite3.Connection, key: int) -> None:
        """Take what the table has, as long as it is little."""
        self._db, self._key = db, key
        sql = f"SELECT id, {','.join(self._kind._fields)} FROM {self._table} WHERE trace = ? LIMIT ?"
        rows = db.execute(sql, (key, self.most + 1)).fetchall()
        self._whole = len(rows) <= self.most
        self._known = {row[0]: self._kind(*row[1:]) for row in rows} if self._whole else {}

    def flush(self) -> None:
        """Write what has changed."""
        if self._db is None or not self._dirty:
            return
        changed = [(id, self._known.get(id)) for id in self._dirty]
        write(self._db, self._kind, self._key, changed)
        self._dirty.clear()
        self._forget_what_is_much()

    def clear(self, key: int) -> Callable[[sqlite3.Connection], object]:
        """What removes all that the table has of a trace."""
        sql = f"DELETE FROM {self._table} WHERE trace = ?"
        return lambda db: db.execute(sql, (key,))

    def writes(self, key: int, size: int) -> Iterator[Callable[[sqlite3.Connection], object]]:
        """What puts the records of a trace into the table, so many at once."""
        records = self.records()
        for start in range(0, len(records), size):
            yield partial(write, kind=self._kind, key=key, changed=records[start : start + size])

    def adopt(self, db: sqlite3.Connection, key: int) -> None:
        """All of it is in the table by now."""
        self._db, self._key = db, key
        self._dirty.clear()
        self._forget_what_is_much()

    def _forget_what_is_much(self) -> None:
        if len(self._known) > self.most or not self._whole:
            self._whole = False
            self._known.clear()


def write(db: sqlite3.Connection, kind: type[Record], key: int, changed: Iterable[tuple[str, Record | None]]) -> None:
    """Put records of a trace into their table, and remove those that are None."""
    put: list[Sequence[Any]] = []
    for id, record in changed:
        if record is None:
            db.execute(f"DELETE FROM {TABLES[kind]} WHERE trace = ? AND id = ?", (key, id))
        else:
            put.append((key, id, *record))
    fields: tuple[str, ...] = kind._fields
    conflict = "ON CONFLICT (trace, id) DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in fields)
    insert_many(db, TABLES[kind], ("trace", "id", *fields), put, conflict)
