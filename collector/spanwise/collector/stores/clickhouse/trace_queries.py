"""Trace queries: lists of summaries, whole traces, large traces decoded lazily, tree and pages of runs.

Lists read the table of summaries in one pass, however many conditions a filter has: for 400,000 traces that takes
tens of milliseconds. All rows of a trace are found by primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Feedback, OpenRun, Page, Run, Trace, TraceSummary, TreeNode
from spanwise.collector.stores.clickhouse import record_lists, senders
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.feedback_rows import FEEDBACK_COLUMNS, decode_feedback
from spanwise.collector.stores.clickhouse.filter_sql import COMPLETE_SQL, TRACES, compile_filter
from spanwise.collector.stores.clickhouse.span_rows import RUN_COLUMNS, decode_run
from spanwise.collector.stores.store_interfaces import ROW_BYTES, LazyTrace, is_large_answer
from spanwise.collector.stores.table_rows import loads, parse_text_cursor
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

T = TypeVar("T")

# Lists of summaries

# Fields of `TraceSummary` that are columns, and the expressions of the others, in the order of `_make_summary`
_SUMMARY_FIELDS = (
    *("trace_id", "name", "kind", "start_ns", "status", "error", "project", "environment", "span_count", "error_count"),
    *("input_tokens", "output_tokens", "cost", "session_id", "user_id", "experiment_id", "example_id", "repetition"),
    *("dropped", "calls_sent", "time_to_first_token_ms"),
)
_SUMMARY_COLUMNS = ", ".join(
    (
        *(f"t.{name}" for name in _SUMMARY_FIELDS),
        *("t.end_ns", COMPLETE_SQL, "t.tags", "t.agents", "t.finish_reasons", "t.prompts", "t.root"),
        "countEqual((SELECT groupArray(trace_id) FROM open_runs FINAL), t.trace_id)",
    )
)


def list_traces(
    db: Connection, filter: Filter, limit: int, cursor: str | None, sort: str | None = None
) -> Page[TraceSummary]:
    """Return one page of summaries, latest start first or in another order (see `record_lists`)."""
    if sort:
        page = record_lists.list_sorted_traces(db, filter, sort, limit, cursor)
        rows, next, newest = read_in_order(db, _SUMMARY_COLUMNS, page.ids), page.next, page.newest
    else:
        rows, next = select_traces(db, filter, _SUMMARY_COLUMNS, limit, cursor)
        newest = None
    roots = read_roots(db, [RootRow(row[0], row[-2], row[4], row[8]) for row in rows], make_preview)
    outcomes = record_lists.read_newest_feedback(db, [row[0] for row in rows])
    items = (_make_summary(row, roots.get(row[0], ("", "", ())), outcomes.get(row[0], {})) for row in rows)
    return Page(items=tuple(items), next=next, newest=newest)


def select_traces(
    db: Connection, filter: Filter, columns: str, limit: int, cursor: str | None, *, where: str = "1"
) -> tuple[list[Any], str | None]:
    """Return rows of the traces that pass, latest start first, and the cursor of the next page.

    The first column is `t.trace_id`. The traces are found first, and their rows read then, because a query with `FINAL`
    reads all of its columns of all traces. Raise `Refused` for an invalid cursor.
    """
    parameters = QueryParameters()
    condition = f"{compile_filter(filter, parameters)} AND {where}"
    if cursor is not None:
        start_ns, trace_id = parse_text_cursor(cursor)
        condition += f" AND (t.start_ns, t.trace_id) < ({parameters.integer(start_ns)}, {parameters.text(trace_id)})"
    order = f"ORDER BY t.start_ns DESC, t.trace_id DESC LIMIT {parameters.integer(limit + 1)}"
    found = db.query(f"SELECT t.trace_id, t.start_ns FROM {TRACES} WHERE {condition} {order}", parameters)
    next = f"{found[limit - 1][1]}.{found[limit - 1][0]}" if len(found) > limit else None
    return read_in_order(db, columns, [trace_id for trace_id, _ in found[:limit]]), next


def read_in_order(db: Connection, columns: str, trace_ids: Sequence[str]) -> list[Any]:
    """Return the rows of traces in the order requested. The first column is `t.trace_id`."""
    if not trace_ids:
        return []
    parameters = QueryParameters()
    sql = f"SELECT {columns} FROM {TRACES} WHERE t.trace_id IN {parameters.texts(trace_ids)}"
    rows = {row[0]: row for row in db.query(sql, parameters)}
    return [rows[trace_id] for trace_id in trace_ids if trace_id in rows]  # some may just have been deleted


def _make_summary(
    row: Sequence[Any],
    root: tuple[str, str, tuple[str, ...]],
    newest: Mapping[str, record_lists.NewestFeedback],
) -> TraceSummary:
    fields = dict(zip(_SUMMARY_FIELDS, row, strict=False))
    end_ns, complete, tags, agents, finish_reasons, prompts, _, running = row[len(_SUMMARY_FIELDS) :]
    inputs, outputs, derived = root
    return TraceSummary(
        **fields,
        duration_ns=max(0, end_ns - fields["start_ns"]),
        complete=bool(complete),
        tags=tuple(tags),
        agents=tuple(agents),
        finish_reasons=tuple(finish_reasons),
        prompts={name: tuple(version or None for version in versions) for name, versions in prompts.items()},
        running=running,
        inputs=inputs,
        outputs=outputs,
        derived=derived,
        feedback={key: one.value for key, one in newest.items()},
        failed=tuple(key for key, one in newest.items() if one.outcome == "error"),
        skipped=tuple(key for key, one in newest.items() if one.outcome == "skip"),
    )


# Inputs and outputs of roots, from other runs where the root lacks them


class RootRow(NamedTuple):
    """Root of a trace: ids, status, and number of runs of the trace."""

    trace_id: str
    span_id: str
    status: str
    runs: int


def read_roots(
    db: Connection, roots: Sequence[RootRow], show: Callable[[JSON], T]
) -> dict[str, tuple[T, T, tuple[str, ...]]]:
    """Return, by trace id, inputs and outputs of the root as `show` returns them, and the names of derived fields."""
    found: dict[str, tuple[T, T, tuple[str, ...]]] = {}
    wanted: dict[str, tuple[str, tuple[str, ...]]] = {}
    by_trace = {root.trace_id: root for root in roots}
    for trace_id, _, payload in _read_payloads(db, [(root.trace_id, root.span_id) for root in roots]):
        inputs, outputs, root = payload.get("inputs"), payload.get("outputs"), by_trace[trace_id]
        found[trace_id] = show(inputs), show(outputs), ()
        attributes, documents = payload.get("attributes", {}), payload.get("documents")
        fields = find_derivable(inputs, outputs, attributes, documents=documents, status=root.status, runs=root.runs)
        if fields:
            wanted[trace_id] = root.span_id, fields
    for trace_id, values in _derive_values(db, wanted).items():
        inputs_shown, outputs_shown, _ = found[trace_id]
        shown = {"inputs": inputs_shown, "outputs": outputs_shown} | {name: show(v) for name, v in values.items()}
        found[trace_id] = shown["inputs"], shown["outputs"], tuple(values)
    return found


PREFETCHED_BYTES = 64 * 1024  # payloads of a trace that are read at once to derive values; of a larger one, one by one


def _derive_values(db: Connection, wanted: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, dict[str, JSON]]:
    """Return, by trace id, values for fields that the root lacks, derived from the runs of the trace.

    `wanted` has the span id of the root and the missing fields of each trace.
    """
    if not wanted:
        return {}
    parameters = QueryParameters()
    columns = ", ".join(DerivationNode._fields)
    sql = f"SELECT trace_id, size, {columns} FROM spans FINAL WHERE trace_id IN {parameters.texts(wanted)}"
    nodes: dict[str, list[DerivationNode]] = {trace_id: [] for trace_id in wanted}
    sizes = dict.fromkeys(wanted, 0)
    for trace_id, size, *fields in db.query(sql, parameters):
        nodes[trace_id].append(DerivationNode(*fields))
        sizes[trace_id] += size
    small = [
        (trace_id, node.span_id)
        for trace_id in wanted
        if sizes[trace_id] <= PREFETCHED_BYTES
        for node in nodes[trace_id]
    ]
    payloads = {(trace_id, span_id): payload for trace_id, span_id, payload in _read_payloads(db, small)}

    def derive(trace_id: str, root_id: str, fields: tuple[str, ...]) -> dict[str, JSON]:
        def read(span_id: str) -> tuple[JSON, JSON]:
            place = trace_id, span_id
            if place not in payloads:
                [(_, _, payloads[place])] = _read_payloads(db, [place])
            return payloads[place].get("inputs"), payloads[place].get("outputs")

        return find_derived_values(root_id, fields, nodes[trace_id], read)

    return {trace_id: derive(trace_id, *of_root) for trace_id, of_root in wanted.items()}


def _read_payloads(db: Connection, spans: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, dict[str, JSON]]]:
    """Yield trace id, span id and payload of spans."""
    for trace_id, span_id, payload in select_spans(db, "payload", spans):
        yield trace_id, span_id, loads(payload) if payload else {}


def select_spans(db: Connection, column: str, spans: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, Any]]:
    """Yield trace id, span id and another column of spans that are given by trace id and span id."""
    if not spans:
        return
    parameters, wanted = QueryParameters(), set(spans)
    traces, ids = (parameters.texts(dict.fromkeys(each)) for each in zip(*spans, strict=True))
    sql = f"SELECT trace_id, span_id, {column} FROM spans FINAL WHERE trace_id IN {traces} AND span_id IN {ids}"
    for trace_id, span_id, value in db.query(sql, parameters):
        if (trace_id, span_id) in wanted:
            yield trace_id, span_id, value


# Whole traces


def read_trace(db: Connection, trace_id: str) -> Trace:
    """Return one trace. Raise `NotFound` if the store has no runs of it."""
    traces = read_traces(db, [trace_id])
    if not traces:
        raise _missing_trace(trace_id)
    return traces[0]


def read_traces(db: Connection, trace_ids: Sequence[str]) -> list[Trace]:
    """Return several traces in the order requested."""
    return _attach_runs(db, _read_headers(db, trace_ids))


class TraceHeader(NamedTuple):
    """Data of a trace without its runs: span id of the root, bytes of all payloads, fields after the runs of `Trace`."""

    root: str
    size: int
    rest: tuple[tuple[Feedback, ...], bool, int, int, tuple[OpenRun, ...]]


def _read_headers(db: Connection, trace_ids: Sequence[str]) -> dict[str, TraceHeader]:
    """Return the headers of the traces that the store has, in the order requested."""
    wanted = dict.fromkeys(trace_ids)
    if not wanted:
        return {}
    parameters = QueryParameters()
    of_traces = f"trace_id IN {parameters.texts(wanted)}"
    columns = f"t.trace_id, t.root, t.size, {COMPLETE_SQL}, t.dropped, t.calls_sent"
    rows = {row[0]: row[1:] for row in db.query(f"SELECT {columns} FROM {TRACES} WHERE t.{of_traces}", parameters)}
    feedback: dict[str, list[Feedback]] = {}
    sql = f"SELECT {FEEDBACK_COLUMNS} FROM feedback FINAL WHERE {of_traces} ORDER BY created_ns, number"
    for row in db.query(sql, parameters):
        outcome = decode_feedback(row)
        feedback.setdefault(outcome.target.trace_id or "", []).append(outcome)
    running = senders.read_open_runs(db, list(wanted))
    headers = {}
    for trace_id in wanted:
        if trace_id in rows:
            root, size, complete, dropped, calls_sent = rows[trace_id]
            outcomes, open_runs = tuple(feedback.get(trace_id, ())), tuple(running.get(trace_id, ()))
            headers[trace_id] = TraceHeader(root, size, (outcomes, bool(complete), dropped, calls_sent, open_runs))
    return headers


IN_ORDER = "ORDER BY trace_id, start_ns, -end_ns, span_id"


def read_rows(db: Connection, trace_ids: Iterable[str]) -> dict[str, list[Any]]:
    """Return the undecoded rows of all runs of traces, by start time."""
    parameters = QueryParameters()
    by_trace: dict[str, list[Any]] = {trace_id: [] for trace_id in trace_ids}
    if by_trace:
        where = f"trace_id IN {parameters.texts(by_trace)}"
        sql = f"SELECT trace_id, span_id, size, {RUN_COLUMNS} FROM spans FINAL WHERE {where} {IN_ORDER}"
        for row in db.query(sql, parameters):
            by_trace[row[0]].append(row)
    return by_trace


def _decode(row: Sequence[Any]) -> Run:
    return decode_run(row[3:])


def _attach_runs(db: Connection, headers: Mapping[str, TraceHeader]) -> list[Trace]:
    rows = read_rows(db, headers)
    traces = []
    for trace_id, header in headers.items():
        runs = [_decode(row) for row in rows[trace_id]]
        at = next((place for place, run in enumerate(runs) if run.span_id == header.root), None)
        if at is not None:  # else it was deleted between the queries
            runs[at] = complete_root(runs[at], runs)
            traces.append(Trace(runs[at], tuple(runs), *header.rest))
    return traces


def read_lazily(db: Connection, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
    """Return traces in the order requested: all decoded, or all lazy if they exceed `LARGE_ANSWER_BYTES`.

    Raise `TooLarge` if their payloads exceed `MAX_ANSWER_BYTES`.
    """
    headers = _read_headers(db, trace_ids)
    size = sum(header.size for header in headers.values())
    if not is_large_answer(size):
        return _attach_runs(db, headers)
    traces = []
    for trace_id, rows in read_rows(db, headers).items():
        root_row = next((row for row in rows if row[1] == headers[trace_id].root), None)
        if root_row is not None:  # else it was deleted between the queries
            root = complete_stored_root(db, _decode(root_row), len(rows))
            sizes = [row[2] + ROW_BYTES for row in rows]
            # the run of the root is decoded already, with derived values
            read = lambda row, at=root_row, root=root: root if row is at else _decode(row)  # noqa: E731
            traces.append(LazyTrace(root, rows, sizes, read, *headers[trace_id].rest))
    return traces


def complete_stored_root(db: Connection, root: Run, runs: int) -> Run:
    """Return the root of a trace of `runs` runs. Missing values are filled in if they can be derived."""
    wanted = find_root_derivable(root, runs)
    if not wanted:
        return root
    return apply_derived_values(root, _derive_values(db, {root.trace_id: (root.span_id, wanted)})[root.trace_id])


# Parts of a trace


def read_tree(db: Connection, trace_id: str, limit: int, cursor: str | None) -> Page[TreeNode]:
    """Return the page of the tree that contains the run `cursor`. Raise `NotFound` for an unknown trace or run."""
    _find_trace(db, trace_id)
    parameters = QueryParameters()
    sql = f"SELECT {', '.join(RunNode._fields)} FROM spans FINAL WHERE trace_id = {parameters.text(trace_id)}"
    nodes = [RunNode._make(row) for row in db.query(sql, parameters)]
    branches = list(walk_tree(nodes))
    at = 0
    if cursor is not None:
        at = next((position for position, (_, node) in enumerate(branches) if node.span_id == cursor), -1)
        if at < 0:
            raise _missing_run(trace_id, cursor)
    start, end = at - at % limit, at - at % limit + limit
    span_ids = {node.span_id for node in nodes}
    shown = parameters.texts(node.span_id for _, node in branches[start:end])
    sql = (
        "SELECT span_id, count(), countIf(outcome = 'error') FROM feedback FINAL"
        f" WHERE trace_id = {parameters.text(trace_id)} AND span_id IN {shown} GROUP BY span_id"
    )
    marks = {span_id: counts for span_id, *counts in db.query(sql, parameters)}
    items = tuple(
        make_branch(start + n, depth, node, span_ids, *marks.get(node.span_id, (0, 0)))
        for n, (depth, node) in enumerate(branches[start:end])
    )
    return Page(items=items, next=branches[end][1].span_id if end < len(branches) else None)


def read_runs(db: Connection, trace_id: str, limit: int, cursor: str | None) -> Page[Run]:
    """Return a page of runs by start time, as in `Trace.runs`, from the run `cursor` on. Raise `NotFound` if it is
    unknown.
    """
    root, count = _find_trace(db, trace_id)
    parameters = QueryParameters()
    where = f"trace_id = {parameters.text(trace_id)}"
    if cursor is not None:
        span = parameters.text(cursor)
        times = db.query(f"SELECT start_ns, -end_ns FROM spans FINAL WHERE {where} AND span_id = {span}", parameters)
        if not times:
            raise _missing_run(trace_id, cursor)
        start, end = map(parameters.integer, times[0])
        where += f" AND (start_ns, -end_ns, span_id) >= ({start}, {end}, {span})"
    # Sorts ids only; sorting whole rows would read the payloads of all later runs
    ids = f"SELECT span_id FROM spans FINAL WHERE {where} {IN_ORDER} LIMIT {parameters.integer(limit + 1)}"
    found = [id for (id,) in db.query(ids, parameters)]
    runs = {run.span_id: run for run in _read_some(db, trace_id, found[:limit])}
    items = tuple(
        complete_stored_root(db, runs[id], count) if id == root else runs[id] for id in found[:limit] if id in runs
    )
    return Page(items=items, next=found[limit] if len(found) > limit else None)


def read_run(db: Connection, trace_id: str, span_id: str | None) -> Run:
    """Return one run, by default the root. Raise `NotFound` for an unknown trace or run."""
    root, count = _find_trace(db, trace_id)
    runs = _read_some(db, trace_id, [root if span_id is None else span_id])
    if not runs:
        raise _missing_run(trace_id, span_id)
    return complete_stored_root(db, runs[0], count) if runs[0].span_id == root else runs[0]


def _read_some(db: Connection, trace_id: str, span_ids: Sequence[str]) -> list[Run]:
    parameters = QueryParameters()
    where = f"trace_id = {parameters.text(trace_id)} AND span_id IN {parameters.texts(span_ids)}"
    return [decode_run(row) for row in db.query(f"SELECT {RUN_COLUMNS} FROM spans FINAL WHERE {where}", parameters)]


def _find_trace(db: Connection, trace_id: str) -> tuple[str, int]:
    """Return the span id of the root and the number of runs of a trace."""
    parameters = QueryParameters()
    sql = f"SELECT t.root, t.span_count FROM {TRACES} WHERE t.trace_id = {parameters.text(trace_id)}"
    rows = db.query(sql, parameters)
    if not rows:
        raise _missing_trace(trace_id)
    root, count = rows[0]
    return root, count


def _missing_trace(trace_id: str) -> NotFound:
    return NotFound(f"there is no trace {trace_id!r} in this store")


def _missing_run(trace_id: str, span_id: str | None) -> NotFound:
    return NotFound(f"trace {trace_id!r} has no run {span_id!r}")
