"""Trace queries: lists of summaries, whole traces, large traces read lazily, tree and pages of runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, MAX_UNINDEXED, Feedback, OpenRun, Page, Run, Trace, TraceSummary, TreeNode
from spanwise.collector.stores import table_rows
from spanwise.collector.stores.sqlite.database.connections import SELECT_RUN, Reader
from spanwise.collector.stores.sqlite.query import record_lists
from spanwise.collector.stores.sqlite.query.filter_sql import (
    compile_visible_filter,
    complete_sql,
    join_conditions,
    plan_query,
)
from spanwise.collector.stores.sqlite.write import feedback_table, side_tables
from spanwise.collector.stores.store_interfaces import ROW_BYTES, LazyTrace, is_large_answer
from spanwise.collector.stores.table_rows import loads, parse_cursor, select_many
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
_SELECT_NODES = f"SELECT trace, id, {','.join(DerivationNode._fields)} FROM spans WHERE trace IN (%s)"


def derive_root_values(reader: Reader, wanted: Mapping[int, tuple[str, tuple[str, ...]]]) -> dict[int, dict[str, JSON]]:
    """Return, by trace key, values for fields that the root lacks, derived from the runs of the trace.

    `wanted` has the span id of the root and the missing fields of each trace.
    """
    nodes: dict[int, list[tuple[int, DerivationNode]]] = {trace: [] for trace in wanted}
    for trace, row, *fields in select_many(reader.db, _SELECT_NODES, wanted) if wanted else ():
        nodes[trace].append((row, DerivationNode(*fields)))
    return {trace: _derive_values(reader, *of_root, nodes[trace]) for trace, of_root in wanted.items()}


def _derive_values(
    reader: Reader, root_id: str, wanted: tuple[str, ...], nodes: Sequence[tuple[int, DerivationNode]]
) -> dict[str, JSON]:
    rows = {node.span_id: row for row, node in nodes}

    def read(span_id: str) -> tuple[JSON, JSON]:
        [(_, payload)] = reader.payloads([rows[span_id]])
        return payload.get("inputs"), payload.get("outputs")

    return find_derived_values(root_id, wanted, [node for _, node in nodes], read)


def complete_stored_root(reader: Reader, trace: int, root: Run) -> Run:
    """Return the root of the trace with this key. Missing values are filled in if they can be derived."""
    if root.inputs is not None and root.outputs is not None:
        return root
    [count] = reader.db.execute("SELECT span_count FROM traces WHERE id = ?", (trace,)).fetchone()
    wanted = find_root_derivable(root, count)
    return (
        apply_derived_values(root, derive_root_values(reader, {trace: (root.span_id, wanted)})[trace])
        if wanted
        else root
    )


# Previews of the inputs and outputs of large roots, by hash and length of their compressed payload, and by what decides
# whether other runs provide these values. To parse a payload of 5 MB takes 50 ms, and lists are read again and again.
LARGE_PAYLOAD = 50_000  # bytes of a compressed payload
_LARGE_PREVIEWS: dict[tuple[int, int, str, int], tuple[str, str]] = {}
_MAX_LARGE_PREVIEWS = 2_000

_SUMMARY_COLUMNS = (
    "t.id, t.trace_id, t.name, t.kind, t.start_ns, t.end_ns, t.status, t.error, t.project, t.environment, t.span_count,"
    " t.error_count, t.input_tokens, t.output_tokens, t.cost, t.session_id, t.user_id, t.tags, t.experiment_id,"
    f" t.example_id, t.repetition, t.root, {complete_sql()}, t.dropped,"
    " t.calls_sent, t.running, t.prompts, t.agents, t.finish_reasons, t.time_to_first_token_ms"
)


def list_traces(
    reader: Reader, filter: Filter, limit: int, cursor: str | None, sort: str | None = None
) -> Page[TraceSummary]:
    """Return one page of summaries, latest start first or in another order (see `record_lists`)."""
    newest: int | None = None
    rows: Sequence[Any]
    if sort:
        page = record_lists.list_sorted_traces(reader.db, filter, sort, limit, cursor)
        sql = f"SELECT {_SUMMARY_COLUMNS} FROM traces t WHERE t.id IN (%s)"
        found = {row[0]: row for row in select_many(reader.db, sql, page.ids)}
        rows, next, newest = [found[key] for key in page.ids if key in found], page.next, page.newest
    else:
        plan = plan_query(reader.db, filter)
        if cursor is not None:
            plan = plan.after(*parse_cursor(cursor))
        by = "ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
        sql = f"SELECT {_SUMMARY_COLUMNS} FROM {plan.source} WHERE {plan.where} {by}"
        fetched = reader.db.execute(sql, (*plan.values, limit + 1)).fetchall()
        rows, next = table_rows.cut_page(fetched, limit, time=4, key=0)
    roots = read_roots(reader, {row[21]: RootRow(row[0], row[6], row[10]) for row in rows}, make_preview)
    ids = [row[0] for row in rows]
    latest = record_lists.read_newest_scores(reader.db, ids)
    # by trace and outcome: the feedback keys whose newest outcome is an error or a skip
    unscored: dict[int, dict[str, list[str]]] = {}
    for trace, outcome, key in select_many(reader.db, _SELECT_UNSCORED, ids):
        unscored.setdefault(trace, {}).setdefault(outcome, []).append(key)
    return Page(
        items=tuple(
            _make_summary(row, *roots.get(row[21], ("", "", ())), latest.get(row[0], {}), unscored.get(row[0], {}))
            for row in rows
        ),
        next=next,
        unindexed=count_unindexed(reader.db, filter),
        newest=newest,
    )


def count_unindexed(db: sqlite3.Connection, filter: Filter) -> int:
    """Return the number of traces that meet all conditions except `text` and wait for full-text indexing; 0 for a
    filter without `text`.
    """
    if filter.text is None:
        return 0
    where, values = join_conditions(compile_visible_filter(replace(filter, text=None)))
    waiting = f"SELECT 1 FROM unindexed u CROSS JOIN traces t ON t.id = u.trace WHERE {where} LIMIT {MAX_UNINDEXED}"
    return int(db.execute(f"SELECT count(*) FROM ({waiting})", values).fetchone()[0])


class RootRow(NamedTuple):
    """Trace key, status and number of runs of a trace whose root is read."""

    trace: int
    status: str
    runs: int


def read_roots(
    reader: Reader, roots: Mapping[int, RootRow], show: Callable[[JSON], T]
) -> dict[int, tuple[T, T, tuple[str, ...]]]:
    """Return, by row id of the root, its inputs and outputs as `show` returns them, and the names of the fields that
    are derived.
    """
    shown: dict[int, tuple[T, T]] = {}
    wanted: dict[int, tuple[int, tuple[str, ...]]] = {}
    for root, blob in reader.encoded_payloads(list(roots)):
        is_large = show is make_preview and len(blob) > LARGE_PAYLOAD
        of_trace = roots[root]
        key = hash(blob) if is_large else 0, len(blob), of_trace.status, of_trace.runs
        if is_large and (previews := _LARGE_PREVIEWS.get(key)):
            shown[root] = cast(tuple[T, T], previews)
            continue
        payload = reader.payload(blob)
        inputs, outputs = payload.get("inputs"), payload.get("outputs")
        shown[root] = show(inputs), show(outputs)
        attributes, documents = payload.get("attributes", {}), payload.get("documents")
        fields = find_derivable(
            inputs, outputs, attributes, documents=documents, status=of_trace.status, runs=of_trace.runs
        )
        if fields:
            wanted[of_trace.trace] = root, fields
        elif is_large:
            if len(_LARGE_PREVIEWS) >= _MAX_LARGE_PREVIEWS:
                _LARGE_PREVIEWS.clear()
            _LARGE_PREVIEWS[key] = cast(tuple[str, str], shown[root])
    sql = "SELECT id, span_id FROM spans WHERE id IN (%s)"
    span_ids = dict(select_many(reader.db, sql, [root for root, _ in wanted.values()]))
    derived = derive_root_values(reader, {trace: (span_ids[root], fields) for trace, (root, fields) in wanted.items()})
    found = {}
    for root, (inputs, outputs) in shown.items():
        values = derived.get(roots[root].trace, {})
        replaced = {field: show(value) for field, value in values.items()}
        found[root] = replaced.get("inputs", inputs), replaced.get("outputs", outputs), tuple(values)
    return found


_SELECT_UNSCORED = (
    "SELECT trace, outcome, key FROM feedback WHERE standing = 2 AND outcome <> 'score' AND trace IN (%s) ORDER BY key"
)


def _make_summary(
    row: Sequence[Any],
    inputs: str,
    outputs: str,
    derived: tuple[str, ...],
    latest: dict[str, float | str | None],
    unscored: Mapping[str, Sequence[str]],
) -> TraceSummary:
    return TraceSummary(
        trace_id=row[1],
        name=row[2],
        kind=row[3],
        start_ns=row[4],
        duration_ns=max(0, row[5] - row[4]),
        status=row[6],
        error=row[7],
        project=row[8],
        environment=row[9],
        span_count=row[10],
        error_count=row[11],
        input_tokens=row[12],
        output_tokens=row[13],
        cost=row[14],
        session_id=row[15],
        user_id=row[16],
        tags=tuple(loads(row[17])) if row[17] else (),
        experiment_id=row[18],
        example_id=row[19],
        repetition=row[20],
        complete=bool(row[22]),
        dropped=row[23],
        calls_sent=row[24],
        running=row[25],
        prompts={name: tuple(versions) for name, versions in loads(row[26]).items()} if row[26] else {},
        agents=tuple(loads(row[27])) if row[27] else (),
        finish_reasons=tuple(loads(row[28])) if row[28] else (),
        time_to_first_token_ms=row[29],
        inputs=inputs,
        outputs=outputs,
        derived=derived,
        feedback=latest,
        failed=tuple(unscored.get("error", ())),
        skipped=tuple(unscored.get("skip", ())),
    )


def read_trace(reader: Reader, trace_id: str) -> Trace:
    """Return one trace. Raise `NotFound` if the store has no runs of it."""
    traces = read_traces(reader, [trace_id])
    if not traces:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return traces[0]


def read_traces(reader: Reader, trace_ids: Sequence[str]) -> list[Trace]:
    """Return several traces in the order requested."""
    return attach_runs(reader, read_headers(reader, trace_ids))


def attach_runs(reader: Reader, headers: Mapping[str, TraceHeader]) -> list[Trace]:
    """Return traces built from headers and their runs."""
    runs = reader.runs_of({header.key: trace_id for trace_id, header in headers.items()})
    traces = []
    for header in headers.values():
        of_trace = runs[header.key]
        at = next(position for position, run in enumerate(of_trace) if run.span_id == header.root)
        of_trace[at] = complete_root(of_trace[at], of_trace)
        traces.append(Trace(of_trace[at], tuple(of_trace), *header.rest))
    return traces


class TraceHeader(NamedTuple):
    """Data of a trace without its runs: integer key, span id of the root, and bytes of all payloads before compression.

    `rest` holds the fields that follow the runs in a `Trace`.
    """

    key: int
    root: str
    size: int
    rest: tuple[tuple[Feedback, ...], bool, int, int, tuple[OpenRun, ...]]


def read_headers(reader: Reader, trace_ids: Sequence[str]) -> dict[str, TraceHeader]:
    """Return the headers of the traces that the store has, in the order requested."""
    columns = f"t.trace_id, t.id, t.root, t.size, {complete_sql()}, t.dropped, t.calls_sent"
    sql = f"SELECT {columns} FROM traces t WHERE span_count > 0 AND t.trace_id IN (%s)"
    wanted = dict.fromkeys(trace_ids)
    rows = {row[0]: row[1:] for row in select_many(reader.db, sql, wanted)}
    roots = dict(
        select_many(reader.db, "SELECT id, span_id FROM spans WHERE id IN (%s)", [r[1] for r in rows.values()])
    )
    keys = [row[0] for row in rows.values()]
    feedback: dict[int, list[Feedback]] = {}
    sql = feedback_table.SELECT_FEEDBACK + " WHERE f.trace IN (%s) ORDER BY f.created_ns, f.rowid"
    for trace, outcome in feedback_table.read_feedback_rows(select_many(reader.db, sql, keys)):
        feedback.setdefault(trace, []).append(outcome)
    running = side_tables.read_open_runs(reader.db, rows)
    headers = {}
    for trace_id in [trace_id for trace_id in wanted if trace_id in rows]:
        key, root, size, complete, dropped, calls_sent = rows[trace_id]
        rest = tuple(feedback.get(key, ())), bool(complete), dropped, calls_sent, tuple(running.get(trace_id, ()))
        headers[trace_id] = TraceHeader(key, roots[root], size, rest)
    return headers


def read_lazily(reader: Reader, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
    """Return traces in the order requested: all in memory, or all lazy if they exceed `LARGE_ANSWER_BYTES`.

    Raise `TooLarge` if their payloads exceed `MAX_ANSWER_BYTES`.
    """
    headers = read_headers(reader, trace_ids)
    size = sum(header.size for header in headers.values())
    if not is_large_answer(size):
        return attach_runs(reader, headers)
    rows = reader.rows_of([header.key for header in headers.values()])
    detached = reader.detach([row for rows_of_trace in rows.values() for row in rows_of_trace])
    return [
        _make_lazy_trace(reader, detached, trace_id, header, rows[header.key]) for trace_id, header in headers.items()
    ]


def _make_lazy_trace(
    reader: Reader, detached: Reader, trace_id: str, header: TraceHeader, rows: Sequence[Any]
) -> LazyTrace:
    root_row = next(row for row in rows if row[3] == header.root)
    root = complete_stored_root(reader, header.key, detached.run(trace_id, root_row))
    sizes = [len(row[2]) + ROW_BYTES for row in rows]
    return LazyTrace(
        root, rows, sizes, lambda row: root if row is root_row else detached.run(trace_id, row), *header.rest
    )


_SELECT_LINES = f"SELECT {','.join(RunNode._fields)} FROM spans WHERE trace = ?"
_SELECT_FEEDBACK_COUNTS = (
    "SELECT span_id, count(*), sum(outcome = 'error') FROM feedback WHERE trace = ? AND span_id IN (%s) GROUP BY 1"
)
# Sorts ids only; sorting whole rows would read the payloads of all later runs
_SELECT_LATER = (
    "SELECT id, span_id FROM spans WHERE trace = :trace AND (start_ns, -end_ns, span_id) >= (:start, :end, :span)"
    " ORDER BY start_ns, -end_ns, span_id LIMIT :limit"
)
_BEFORE_ALL = -(1 << 63)


def read_tree(reader: Reader, trace_id: str, limit: int, cursor: str | None) -> Page[TreeNode]:
    """Return the page of the tree that contains the run `cursor`. Raise `NotFound` for an unknown trace or run."""
    key, _ = _find_trace(reader.db, trace_id)
    nodes = [RunNode._make(row) for row in reader.db.execute(_SELECT_LINES, (key,))]
    reader.check_stopped()
    branches = list(walk_tree(nodes))
    at = 0
    if cursor is not None:
        at = next((position for position, (_, node) in enumerate(branches) if node.span_id == cursor), -1)
        if at < 0:
            raise _missing_run(trace_id, cursor)
    start, end = at - at % limit, at - at % limit + limit
    span_ids = {node.span_id for node in nodes}
    marks = {
        row[0]: row[1:]
        for row in select_many(reader.db, _SELECT_FEEDBACK_COUNTS, [x.span_id for _, x in branches[start:end]], (key,))
    }
    items = tuple(
        make_branch(start + n, depth, node, span_ids, *marks.get(node.span_id, (0, 0)))
        for n, (depth, node) in enumerate(branches[start:end])
    )
    return Page(items=items, next=branches[end][1].span_id if end < len(branches) else None)


def read_runs(reader: Reader, trace_id: str, limit: int, cursor: str | None) -> Page[Run]:
    """Return a page of runs by start time, as in `Trace.runs`, from the run `cursor` on. Raise `NotFound` if it is
    unknown.
    """
    key, root = _find_trace(reader.db, trace_id)
    start, end = _BEFORE_ALL, _BEFORE_ALL
    if cursor is not None:
        sql = "SELECT start_ns, -end_ns FROM spans WHERE trace = ? AND span_id = ?"
        times = reader.db.execute(sql, (key, cursor)).fetchone()
        if times is None:
            raise _missing_run(trace_id, cursor)
        start, end = times
    parameters = {"trace": key, "start": start, "end": end, "span": cursor or "", "limit": limit + 1}
    found = reader.db.execute(_SELECT_LATER, parameters).fetchall()
    rows = {row[0]: row for row in select_many(reader.db, SELECT_RUN + "s.id IN (%s)", [id for id, _ in found[:limit]])}
    items = tuple(_complete_run(reader, trace_id, key, root, rows[id]) for id, _ in found[:limit])
    return Page(items=items, next=found[limit][1] if len(found) > limit else None)


def read_run(reader: Reader, trace_id: str, span_id: str | None) -> Run:
    """Return one run, by default the root. Raise `NotFound` for an unknown trace or run."""
    key, root = _find_trace(reader.db, trace_id)
    if span_id is None:
        row = reader.db.execute(SELECT_RUN + "s.id = ?", (root,)).fetchone()
    else:
        row = reader.db.execute(SELECT_RUN + "s.trace = ? AND s.span_id = ?", (key, span_id)).fetchone()
    if row is None:
        raise _missing_run(trace_id, span_id)
    return _complete_run(reader, trace_id, key, root, row)


def _complete_run(reader: Reader, trace_id: str, key: int, root: int, row: Sequence[Any]) -> Run:
    found = reader.run(trace_id, row)
    return complete_stored_root(reader, key, found) if row[0] == root else found


def _find_trace(db: sqlite3.Connection, trace_id: str) -> tuple[int, int]:
    """Return the integer key of a trace and the row id of its root."""
    sql = "SELECT id, root FROM traces WHERE span_count > 0 AND trace_id = ?"
    row: tuple[int, int] | None = db.execute(sql, (trace_id,)).fetchone()
    if row is None:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return row


def _missing_run(trace_id: str, span_id: str | None) -> NotFound:
    return NotFound(f"trace {trace_id!r} has no run {span_id!r}")
