"""Source records of flat tables (see `spanwise.collector.stores.flat_tables`), in pages of limited size.

Traces come in the order of lists, latest start first, and the runs of each trace by start time. A page has fewer
records than requested if they are large, so that its size is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Page, Run
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.feedback_rows import FEEDBACK_COLUMNS, decode_feedback
from spanwise.collector.stores.clickhouse.filter_sql import COMPLETE_SQL, TRACES, VISIBLE_SQL, compile_filter
from spanwise.collector.stores.clickhouse.record_lists import read_newest_feedback, select_feedback
from spanwise.collector.stores.clickhouse.span_rows import RUN_COLUMNS, decode_run
from spanwise.collector.stores.clickhouse.trace_queries import (
    IN_ORDER,
    RootRow,
    complete_stored_root,
    read_roots,
    read_rows,
    select_spans,
    select_traces,
)
from spanwise.collector.stores.flat_tables import DocumentRecord, ResultRecord, TraceRecord
from spanwise.collector.stores.table_rows import loads
from spanwise.collector.stores.trace_assembly import complete_root

PAGE_BYTES = 8_000_000  # payloads of a page before compression
MAX_TRACES = 1_000  # traces of a page of runs


def read_records(db: Connection, table: str, filter: Filter, limit: int, cursor: str | None) -> Page[Any]:
    """Return one page of the source records of a table. Raise `Refused` for an invalid cursor."""
    if table == "traces":
        return _read_trace_records(db, filter, limit, cursor)
    if table == "runs":
        return _read_runs(db, filter, limit, cursor, only_documents=False)
    if table == "documents":
        page = _read_runs(db, filter, limit, cursor, only_documents=True)
        return Page(
            items=tuple(DocumentRecord(run, place, each) for run in page for place, each in enumerate(run.documents)),
            next=page.next,
        )
    if table == "feedback":
        return _read_feedback(db, filter, limit, cursor)
    return _read_results(db, filter, limit, cursor)


def _count_fitting(sizes: Sequence[int], limit: int) -> int:
    """Return the number of leading items that fit into the limit together, at least 1."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= limit, accumulate(sizes))))


def _cut(rows: Sequence[Any], count: int, next: str | None) -> tuple[Sequence[Any], str | None]:
    """Return the first rows of a page, which begin with trace id and start, and the cursor of the next page."""
    return (rows, next) if len(rows) <= count else (rows[:count], f"{rows[count - 1][1]}.{rows[count - 1][0]}")


# traces

_TRACE_COLUMNS = (
    "t.trace_id, t.start_ns, t.root, t.span_count, mapKeys(t.models), t.tags, t.metadata_json,"
    f" {COMPLETE_SQL}, t.trace_id, t.project, t.environment, t.name, t.kind, t.status, t.error, t.start_ns, t.end_ns,"
    " t.span_count, t.error_count, t.input_tokens, t.output_tokens, t.cost, t.session_id, t.user_id, t.experiment_id,"
    " t.example_id, t.repetition, t.dropped"
)


def _read_trace_records(db: Connection, filter: Filter, limit: int, cursor: str | None) -> Page[TraceRecord]:
    fetched, next = select_traces(db, filter, _TRACE_COLUMNS, limit, cursor)
    sizes = {trace_id: size for trace_id, _, size in select_spans(db, "size", [(row[0], row[2]) for row in fetched])}
    rows, next = _cut(fetched, _count_fitting([sizes.get(row[0], 0) for row in fetched], PAGE_BYTES), next)
    contents = read_roots(db, [RootRow(row[0], row[2], row[13], row[3]) for row in rows], lambda value: value)
    newest = read_newest_feedback(db, [row[0] for row in rows])
    records = []
    for row in rows:
        inputs, outputs, _ = contents.get(row[0], (None, None, ()))
        scores = {key: one.value for key, one in newest.get(row[0], {}).items()}
        metadata = loads(row[6]) if row[6] else {}
        lists = row[4], row[5], metadata
        records.append(TraceRecord._make((*row[8:27], bool(row[7]), row[27], *lists, row[2], inputs, outputs, scores)))
    return Page(items=tuple(records), next=next)


# runs and documents

_RUN_PLACE = "t.trace_id, t.start_ns, t.root, t.span_count, t.size"


def _read_runs(db: Connection, filter: Filter, limit: int, cursor: str | None, *, only_documents: bool) -> Page[Run]:
    """Return one page of runs, with `only_documents` of those that have documents.

    A cursor is the position of a trace, of which all runs were read, or of the next run in a trace.
    """
    after, inside = _parse_run_cursor(cursor)
    if after is not None and inside is not None:
        trace_id = after.partition(".")[2]
        parameters = QueryParameters()
        where = f"t.trace_id = {parameters.text(trace_id)} AND t.span_count > 0"
        if found := db.query(f"SELECT {_RUN_PLACE} FROM {TRACES} WHERE {where}", parameters):
            return _read_large_trace(db, found[0], limit, inside, only_documents)
    fetched, next = select_traces(db, filter, _RUN_PLACE, min(limit, MAX_TRACES), after)
    if fetched and (fetched[0][3] > limit or fetched[0][4] > PAGE_BYTES):
        return _read_large_trace(db, fetched[0], limit, None, only_documents)
    by_count, by_size = ([row[place] for row in fetched] for place in (3, 4))
    fitting = min(_count_fitting(by_count, limit), _count_fitting(by_size, PAGE_BYTES))
    rows, next = _cut(fetched, fitting, next)
    stored = read_rows(db, [row[0] for row in rows])
    runs = list[Run]()
    for trace_id, _, root, _, _ in rows:
        of_trace = [decode_run(row[3:]) for row in stored[trace_id]]
        if only_documents:
            runs += [run for run in of_trace if run.documents]
        else:
            runs += [complete_root(run, of_trace) if run.span_id == root else run for run in of_trace]
    return Page(items=tuple(runs), next=next)


def _read_large_trace(
    db: Connection, trace: Sequence[Any], limit: int, inside: tuple[int, int, str] | None, only_documents: bool
) -> Page[Run]:
    """Return a page of the runs of one trace, from a position in it on."""
    trace_id, start_ns, root, count, _ = trace
    parameters = QueryParameters()
    where = f"trace_id = {parameters.text(trace_id)}"
    if inside is not None:
        position = ", ".join([*map(parameters.integer, inside[:2]), parameters.text(inside[2])])
        where += f" AND (start_ns, -end_ns, span_id) >= ({position})"
    # Sorts ids only; sorting whole rows would read the payloads of all later runs
    places = f"SELECT size, start_ns, -end_ns, span_id FROM spans FINAL WHERE {where} {IN_ORDER}"
    later = db.query(f"{places} LIMIT {parameters.integer(limit + 1)}", parameters)
    taken = min(limit, _count_fitting([row[0] for row in later], PAGE_BYTES))
    next = f"{start_ns}.{trace_id}"
    if len(later) > taken:
        next = ".".join(map(str, (next, *later[taken][1:])))
    ids = parameters.texts(row[3] for row in later[:taken])
    sql = f"SELECT {RUN_COLUMNS} FROM spans FINAL WHERE {where} AND span_id IN {ids} {IN_ORDER}"
    runs = [decode_run(row) for row in db.query(sql, parameters)]
    if only_documents:
        runs = [run for run in runs if run.documents]
    else:
        runs = [complete_stored_root(db, run, count) if run.span_id == root else run for run in runs]
    return Page(items=tuple(runs), next=next)


def _parse_run_cursor(cursor: str | None) -> tuple[str | None, tuple[int, int, str] | None]:
    """Return the cursor of the trace, None at the beginning, and the position in the trace, None after its end."""
    parts = [] if cursor is None else cursor.split(".")
    if len(parts) != 5:
        return cursor, None
    try:
        return ".".join(parts[:2]), (int(parts[2]), int(parts[3]), parts[4])
    except ValueError:
        raise Refused(f"invalid cursor {cursor!r}; use `next` of the previous page") from None


# feedback and results of experiments


def _read_feedback(db: Connection, filter: Filter, limit: int, cursor: str | None) -> Page[Feedback]:
    parameters = QueryParameters()
    # Feedback on traces that are not in the table `traces`, such as evaluators' own, would refer to a missing row
    condition = compile_filter(filter, parameters) if filter != Filter() else f"t.span_count > 0 AND {VISIBLE_SQL}"
    where = f"trace_id IN (SELECT t.trace_id FROM {TRACES} WHERE {condition})"
    if filter == Filter():
        where = f"(trace_id = '' OR {where})"
    return select_feedback(db, [where], parameters, limit, cursor)


_RESULT_COLUMNS = (
    "t.trace_id, t.start_ns, t.trace_id, t.project, t.experiment_id, t.example_id, t.repetition, t.status, t.start_ns,"
    " t.end_ns"
)


def _read_results(db: Connection, filter: Filter, limit: int, cursor: str | None) -> Page[ResultRecord]:
    """Return the results of a tenth of `limit` traces, because a trace may have several keys."""
    traces, where = max(1, limit // 10), "t.experiment_id IS NOT NULL"
    rows, next = select_traces(db, filter, _RESULT_COLUMNS, traces, cursor, where=where)
    newest: dict[str, list[Feedback]] = {}
    parameters = QueryParameters()
    sql = (
        f"SELECT {FEEDBACK_COLUMNS} FROM feedback FINAL"
        f" WHERE trace_id IN {parameters.texts(row[0] for row in rows)} AND document IS NULL"
        " ORDER BY trace_id, key, created_ns DESC, number DESC LIMIT 1 BY trace_id, key"
    )
    for row in db.query(sql, parameters) if rows else ():
        feedback = decode_feedback(row)
        newest.setdefault(feedback.target.trace_id or "", []).append(feedback)
    return Page(
        items=tuple(
            ResultRecord._make((*row[2:], feedback, None)) for row in rows for feedback in newest.get(row[0]) or (None,)
        ),
        next=next,
    )
