"""Amendments that wait for their run, and the index of model response ids.

Response ids are random, so an index over all of them would write one page per id. Instead they are stored in blocks
of about `BLOCK_SIZE` ids that arrived together. The lowest span row in a block identifies it. New ids go to the pages
of the last block, and a lookup searches the blocks one by one.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Amendment
from spanwise.collector.stores import amendment_merge
from spanwise.collector.stores.sqlite.database.bulk_statements import (
    VALUES_PER_IN,
    delete_many,
    insert_many,
    select_many,
)
from spanwise.collector.stores.sqlite.database.column_values import clean, dumps, hash_id, loads
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.write.run_codec import Fact

# maximum number of response ids, 20 bytes each, those of the latest spans. Log records with content arrive within
# minutes, but feedback on a response often a day later
MAX_RESPONSES = 1_000_000
BLOCK_SIZE = 1_000
MAX_CANDIDATES = 8  # maximum number of spans with the same response id: several instrumentations may record one call
_BLOCKS = (  # newest block first; two index lookups per block
    "WITH RECURSIVE parts (part) AS (SELECT max(part) FROM responses UNION ALL"
    " SELECT (SELECT max(r.part) FROM responses r WHERE r.part < parts.part) FROM parts WHERE part IS NOT NULL)"
)
_BLOCKS_WITH_ID = (
    f"{_BLOCKS} SELECT part FROM parts"
    " WHERE EXISTS (SELECT 1 FROM responses r WHERE r.part = parts.part AND r.answer = ?) LIMIT ?"
)
_LATEST_SPANS = (
    "SELECT t.trace_id, s.id FROM responses r CROSS JOIN spans s ON s.id = r.span JOIN traces t ON t.id = s.trace"
    " WHERE r.part = ? AND r.answer = ? ORDER BY r.span DESC LIMIT ?"
)


class ResponseIdWriter:
    """Writer of response ids on the writer's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db, self.size = db, BLOCK_SIZE
        # Remains valid after rollbacks and deletions: the last block is above all earlier ones and below all later
        # rows.
        self._block = self._find_block(2**63 - 1)
        sql = "SELECT count(*) FROM responses WHERE part = ?"
        self._count = int(db.execute(sql, (self._block,)).fetchone()[0])

    def put(self, rows: Sequence[tuple[int, str]], new: int) -> None:
        """Store pairs of span row and response id. Rows from `new` on are new spans."""
        first = min([row for row, _ in rows if row >= new], default=None)
        if first is not None and (not self._block or self._count >= self.size):
            self._block, self._count = first, 0
        answers = [(self._block if row >= new else self._find_block(row), hash_id(id), row) for row, id in rows]
        insert_many(self._db, "responses", ("part", "answer", "span"), answers, "ON CONFLICT DO NOTHING")
        self._count += len(answers)

    def _find_block(self, row: int) -> int:
        """Return the block of a row: 0 for a row older than all blocks."""
        sql = "SELECT coalesce(max(part), 0) FROM responses WHERE part <= ?"
        return int(self._db.execute(sql, (row,)).fetchone()[0])


def find_by_response_id(reader: Reader, response_id: str) -> list[tuple[str, Fact]]:
    """Return the spans with a response id, each as trace id and fact, the latest first.

    Spans with another response id that has the same hash are left out.
    """
    number, rows = hash_id(response_id), list[tuple[str, int]]()
    for (part,) in reader.db.execute(_BLOCKS_WITH_ID, (number, MAX_CANDIDATES)).fetchall():
        rows += reader.db.execute(_LATEST_SPANS, (part, number, MAX_CANDIDATES - len(rows))).fetchall()
    facts = [(trace_id, reader.stored(trace_id, row).fact) for trace_id, row in rows]
    return [(trace_id, fact) for trace_id, fact in facts if fact.response_id == response_id]


def remove_response_ids(db: sqlite3.Connection, traces: Iterable[int]) -> None:
    """Remove the response ids of traces (by key). Must run before their spans are deleted."""
    spans = sorted(row[0] for row in select_many(db, "SELECT id FROM spans WHERE trace IN (%s)", traces))
    parts = sorted(row[0] for row in db.execute(f"{_BLOCKS} SELECT part FROM parts WHERE part IS NOT NULL"))
    for start in range(0, len(spans) if parts else 0, VALUES_PER_IN):
        some = spans[start : start + VALUES_PER_IN]
        among = {parts[at - 1] for at in (bisect_right(parts, span) for span in some) if at}
        marks = ",".join("?" * len(some))
        for part in among:
            db.execute(f"DELETE FROM responses WHERE part = ? AND span IN ({marks})", (part, *some))


def prune_response_ids(db: sqlite3.Connection, most: int = MAX_RESPONSES) -> None:
    """Remove old blocks so that about `most` ids remain."""
    keep = f"{_BLOCKS} SELECT part FROM parts WHERE part IS NOT NULL LIMIT {most // BLOCK_SIZE + 1}"
    db.execute(f"DELETE FROM responses WHERE part < (SELECT min(part) FROM ({keep}))")


MAX_AMENDMENTS = 10_000  # maximum number of runs with waiting amendments
MAX_AMENDMENT_BYTES = 64 * 1024 * 1024  # maximum number of bytes of all waiting amendments
MAX_AMENDMENT_AGE_NS = 7 * 86_400 * 10**9  # a sender's spool keeps undelivered spans for the same time
NO_TRACE = ""  # trace id of amendments by response id
ANY_PROJECT = ""  # project of amendments for a run of any project


class AmendmentTarget(NamedTuple):
    """Target of an amendment: a span, or a model response (without a trace); in one project or in any."""

    trace_id: str
    span_id: str  # span id, or response id if `trace_id` is `NO_TRACE`
    project: str


class _PendingEntry(NamedTuple):
    target: AmendmentTarget
    size: int
    seen_ns: int


def get_amendment_target(amendment: Amendment) -> AmendmentTarget:
    """Return the target of an amendment, cleaned for the table."""
    ids = (NO_TRACE, amendment.response_id) if amendment.response_id else (amendment.trace_id, amendment.span_id)
    return AmendmentTarget(*map(clean, (*ids, amendment.project or ANY_PROJECT)))


class PendingAmendments:
    """Table of waiting amendments, with an index in memory: a span without amendments costs one dict lookup."""

    def __init__(self, db: sqlite3.Connection, clock: StoreClock) -> None:
        self._db, self._clock = db, clock
        self.most, self.most_bytes = MAX_AMENDMENTS, MAX_AMENDMENT_BYTES
        # Amendments dropped since the start, because their run did not arrive or is of another project
        self.given_up = 0
        self._rows: OrderedDict[int, _PendingEntry] = OrderedDict()  # oldest first
        self._by_trace: dict[str, dict[str, dict[str, int]]] = {}  # trace → span → project → row
        self.forget()

    def __len__(self) -> int:
        return len(self._rows)

    def concerns(self, trace_id: str, facts: Iterable[Fact]) -> bool:
        """Return whether amendments may wait for runs of a trace, or for response ids of these facts."""
        return trace_id in self._by_trace or (NO_TRACE in self._by_trace and any(fact.response_id for fact in facts))

    def forget(self) -> None:
        """Read the table again, because the index in memory may be wrong after a rollback."""
        self._rows.clear()
        self._by_trace.clear()
        self.bytes = 0
        sql = "SELECT id, trace_id, span_id, project, size, seen_ns FROM amendments ORDER BY id"
        for row, trace_id, span_id, project, size, seen_ns in self._db.execute(sql):
            self._remember(row, _PendingEntry(AmendmentTarget(trace_id, span_id, project), size, seen_ns))

    def add(self, target: AmendmentTarget, fields: Mapping[str, JSON], most: int) -> None:
        """Store fields for a run that has not arrived. They are merged with fields that already wait for the run.

        Raises `Refused` if the merged fields exceed `most` bytes, because each merge costs as much as all fields
        before it.
        """
        row = self._by_trace.get(target.trace_id, {}).get(target.span_id, {}).get(target.project)
        seen = self._clock.now()
        if row is not None:
            fields, seen = amendment_merge.merge_fields(self._fields(row), fields), self._rows[row].seen_ns
        data = dumps(fields)
        size = len(data.encode())
        if size > most:
            raise Refused(
                f"amendments waiting for span {target.span_id!r} would take {size:,} bytes; the limit is {most:,}"
            )
        values = (*target, data, size, seen)
        if row is None:
            sql = "INSERT INTO amendments (trace_id, span_id, project, fields, size, seen_ns) VALUES (?, ?, ?, ?, ?, ?)"
            row = int(self._db.execute(sql, values).lastrowid or 0)
        else:
            sql = "UPDATE amendments SET fields = ?, size = ? WHERE id = ?"
            self._db.execute(sql, (data, size, row))
            self.bytes -= self._rows[row].size
        self._remember(row, _PendingEntry(target, size, int(seen)))
        self.trim()

    def take(self, trace_id: str, span_id: str, project: str) -> list[dict[str, JSON]]:
        """Remove and return the fields for a run that has arrived, in order of arrival. Fields for runs of other
        projects are dropped, except those by response id, because several projects may have the same response id.
        """
        rows = self._by_trace.get(trace_id, {}).get(span_id)
        if rows is None:
            return []
        taken = [row for name, row in sorted(rows.items(), key=lambda item: item[1]) if name in (ANY_PROJECT, project)]
        fields = [self._fields(row) for row in taken]
        if trace_id != NO_TRACE:
            self.given_up += len(rows) - len(taken)
            taken = list(rows.values())
        self._remove(taken)
        return fields

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Remove the amendments for runs of deleted traces."""
        for trace_id in trace_ids:
            self._remove([row for rows in self._by_trace.get(trace_id, {}).values() for row in rows.values()])

    def expire(self, before_ns: int, project: str | None) -> None:
        """Drop the amendments that arrived before a time."""
        entries = self._rows.items()
        self._give_up([row for row, e in entries if e.seen_ns < before_ns and project in (None, e.target.project)])

    def trim(self) -> bool:
        """Drop amendments that are too old, and the oldest beyond the limits; return whether there were any."""
        before, old = self.given_up, self._clock.now() - MAX_AMENDMENT_AGE_NS
        while self._rows:
            row, entry = next(iter(self._rows.items()))
            if len(self._rows) <= self.most and self.bytes <= self.most_bytes and entry.seen_ns >= old:
                break
            self._give_up([row])
        return self.given_up > before

    def _give_up(self, rows: list[int]) -> None:
        self.given_up += len(rows)
        self._remove(rows)

    def _fields(self, row: int) -> dict[str, JSON]:
        fields: dict[str, JSON] = loads(
            self._db.execute("SELECT fields FROM amendments WHERE id = ?", (row,)).fetchone()[0]
        )
        return fields

    def _remember(self, row: int, entry: _PendingEntry) -> None:
        self._rows[row] = entry
        self.bytes += entry.size
        of_trace = self._by_trace.setdefault(entry.target.trace_id, {})
        of_trace.setdefault(entry.target.span_id, {})[entry.target.project] = row

    def _remove(self, rows: list[int]) -> None:
        delete_many(self._db, "amendments", "id", rows)
        for row in rows:
            target, size, _ = self._rows.pop(row)
            self.bytes -= size
            of_trace = self._by_trace[target.trace_id]
            del of_trace[target.span_id][target.project]
            if not of_trace[target.span_id]:
                del of_trace[target.span_id]
            if not of_trace:
                del self._by_trace[target.trace_id]
