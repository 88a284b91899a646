"""Trace cache of the writer: summaries of recent traces, loaded from and saved to the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from spanwise.collector.errors import StoreError
from spanwise.collector.stores.run_codec import Fact
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.write.incremental_summary import (
    CHARACTERS_PER_SPAN,
    IncrementalSummary,
    count_characters,
    pack_totals,
    summarize_from_scratch,
    unpack_totals,
)
from spanwise.collector.stores.sqlite.write.span_tree import (
    COST_FLAG,
    MAX_RECORDS_IN_MEMORY,
    TOKENS_FLAG,
    SpanNode,
    TraceNodes,
)
from spanwise.collector.stores.table_rows import insert_many, select_many
from spanwise.collector.stores.trace_summary import SummaryRow, summarize_trace

# largest trace whose spans are read again if it is not cached; of larger traces, the state is stored
SMALL_TRACE_SPANS = 64
MAX_REBUILD_SPANS = 200_000  # largest trace that is summarized from scratch; takes about 60 MB while it is read
MAX_MARK_STEPS = 1000  # ancestors that a batch may mark in one trace
FLAG_COLUMNS = ("tokens_below", "cost_below")
FLAG_VALUES = ((0, 0), (1, 0), (0, 1), (1, 1))  # values of `FLAG_COLUMNS`, by flags
_SELECT_SUMMARY = f"SELECT root, {','.join(SummaryRow._fields)} FROM traces WHERE id = ?"
_SELECT_NODE = (
    "SELECT s.trace, s.span_id, s.id, s.parent_id, s.model, s.input_tokens, s.output_tokens, s.cost,"
    " s.tokens_below + 2 * s.cost_below FROM"
)
_SELECT_ONE_NODE = f"{_SELECT_NODE} spans s WHERE s.trace = ? AND s.span_id = ?"


class NewTrace:
    """Cached trace whose spans all arrived together. This holds for most traces, so no state beyond the facts is
    cached.
    """

    __slots__ = ("facts", "key", "rolled", "root", "rows")

    def __init__(self, key: int) -> None:
        self.key = key
        self.facts: list[Fact] = []
        self.rows: Sequence[int] = ()

    @property
    def weight(self) -> int:
        """Return the memory in use, as a number of spans."""
        return len(self.facts) + sum(map(count_characters, self.facts)) // CHARACTERS_PER_SPAN

    def take(self, rows: Sequence[int], facts: list[Fact]) -> list[tuple[int, int]]:
        """Summarize the trace; return the flag columns of its spans."""
        self.rows, self.facts = rows, facts
        self.rolled, root, (tokens, cost) = summarize_trace(facts)
        self.root = rows[root]
        if not tokens and not cost:
            return [FLAG_VALUES[0]] * len(facts)
        if tokens == cost:
            return [FLAG_VALUES[3] if fact.span_id in tokens else FLAG_VALUES[0] for fact in facts]
        return [FLAG_VALUES[(fact.span_id in tokens) + 2 * (fact.span_id in cost)] for fact in facts]


class DeferredSummary:
    """Cached trace whose summary a background job rebuilds.

    Until then it counts spans, errors and bytes and extends the time range; root and lists stay as they were. The
    trace counts as incomplete, or of unknown completeness if it is too large to be rebuilt.
    """

    __slots__ = ("is_stored", "key", "rolled", "root")
    weight = 4

    def __init__(self, key: int, root: int, rolled: SummaryRow, *, is_stored: bool) -> None:
        self.key, self.root, self.rolled = key, root, rolled._replace(running=0)
        self.is_stored = is_stored  # whether `states` marks the trace for a rebuild
        self._counts(rolled.span_count)

    def _counts(self, spans: int) -> None:
        self.rolled = self.rolled._replace(span_count=spans, complete=0 if spans <= MAX_REBUILD_SPANS else None)

    def add(self, fact: Fact) -> None:
        """Add a new span."""
        self._counts(self.rolled.span_count + 1)
        self._widen(fact, fact.size, int(fact.status == "error"))

    def replace(self, row: int, old: Fact, new: Fact) -> None:
        """Replace a span by its newer version."""
        self._widen(new, new.size - old.size, (new.status == "error") - (old.status == "error"))
        if row == self.root:
            self.rolled = self.rolled._replace(name=new.name, kind=new.kind, status=new.status, error=new.error)

    def _widen(self, fact: Fact, size: int, errors: int) -> None:
        rolled = self.rolled
        self.rolled = rolled._replace(
            error_count=rolled.error_count + errors,
            size=rolled.size + size,
            start_ns=min(rolled.start_ns, fact.start_ns),
            end_ns=max(rolled.end_ns, fact.end_ns),
        )


CachedTrace = NewTrace | IncrementalSummary | DeferredSummary


def read_flags(db: sqlite3.Connection, rows: Sequence[int]) -> dict[int, int]:
    """Return the stored flags of spans by row."""
    return dict(select_many(db, "SELECT id, tokens_below + 2 * cost_below FROM spans WHERE id IN (%s)", rows))


class SummaryStorage:
    """Storage of trace summaries: loads the state of traces, and stores states that are expensive to rebuild.

    Uses the writer's connection. Except in `summarize_stored`, it reads at most `small` spans of a trace.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader, self.db = reader, reader.db
        self.small, self.steps, self.max_records = SMALL_TRACE_SPANS, MAX_MARK_STEPS, MAX_RECORDS_IN_MEMORY

    def load(self, trace_id: str, key: int, count: int) -> CachedTrace:
        """Load the state of a trace with `count` spans."""
        if not count:
            return NewTrace(key)
        if count <= self.small:
            try:
                return self.summarize_stored(trace_id, key, {})[0]
            except StoreError:  # a span is damaged; new spans must be stored all the same
                return self.load_deferred(key)
        row = self.db.execute("SELECT data FROM states WHERE trace = ?", (key,)).fetchone()
        if row is not None and row[0] is not None:
            state = self._unpack_state(key, row[0])
            if state is not None and state.totals.count == count:
                return state
        return self.load_deferred(key, is_stored=row is not None and row[0] is None)

    def _unpack_state(self, key: int, data: bytes) -> IncrementalSummary | None:
        try:
            state = IncrementalSummary(key, unpack_totals(data), self.max_records)
        except msgspec.DecodeError:  # written by another version
            return None
        state.is_stored = True
        state.orphans.load(self.db, key)
        state.local_roots.load(self.db, key)
        return state

    def load_deferred(self, key: int, *, is_stored: bool = False) -> DeferredSummary:
        """Return the trace with its stored summary, to be rebuilt later."""
        row = self.db.execute(_SELECT_SUMMARY, (key,)).fetchone()
        return DeferredSummary(key, row[0], SummaryRow(*row[1:]), is_stored=is_stored)

    def summarize_stored(
        self, trace_id: str, key: int, changed: Mapping[int, Fact]
    ) -> tuple[IncrementalSummary, TraceNodes]:
        """Summarize a trace from all of its spans; `changed` has new spans and new versions by row.

        Raises `StoreError` if a span is damaged.
        """
        facts = {stored.row: stored.fact for stored in self.reader.in_order(trace_id, key)}
        state, spans = summarize_from_scratch(key, sorted({**facts, **changed}.items()))
        stored_flags = read_flags(self.db, list(facts))
        spans.marked = [
            node for node in spans.known.values() if node and stored_flags.get(node.row, node.below) != node.below
        ]
        self.write_flags(spans)
        return state, spans

    def write_flags(self, spans: TraceNodes, before: int = 2**63 - 1) -> None:
        """Write the changed flags of spans in rows below `before`."""
        rows = [
            (node.below & TOKENS_FLAG, node.below // COST_FLAG, node.row) for node in spans.marked if node.row < before
        ]
        spans.marked = []
        if rows:
            self.db.executemany("UPDATE spans SET tokens_below = ?, cost_below = ? WHERE id = ?", rows)

    def load_nodes(self, wanted: Mapping[int, Iterable[str]]) -> dict[int, TraceNodes]:
        """Return the span trees of traces by key, and load the given span ids of all of them at once."""
        trees = {key: self.spans(key, dict.fromkeys(ids)) for key, ids in wanted.items()}
        pairs = [value for key, spans in trees.items() for id in spans.known for value in (key, id)]
        for start in range(0, len(pairs), 500):
            chunk = pairs[start : start + 500]
            listed = f"WITH w (t, i) AS (VALUES {','.join(['(?,?)'] * (len(chunk) // 2))})"
            joined = "w CROSS JOIN spans s ON s.trace = w.t AND s.span_id = w.i"
            for row in self.db.execute(f"{listed} {_SELECT_NODE} {joined}", chunk):
                trees[row[0]].known[row[1]] = SpanNode(*row[2:])
        return trees

    def spans(self, key: int, known: dict[str, SpanNode | None] | None = None) -> TraceNodes:
        """Return the span tree of a trace, which loads spans on demand."""

        def find(span_id: str) -> SpanNode | None:
            row = self.db.execute(_SELECT_ONE_NODE, (key, span_id)).fetchone()
            return SpanNode(*row[2:]) if row else None

        return TraceNodes(known, find, lambda row: self.reader.stored("", row).fact, self.steps + len(known or ()))

    def store(self, traces: Iterable[CachedTrace]) -> None:
        """Store the states of large traces, and mark traces for a rebuild."""
        rows: list[tuple[int, bytes | None]] = []
        for trace in traces:
            if isinstance(trace, IncrementalSummary) and (trace.is_stored or trace.totals.count > self.small):
                for ledger in (trace.orphans, trace.local_roots):
                    if not trace.is_stored:
                        ledger.keep(self.db, trace.key)
                    ledger.flush()
                trace.is_stored = True
                rows.append((trace.key, pack_totals(trace.totals)))
            elif isinstance(trace, DeferredSummary) and not trace.is_stored:
                trace.is_stored = True
                rows.append((trace.key, None))
        insert_many(self.db, "states", ("trace", "data"), rows, "ON CONFLICT (trace) DO UPDATE SET data=excluded.data")
