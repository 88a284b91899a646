"""Source records of flat tables (see `spanwise.collector.stores.flat_tables`), in pages of limited size.

Traces come in the order of lists, latest start first, and the runs of each trace by start time. A page has fewer
records than requested if they are large, so that its size does not depend on what was stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Page, Run
from spanwise.collector.stores.flat_tables import DocumentRecord, ResultRecord, TraceRecord
from spanwise.collector.stores.sqlite.database.connections import SELECT_RUN, Reader
from spanwise.collector.stores.sqlite.query.filter_sql import HAS_SPANS, VISIBLE_SQL, complete_sql, plan_query
from spanwise.collector.stores.sqlite.query.record_lists import read_newest_scores, restrict_feedback
from spanwise.collector.stores.sqlite.query.trace_queries import RootRow, complete_stored_root, read_roots
from spanwise.collector.stores.sqlite.write import feedback_table
from spanwise.collector.stores.table_rows import cut_page, loads, parse_cursor, select_many
from spanwise.collector.stores.trace_assembly import complete_root

PAGE_BYTES = 8_000_000  # payloads of a page before compression
MAX_TRACES = 1_000  # traces of a page of runs
_BEFORE_ALL = (-(1 << 63), -(1 << 63), "")


def read_records(reader: Reader, table: str, filter: Filter, limit: int, cursor: str | None) -> Page[Any]:
    """Return one page of the source records of a table. Raise `Refused` for an invalid cursor."""
    if table == "traces":
        return _read_trace_records(reader, filter, limit, cursor)
    if table == "runs":
        return _read_runs(reader, filter, limit, cursor, only_documents=False)
    if table == "documents":
        page = _read_runs(reader, filter, limit, cursor, only_documents=True)
        return Page(
            items=tuple(DocumentRecord(run, place, each) for run in page for place, each in enumerate(run.documents)),
            next=page.next,
        )
    if table == "feedback":
        return _read_feedback(reader.db, filter, limit, cursor)
    return _read_results(reader.db, filter, limit, cursor)


def _select_traces(
    db: sqlite3.Connection, filter: Filter, columns: str, limit: int, after: tuple[int, int] | None, where: str = "1"
) -> list[Any]:
    """Return rows of the traces that pass, latest start first. `columns` begin with `t.id, t.start_ns`."""
    plan = plan_query(db, filter)
    if after is not None:
        plan = plan.after(*after)
    sql = f"SELECT {columns} FROM {plan.source} WHERE {plan.where} AND {where} ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    return db.execute(sql, (*plan.values, limit)).fetchall()


def _count_fitting(sizes: Sequence[int], limit: int) -> int:
    """Return the number of leading items that fit into the limit together, at least 1."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= limit, accumulate(sizes))))


# traces

_TRACE_COLUMNS = (
    "t.id, t.start_ns, t.root, (SELECT s.size FROM spans s WHERE s.id = t.root), t.models, t.tags, t.metadata,"
    f" {complete_sql()}, t.trace_id, t.project, t.environment, t.name, t.kind, t.status, t.error, t.start_ns, t.end_ns,"
    " t.span_count, t.error_count, t.input_tokens, t.output_tokens, t.cost, t.session_id, t.user_id, t.experiment_id,"
    " t.example_id, t.repetition, t.dropped"
)


def _read_trace_records(reader: Reader, filter: Filter, limit: int, cursor: str | None) -> Page[TraceRecord]:
    after = None if cursor is None else parse_cursor(cursor)
    fetched = _select_traces(reader.db, filter, _TRACE_COLUMNS, limit + 1, after)
    fitting = min(limit, _count_fitting([row[3] or 0 for row in fetched], PAGE_BYTES))
    rows, next = cut_page(fetched, fitting, time=1, key=0)
    span_ids = dict(select_many(reader.db, "SELECT id, span_id FROM spans WHERE id IN (%s)", [row[2] for row in rows]))
    contents = read_roots(reader, {row[2]: RootRow(row[0], row[13], row[17]) for row in rows}, lambda value: value)
    scores = read_newest_scores(reader.db, [row[0] for row in rows])
    records = []
    for row in rows:
        inputs, outputs, _ = contents.get(row[2], (None, None, ()))
        models = [model for model in loads(row[4]) if model != "null"] if row[4] else ()
        tags = loads(row[5]) if row[5] else ()
        metadata = loads(row[6]) if row[6] else {}
        records.append(
            TraceRecord._make(
                (
                    *row[8:27],
                    bool(row[7]),
                    row[27],
                    models,
                    tags,
                    metadata,
                    span_ids.get(row[2], ""),
                    inputs,
                    outputs,
                    scores.get(row[0], {}),
                )
            )
        )
    return Page(items=tuple(records), next=next)


# runs and documents


def _read_runs(reader: Reader, filter: Filter, limit: int, cursor: str | None, *, only_documents: bool) -> Page[Run]:
    """Return one page of runs, with `only_documents` of those that have documents.

    A cursor is the position of a trace, of which all runs were read, or of the next run in a trace.
    """
    after, inside = _parse_run_cursor(cursor)
    columns = "t.id, t.start_ns, t.trace_id, t.root, t.span_count, t.size"
    if after is not None and inside is not None:
        trace = reader.db.execute(f"SELECT {columns} FROM traces t WHERE t.id = ? AND t.root IS NOT NULL", (after[1],))
        if row := trace.fetchone():
            return _read_large_trace(reader, row, limit, inside, only_documents)
    fetched = _select_traces(reader.db, filter, columns, min(limit, MAX_TRACES) + 1, after)
    if fetched and (fetched[0][4] > limit or fetched[0][5] > PAGE_BYTES):
        return _read_large_trace(reader, fetched[0], limit, _BEFORE_ALL, only_documents)
    fitting = min(
        limit,
        MAX_TRACES,
        _count_fitting([row[4] for row in fetched], limit),
        _count_fitting([row[5] for row in fetched], PAGE_BYTES),
    )
    rows, next = cut_page(fetched, fitting, time=1, key=0)
    stored = reader.rows_of([row[0] for row in rows])
    roots = dict(select_many(reader.db, "SELECT id, span_id FROM spans WHERE id IN (%s)", [row[3] for row in rows]))
    runs = list[Run]()
    for key, _, trace_id, root, _, _ in rows:
        of_trace = _decode_runs(reader, trace_id, stored[key], only_documents)
        if not only_documents:
            of_trace = [complete_root(run, of_trace) if run.span_id == roots[root] else run for run in of_trace]
        runs += of_trace
    return Page(items=tuple(runs), next=next)


def _decode_runs(reader: Reader, trace_id: str, rows: Sequence[Any], only_documents: bool) -> list[Run]:
    return [reader.run(trace_id, row) for row in rows if not only_documents or reader.payload(row[2]).get("documents")]


# Sorts ids only; sorting whole rows would read the payloads of all later runs
_SELECT_LATER = (
    "SELECT id, size, start_ns, -end_ns, span_id FROM spans WHERE trace = ? AND (start_ns, -end_ns, span_id) >= (?, ?, ?)"
    " ORDER BY start_ns, -end_ns, span_id LIMIT ?"
)


def _read_large_trace(
    reader: Reader, trace: Sequence[Any], limit: int, inside: tuple[int, int, str], only_documents: bool
) -> Page[Run]:
    """Return a page of the runs of one trace, from a position in it on."""
    key, start_ns, trace_id, root, _, _ = trace
    later = reader.db.execute(_SELECT_LATER, (key, *inside, limit + 1)).fetchall()
    taken = min(limit, _count_fitting([row[1] for row in later], PAGE_BYTES))
    next = f"{start_ns}.{key}"
    if len(later) > taken:
        next = ".".join(map(str, (next, *later[taken][2:])))
    found = {
        row[0]: row for row in select_many(reader.db, SELECT_RUN + "s.id IN (%s)", [row[0] for row in later[:taken]])
    }
    runs = _decode_runs(reader, trace_id, [found[id] for id, *_ in later[:taken]], only_documents)
    if not only_documents and root in found:
        root_id = found[root][3]
        runs = [complete_stored_root(reader, key, run) if run.span_id == root_id else run for run in runs]
    return Page(items=tuple(runs), next=next)


def _parse_run_cursor(cursor: str | None) -> tuple[tuple[int, int] | None, tuple[int, int, str] | None]:
    """Return the position of the trace, None at the beginning, and the position in the trace, None after its end."""
    if cursor is None:
        return None, None
    parts = cursor.split(".")
    try:
        if len(parts) == 5:
            return (int(parts[0]), int(parts[1])), (int(parts[2]), int(parts[3]), parts[4])
    except ValueError:
        raise Refused(f"invalid cursor {cursor!r}; use `next` of the previous page") from None
    return parse_cursor(cursor), None


# feedback and results of experiments

# Feedback on traces that are not in the table `traces`, such as evaluators' own, would refer to a missing row
_OF_VISIBLE_TRACE = (
    "(f.trace_id IS NULL OR EXISTS"
    f" (SELECT 1 FROM traces t WHERE t.id = f.trace AND {HAS_SPANS.sql} AND {VISIBLE_SQL.format('t')}))"
)


def _read_feedback(db: sqlite3.Connection, filter: Filter, limit: int, cursor: str | None) -> Page[Feedback]:
    where, values = restrict_feedback(db, filter)
    if not where:
        where = [_OF_VISIBLE_TRACE]
    if cursor is not None:
        where.append("(f.created_ns, f.rowid) < (?, ?)")
        values.extend(parse_cursor(cursor))
    sql = f"{feedback_table.SELECT_FEEDBACK.replace(' FROM', ', f.rowid FROM')} WHERE {' AND '.join(where)}"
    order = "ORDER BY f.created_ns DESC, f.rowid DESC LIMIT ?"
    fetched = db.execute(f"{sql} {order}", (*values, limit + 1)).fetchall()
    rows, next = cut_page(fetched, limit, time=feedback_table.FEEDBACK_COLUMNS.index("created_ns"), key=-1)
    return Page(items=tuple(map(feedback_table.feedback_from_row, rows)), next=next)


_RESULT_COLUMNS = "t.id, t.start_ns, t.trace_id, t.project, t.experiment_id, t.example_id, t.repetition, t.status, t.start_ns, t.end_ns"
_SELECT_NEWEST = (
    f"{feedback_table.SELECT_FEEDBACK} WHERE f.standing = 2 AND f.trace IN (%s) ORDER BY f.trace, f.key, f.rowid"
)


def _read_results(db: sqlite3.Connection, filter: Filter, limit: int, cursor: str | None) -> Page[ResultRecord]:
    """Return the results of a tenth of `limit` traces, because a trace may have several keys."""
    after = None if cursor is None else parse_cursor(cursor)
    traces = max(1, limit // 10)
    fetched = _select_traces(db, filter, _RESULT_COLUMNS, traces + 1, after, "t.experiment_id IS NOT NULL")
    rows, next = cut_page(fetched, traces, time=1, key=0)
    newest: dict[int, list[Feedback]] = {}
    for trace, feedback in feedback_table.read_feedback_rows(select_many(db, _SELECT_NEWEST, [row[0] for row in rows])):
        newest.setdefault(trace, []).append(feedback)
    return Page(
        items=tuple(
            ResultRecord._make((*row[2:], feedback, None)) for row in rows for feedback in newest.get(row[0]) or (None,)
        ),
        next=next,
    )
