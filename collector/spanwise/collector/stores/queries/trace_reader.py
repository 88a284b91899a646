"""Reader of traces: lists of summaries, whole traces, large traces decoded lazily, tree and pages of runs.

A backend derives a class from `TraceReader`, whose abstract methods are its SQL. They name traces and spans by the
keys of the backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import (
    JSON,
    Feedback,
    OpenRun,
    Page,
    Run,
    Trace,
    TraceSummary,
    TreeNode,
    make_fast_constructor,
)
from spanwise.collector.stores.store_interfaces import ROW_BYTES, LazyTrace, is_large_answer
from spanwise.collector.stores.trace_assembly import (
    DerivationNode,
    RunNode,
    apply_derived_values,
    complete_root,
    find_derivable,
    find_derived_values,
    find_root_derivable,
    make_branch,
    make_preview,
    walk_tree,
)

R = TypeVar("R", contravariant=True)
T = TypeVar("T")
Key: TypeAlias = Any  # key of a trace in its backend
Place: TypeAlias = tuple[Key, Any]  # key of a trace, and key of one of its spans
Position: TypeAlias = tuple[int, int, str]  # start, negative end and id of a span: the order of the runs of a trace

# Fields of `TraceSummary` that are columns of `traces` in all backends, and those that are lists of a kind of their own
SUMMARY_FIELDS = (
    *("trace_id", "name", "kind", "start_ns", "status", "error", "project", "environment", "span_count", "error_count"),
    *("input_tokens", "output_tokens", "cost", "session_id", "user_id", "experiment_id", "example_id", "repetition"),
    *("dropped", "calls_sent", "time_to_first_token_ms"),
)
SUMMARY_LISTS = ("tags", "agents", "finish_reasons", "prompts")


class ListedTrace(NamedTuple):
    """Row of a trace in a list. `root` is the key of its root span, and `fields` are the values of `SUMMARY_FIELDS`."""

    key: Key
    root: Any
    end_ns: int
    complete: bool
    running: int
    lists: Sequence[Any]
    fields: Mapping[str, Any]

    @classmethod
    def from_row(cls, row: Sequence[Any], load_list: Callable[[Any], Any]) -> ListedTrace:
        """Return a row of the other columns, `SUMMARY_LISTS` and `SUMMARY_FIELDS`."""
        lists = list(map(load_list, row[5:9]))
        return cls._make((*row[:5], lists, dict(zip(SUMMARY_FIELDS, row[9:], strict=True))))


class NewestFeedback(NamedTuple):
    """Newest feedback of a key on a trace and its spans: outcome, and its score, else its label."""

    outcome: str
    value: float | str | None


class RootRow(NamedTuple):
    """Root of a trace: its place, its status, and the number of runs of the trace."""

    place: Place
    status: str
    runs: int


class TraceHeader(NamedTuple):
    """Data of a trace without its runs: key, span id of the root, bytes of all payloads before compression.

    `rest` holds the fields that follow the runs in a `Trace`.
    """

    key: Key
    root: str
    size: int
    rest: tuple[tuple[Feedback, ...], bool, int, int, tuple[OpenRun, ...]]


class StoredTrace(NamedTuple):
    """Key of a trace, span id of its root, and number of its runs."""

    key: Key
    root: str
    runs: int


# Previews of the inputs and outputs of large roots, by hash and length of their stored payload, and by what decides
# whether other runs provide these values. To parse a payload of 5 MB takes 50 ms, and lists are read again and again.
LARGE_PAYLOAD = 50_000  # bytes of a stored payload
_LARGE_PREVIEWS: dict[tuple[int, int, str, int], tuple[str, str]] = {}
_MAX_LARGE_PREVIEWS = 2_000


class TraceReader(ABC, Generic[R]):
    """Reader of the traces of a backend. The first argument of each method is what the backend reads with."""

    span_id_column: int  # position of the span id in the rows of `read_rows`
    payload_column: int
    prefetched_bytes = 0  # payloads of a trace that are read at once to derive values; of a larger one, one by one

    @abstractmethod
    def select_summaries(
        self, reader: R, filter: Filter, limit: int, cursor: str | None, sort: str | None
    ) -> tuple[Iterable[ListedTrace], str | None, int | None]:
        """Return the rows of a page, the cursor of the next one, and `Page.newest`."""

    @abstractmethod
    def select_newest_feedback(self, reader: R, keys: Collection[Key]) -> Iterable[Sequence[Any]]:
        """Return the newest feedback of each key on traces: trace, key, outcome, score and label, ordered by key."""

    @abstractmethod
    def select_payloads(self, reader: R, places: Collection[Place]) -> Iterable[tuple[Place, Any]]:
        """Yield spans with their stored payloads, one at a time, because each may have megabytes."""

    @abstractmethod
    def decode_payload(self, reader: R, payload: Any) -> Mapping[str, JSON]: ...

    @abstractmethod
    def select_nodes(self, reader: R, keys: Collection[Key]) -> Iterable[Sequence[Any]]:
        """Return trace, span, size and the fields of `DerivationNode` of all spans of traces."""

    @abstractmethod
    def select_headers(self, reader: R, trace_ids: Collection[str]) -> Iterable[Sequence[Any]]:
        """Return trace id, key, span id of the root, size, completeness, and counts of dropped spans and calls."""

    @abstractmethod
    def select_feedback(self, reader: R, keys: Collection[Key]) -> Iterable[tuple[Key, Feedback]]:
        """Return the feedback on traces, oldest first."""

    @abstractmethod
    def read_open_runs(self, reader: R, trace_ids: Sequence[str]) -> Mapping[str, Sequence[OpenRun]]:
        """Return the open runs of traces, by start time."""

    @abstractmethod
    def read_rows(self, reader: R, keys: Sequence[Key]) -> Mapping[Key, Sequence[Any]]:
        """Return the undecoded rows of all runs of traces, by start time."""

    @abstractmethod
    def measure_row(self, row: Any) -> int:
        """Return the bytes of the payload of a row of `read_rows`."""

    @abstractmethod
    def decoder(self, reader: R, rows: Iterable[Any], *, detached: bool) -> Callable[[str, Any], Run]:
        """Return the function that decodes these rows, given the trace id; `detached`: later, without the reader."""

    @abstractmethod
    def find_trace(self, reader: R, trace_id: str) -> StoredTrace | None: ...

    @abstractmethod
    def select_tree(self, reader: R, key: Key) -> Iterable[Sequence[Any]]:
        """Return the fields of `RunNode` of all spans of a trace."""

    @abstractmethod
    def count_feedback(self, reader: R, key: Key, span_ids: Collection[str]) -> Iterable[Sequence[Any]]:
        """Return span id, number of feedback, and number of errors among it."""

    @abstractmethod
    def find_position(self, reader: R, key: Key, span_id: str) -> Position | None: ...

    @abstractmethod
    def list_later(self, reader: R, key: Key, position: Position | None, limit: int) -> Sequence[Sequence[Any]]:
        """Return size and position of the runs from a position on. Must not sort rows with payloads."""

    @abstractmethod
    def read_some(self, reader: R, trace_id: str, key: Key, span_ids: Collection[str]) -> list[Run]:
        """Return some runs of a trace in any order."""

    def count_unindexed(self, reader: R, filter: Filter) -> int:
        """Return `Page.unindexed`."""
        return 0

    # lists of summaries

    def list_traces(
        self, reader: R, filter: Filter, limit: int, cursor: str | None, sort: str | None
    ) -> Page[TraceSummary]:
        """Return one page of summaries, latest start first or in another order."""
        found, next, newest = self.select_summaries(reader, filter, limit, cursor, sort)
        rows = list(found)
        roots = self.read_roots(
            reader,
            [RootRow((row.key, row.root), row.fields["status"], row.fields["span_count"]) for row in rows],
            make_preview,
        )
        outcomes = self.read_newest_feedback(reader, [row.key for row in rows])
        items = (_make_summary(row, roots.get(row.key, ("", "", ())), outcomes.get(row.key, {})) for row in rows)
        return Page(items=tuple(items), next=next, unindexed=self.count_unindexed(reader, filter), newest=newest)

    def read_newest_feedback(self, reader: R, keys: Collection[Key]) -> dict[Key, dict[str, NewestFeedback]]:
        """Return the newest feedback by trace and key, ordered by key."""
        newest: dict[Key, dict[str, NewestFeedback]] = {}
        for trace, key, outcome, score, label in self.select_newest_feedback(reader, keys) if keys else ():
            newest.setdefault(trace, {})[key] = NewestFeedback(outcome, label if score is None else score)
        return newest

    def read_roots(
        self, reader: R, roots: Sequence[RootRow], show: Callable[[JSON], T]
    ) -> dict[Key, tuple[T, T, tuple[str, ...]]]:
        """Return, by trace, inputs and outputs of the root as `show` returns them, and the names of derived fields."""
        shown: dict[Key, tuple[T, T]] = {}
        wanted: dict[Key, tuple[Any, tuple[str, ...]]] = {}
        by_place = {root.place: root for root in roots}
        for place, payload in self.select_payloads(reader, by_place):
            _, status, runs = by_place[place]
            is_large = show is make_preview and len(payload) > LARGE_PAYLOAD
            mark = hash(payload) if is_large else 0, len(payload), status, runs
            if is_large and (previews := _LARGE_PREVIEWS.get(mark)):
                shown[place[0]] = cast(tuple[T, T], previews)
                continue
            fields = self.decode_payload(reader, payload)
            inputs, outputs = fields.get("inputs"), fields.get("outputs")
            shown[place[0]] = show(inputs), show(outputs)
            attributes, documents = fields.get("attributes", {}), fields.get("documents")
            missing = find_derivable(inputs, outputs, attributes, documents=documents, status=status, runs=runs)
            if missing:
                wanted[place[0]] = place[1], missing
            elif is_large:
                if len(_LARGE_PREVIEWS) >= _MAX_LARGE_PREVIEWS:
                    _LARGE_PREVIEWS.clear()
                _LARGE_PREVIEWS[mark] = cast(tuple[str, str], shown[place[0]])
        derived = self._derive_values(reader, wanted)
        found = {}
        for key, (inputs, outputs) in shown.items():
            replaced = {field: show(value) for field, value in derived.get(key, {}).items()}
            found[key] = replaced.get("inputs", inputs), replaced.get("outputs", outputs), tuple(replaced)
        return found

    def _derive_values(
        self, reader: R, wanted: Mapping[Key, tuple[Any, tuple[str, ...]]]
    ) -> dict[Key, dict[str, JSON]]:
        """Return, by trace, values for fields that the root lacks, derived from the runs of the trace.

        `wanted` has the key of the root (or its span id) and the missing fields of each trace.
        """
        nodes: dict[Key, list[DerivationNode]] = {key: [] for key in wanted}
        places: dict[Key, dict[str, Place]] = {key: {} for key in wanted}
        sizes = dict.fromkeys(wanted, 0)
        for key, span, size, *fields in self.select_nodes(reader, wanted) if wanted else ():
            nodes[key].append(node := DerivationNode(*fields))
            places[key][node.span_id] = key, span
            sizes[key] += size
        small = [place for key in wanted if sizes[key] <= self.prefetched_bytes for place in places[key].values()]
        prefetched = dict(self.select_payloads(reader, small)) if small else {}

        def derive(key: Key, root: Any, fields: tuple[str, ...]) -> dict[str, JSON]:
            def read(span_id: str) -> tuple[JSON, JSON]:
                place = places[key][span_id]
                if place not in prefetched:
                    [(_, prefetched[place])] = self.select_payloads(reader, [place])
                payload = self.decode_payload(reader, prefetched[place])
                return payload.get("inputs"), payload.get("outputs")

            root_id = next((id for id, place in places[key].items() if root in (id, place[1])), "")
            return find_derived_values(root_id, fields, nodes[key], read)

        return {key: derive(key, *of_root) for key, of_root in wanted.items()}

    def complete_stored_root(self, reader: R, key: Key, root: Run, runs: int) -> Run:
        """Return the root of a trace of `runs` runs. Missing values are filled in if they can be derived."""
        wanted = find_root_derivable(root, runs)
        if not wanted:
            return root
        return apply_derived_values(root, self._derive_values(reader, {key: (root.span_id, wanted)})[key])

    # whole traces

    def read_trace(self, reader: R, trace_id: str) -> Trace:
        """Return one trace. Raise `NotFound` if the store has no runs of it."""
        for trace in self.read_traces(reader, [trace_id]):
            return trace
        raise missing_trace(trace_id)

    def read_traces(self, reader: R, trace_ids: Sequence[str]) -> list[Trace]:
        """Return several traces in the order requested."""
        return self._attach_runs(reader, self._list_headers(reader, trace_ids))

    def _list_headers(self, reader: R, trace_ids: Sequence[str]) -> dict[str, TraceHeader]:
        """Return the headers of the traces that the store has, in the order requested."""
        wanted = dict.fromkeys(trace_ids)
        rows = {row[0]: row[1:] for row in self.select_headers(reader, wanted)} if wanted else {}
        if not rows:
            return {}
        feedback = group_by_trace(self.select_feedback(reader, [row[0] for row in rows.values()]))
        running = self.read_open_runs(reader, list(rows))
        headers = {}
        for trace_id in (trace_id for trace_id in wanted if trace_id in rows):
            key, root, size, complete, *counts = rows[trace_id]
            outcomes, open_runs = tuple(feedback.get(key, ())), tuple(running.get(trace_id, ()))
            headers[trace_id] = TraceHeader(key, root, size, (outcomes, bool(complete), *counts, open_runs))
        return headers

    def _attach_runs(self, reader: R, headers: Mapping[str, TraceHeader]) -> list[Trace]:
        rows = self.read_rows(reader, [header.key for header in headers.values()])
        decode, traces = self.decoder(reader, (), detached=False), list[Trace]()
        for trace_id, header in headers.items():
            runs = [decode(trace_id, row) for row in rows[header.key]]
            at = next((place for place, run in enumerate(runs) if run.span_id == header.root), None)
            if at is not None:  # else it was deleted between the queries
                runs[at] = complete_root(runs[at], runs)
                traces.append(Trace(runs[at], tuple(runs), *header.rest))
        return traces

    def read_lazily(self, reader: R, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces in the order requested: all decoded, or all lazy if they exceed `LARGE_ANSWER_BYTES`.

        Raise `TooLarge` if their payloads exceed `MAX_ANSWER_BYTES`.
        """
        headers = self._list_headers(reader, trace_ids)
        if not is_large_answer(sum(header.size for header in headers.values())):
            return self._attach_runs(reader, headers)
        by_trace = self.read_rows(reader, [header.key for header in headers.values()])
        decode = self.decoder(reader, (row for rows in by_trace.values() for row in rows), detached=True)
        traces = (
            self._make_lazy_trace(reader, trace_id, header, by_trace[header.key], decode)
            for trace_id, header in headers.items()
        )
        return [trace for trace in traces if trace is not None]

    def _make_lazy_trace(
        self, reader: R, trace_id: str, header: TraceHeader, rows: Sequence[Any], decode: Callable[[str, Any], Run]
    ) -> LazyTrace | None:
        root_row = next((row for row in rows if row[self.span_id_column] == header.root), None)
        if root_row is None:  # it was deleted between the queries
            return None
        root = self.complete_stored_root(reader, header.key, decode(trace_id, root_row), len(rows))
        sizes = [self.measure_row(row) + ROW_BYTES for row in rows]
        # the run of the root is decoded already, with derived values
        return LazyTrace(
            root, rows, sizes, lambda row: root if row is root_row else decode(trace_id, row), *header.rest
        )

    # parts of a trace

    def read_tree(self, reader: R, trace_id: str, limit: int, cursor: str | None) -> Page[TreeNode]:
        """Return the page of the tree that contains the run `cursor`. Raise `NotFound` for an unknown trace or run."""
        key = self._get_trace(reader, trace_id).key
        nodes = list(map(RunNode._make, self.select_tree(reader, key)))
        branches = list(walk_tree(nodes))
        at = 0
        if cursor is not None:
            at = next((position for position, (_, node) in enumerate(branches) if node.span_id == cursor), -1)
            if at < 0:
                raise _missing_run(trace_id, cursor)
        start, end = at - at % limit, at - at % limit + limit
        span_ids = {node.span_id for node in nodes}
        shown = [node.span_id for _, node in branches[start:end]]
        marks = {span_id: counts for span_id, *counts in self.count_feedback(reader, key, shown)}
        items = tuple(
            make_branch(start + n, depth, node, span_ids, *marks.get(node.span_id, (0, 0)))
            for n, (depth, node) in enumerate(branches[start:end])
        )
        return Page(items=items, next=branches[end][1].span_id if end < len(branches) else None)

    def read_runs(self, reader: R, trace_id: str, limit: int, cursor: str | None) -> Page[Run]:
        """Return a page of runs by start time, as in `Trace.runs`, from the run `cursor` on. Raise `NotFound` if it is
        unknown.
        """
        trace = self._get_trace(reader, trace_id)
        position = None if cursor is None else self.find_position(reader, trace.key, cursor)
        if cursor is not None and position is None:
            raise _missing_run(trace_id, cursor)
        found = [row[-1] for row in self.list_later(reader, trace.key, position, limit + 1)]
        runs = self.read_in_order(reader, trace_id, trace, found[:limit])
        return Page(items=tuple(runs), next=found[limit] if len(found) > limit else None)

    def read_in_order(self, reader: R, trace_id: str, trace: StoredTrace, span_ids: Sequence[str]) -> list[Run]:
        """Return some runs of a trace in the order requested, with derived values of the root."""
        runs = {run.span_id: run for run in self.read_some(reader, trace_id, trace.key, span_ids)}
        if trace.root in runs:
            runs[trace.root] = self.complete_stored_root(reader, trace.key, runs[trace.root], trace.runs)
        return [runs[id] for id in span_ids if id in runs]

    def read_run(self, reader: R, trace_id: str, span_id: str | None) -> Run:
        """Return one run, by default the root. Raise `NotFound` for an unknown trace or run."""
        trace = self._get_trace(reader, trace_id)
        for run in self.read_in_order(reader, trace_id, trace, [trace.root if span_id is None else span_id]):
            return run
        raise _missing_run(trace_id, span_id)

    def _get_trace(self, reader: R, trace_id: str) -> StoredTrace:
        trace = self.find_trace(reader, trace_id)
        if trace is None:
            raise missing_trace(trace_id)
        return trace


_new_summary: Callable[..., TraceSummary] = make_fast_constructor(TraceSummary)


def _make_summary(
    row: ListedTrace, root: tuple[str, str, tuple[str, ...]], newest: Mapping[str, NewestFeedback]
) -> TraceSummary:
    tags, agents, finish_reasons, prompts = row.lists
    inputs, outputs, derived = root
    unscored = [(one.outcome, key) for key, one in newest.items() if one.outcome != "score"]
    return _new_summary(
        **row.fields,
        duration_ns=max(0, row.end_ns - row.fields["start_ns"]),
        complete=bool(row.complete),
        tags=tuple(tags),
        agents=tuple(agents),
        finish_reasons=tuple(finish_reasons),
        prompts={name: tuple([version or None for version in versions]) for name, versions in prompts.items()}
        if prompts
        else {},
        running=row.running,
        inputs=inputs,
        outputs=outputs,
        derived=derived,
        feedback={key: one.value for key, one in newest.items()},
        failed=tuple([key for outcome, key in unscored if outcome == "error"]) if unscored else (),
        skipped=tuple([key for outcome, key in unscored if outcome == "skip"]) if unscored else (),
    )


def group_by_trace(rows: Iterable[tuple[Key, Feedback]]) -> dict[Key, list[Feedback]]:
    """Return feedback by trace."""
    grouped: dict[Key, list[Feedback]] = {}
    for key, feedback in rows:
        grouped.setdefault(key, []).append(feedback)
    return grouped


def missing_trace(trace_id: str) -> NotFound:
    """Return the error for a trace that the store does not have."""
    return NotFound(f"there is no trace {trace_id!r} in this store")


def _missing_run(trace_id: str, span_id: str | None) -> NotFound:
    return NotFound(f"trace {trace_id!r} has no run {span_id!r}")
