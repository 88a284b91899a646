"""Lists of feedback, sessions and distinct values, and pages sorted by a number."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import orjson

from spanwise.collector import filters
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Page, RunScores, SessionSummary, Source, Target
from spanwise.collector.stores.queries import list_pages
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.query.filter_sql import (
    FEEDBACK_OF_TRACE,
    FEW_TRACES,
    METADATA_TEXT_SQL,
    VISIBLE_SQL,
    QueryPlan,
    compile_visible_filter,
    join_conditions,
    plan_query,
)
from spanwise.collector.stores.sqlite.rollups.rollup_delta import CHECKS_JUDGE_SQL
from spanwise.collector.stores.sqlite.write import feedback_table
from spanwise.collector.stores.table_rows import (
    cut_page,
    dumps,
    parse_cursor,
    parse_text_cursor,
    select_many,
)

# Traces and sessions sorted by a number, page by page (see `list_pages`).
#
# Sorting reads all traces of the set. The index of scores is in the order of a sort by feedback, so only as many traces
# are read as a page needs.

MAX_LOOKUPS = 20_000  # traces whose score is looked up one by one; for more, the index of scores is read

_IS_SCORE = "f.key = ? AND f.standing = 2 AND f.score IS NOT NULL"
_SCORE = f"(SELECT f.score FROM feedback f {FEEDBACK_OF_TRACE} AND {_IS_SCORE})"


def _restrict(plan: QueryPlan, bounds: list_pages.SortedSet) -> QueryPlan:
    """Return the plan restricted to a set."""
    where, values = f"{plan.where} AND +t.id <= ?", (*plan.values, bounds.upto)
    if bounds.since_ns is not None:
        where, values = f"{where} AND t.start_ns >= ?", (*values, bounds.since_ns)
    return QueryPlan(plan.source, where, values)


def _find_set(db: sqlite3.Connection, plan: QueryPlan, *, unlimited: bool = False) -> list_pages.SortedSet:
    """Return the set of the traces that pass now. `unlimited`: all of them can be sorted, and are not counted."""
    [upto] = db.execute("SELECT coalesce(max(id), 0) FROM traces").fetchone()
    if unlimited:
        return list_pages.SortedSet(upto)
    newest = f"SELECT t.id AS id, t.start_ns AS start_ns FROM {plan.source} WHERE {plan.where} ORDER BY t.start_ns DESC"
    sql = f"SELECT count(*), coalesce(min(id), 0) FROM ({newest} LIMIT {filters.MAX_SORTED + 1})"
    count, lowest = db.execute(sql, plan.values).fetchone()
    if count <= filters.MAX_SORTED:
        return list_pages.SortedSet(upto, None, count, lowest)
    [_, since_ns] = db.execute(f"{newest} LIMIT 1 OFFSET {filters.MAX_SORTED - 1}", plan.values).fetchone()
    return list_pages.SortedSet(upto, since_ns, filters.MAX_SORTED, lowest)


def _sort_page(db: sqlite3.Connection, rows: str, values: Sequence[Any], query: list_pages.SortedQuery) -> list[Any]:
    """Return the rows of one page and one more, as (key, value, id).

    `rows` is a statement with the columns `key`, `v` and `id`.
    """
    _, order, last, limit = query
    nullable = order.column != "start"  # without this term, SQLite reads the index of starts in order
    after, sign = "1", "<" if order.is_descending else ">"
    if last:
        after = f"v {sign}= ? AND (v {sign} ? OR id > ?)"
        after = f"(({after}) OR v IS NULL)" if nullable else after
        last = (last[0], *last)
        if last[0] is None:
            after, last = "v IS NULL AND id > ?", last[2:]
    by = f"{'v IS NULL, ' if nullable else ''}v {order.sql}, id"
    sql = f"SELECT key, v, id FROM ({rows}) WHERE {after} ORDER BY {by} LIMIT ?"
    return db.execute(sql, (*values, *last, limit + 1)).fetchall()


def _walk_scores(
    db: sqlite3.Connection, plan: QueryPlan, bounds: list_pages.SortedSet, query: list_pages.SortedQuery
) -> list[Any]:
    """Return the same rows as `_sort_page` for a sort by feedback, read from the index of scores.

    Traces without a score follow when no scores are left.
    """
    _, order, last, limit = query
    rows: list[Any] = []
    if not last or last[0] is not None:
        sign = "<" if order.is_descending else ">"
        after = f" AND f.score {sign}= ? AND (f.score {sign} ? OR t.trace_id > ?)" if last else ""
        sql = (
            "SELECT t.id, f.score, t.trace_id FROM feedback f INDEXED BY feedback_by_score"
            f" CROSS JOIN traces t ON t.id = f.trace WHERE {_IS_SCORE} AND f.trace BETWEEN ? AND ?{after}"
            f" AND {plan.where} ORDER BY f.score {order.sql}, t.trace_id LIMIT ?"
        )
        position = (last[0], *last) if last else ()
        values = (order.key, bounds.lowest, bounds.upto, *position, *plan.values, limit + 1)
        rows = db.execute(sql, values).fetchall()
        last = ()
    if len(rows) <= limit:
        after = " AND t.trace_id > ?" if last else ""
        scored = f"SELECT f.trace FROM feedback f INDEXED BY feedback_by_score WHERE {_IS_SCORE}"
        sql = (
            f"SELECT t.id, NULL, t.trace_id FROM {plan.source} WHERE {plan.where} AND t.id NOT IN ({scored}){after}"
            " ORDER BY t.trace_id LIMIT ?"
        )
        rows += db.execute(sql, (*plan.values, order.key, *last[1:], limit + 1 - len(rows))).fetchall()
    return rows


def list_sorted_traces(
    db: sqlite3.Connection, filter: Filter, sort: str, limit: int, cursor: str | None
) -> list_pages.SortedPage:
    """Return one page of traces, by their integer keys. Raises `Refused` for an unknown order or another list's
    cursor.
    """
    plan = plan_query(db, filter)

    def select(query: list_pages.SortedQuery, bounds: list_pages.SortedSet) -> list[Any]:
        order, within = query.order, _restrict(plan, bounds)
        if order.column == "feedback" and bounds.size > MAX_LOOKUPS:
            return _walk_scores(db, within, bounds, query)
        value, values = (
            (_SCORE, (order.key,)) if order.column == "feedback" else (list_pages.TRACE_VALUES[order.column], ())
        )
        select = f"SELECT t.id AS key, {value} AS v, t.trace_id AS id FROM {within.source} WHERE {within.where}"
        return _sort_page(db, select, (*values, *within.values), query)

    # an index is in the order of starts
    find_set = lambda order: _find_set(db, plan, unlimited=order.column == "start")  # noqa: E731
    return list_pages.list_sorted(sort, filter, limit, cursor, find_set, select)[0]


def _sort_sessions(
    db: sqlite3.Connection, plan: QueryPlan, query: list_pages.SortedQuery, bounds: list_pages.SortedSet
) -> list[Any]:
    within = _restrict(plan, bounds)
    select = (
        f"SELECT t.session_id AS key, {list_pages.SESSION_VALUES[query.order.column]} AS v, t.session_id AS id FROM {within.source}"
        f" WHERE {within.where} AND t.session_id IS NOT NULL GROUP BY t.session_id"
    )
    return _sort_page(db, select, within.values, query)


# Distinct values of a field, for filter menus.
#
# Without a project, a loose index scan takes one step per value, independent of the number of traces that share it.
# With a project, the values come from its newest traces, because only the index by start time covers the traces of
# one project. Names, environments and models that only evaluators' own traces have (of the newest of both) are left
# out. Metadata has no index, and always comes from the newest traces.

NEWEST_TRACES = 1000  # newest traces of a project from which values are read; about 5 ms of CPU

_LOOSE_SCAN = """
WITH RECURSIVE v (x) AS (
  SELECT min({column}) FROM {table} INDEXED BY {index} WHERE {where}
  UNION ALL
  SELECT (SELECT min({column}) FROM {table} INDEXED BY {index} WHERE {where} AND {column} > v.x)
  FROM v WHERE v.x IS NOT NULL
)
SELECT x FROM v WHERE x IS NOT NULL
"""


def _loose_scan(column: str, table: str, index: str, where: str) -> str:
    return _LOOSE_SCAN.format(column=column, table=table, index=index, where=where)


_VISIBLE = VISIBLE_SQL.format("traces")
# The index excludes evaluators' own traces. Projects that have no other traces are found among the newest traces of
# evaluators
_INDEXED_PROJECTS = _loose_scan("project", "traces", "traces_shown_by_project", f"project IS NOT NULL AND {_VISIBLE}")
_PROJECTS = f"""
SELECT x FROM ({_INDEXED_PROJECTS} LIMIT :limit)
UNION
SELECT project FROM (
  SELECT project FROM traces INDEXED BY traces_of_evaluators WHERE kind = 'evaluator'
  ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}
)
ORDER BY 1 LIMIT :limit
"""
_SELECT_KNOWN = "SELECT value FROM known WHERE field = '{}' ORDER BY value LIMIT :limit"
# Values that the newest traces of evaluators have are shown only if the newest other traces have them, too
_OF_NEWEST = (
    "SELECT {of_trace} FROM (SELECT name, environment, models FROM traces INDEXED BY {index}"
    f" WHERE {{condition}} ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}) t{{join}} WHERE {{of_trace}} IS NOT NULL"
)


def _shown(values: str, of_trace: str, join: str = "") -> str:
    of_evaluators = _OF_NEWEST.format(
        of_trace=of_trace, join=join, index="traces_of_evaluators", condition="kind = 'evaluator'"
    )
    of_others = _OF_NEWEST.format(of_trace=of_trace, join=join, index="traces_shown", condition=_VISIBLE)
    return f"SELECT x FROM ({values}) WHERE x NOT IN ({of_evaluators}) OR x IN ({of_others}) ORDER BY x LIMIT :limit"


_ALL_KNOWN = "SELECT value AS x FROM known WHERE field = '{}'"
# One parameter: the limit
ALL_PROJECTS_SQL = {
    "project": _PROJECTS,
    "environment": _shown(_ALL_KNOWN.format("environment"), "t.environment"),
    "name": _shown(_loose_scan("name", "traces", "traces_by_name", "name IS NOT NULL"), "t.name"),
    "kind": _SELECT_KNOWN.format("kind"),
    "model": _shown(_ALL_KNOWN.format("model"), "m.key", " CROSS JOIN json_each(t.models) m"),
    **{field: _SELECT_KNOWN.format(field) for field in ("tag", "prompt", "prompt_version", "agent", "finish_reason")},
    "session": _loose_scan("session_id", "traces", "traces_by_session", "session_id IS NOT NULL") + "LIMIT :limit",
    "user": _loose_scan("user_id", "traces", "traces_by_user", "user_id IS NOT NULL") + "LIMIT :limit",
    "feedback": _loose_scan("key", "feedback", "feedback_by_score", "standing = 2") + "LIMIT :limit",
}

_NEWEST = (
    "(SELECT {} AS x FROM traces INDEXED BY traces_shown_by_project"
    f" WHERE project = :project AND {_VISIBLE} ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}) t"
)


def _column(name: str) -> str:
    return f"SELECT DISTINCT x FROM {_NEWEST.format(name)} WHERE x IS NOT NULL ORDER BY x LIMIT :limit"


def _element(name: str, part: str) -> str:
    return f"SELECT DISTINCT j.{part} FROM {_NEWEST.format(name)}, json_each(t.x) j ORDER BY 1 LIMIT :limit"


# Two parameters: the limit and the project
ONE_PROJECT_SQL = {
    "environment": _column("environment"),
    "name": _column("name"),
    "kind": _element("kinds", "value"),
    "model": _element("models", "key"),
    "tag": _element("tags", "value"),
    "prompt": f"SELECT DISTINCT j.key FROM {_NEWEST.format('prompts')}, json_each(t.x) j WHERE j.key <> ''"
    " ORDER BY 1 LIMIT :limit",
    "prompt_version": f"SELECT DISTINCT v.value FROM {_NEWEST.format('prompts')}, json_each(t.x) j, json_each(j.value) v"
    " WHERE v.value IS NOT NULL ORDER BY 1 LIMIT :limit",
    "agent": _element("agents", "value"),
    "finish_reason": _element("finish_reasons", "value"),
    "session": _column("session_id"),
    "user": _column("user_id"),
    "feedback": f"SELECT DISTINCT f.key FROM {_NEWEST.format('id')} CROSS JOIN feedback f INDEXED BY feedback_by_trace"
    " ON f.trace = t.x WHERE f.standing = 2 ORDER BY 1 LIMIT :limit",
}

_METADATA = (
    "(SELECT metadata AS x FROM traces INDEXED BY {}"
    f" WHERE {{}} {_VISIBLE} ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}) t, json_each(t.x) m"
)


def list_values(reader: Reader, field: str, limit: int, project: str | None) -> list[str]:
    """Return the values of a field in order, at most `limit`. Raise `Refused` for an unknown field."""
    db, (name, _, key) = reader.db, field.partition(".")
    if name == list_pages.METADATA_FIELD:
        return list_metadata(db, key, limit, project)
    list_pages.check_field(field, ALL_PROJECTS_SQL)
    if project is None:
        rows = db.execute(ALL_PROJECTS_SQL[field], {"limit": limit})
    elif field == "project":
        return [project]
    else:
        rows = db.execute(ONE_PROJECT_SQL[field], {"limit": limit, "project": project})
    return [row[0] for row in rows]


def list_metadata(db: sqlite3.Connection, key: str, limit: int, project: str | None) -> list[str]:
    """Return the metadata keys of the newest traces, or the values of one key as filters compare them."""
    index, where = ("traces_by_start", "") if project is None else ("traces_shown_by_project", "project = :project AND")
    column = METADATA_TEXT_SQL if key else "m.key"
    sql = f"SELECT DISTINCT {column} FROM {_METADATA.format(index, where)} WHERE m.key <> '' AND :key IN ('', m.key) ORDER BY 1 LIMIT :limit"
    rows = db.execute(sql, {"limit": limit, "key": key, "project": project})
    return [row[0] for row in rows if row[0] is not None]


# Lists of feedback, scores of rules and experiments, and sessions; row counts.


def list_feedback(
    reader: Reader,
    filter: Filter,
    key: str | None,
    source: Source | None,
    target: Target | None,
    limit: int,
    cursor: str | None,
) -> Page[Feedback]:
    """Return one page of feedback, newest first. Feedback on a session of a project belongs to the project."""
    where, values = restrict_feedback(reader.db, filter)
    if key is not None:
        where.append("f.key = ?")
        values.append(key)
    if source is not None:
        # SQLite uses the partial index only for a constant, not for a parameter
        where.append("f.source = 'human'" if source == "human" else "f.source = ?")
        values.extend(() if source == "human" else (source,))
    if target is not None:
        _add_target_conditions(target, where, values)
    # a target has few rows: use its own index, then sort
    return select_feedback(
        reader.db, where, values, limit, cursor, by="f.created_ns" if target is None else "+f.created_ns"
    )


def select_feedback(
    db: sqlite3.Connection,
    where: list[str],
    values: list[Any],
    limit: int,
    cursor: str | None,
    *,
    by: str = "f.created_ns",
) -> Page[Feedback]:
    """Return one page of the feedback that meets SQL conditions, newest first. Raise `Refused` for an invalid cursor."""
    if cursor is not None:
        where.append("(f.created_ns, f.rowid) < (?, ?)")
        values.extend(parse_cursor(cursor))
    sql = f"{feedback_table.SELECT_FEEDBACK.replace(' FROM', ', f.rowid FROM')} WHERE {' AND '.join(where) or '1'}"
    fetched = db.execute(f"{sql} ORDER BY {by} DESC, f.rowid DESC LIMIT ?", (*values, limit + 1)).fetchall()
    rows, next = cut_page(fetched, limit, time=feedback_table.FEEDBACK_COLUMNS.index("created_ns"), key=-1)
    return Page(items=tuple(map(feedback_table.feedback_from_row, rows)), next=next)


def restrict_feedback(db: sqlite3.Connection, filter: Filter) -> tuple[list[str], list[Any]]:
    """Return SQL conditions that restrict feedback to traces that pass a filter.

    If the filter is a project alone, feedback on sessions of this project passes, too.
    """
    where, values = _restrict_to_traces(db, filter)
    if filter.project is not None and replace(filter, project=None) == Filter():
        return [f"({' AND '.join(where)} OR f.project = ?)"], [*values, filter.project]
    return where, values


def _restrict_to_traces(db: sqlite3.Connection, filter: Filter) -> tuple[list[str], list[Any]]:
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
    """Add conditions that select this target. The trace's integer key lets SQLite use the index."""
    if target.trace_id is not None:
        where.append("f.trace = (SELECT id FROM traces WHERE trace_id = ?)")
        values.append(target.trace_id)
    for name in ("span_id", "document", "session_id", "experiment_id"):
        value = getattr(target, name)
        where.append(f"f.{name} IS NULL" if value is None else f"f.{name} = ?")
        values.extend(() if value is None else (value,))
    if target.project is not None:  # otherwise the session in any project
        where.append("f.project = ?")
        values.append(target.project)


_SELECT_RUNS = (
    f"SELECT t.id, {list_pages.EXPERIMENT_COLUMNS}, t.tags, t.models FROM traces t"
    " WHERE t.experiment_id = ? AND t.span_count > 0 AND (t.start_ns, t.id) > (?, ?) ORDER BY t.start_ns, t.id LIMIT ?"
)
# Prefers a judge's score to human feedback on the same key, even if the feedback is newer
_SELECT_COUNTED = (
    "SELECT f.trace, f.key, f.score, f.label FROM feedback f WHERE f.standing >= 1 AND f.document IS NULL"
    f" AND f.trace IN (%s) AND NOT {CHECKS_JUDGE_SQL} ORDER BY f.key, f.created_ns, f.rowid"
)


def list_experiment_scores(reader: Reader, experiment_id: str, limit: int, cursor: str | None) -> Page[RunScores]:
    """Return one page of an experiment's runs with their scores, earliest start first."""
    after = parse_cursor(cursor) if cursor is not None else (-1 << 63, 0)
    fetched = reader.db.execute(_SELECT_RUNS, (experiment_id, *after, limit + 1)).fetchall()
    rows, next = cut_page(fetched, limit, time=5, key=0)
    newest = list_pages.group_scores(select_many(reader.db, _SELECT_COUNTED, [row[0] for row in rows]))
    items = []
    for id, *fields, tags, models in rows:
        called = [model for model in orjson.loads(models) if model != "null"] if models else ()
        items.append(list_pages.make_run_scores(fields, orjson.loads(tags) if tags else (), called, newest.get(id, {})))
    return Page(items=tuple(items), next=next)


_SELECT_SESSIONS = f"""
SELECT t.session_id, t.project, {list_pages.SESSION_SUMS}
FROM traces t INDEXED BY traces_by_session WHERE t.session_id IN ({{marks}}) AND +t.id <= ? AND {{where}}
GROUP BY t.session_id
"""


def list_sessions(
    reader: Reader, filter: Filter, limit: int, cursor: str | None, sort: str | None = None
) -> Page[SessionSummary]:
    """Return one page of sessions, in the order of a number or latest first.

    The latest are found by walking traces from the latest on and aggregating each session found. All pages cover the traces that were stored when the first page was read, so a session that gets another trace
    keeps its position.
    """
    db, (where, values) = reader.db, join_conditions(compile_visible_filter(filter))
    if sort:
        plan = plan_query(db, filter)
        select = partial(_sort_sessions, db, plan)
        page, bounds = list_pages.list_sorted(
            sort, filter, limit, cursor, lambda _: _find_set(db, plan), select, sessions=True
        )
        if not page.keys:  # SQLite refuses a forced index if it knows that no row can match
            return Page(items=(), newest=page.newest)
        sql = _SELECT_SESSIONS.format(marks=",".join("?" * len(page.keys)), where=where)
        summed = {row[0]: row for row in db.execute(sql, (*page.keys, bounds.upto, *values))}
        found = tuple(list_pages.make_session(summed[session]) for session in page.keys)
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
    return Page(items=tuple(map(list_pages.make_session, shown)), next=next and f"{newest}.{next}")


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


def count_rows(reader: Reader) -> dict[str, int]:
    """Return the numbers of spans, traces and feedback rows."""
    traces = "traces WHERE start_ns IS NOT NULL"  # same rows as `span_count > 0`, but served by an index
    tables = {"spans": "spans", "traces": traces, "feedbacks": "feedback"}
    return {
        name: int(reader.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for name, table in tables.items()
    }


def find_stored_traces(reader: Reader, trace_ids: Collection[str]) -> set[str]:
    """Return those of the traces that are stored with at least one run."""
    sql = "SELECT trace_id FROM traces WHERE span_count > 0 AND trace_id IN (%s)"
    return {row[0] for row in select_many(reader.db, sql, trace_ids)}


def find_stored_sessions(reader: Reader, sessions: Collection[str]) -> set[str]:
    """Return those of the sessions that have at least one stored trace."""
    sql = "SELECT DISTINCT session_id FROM traces WHERE span_count > 0 AND session_id IN (%s)"
    return {row[0] for row in select_many(reader.db, sql, sessions)}
