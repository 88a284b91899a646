"""Span tree for incremental summaries: nodes, orphaned spans and local roots, loaded on demand."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from spanwise.collector.stores.sqlite.database.bulk_statements import insert_many
from spanwise.collector.stores.sqlite.write.run_codec import Fact

TOKENS_FLAG, COST_FLAG = 1, 2  # flags: somewhere below a span are such as have some


class StepLimitExceeded(Exception):
    """To say what a trace sums up to now would take longer than a batch may; it is found out behind the writer."""


class SpanNode:
    """A span that is here, as far as its children and its marks ask for it."""

    __slots__ = ("below", "cost", "further", "input_tokens", "model", "output_tokens", "parent_id", "row")

    def __init__(
        self,
        row: int,
        parent_id: str | None,
        model: str | None,
        input_tokens: int | None,
        output_tokens: int | None,
        cost: float | None,
        below: int = 0,
    ) -> None:
        self.row, self.parent_id, self.model, self.cost = row, parent_id, model, cost
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        self.below = below
        self.further: str | None = None  # a span above it, up to which nothing is a local root

    @property
    def carries(self) -> int:
        """Flags of what the span has itself."""
        return (self.input_tokens is not None) * TOKENS_FLAG | (self.cost is not None) * COST_FLAG


def make_node(row: int, fact: Fact, below: int = 0) -> SpanNode:
    """The node of a fact."""
    return SpanNode(row, fact.parent_id, fact.model, fact.input_tokens, fact.output_tokens, fact.cost, below)


class TraceNodes:
    """The spans of a trace that are here: those that were looked up, others by `find`. `read` gives a row's fact."""

    def __init__(
        self,
        known: dict[str, SpanNode | None] | None = None,
        find: Callable[[str], SpanNode | None] = lambda _: None,
        read: Callable[[int], Fact] | None = None,
        steps: int = 2**62,
    ) -> None:
        self.known = {} if known is None else known
        self.facts: dict[int, Fact] = {}
        self.marked: list[SpanNode] = []  # whose flags have changed
        self._find, self._read, self.steps = find, read, steps

    def get(self, span_id: str) -> SpanNode | None:
        """The span, None if it is not here."""
        if span_id not in self.known:
            self.known[span_id] = self._find(span_id)
        return self.known[span_id]

    def fact(self, row: int) -> Fact:
        """The fact of a row."""
        if row not in self.facts:
            assert self._read is not None
            self.facts[row] = self._read(row)
        return self.facts[row]

    def mark(self, one: SpanNode, flags: int) -> None:
        """Set flags of a span. Raises `Adrift` where these are more than a batch may set."""
        one.below |= flags
        self.marked.append(one)
        self.step()

    def step(self) -> None:
        """Go one span up. Raises `Adrift` where a batch has gone too far."""
        self.steps -= 1
        if self.steps < 0:
            raise StepLimitExceeded


MAX_RECORDS_IN_MEMORY = 512  # records of a trace that are kept in memory


class OrphanedSpans(NamedTuple):
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


Record = TypeVar("Record", bound=OrphanedSpans | LocalRoot)
RECORD_TABLES: dict[type, str] = {OrphanedSpans: "orphans", LocalRoot: "local_roots"}


class RecordTable(Generic[Record]):
    """Records of one kind, of one trace. `keep` gives them a table, from then on `flush` writes what has changed."""

    def __init__(self, kind: type[Record], whole: int = MAX_RECORDS_IN_MEMORY) -> None:
        self.most = whole  # that are kept in memory
        self._kind: type[Record] = kind
        self._table = RECORD_TABLES[kind]
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
        write_records(self._db, self._kind, self._key, changed)
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
            yield partial(write_records, kind=self._kind, key=key, changed=records[start : start + size])

    def adopt(self, db: sqlite3.Connection, key: int) -> None:
        """All of it is in the table by now."""
        self._db, self._key = db, key
        self._dirty.clear()
        self._forget_what_is_much()

    def _forget_what_is_much(self) -> None:
        if len(self._known) > self.most or not self._whole:
            self._whole = False
            self._known.clear()


def write_records(
    db: sqlite3.Connection, kind: type[Record], key: int, changed: Iterable[tuple[str, Record | None]]
) -> None:
    """Put records of a trace into their table, and remove those that are None."""
    put: list[Sequence[Any]] = []
    for id, record in changed:
        if record is None:
            db.execute(f"DELETE FROM {RECORD_TABLES[kind]} WHERE trace = ? AND id = ?", (key, id))
        else:
            put.append((key, id, *record))
    fields: tuple[str, ...] = kind._fields
    conflict = "ON CONFLICT (trace, id) DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in fields)
    insert_many(db, RECORD_TABLES[kind], ("trace", "id", *fields), put, conflict)
