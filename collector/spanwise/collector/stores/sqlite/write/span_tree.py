"""Span tree for incremental summaries: nodes, orphaned spans and local roots, loaded on demand."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from spanwise.collector.stores.run_codec import Fact
from spanwise.collector.stores.table_rows import insert_many

TOKENS_FLAG, COST_FLAG = 1, 2  # flags: a span has descendants with tokens, with a cost


class StepLimitExceeded(Exception):
    """Updating the summary would take longer than a batch may. A background job rebuilds it instead."""


class SpanNode:
    """A stored span, with the fields that summaries need from ancestors."""

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
        # an ancestor to which a search for the local root can skip, because no span below it is a local root
        self.further: str | None = None

    @property
    def carries(self) -> int:
        """Return the flags of the span's own tokens and cost."""
        return (self.input_tokens is not None) * TOKENS_FLAG | (self.cost is not None) * COST_FLAG


def make_node(row: int, fact: Fact, below: int = 0) -> SpanNode:
    """Return the node of a fact."""
    return SpanNode(row, fact.parent_id, fact.model, fact.input_tokens, fact.output_tokens, fact.cost, below)


class TraceNodes:
    """Spans of a trace, loaded on demand: `find` loads a span by id, `read` the fact of a row."""

    def __init__(
        self,
        known: dict[str, SpanNode | None] | None = None,
        find: Callable[[str], SpanNode | None] = lambda _: None,
        read: Callable[[int], Fact] | None = None,
        steps: int = 2**62,
    ) -> None:
        self.known = {} if known is None else known
        self.facts: dict[int, Fact] = {}
        self.marked: list[SpanNode] = []  # nodes with changed flags
        self._find, self._read, self.steps = find, read, steps

    def get(self, span_id: str) -> SpanNode | None:
        """Return the span; None if it has not arrived."""
        if span_id not in self.known:
            self.known[span_id] = self._find(span_id)
        return self.known[span_id]

    def fact(self, row: int) -> Fact:
        """Return the fact of a row."""
        if row not in self.facts:
            assert self._read is not None
            self.facts[row] = self._read(row)
        return self.facts[row]

    def mark(self, node: SpanNode, flags: int) -> None:
        """Set flags of a span. Raises `StepLimitExceeded` after too many calls in one batch."""
        node.below |= flags
        self.marked.append(node)
        self.step()

    def step(self) -> None:
        """Count one step up the tree. Raises `StepLimitExceeded` after too many steps in one batch."""
        self.steps -= 1
        if self.steps < 0:
            raise StepLimitExceeded


MAX_RECORDS_IN_MEMORY = 512  # records of one trace kept in memory


class OrphanedSpans(NamedTuple):
    """Spans that wait for the same parent: the earliest of them, and the totals that the parent needs."""

    start_ns: int
    span_id: str
    row: int
    below: int  # flags of descendants: `TOKENS_FLAG`, `COST_FLAG`
    callers: int  # number of local roots of other processes among the descendants, with no local root in between
    members: int  # number of spans among the descendants, with no local root in between


class LocalRoot(NamedTuple):
    """Counts of a local root, from the spans that name it or are below it."""

    members: int
    started: int | None  # from the latest counts; None before any have arrived
    open: int
    dropped: int
    calls_sent: int
    answered: int  # calls that were continued: local roots of other processes below its members

    @property
    def has_arrived(self) -> bool:
        """Return whether all of its spans have arrived."""
        return self.started is not None and self.open == 0 and self.members + self.dropped >= self.started

    @property
    def waits(self) -> bool:
        """Return whether it sent more calls than were answered."""
        return self.answered < self.calls_sent


Record = TypeVar("Record", bound=OrphanedSpans | LocalRoot)
RECORD_TABLES: dict[type, str] = {OrphanedSpans: "orphans", LocalRoot: "local_roots"}


class RecordTable(Generic[Record]):
    """Records of one kind that belong to one trace, by span id, in memory and in a table.

    After `keep`, `flush` writes the changed records to the table.
    """

    def __init__(self, kind: type[Record], max_records: int = MAX_RECORDS_IN_MEMORY) -> None:
        self.max_records = max_records  # limit of records in memory
        self._kind: type[Record] = kind
        self._table = RECORD_TABLES[kind]
        self._records: dict[str, Record | None] = {}
        self._is_complete = True  # whether all records are in memory
        self._dirty: set[str] = set()
        self._db: sqlite3.Connection | None = None
        self._key = 0

    def __len__(self) -> int:
        """Return the number of records in memory."""
        return len(self._records)

    def get(self, id: str) -> Record | None:
        """Return the record under an id, or None."""
        if self._is_complete or id in self._records:
            return self._records.get(id)
        assert self._db is not None
        sql = f"SELECT {','.join(self._kind._fields)} FROM {self._table} WHERE trace = ? AND id = ?"
        row = self._db.execute(sql, (self._key, id)).fetchone()
        found = self._records[id] = self._kind(*row) if row else None
        return found

    def put(self, id: str, record: Record | None) -> None:
        """Set the record under an id, or remove it."""
        if record is None and self._is_complete:
            self._records.pop(id, None)
        else:
            self._records[id] = record
        self._dirty.add(id)

    def records(self) -> list[tuple[str, Record]]:
        """Return the records in memory."""
        found: list[tuple[str, Record]] = []
        for id, record in self._records.items():
            if record is not None:
                found.append((id, record))
        return found

    def earliest(self) -> tuple[int, str, int, str] | None:
        """Return start, span id, row and parent id of the orphaned span that began first."""
        candidates = [(*record[:3], id) for id, record in self.records()]
        if not self._is_complete:
            assert self._db is not None
            sql = "SELECT start_ns, span_id, row, id FROM orphans WHERE trace = ? ORDER BY start_ns, span_id LIMIT ?"
            rows = self._db.execute(sql, (self._key, len(self._dirty) + 1)).fetchall()
            candidates += [row for row in rows if row[3] not in self._records]
        return min(candidates, default=None)

    def keep(self, db: sqlite3.Connection, key: int) -> None:
        """Begin to store all records in the table. Stored records of the trace are deleted first."""
        db.execute(f"DELETE FROM {self._table} WHERE trace = ?", (key,))
        self._dirty = set(self._records)
        self._db, self._key = db, key

    def load(self, db: sqlite3.Connection, key: int) -> None:
        """Load the records of the table, unless there are too many for memory."""
        self._db, self._key = db, key
        sql = f"SELECT id, {','.join(self._kind._fields)} FROM {self._table} WHERE trace = ? LIMIT ?"
        rows = db.execute(sql, (key, self.max_records + 1)).fetchall()
        self._is_complete = len(rows) <= self.max_records
        self._records = {row[0]: self._kind(*row[1:]) for row in rows} if self._is_complete else {}

    def flush(self) -> None:
        """Write the changed records."""
        if self._db is None or not self._dirty:
            return
        changed = [(id, self._records.get(id)) for id in self._dirty]
        write_records(self._db, self._kind, self._key, changed)
        self._dirty.clear()
        self._drop_if_too_many()

    def clear(self, key: int) -> Callable[[sqlite3.Connection], object]:
        """Return an action that removes all records of a trace from the table."""
        sql = f"DELETE FROM {self._table} WHERE trace = ?"
        return lambda db: db.execute(sql, (key,))

    def writes(self, key: int, size: int) -> Iterator[Callable[[sqlite3.Connection], object]]:
        """Yield actions that insert the records of a trace into the table, `size` at a time."""
        records = self.records()
        for start in range(0, len(records), size):
            yield partial(write_records, kind=self._kind, key=key, changed=records[start : start + size])

    def adopt(self, db: sqlite3.Connection, key: int) -> None:
        """Record that the table contains all records now."""
        self._db, self._key = db, key
        self._dirty.clear()
        self._drop_if_too_many()

    def _drop_if_too_many(self) -> None:
        if len(self._records) > self.max_records or not self._is_complete:
            self._is_complete = False
            self._records.clear()


def write_records(
    db: sqlite3.Connection, kind: type[Record], key: int, changed: Iterable[tuple[str, Record | None]]
) -> None:
    """Insert or overwrite records of a trace in their table, and delete those that are None."""
    rows: list[Sequence[Any]] = []
    for id, record in changed:
        if record is None:
            db.execute(f"DELETE FROM {RECORD_TABLES[kind]} WHERE trace = ? AND id = ?", (key, id))
        else:
            rows.append((key, id, *record))
    fields: tuple[str, ...] = kind._fields
    conflict = "ON CONFLICT (trace, id) DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in fields)
    insert_many(db, RECORD_TABLES[kind], ("trace", "id", *fields), rows, conflict)
