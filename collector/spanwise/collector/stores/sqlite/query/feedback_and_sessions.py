"""Lists of feedback, scores of rules and experiments, and sessions; row counts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import orjson

from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Page, RunScores, SessionSummary, Source, Target
from spanwise.collector.stores.backends import RuleScore, ScoreQuery
from spanwise.collector.stores.sqlite.database.bulk_statements import (
    cut_page,
    parse_cursor,
    parse_text_cursor,
    select_many,
)
from spanwise.collector.stores.sqlite.database.column_values import dumps
from spanwise.collector.stores.sqlite.query.filter_sql import VISIBLE_SQL, compile_visible_filter, join_conditions
from spanwise.collector.stores.sqlite.query.query_plan import FEW_TRACES, plan_query
from spanwise.collector.stores.sqlite.query.sorted_lists import list_sorted_sessions
from spanwise.collector.stores.sqlite.rollups.rollup_delta import CHECKS_JUDGE_SQL
from spanwise.collector.stores.sqlite.write import feedback_table


def list_feedback(
    db: sqlite3.Connection,
    filter: Filter,
    key: str | None,
    source: Source | None,
    target: Target | None,
    limit: int,
    cursor: str | None,
) -> Page[Feedback]:
    """Return one page of feedback, newest first."""
    where, values = restrict_to_traces(db, filter)
    if key is not None:
        where.append("f.key = ?")
        values.append(key)
    if source is not None:
        # SQLite uses the partial index only for a constant, not for a parameter
        where.append("f.source = 'human'" if source == "human" else "f.source = ?")
        values.extend(() if source == "human" else (source,))
    if target is not None:
        _add_target_conditions(target, where, values)
    if cursor is not None:
        where.append("(f.created_ns, f.rowid) < (?, ?)")
        values.extend(parse_cursor(cursor))
    sql = f"{feedback_table.SELECT_FEEDBACK.replace(' FROM', ', f.rowid FROM')} WHERE {' AND '.join(where) or '1'}"
    by = "f.created_ns" if target is None else "+f.created_ns"  # a target has few rows: use its own index, then sort
    fetched = db.execute(f"{sql} ORDER BY {by} DESC, f.rowid DESC LIMIT ?", (*values, limit + 1)).fetchall()
    rows, next = cut_page(fetched, limit, time=feedback_table.FEEDBACK_COLUMNS.index("created_ns"), key=-1)
    return Page(items=tuple(map(feedback_table.feedback_from_row, rows)), next=next)


_SESSION_PLACE = feedback_table.FEEDBACK_COLUMNS.index("session_id")
_SELECT_BY_RULE = (
    feedback_table.SELECT_FEEDBACK.replace(" FROM", ", t.session_id, f.trace_start_ns, f.rowid FROM")
    + " LEFT JOIN traces t ON t.id = f.trace WHERE f.rule = ? AND f.standing >= 1"
    " AND (f.outcome <> 'score' OR f.score IS NOT NULL) AND (f.trace IS NULL OR t.project = ?)"
)


def list_rule_scores(db: sqlite3.Connection, query: ScoreQuery) -> Page[RuleScore]:
    """Return one page of a rule's scores, errors and skips, ordered by start of the trace, latest first."""
    window = (("f.trace_start_ns >= ?", query.since_ns), ("f.trace_start_ns < ?", query.until_ns))
    bounds = (("f.key = ?", query.key), *window)
    conditions = [(sql, [value]) for sql, value in bounds if value is not None]
    if query.cursor is not None:
        conditions.append(("(f.trace_start_ns, f.rowid) < (?, ?)", [*parse_cursor(query.cursor)]))
    sql = " AND ".join([_SELECT_BY_RULE, *(sql for sql, _ in conditions)])
    values = [value for _, values in conditions for value in values]
    order = "ORDER BY f.trace_start_ns DESC, f.rowid DESC LIMIT ?"
    fetched = db.execute(f"{sql} {order}", (query.rule, query.project, *values, query.limit + 1)).fetchall()
    rows, next = cut_page(fetched, query.limit, time=-2, key=-1)
    items = (RuleScore(feedback_table.feedback_from_row(row), row[-3] or row[_SESSION_PLACE], row[-2]) for row in rows)
    return Page(items=tuple(items), next=next)


def restrict_to_traces(db: sqlite3.Connection, filter: Filter) -> tuple[list[str], list[Any]]:
    """Return SQL conditions that restrict feedback to traces that pass a filter.

    If at most `FEW_TRACES` traces pass, the condition lists their keys. Otherwise the filter is tested on the trace
    of each feedback row.
    """
    if filter == Filter():
        return [], []
    plan = plan_query(db, filter)
    sql = f"SELECT t.id FROM {plan.source} WHERE {plan.where} LIMIT {FEW_TRACES + 1}"
    found = [row[0] for row in db.execute(sql, plan.values)]
    if not found:
        return ["0"], []
    if len(found) <= FEW_TRACES:
        return ["f.trace IN (SELECT value FROM json_each(?))"], [dumps(found)]
    where, values = join_conditions(compile_visible_filter(filter))
    return [f"EXISTS (SELECT 1 FROM traces t WHERE t.id = f.trace AND {where})"], list(values)


def _add_target_conditions(target: Target, where: list[str], values: list[Any]) -> None:
    """Add conditions that select exactly this target. The trace's integer key lets SQLite use the index."""
    if target.trace_id is not None:
        where.append("f.trace = (SELECT id FROM traces WHERE trace_id = ?)")
        values.append(target.trace_id)
    for name in ("span_id", "document", "session_id", "experiment_id"):
        value = getattr(target, name)
        where.append(f"f.{name} IS NULL" if value is None else f"f.{name} = ?")
        values.extend(() if value is None else (value,))


_SELECT_RUNS = """
SELECT t.id, t.trace_id, t.example_id, t.repetition, t.status, t.start_ns, t.end_ns, t.input_tokens, t.output_tokens,
  t.cost, t.tags, t.models FROM traces t
WHERE t.experiment_id = ? AND t.span_count > 0 AND (t.start_ns, t.id) > (?, ?) ORDER BY t.start_ns, t.id LIMIT ?
"""
_SELECT_NEWEST = "SELECT trace, key, score, label FROM feedback WHERE standing = 2 AND trace IN (%s) ORDER BY key"
# Prefers a judge's score to human feedback on the same key, even if the feedback is newer
_SELECT_COUNTED = (
    "SELECT f.trace, f.key, f.score, f.label FROM feedback f WHERE f.standing >= 1 AND f.document IS NULL"
    f" AND f.trace IN (%s) AND NOT {CHECKS_JUDGE_SQL} ORDER BY f.key, f.created_ns, f.rowid"
)


def list_experiment_scores(
    db: sqlite3.Connection, experiment_id: str, limit: int, cursor: str | None
) -> Page[RunScores]:
    """Return one page of an experiment's runs with their scores, earliest start first."""
    after = parse_cursor(cursor) if cursor is not None else (-1 << 63, 0)
    fetched = db.execute(_SELECT_RUNS, (experiment_id, *after, limit + 1)).fetchall()
    rows, next = cut_page(fetched, limit, time=5, key=0)
    newest = read_newest_scores(db, [row[0] for row in rows], _SELECT_COUNTED)
    items = (
        RunScores(
            trace_id=trace,
            example_id=example,
            repetition=repetition,
            status=status,
            scores=newest.get(id, {}),
            duration_ns=max(0, end - start),
            input_tokens=input_tokens or 0,
            output_tokens=output_tokens or 0,
            cost=cost,
            tags=tuple(orjson.loads(tags)) if tags and tags != "[]" else (),
            models=tuple(model for model in orjson.loads(models) if model != "null") if models else (),
        )
        for id, trace, example, repetition, status, start, end, input_tokens, output_tokens, cost, tags, models in rows
    )
    return Page(items=tuple(items), next=next)


def read_newest_scores(
    db: sqlite3.Connection, traces: Sequence[int], sql: str = _SELECT_NEWEST
) -> dict[int, dict[str, float | str | None]]:
    """Return the newest score (or else label) of the trace or its spans, by the trace's integer key and feedback
    key.
    """
    newest: dict[int, dict[str, float | str | None]] = {}
    for trace, key, score, label in select_many(db, sql, traces):
        newest.setdefault(trace, {})[key] = score if score is not None else label
    return newest


_SELECT_SESSIONS = """
SELECT t.session_id, t.project, max(t.user_id), count(*), sum(t.status = 'error'), min(t.start_ns), max(t.end_ns),
  sum(t.input_tokens), sum(t.output_tokens), sum(t.cost), max(t.start_ns)
FROM traces t INDEXED BY traces_by_session WHERE t.session_id IN ({marks}) AND +t.id <= ? AND {where}
GROUP BY t.session_id
"""


def list_sessions(
    db: sqlite3.Connection, filter: Filter, limit: int, cursor: str | None, sort: str | None = None
) -> Page[SessionSummary]:
    """Return one page of sessions, in an order of `sorted_lists` or latest first.

    The latest are found by walking traces from the latest on and aggregating each session found. All pages cover the traces that were stored when the first page was read, so a session that gets another trace
    keeps its position.
    """
    where, values = join_conditions(compile_visible_filter(filter))
    if sort:
        page, upto = list_sorted_sessions(db, filter, sort, limit, cursor)
        sql = _SELECT_SESSIONS.format(marks=",".join("?" * len(page.ids)), where=where)
        summed = {row[0]: row for row in db.execute(sql, (*page.ids, upto, *values))}
        found = tuple(_session_from_row(summed[session]) for session in page.ids)
        return Page(items=found, next=page.next, newest=page.newest)
    [newest] = db.execute("SELECT coalesce(max(id), 0) FROM traces").fetchone()
    after = None
    if cursor is not None:
        newest, rest = parse_text_cursor(cursor)
        after = parse_text_cursor(rest)
    rows: list[Any] = []
    sessions = _walk_sessions(db, filter, after, newest)
    while len(rows) <= limit and (chunk := list(islice(sessions, limit + 1))):
        sql = _SELECT_SESSIONS.format(marks=",".join("?" * len(chunk)), where=where)
        summed = {row[0]: row for row in db.execute(sql, (*chunk, newest, *values))}
        in_order = (summed[session] for session in chunk)
        rows.extend(row for row in in_order if after is None or (row[10], row[0]) < after)
    shown, next = cut_page(rows, limit, time=10, key=0)
    return Page(items=tuple(map(_session_from_row, shown)), next=next and f"{newest}.{next}")


# Skips sessions of earlier pages; otherwise a page far back would aggregate all of them again. The condition looks
# for any later trace, not for one that passes a filter. With a filter, `list_sessions` compares the aggregated rows
# instead.
_HAS_ENDED = (
    " AND NOT EXISTS (SELECT 1 FROM traces u INDEXED BY traces_by_session"
    f" WHERE u.session_id = t.session_id AND u.start_ns > ? AND +u.id <= ? AND {VISIBLE_SQL.format('u')})"
)


def _walk_sessions(db: sqlite3.Connection, filter: Filter, after: tuple[int, str] | None, newest: int) -> Iterator[str]:
    """Yield sessions in the order of their latest trace. With `after`, some sessions before that position may appear
    again.
    """
    plan, bound, values = plan_query(db, filter), " AND +t.id <= ?", [newest]
    if after is not None:
        bound, values = f"{bound} AND t.start_ns <= ?", [newest, after[0]]
        if filter == Filter():
            bound, values = bound + _HAS_ENDED, [*values, after[0], newest]
    sql = f"SELECT t.session_id FROM {plan.source} WHERE {plan.where} AND t.session_id IS NOT NULL{bound}"
    seen: set[str] = set()
    for (session,) in db.execute(f"{sql} ORDER BY t.start_ns DESC, t.session_id DESC", (*plan.values, *values)):
        if session not in seen:
            seen.add(session)
            yield session


def _session_from_row(row: Any) -> SessionSummary:
    return SessionSummary(
        session_id=row[0],
        project=row[1],
        user_id=row[2],
        traces=row[3],
        errors=row[4],
        start_ns=row[5],
        end_ns=row[6],
        input_tokens=row[7],
        output_tokens=row[8],
        cost=row[9],
    )


def count_rows(db: sqlite3.Connection) -> dict[str, int]:
    """Return the numbers of spans, traces and feedback rows."""
    traces = "traces WHERE start_ns IS NOT NULL"  # same rows as `span_count > 0`, but served by an index
    tables = {"spans": "spans", "traces": traces, "feedbacks": "feedback"}
    return {name: int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for name, table in tables.items()}
