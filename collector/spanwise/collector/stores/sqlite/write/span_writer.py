"""Span writer: inserts batches, merges duplicate and amended spans, and assigns integer keys."""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from spanwise.collector.errors import Refused, StoreError, Unavailable
from spanwise.collector.records import JSON, Feedback, OpenRun, Run, Target
from spanwise.collector.stores import trace_assembly
from spanwise.collector.stores.run_codec import SPAN_COLUMN_COUNT, Fact, decode_run, encode_amended_run, supersedes
from spanwise.collector.stores.side_records import (
    ANY_PROJECT,
    MAX_AMENDED_BYTES,
    NO_TRACE,
    AmendmentTarget,
    check_amended_size,
    find_amended_spans,
)
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.rollups.hourly_rollups import HourlyRollups
from spanwise.collector.stores.sqlite.rollups.rollup_delta import TraceContribution, make_contribution
from spanwise.collector.stores.sqlite.search import fulltext_index
from spanwise.collector.stores.sqlite.search.searchable_text import TextBuffer
from spanwise.collector.stores.sqlite.write import side_tables
from spanwise.collector.stores.sqlite.write.incremental_summary import IncrementalSummary, summarize_from_scratch
from spanwise.collector.stores.sqlite.write.run_codec import (
    ZSTD_FRAME_HEADER,
    Batch,
    PayloadCompressor,
    RunEncoder,
    read_dictionary_id,
)
from spanwise.collector.stores.sqlite.write.side_tables import (
    DestinationTable,
    FilterValueTable,
    OpenRunTable,
    PendingAmendments,
    ProcessTable,
    ResourceTable,
    Tombstones,
)
from spanwise.collector.stores.sqlite.write.span_tree import StepLimitExceeded, TraceNodes
from spanwise.collector.stores.sqlite.write.trace_cache import (
    FLAG_COLUMNS,
    FLAG_VALUES,
    CachedTrace,
    DeferredSummary,
    NewTrace,
    SummaryStorage,
)
from spanwise.collector.stores.table_rows import build_upsert_clause, insert_many, loads, select_many
from spanwise.collector.stores.trace_assembly import FEEDBACK_FIELD
from spanwise.collector.stores.trace_summary import SummaryRow

CACHED_SPANS = 20_000  # limit of the cache in spans; the state of a trace counts as the spans that take as much memory
MAX_RECENT_ROWS = 500  # spans that may arrive while their trace is rebuilt in the background

SPAN_COLUMNS = ("id", "trace", "resource", "payload", *Fact._fields[:SPAN_COLUMN_COUNT], *FLAG_COLUMNS)
TRACE_COLUMNS = ("id", "trace_id", "updated_ns", "root", "change", "runs_change", "changed_ns", *SummaryRow._fields)


_SELECT_KEYS = "SELECT trace_id, id FROM traces WHERE trace_id IN (%s)"
_SELECT_COUNTS = "SELECT trace_id, id, span_count FROM traces WHERE trace_id IN (%s)"
_SELECT_ROW = "SELECT id FROM spans WHERE trace = ? AND span_id = ?"
_OVERWRITE_SPAN = build_upsert_clause(SPAN_COLUMNS)
_OVERWRITE_TRACE = build_upsert_clause(TRACE_COLUMNS)


_NO_IDS: Mapping[str, Iterable[str]] = MappingProxyType({})


class _SpanRows:
    """Columns of the spans to be written."""

    __slots__ = ("facts", "flags", "ids", "payloads", "resources", "traces")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.traces: list[int] = []
        self.resources: list[int] = []
        self.facts: list[Fact] = []
        self.payloads: list[bytes] = []  # as JSON, or compressed
        self.flags: list[tuple[int, int]] = []

    def add(self, id: int, trace: int, came: _IncomingSpan, below: int) -> None:
        self.ids.append(id)
        self.traces.append(trace)
        self.facts.append(came.fact)
        self.payloads.append(came.payload)
        self.resources.append(came.resource)
        self.flags.append(FLAG_VALUES[below])


class _IncomingSpan(NamedTuple):
    """A span to be added to its trace."""

    fact: Fact
    payload: bytes
    resource: int


class _TraceSlice(NamedTuple):
    """Spans of one trace in a batch."""

    batch: Batch
    positions: Sequence[int]
    resources: Sequence[int]  # row ids, by position in the batch's resources


class _SpanChange(NamedTuple):
    """A span with its row: new, or a newer version of `old`."""

    row: int
    came: _IncomingSpan
    old: Fact | None


class WriteResult(NamedTuple):
    """Keys of the traces that a write has changed."""

    new: dict[str, int]  # by trace id: traces that were not stored before
    changed: set[int]  # traces with a new position in the change feed


class Appender:
    """Writer of batches; `reader` uses the writer's connection.

    Caches recently written traces, so that late spans are cheap.
    """

    def __init__(self, reader: Reader, clock: StoreClock) -> None:
        self.reader, self.db, self._clock = reader, reader.db, clock
        self.tombstones = Tombstones(reader.db, clock)
        self.disturbed: set[int] = set()  # keys of traces that changed since the background indexer last read this set
        self.text_buffer = TextBuffer(find_database_folder(reader.db))
        newest = read_newest_dictionary(reader.db)
        self._compressor, self.encoder = PayloadCompressor(newest), RunEncoder(newest)
        self._dictionaries = {0, *(number for (number,) in reader.db.execute("SELECT id FROM dictionaries"))}
        self._cache: OrderedDict[str, CachedTrace] = OrderedDict()
        self._weights: dict[str, int] = {}  # memory of each cached trace, as a number of spans
        self._cached_spans, self.max_cached_spans, self.max_amended_bytes = 0, CACHED_SPANS, MAX_AMENDED_BYTES
        self.summaries = SummaryStorage(reader)
        # For each trace that is being rebuilt in the background: rows changed since the start (negative:
        # overwritten); None if there are too many
        self.recent_rows: dict[str, set[int] | None] = {}
        self.resources, self.filter_values = ResourceTable(self.db), FilterValueTable(self.db)
        self.running, self.processes = OpenRunTable(self.db, clock), ProcessTable(self.db, clock)
        self.waiting = PendingAmendments(self.db, clock)
        self.destinations = DestinationTable(self.db)
        self.sums, self.responses = HourlyRollups(self.db), side_tables.ResponseIdWriter(self.db)
        # Feedback of amendments whose run is stored now. The caller of `write` or `amend` writes it
        self.due_feedback: list[Feedback] = []
        self._next_trace = self._next_span = 1
        self.forget()

    def numbers(self, count: int) -> tuple[range, int]:
        """Return the next `count` change numbers, and the time."""
        return self._clock.take(self.db, count)

    def forget(self) -> None:
        """Clear the caches, which may be wrong after a rollback or a deletion."""
        self._cache.clear()
        self._weights.clear()
        self._cached_spans = 0
        self.due_feedback.clear()
        self.recent_rows.update(dict.fromkeys(self.recent_rows))
        self.resources.forget()
        self.filter_values.forget()
        self.running.forget()
        self.waiting.forget()
        self.text_buffer.undo()
        self.sums.forget()
        self.tombstones.forget()
        self.destinations.forget()
        # Keys are never reused after deletions, because cursors and running queries may still refer to them.
        self._next_trace = max(self._next_trace, self._find_last_id("traces") + 1)
        self._next_span = max(self._next_span, self._find_last_id("spans") + 1)

    def adopt(self, number: int, dictionary: bytes) -> None:
        """Compress with this dictionary from now on. It must already be stored. Safe to call from any thread."""
        self._dictionaries.add(number)
        self._compressor, self.encoder = PayloadCompressor(dictionary), RunEncoder(dictionary)

    def check(self, batch: Batch) -> None:
        """Raise `Unavailable` if a batch is compressed with a dictionary that the file lacks. Safe to call from any
        thread.
        """
        if (number := read_dictionary_id(batch.payloads)) not in self._dictionaries:
            raise Unavailable(f"the batch is compressed with dictionary {number}, which the file lacks; send it again")

    def _find_last_id(self, table: str) -> int:
        return int(self.db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0])

    def keys(self, trace_ids: Iterable[str]) -> dict[str, int]:
        """Return the integer keys of traces. Deleted traces have none.

        Inserts a row without spans for each new trace. Lists do not show such rows.
        """
        wanted = list(dict.fromkeys(trace_ids))
        stored = dict(select_many(self.db, _SELECT_KEYS, wanted))
        unknown = [trace_id for trace_id in wanted if trace_id not in stored]
        gone = self.tombstones.among(unknown)
        new = [(trace_id, self._take_trace()) for trace_id in unknown if trace_id not in gone]
        insert_many(self.db, "traces", ("trace_id", "id"), new)
        return {**stored, **dict(new)}

    def _take_trace(self) -> int:
        self._next_trace += 1
        return self._next_trace - 1

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Drop deleted traces from the caches."""
        trace_ids = list(trace_ids)
        self.running.evict(trace_ids)
        self.waiting.evict(trace_ids)
        for trace_id in trace_ids:
            self._cache.pop(trace_id, None)
            self._cached_spans -= self._weights.pop(trace_id, 0)
            self.recent_rows.pop(trace_id, None)

    def write(self, batches: Sequence[Batch]) -> WriteResult:
        """Insert or merge the runs of all batches, with a few statements for all of them."""
        before, first = self._next_trace, self._next_span
        slices = self._split_by_trace(batches)
        traces = self._load_traces(slices)
        late = [of_trace for trace_id, of_trace in slices.items() if trace_id not in traces]
        self.tombstones.late += sum(len(slice_.positions) for of_trace in late for slice_ in of_trace)
        spans = _SpanRows()
        changed: dict[str, CachedTrace] = {}
        incoming: dict[str, dict[str, _IncomingSpan]] = {}
        for trace_id, state in traces.items():
            if self._add_new_trace(trace_id, state, slices[trace_id], spans, new=state.key >= before):
                changed[trace_id] = state
            else:
                incoming[trace_id] = _latest_versions(slices[trace_id])
        nodes = self._load_nodes(traces, incoming)
        for trace_id, versions in incoming.items():
            begin = len(spans.ids)
            if self._merge_spans(trace_id, traces[trace_id], versions, nodes, spans):
                state = changed[trace_id] = self._cache[trace_id]
                self._buffer_text(trace_id, state.key, slices[trace_id], spans, begin, new=state.key >= before)
        self._insert_spans(spans)
        for tree in nodes.values():
            self.summaries.write_flags(tree, first)
        new = {trace_id: state.key for trace_id, state in changed.items() if state.key >= before}
        incoming_ids: Mapping[str, Iterable[str]] = _NO_IDS  # span ids by trace; these spans may end open runs
        if self.running:
            incoming_ids = {
                trace_id: [slice_.batch.facts[position].span_id for slice_ in of_trace for position in slice_.positions]
                for trace_id, of_trace in slices.items()
            }
        self._insert_traces(changed, nodes, incoming_ids, new.values())
        self.filter_values.add(spans.facts)
        arrived = [(spans.resources[at], spans.facts[at]) for at, row in enumerate(spans.ids) if row >= first]
        if counts := self.resources.count_by_process(arrived):
            self.processes.count(counts)
        self.destinations.note(spans.traces, spans.facts)
        answers = zip(spans.ids, spans.facts, strict=True)
        self.responses.put([(row, fact.response_id) for row, fact in answers if fact.response_id], first)
        self._trim_cache()
        return WriteResult(new, {state.key for state in changed.values()})

    def _split_by_trace(self, batches: Sequence[Batch]) -> dict[str, list[_TraceSlice]]:
        """Return the spans of the batches, by trace."""
        self.resources.trim()
        slices: dict[str, list[_TraceSlice]] = {}
        for batch in batches:
            resources = [self.resources.key(blob) for blob in batch.resource_blobs]
            for trace_id, positions in batch.traces.items():
                slices.setdefault(trace_id, []).append(_TraceSlice(batch, positions, resources))
        return slices

    def _add_new_trace(
        self, trace_id: str, state: CachedTrace, slices: Sequence[_TraceSlice], out: _SpanRows, *, new: bool
    ) -> bool:
        """Add the spans of a trace that is new and arrived in one piece, as most do. Return False for other traces."""
        [(batch, positions, resources), *more] = slices
        if more or not isinstance(state, NewTrace) or state.facts or len(positions) > self.summaries.small:
            return False
        facts = [batch.facts[position] for position in positions]
        if len({fact.span_id for fact in facts}) < len(facts) or self.waiting.concerns(trace_id, facts):
            return False
        rows = range(self._next_span, self._next_span + len(facts))
        self._next_span = rows.stop
        out.flags += state.take(rows, facts)
        self._cache_trace(trace_id, state)
        out.ids += rows
        out.traces += [state.key] * len(facts)
        out.facts += facts
        out.payloads += [batch.payloads[position] for position in positions]
        out.resources += [resources[batch.resources[position]] for position in positions]
        self.text_buffer.add(state.key, batch.texts.get(trace_id), rows[-1], state.rolled.size, new=new)
        return True

    def _buffer_text(
        self, trace_id: str, key: int, slices: Sequence[_TraceSlice], rows: _SpanRows, begin: int, *, new: bool
    ) -> None:
        """Pass the text of a trace that did not arrive in one piece to the full-text buffer.

        Passes None if spans were merged or amended, because the buffered text would differ from the stored one.
        """
        facts, texts = rows.facts[begin:], [slice_.batch.texts.get(trace_id) for slice_ in slices]
        known_texts = [text for text in texts if text is not None]
        span_count = sum(len(slice_.positions) for slice_ in slices)
        as_sent = len(facts) == span_count and len(known_texts) == len(texts) and key not in self.disturbed
        self.text_buffer.add(
            key, "\n".join(known_texts) if as_sent else None, rows.ids[-1], sum(f.size for f in facts), new=new
        )

    def _load_nodes(
        self, traces: dict[str, CachedTrace], incoming: Mapping[str, Mapping[str, _IncomingSpan]]
    ) -> dict[int, TraceNodes]:
        """Load the stored spans that incoming spans replace, or have as their parent."""
        wanted: dict[int, set[str]] = {}
        nodes: dict[int, TraceNodes] = {}
        for trace_id in incoming:
            state = traces[trace_id]
            if isinstance(state, NewTrace) and state.facts:
                state, nodes[state.key] = summarize_from_scratch(
                    state.key, list(zip(state.rows, state.facts, strict=True))
                )
                nodes[state.key].marked = []
                self._cache_trace(trace_id, state)
                traces[trace_id] = state
            elif not isinstance(state, NewTrace):
                versions = incoming[trace_id]
                parents = {span.fact.parent_id for span in versions.values() if span.fact.parent_id is not None}
                wanted[state.key] = parents.union(versions)
        return {**nodes, **self.summaries.load_nodes(wanted)} if wanted else nodes

    def move(self, keys: Iterable[int]) -> None:
        """Move traces to the end of the change feed after a change other than to their runs. Traces without runs are
        left out.
        """
        moved = sorted(keys)
        if moved:
            self.put_at(moved, *self.numbers(len(moved)))

    def put_at(self, moved: Sequence[int], numbers: Sequence[int], now: int) -> None:
        """Set the positions of traces in the change feed. Traces without runs are left out."""
        rows = [(number, now, key) for number, key in zip(numbers, moved, strict=True)]
        self.db.executemany("UPDATE traces SET change = ?, changed_ns = ? WHERE id = ? AND span_count > 0", rows)

    def amend(self, target: AmendmentTarget, fields: Mapping[str, JSON]) -> bool:
        """Apply an amendment to the stored runs that it targets, or store it until the run arrives.

        Returns False if the amendment waits for the run, and True if the run is stored or was deleted.
        """
        if target.trace_id == NO_TRACE:
            found = side_tables.find_by_response_id(self.reader, target.span_id)
            found = [(trace_id, fact) for trace_id, fact in found if target.project in (ANY_PROJECT, fact.project)]
            targets = find_amended_spans(target, fields, found)
        elif not select_many(self.db, _SELECT_KEYS, [target.trace_id]) and self.tombstones.among([target.trace_id]):
            self.tombstones.late += 1
            return True
        else:
            targets = [target]
        if any(self._amend(stored, fields) for stored in targets):
            return True
        self.waiting.add(target, fields, self.max_amended_bytes)
        return False

    def _amend(self, target: AmendmentTarget, fields: Mapping[str, JSON]) -> bool:
        """Apply an amendment to a run; return False if the run is not stored or is of another project."""
        found = select_many(self.db, _SELECT_KEYS, [target.trace_id])
        found_row = self.db.execute(_SELECT_ROW, (found[0][1], target.span_id)).fetchone() if found else None
        if found_row is None:
            return False
        [row], key = found_row, found[0][1]
        try:
            stored = self.reader.stored(target.trace_id, row)
        except StoreError as error:  # a damaged span refuses this amendment only, not others of the request
            raise Refused(f"cannot amend span {target.span_id!r}: {error}") from error
        if target.project not in (ANY_PROJECT, stored.fact.project):
            return False
        fields = self._take_feedback(target.trace_id, target.span_id, fields)
        run = trace_assembly.apply_amendment(stored.run, fields, stored.amended)
        fields_so_far = trace_assembly.merge_fields(stored.amended, fields)
        if (run, fields_so_far) != (stored.run, stored.amended):
            old = stored.fact
            fact, payload = encode_amended_run(run, fields_so_far, old.size if old.sent is None else old.sent)
            check_amended_size(f"amended span {target.span_id!r}", len(payload), self.max_amended_bytes)
            self._prepare_overwrite(key, row)
            self._store_amended_run(target, _SpanChange(row, _IncomingSpan(fact, payload, stored.resource), old))
            self.filter_values.add([fact])
        self._trim_cache()
        return True

    def _take_feedback(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Collect the feedback of an amendment in `due_feedback`; return the other fields."""
        if FEEDBACK_FIELD not in fields:
            return fields
        target = Target(trace_id=trace_id, span_id=span_id)
        self.due_feedback += trace_assembly.make_feedback(target, fields[FEEDBACK_FIELD])
        return {name: value for name, value in fields.items() if name != FEEDBACK_FIELD}

    def _store_amended_run(self, target: AmendmentTarget, change: _SpanChange) -> None:
        incoming = {target.trace_id: {target.span_id: change.came}}
        traces = self._load_traces(incoming)
        nodes = self._load_nodes(traces, incoming)
        rows = _SpanRows()
        self._apply_changes(target.trace_id, traces[target.trace_id], [change], nodes, rows)
        self._insert_spans(rows)
        for tree in nodes.values():
            self.summaries.write_flags(tree)
        self._insert_traces({target.trace_id: self._cache[target.trace_id]}, nodes)

    def mark_amended(self, run: Run, fields: Mapping[str, JSON], sent: int) -> None:
        """Record which fields of a stored run amendments have set, and its size without them, after a copy."""
        [(_, key)] = select_many(self.db, _SELECT_KEYS, [run.trace_id])
        row = int(self.db.execute(_SELECT_ROW, (key, run.span_id)).fetchone()[0])
        stored = self.reader.stored(run.trace_id, row)
        fact, payload = encode_amended_run(stored.run, fields, sent)
        change = _SpanChange(row, _IncomingSpan(fact, payload, stored.resource), stored.fact)
        self._prepare_overwrite(key, row)
        self._store_amended_run(AmendmentTarget(run.trace_id, run.span_id, ANY_PROJECT), change)

    def sum_up(self, trace_ids: Sequence[str]) -> None:
        """Rebuild the summaries of traces from their stored runs."""
        for trace_id, key in select_many(self.db, _SELECT_KEYS, trace_ids):
            state, nodes = self.summaries.summarize_stored(trace_id, key, {})
            self._insert_traces({trace_id: state}, {key: nodes}, {trace_id: nodes.known})

    def start(self, runs: Sequence[OpenRun]) -> None:
        """Record open runs, except of deleted traces."""
        gone = self.tombstones.among({run.trace_id for run in runs})
        begun, freed = self.running.add([run for run in runs if run.trace_id not in gone])
        self.tombstones.late += sum(run.trace_id in gone for run in runs)
        stored = dict(select_many(self.db, _SELECT_KEYS + " AND span_count > 0", begun | freed))
        self.move(stored[trace_id] for trace_id in begun - freed if trace_id in stored)
        self._insert_traces(self._load_traces([trace_id for trace_id in freed if trace_id in stored]), {})
        self._trim_cache()

    def _insert_spans(self, rows: _SpanRows) -> None:
        payloads = self._compressor.all(rows.payloads)
        columns = zip(rows.ids, rows.traces, rows.resources, payloads, rows.facts, rows.flags, strict=True)
        values = [
            (row, trace, resource, payload, *fact[:SPAN_COLUMN_COUNT], *flags)
            for row, trace, resource, payload, fact, flags in columns
        ]
        insert_many(self.db, "spans", SPAN_COLUMNS, values, _OVERWRITE_SPAN)

    def _insert_traces(
        self,
        traces: Mapping[str, CachedTrace],
        nodes: dict[int, TraceNodes],
        incoming_ids: Mapping[str, Iterable[str]] = _NO_IDS,
        new: Iterable[int] = (),
    ) -> None:
        if not traces:
            return
        rows, is_new, counts, open_runs = [], set(new), dict[int, TraceContribution](), bool(self.running)
        numbers, now = self._clock.take(self.db, len(traces))
        for number, (trace_id, state) in zip(numbers, traces.items(), strict=True):
            if isinstance(state, IncrementalSummary):
                summary = state.rolled(nodes.get(state.key) or self.summaries.spans(state.key))
                root = state.totals.root_row
            else:
                summary, root = state.rolled, state.root
            if open_runs:
                running = self.running.remove_ended(
                    trace_id, state.key, incoming_ids.get(trace_id, ()), settled=summary.complete == 1
                )
                summary = summary._replace(running=running, complete=0) if running else summary
            change = (number, number, now)
            rows.append((state.key, trace_id, now, root, *change, *summary))
            if state.key in is_new:
                counts[state.key] = make_contribution(summary)
        with self.sums.update_traces([row[0] for row in rows], counts):
            insert_many(self.db, "traces", TRACE_COLUMNS, rows, _OVERWRITE_TRACE)
        self.summaries.store(traces.values())
        waiting = [(row[0], now) for row in rows]
        insert_many(self.db, "unindexed", ("trace", "since_ns"), waiting, "ON CONFLICT DO NOTHING")

    def _merge_spans(
        self,
        trace_id: str,
        state: CachedTrace,
        versions: Mapping[str, _IncomingSpan],
        nodes: dict[int, TraceNodes],
        out: _SpanRows,
    ) -> bool:
        """Add rows for runs that are new or more complete than the stored ones; return whether there are any."""
        changes: list[_SpanChange] = []
        for span_id, span in versions.items():
            stored = None if isinstance(state, NewTrace) else nodes[state.key].get(span_id)
            if stored is None:
                row, self._next_span = self._next_span, self._next_span + 1
                if self.waiting:
                    span, sent = self._apply_waiting_amendments(trace_id, span), span
                    if span is not sent:
                        self.disturbed.add(state.key)  # amended, so its text differs from that of the batch
                changes.append(_SpanChange(row, span, None))
            elif change := self._find_newer_version(stored.row, span):
                changes.append(change)
        for change in changes:
            if change.old:
                self._prepare_overwrite(state.key, change.row)
        if changes:
            self._apply_changes(trace_id, state, changes, nodes, out)
        return bool(changes)

    def _find_newer_version(self, row: int, came: _IncomingSpan) -> _SpanChange | None:
        """Return the change for a run that was sent again.

        Return None if the stored version is at least as complete, or damaged.
        """
        try:
            old = self.reader.stored("", row).fact
        except StoreError:
            return None
        if not supersedes(came.fact, old):
            return None
        if old.sent is not None:
            fields = self.reader.stored("", row).amended
            run = trace_assembly.reapply_amendments(decode_run("", came.fact, self._read(came.payload), {}), fields)
            fact, payload = encode_amended_run(run, fields, came.fact.size)
            came = came._replace(fact=fact, payload=payload)
        return _SpanChange(row, came, old)

    def _apply_changes(
        self,
        trace_id: str,
        state: CachedTrace,
        changes: Sequence[_SpanChange],
        nodes: dict[int, TraceNodes],
        out: _SpanRows,
    ) -> None:
        """Apply changes to the summary of a trace, and add their rows."""
        if isinstance(state, NewTrace):
            state, nodes[state.key] = (
                IncrementalSummary(state.key, max_records=self.summaries.max_records),
                TraceNodes(),
            )
        state = self._update_summary(trace_id, state, changes, nodes)
        self._cache_trace(trace_id, state)
        spans = nodes[state.key].known
        for row, came, _ in changes:
            node = spans.get(came.fact.span_id)
            out.add(row, state.key, came, node.below if node else 0)

    def _update_summary(
        self,
        trace_id: str,
        state: IncrementalSummary | DeferredSummary,
        changes: Sequence[_SpanChange],
        nodes: dict[int, TraceNodes],
    ) -> IncrementalSummary | DeferredSummary:
        """Return the summary state after changes: the same state, or another one if it cannot apply them."""
        if isinstance(state, IncrementalSummary):
            before, spans = state.totals.count, nodes[state.key]
            with suppress(StepLimitExceeded):
                state.advance([(change.row, change.came.fact) for change in changes if change.old is None], spans)
                replaced = [(row, old, came.fact) for row, came, old in changes if old is not None]
                if all(state.replace(row, old, new, spans) for row, old, new in replaced):
                    return state
            # the state is wrong now
            if before <= self.summaries.small:
                facts = {change.row: change.came.fact for change in changes}
                with suppress(StoreError):  # a span is damaged
                    state, nodes[state.key] = self.summaries.summarize_stored(trace_id, state.key, facts)
                    return state
            nodes[state.key].marked = []
        deferred = state if isinstance(state, DeferredSummary) else self.summaries.load_deferred(state.key)
        for row, came, old in changes:
            if old is None:
                deferred.add(came.fact)
            else:
                deferred.replace(row, old, came.fact)
        if (rows := self.recent_rows.get(trace_id)) is not None:
            rows.update(change.row if change.old is None else -change.row for change in changes)
            if len(rows) > MAX_RECENT_ROWS:
                self.recent_rows[trace_id] = None
        return deferred

    def install(self, trace_id: str, state: IncrementalSummary, rows: Sequence[int]) -> bool:
        """Replace the deferred summary of a trace by a state that was rebuilt in the background, and add the rows
        written since.

        Returns False if the trace was deleted or has changed in another way.
        """
        counted = self.db.execute("SELECT span_count FROM traces WHERE id = ?", (state.key,)).fetchone()
        new = self.reader.in_rows(trace_id, rows)
        if counted != (state.totals.count + len(new),):
            return False
        state.is_stored = True
        state.orphans.adopt(self.db, state.key)
        state.local_roots.adopt(self.db, state.key)
        ids = {id for stored in new for id in (stored.fact.span_id, stored.fact.parent_id) if id is not None}
        nodes = self.summaries.load_nodes({state.key: ids})
        spans = nodes[state.key]
        spans.known.update(dict.fromkeys(stored.fact.span_id for stored in new))
        try:
            state.advance([(stored.row, stored.fact) for stored in new], spans)
        except StepLimitExceeded:
            return False
        spans.marked += [node for stored in new if (node := spans.known[stored.fact.span_id])]
        self.summaries.write_flags(spans)
        self._cache_trace(trace_id, state)
        self._insert_traces({trace_id: state}, nodes)
        self._trim_cache()
        return True

    def _prepare_overwrite(self, key: int, row: int) -> None:
        """Prepare for overwriting a run: drop its buffered text, and keep its old payload, which is needed to delete its
        full-text entry.
        """
        fulltext_index.keep_replaced_payload(self.db, row)
        self.text_buffer.drop(key)
        self.disturbed.add(key)

    def _apply_waiting_amendments(self, trace_id: str, came: _IncomingSpan) -> _IncomingSpan:
        """Return a run that arrived for the first time, with waiting amendments applied."""
        fact = came.fact
        amendments = self.waiting.take(trace_id, fact.span_id, fact.project)
        if fact.response_id:
            amendments += self.waiting.take(NO_TRACE, fact.response_id, fact.project)
        if not amendments:
            return came
        run, all_fields = decode_run("", fact, self._read(came.payload), {}), dict[str, JSON]()
        for waiting in amendments:
            fields = self._take_feedback(trace_id, fact.span_id, waiting)
            run, all_fields = (
                trace_assembly.apply_amendment(run, fields, all_fields),
                trace_assembly.merge_fields(all_fields, fields),
            )
        return _IncomingSpan(*encode_amended_run(run, all_fields, fact.size), came.resource) if all_fields else came

    def _read(self, payload: bytes) -> dict[str, JSON]:
        return self.reader.payload(payload) if payload.startswith(ZSTD_FRAME_HEADER) else loads(payload)

    def _load_traces(self, trace_ids: Iterable[str]) -> dict[str, CachedTrace]:
        """Return the states of traces: cached, loaded, or new. Deleted traces are left out."""
        traces = {trace_id: self._cache[trace_id] for trace_id in trace_ids if trace_id in self._cache}
        for trace_id in traces:
            self._cache.move_to_end(trace_id)
        missing = [trace_id for trace_id in trace_ids if trace_id not in traces]
        stored = {trace_id: (key, count) for trace_id, key, count in select_many(self.db, _SELECT_COUNTS, missing)}
        gone = self.tombstones.among(trace_id for trace_id in missing if trace_id not in stored)
        for trace_id in missing:
            if trace_id in gone:
                continue
            if trace_id in stored:
                traces[trace_id] = self.summaries.load(trace_id, *stored[trace_id])
                self._cache_trace(trace_id, traces[trace_id])
            else:
                traces[trace_id] = NewTrace(self._take_trace())
        return traces

    def _cache_trace(self, trace_id: str, state: CachedTrace) -> None:
        """Cache a trace, or update the memory that it takes."""
        weight = state.weight
        self._cached_spans += weight - self._weights.get(trace_id, 0)
        self._cache[trace_id], self._weights[trace_id] = state, weight

    def _trim_cache(self) -> None:
        while self._cached_spans > self.max_cached_spans and len(self._cache) > 1:
            trace_id, _ = self._cache.popitem(last=False)
            self._cached_spans -= self._weights.pop(trace_id)


def find_database_folder(db: sqlite3.Connection) -> str:
    """Return the folder of the database file."""
    return os.path.dirname(db.execute("PRAGMA database_list").fetchone()[2]) or "."


def read_newest_dictionary(db: sqlite3.Connection) -> bytes | None:
    """Return the dictionary with which payloads are compressed now."""
    row = db.execute("SELECT data FROM dictionaries ORDER BY created_ns DESC LIMIT 1").fetchone()
    return row[0] if row else None


def _latest_versions(parts: Sequence[_TraceSlice]) -> dict[str, _IncomingSpan]:
    """Return the incoming spans of a trace by id. Of several versions of a span, return the one that supersedes the
    others.
    """
    came: dict[str, _IncomingSpan] = {}
    for batch, positions, resources in parts:
        for position in positions:
            fact = batch.facts[position]
            earlier = came.get(fact.span_id)
            if earlier is None or supersedes(fact, earlier.fact):
                came[fact.span_id] = _IncomingSpan(fact, batch.payloads[position], resources[batch.resources[position]])
    return came
