"""Trace cache of the writer: summaries of recent traces, loaded from and saved to the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from spanwise.collector.errors import StoreError
from spanwise.collector.stores.sqlite.database.bulk_statements import insert_many, select_many
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.write.incremental_summary import (
    CHARACTERS_PER_SPAN,
    IncrementalSummary,
    count_characters,
    pack_totals,
    summarize_from_scratch,
    unpack_totals,
)
from spanwise.collector.stores.sqlite.write.run_codec import Fact
from spanwise.collector.stores.sqlite.write.span_nodes import (
    COST_FLAG,
    MAX_RECORDS_IN_MEMORY,
    TOKENS_FLAG,
    SpanNode,
    TraceNodes,
)
from spanwise.collector.stores.sqlite.write.trace_summary import SummaryRow, summarize_trace

SMALL_TRACE_SPANS = (
    64  # spans: of such a trace they are read where its state is not remembered; larger ones' states are kept
)
MAX_REBUILD_SPANS = 200_000  # spans of a trace that is summed up anew at all: some 60 MB for as long as it is read
MAX_MARK_STEPS = 1000  # marks that a batch may set above the spans of one trace
FLAG_COLUMNS = ("tokens_below", "cost_below")
FLAG_VALUES = ((0, 0), (1, 0), (0, 1), (1, 1))  # as these columns have them
_SELECT_SUMMARY = f"SELECT root, {','.join(SummaryRow._fields)} FROM traces WHERE id = ?"
_SELECT_NODE = (
    "SELECT s.trace, s.span_id, s.id, s.parent_id, s.model, s.input_tokens, s.output_tokens, s.cost,"
    " s.tokens_below + 2 * s.cost_below FROM"
)


class NewTrace:
    """A trace of which all came together: nothing but its facts, as most traces come so, and then no more."""

    __slots__ = ("facts", "key", "rolled", "root", "rows")

    def __init__(self, key: int) -> None:
        self.key = key
        self.facts: list[Fact] = []
        self.rows: Sequence[int] = ()

    @property
    def weight(self) -> int:
        """Memory that it takes, in spans."""
        return len(self.facts) + sum(map(count_characters, self.facts)) // CHARACTERS_PER_SPAN

    def take(self, rows: Sequence[int], facts: list[Fact]) -> list[tuple[int, int]]:
        """Sum it up; the flags of its spans."""
        self.rows, self.facts = rows, facts
        self.rolled, root, (tokens, cost) = summarize_trace(facts)
        self.root = rows[root]
        if not tokens and not cost:
            return [FLAG_VALUES[0]] * len(facts)
        if tokens == cost:
            return [FLAG_VALUES[3] if one.span_id in tokens else FLAG_VALUES[0] for one in facts]
        return [FLAG_VALUES[(one.span_id in tokens) + 2 * (one.span_id in cost)] for one in facts]


class DeferredSummary:
    """A trace whose sums are found out behind the writer. Until then: how many spans, errors and bytes, from when to
    when, what is listed, and its root as it was; not complete, so that nobody takes it for what it will be, unless it
    never is.
    """

    __slots__ = ("kept", "key", "rolled", "root")
    weight = 4

    def __init__(self, key: int, root: int, rolled: SummaryRow, *, kept: bool) -> None:
        self.key, self.root, self.rolled = key, root, rolled._replace(running=0)
        self.kept = kept  # the file says so
        self._counts(rolled.span_count)

    def _counts(self, spans: int) -> None:
        self.rolled = self.rolled._replace(span_count=spans, complete=0 if spans <= MAX_REBUILD_SPANS else None)

    def add(self, fact: Fact) -> None:
        """Take in a span that has come."""
        self._counts(self.rolled.span_count + 1)
        self._widen(fact, fact.size, int(fact.status == "error"))

    def replace(self, row: int, old: Fact, new: Fact) -> None:
        """Take in a span in place of what it was."""
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
    """The flags of spans in the file, by row."""
    return dict(select_many(db, "SELECT id, tokens_below + 2 * cost_below FROM spans WHERE id IN (%s)", rows))


class SummaryStorage:
    """Finds what is known of traces in the file, and keeps there what would be long to find again.

    On the writer's connection. Nothing here reads more than `small` spans of a trace, or what it is asked for.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader, self.db = reader, reader.db
        self.small, self.steps, self.whole = SMALL_TRACE_SPANS, MAX_MARK_STEPS, MAX_RECORDS_IN_MEMORY

    def load(self, trace_id: str, key: int, count: int) -> CachedTrace:
        """What the file says of a trace of so many spans."""
        if not count:
            return NewTrace(key)
        if count <= self.small:
            try:
                return self.again(trace_id, key, {})[0]
            except StoreError:  # a span of it is damaged: what comes is kept all the same
                return self.drift(key)
        row = self.db.execute("SELECT data FROM states WHERE trace = ?", (key,)).fetchone()
        if row is not None and row[0] is not None:
            state = self._unpacked(key, row[0])
            if state is not None and state.totals.count == count:
                return state
        return self.drift(key, kept=row is not None and row[0] is None)

    def _unpacked(self, key: int, data: bytes) -> IncrementalSummary | None:
        try:
            state = IncrementalSummary(key, unpack_totals(data), self.whole)
        except msgspec.DecodeError:  # of another version
            return None
        state.kept = True
        state.orphans.load(self.db, key)
        state.local_roots.load(self.db, key)
        return state

    def drift(self, key: int, *, kept: bool = False) -> DeferredSummary:
        """A trace as the file sums it up now."""
        row = self.db.execute(_SELECT_SUMMARY, (key,)).fetchone()
        return DeferredSummary(key, row[0], SummaryRow(*row[1:]), kept=kept)

    def again(self, trace_id: str, key: int, changed: Mapping[int, Fact]) -> tuple[IncrementalSummary, TraceNodes]:
        """Sum a trace up anew from all of its spans, and these, by row, which are new or in place of what is there.
        Raises `StoreError` if one is damaged.
        """
        facts = {stored.row: stored.fact for stored in self.reader.in_order(trace_id, key)}
        state, spans = summarize_from_scratch(key, sorted({**facts, **changed}.items()))
        marked = read_flags(self.db, list(facts))
        spans.marked = [one for one in spans.known.values() if one and marked.get(one.row, one.below) != one.below]
        self.mark(spans)
        return state, spans

    def mark(self, spans: TraceNodes, before: int = 2**63 - 1) -> None:
        """Write the flags that have changed, of rows before this one."""
        rows = [(one.below & TOKENS_FLAG, one.below // COST_FLAG, one.row) for one in spans.marked if one.row < before]
        spans.marked = []
        if rows:
            self.db.executemany("UPDATE spans SET tokens_below = ?, cost_below = ? WHERE id = ?", rows)

    def look_up(self, wanted: Mapping[int, Iterable[str]]) -> dict[int, TraceNodes]:
        """Spans of traces, by key, of which these are looked up at once."""
        here = {key: self.spans(key, dict.fromkeys(ids)) for key, ids in wanted.items()}
        pairs = [value for key, spans in here.items() for id in spans.known for value in (key, id)]
        for start in range(0, len(pairs), 500):
            some = pairs[start : start + 500]
            listed = f"WITH w (t, i) AS (VALUES {','.join(['(?,?)'] * (len(some) // 2))})"
            joined = "w CROSS JOIN spans s ON s.trace = w.t AND s.span_id = w.i"
            for row in self.db.execute(f"{listed} {_SELECT_NODE} {joined}", some):
                here[row[0]].known[row[1]] = SpanNode(*row[2:])
        return here

    def spans(self, key: int, known: dict[str, SpanNode | None] | None = None) -> TraceNodes:
        """Spans of a trace, each looked up when it is asked for."""
        return TraceNodes(known, partial(self._find, key), self._read, self.steps + len(known or ()))

    def _find(self, key: int, span_id: str) -> SpanNode | None:
        sql = f"{_SELECT_NODE} spans s WHERE s.trace = ? AND s.span_id = ?"
        row = self.db.execute(sql, (key, span_id)).fetchone()
        return SpanNode(*row[2:]) if row else None

    def _read(self, row: int) -> Fact:
        return self.reader.stored("", row).fact

    def keep(self, known: Iterable[CachedTrace]) -> None:
        """Keep states of large traces, and that others' are to be found out."""
        rows: list[tuple[int, bytes | None]] = []
        for one in known:
            if isinstance(one, IncrementalSummary) and (one.kept or one.totals.count > self.small):
                self._flush(one)
                rows.append((one.key, pack_totals(one.totals)))
            elif isinstance(one, DeferredSummary) and not one.kept:
                one.kept = True
                rows.append((one.key, None))
        insert_many(self.db, "states", ("trace", "data"), rows, "ON CONFLICT (trace) DO UPDATE SET data=excluded.data")

    def _flush(self, state: IncrementalSummary) -> None:
        for ledger in (state.orphans, state.local_roots):
            if not state.kept:
                ledger.keep(self.db, state.key)
            ledger.flush()
        state.kept = True
