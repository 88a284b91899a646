"""Lists of feedback, sessions and distinct values, and pages sorted by a number."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import orjson

from spanwise.collector import filters
from spanwise.collector.errors import Refused
from spanwise.collector.filters import (
    SESSION_COLUMNS,
    TRACE_COLUMNS,
    Filter,
    SortOrder,
    fingerprint,
    make_cursor,
    parse_sort,
    read_cursor,
)
from spanwise.collector.records import Feedback, Page, RunScores, SessionSummary, Source, Target
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

# Traces and sessions sorted by a number, page by page.
#
# - Ties are in the order of the trace id (or session id). Missing values come last in both directions.
# - The first page fixes the set of traces: those that are stored at that moment and pass. Later pages cover the same
#   set, so that traces that arrive meanwhile shift nothing. A cursor is the last value and id, and the bounds of the set.
# - Sorting reads all traces of the set. If more than `MAX_SORTED` pass, the set is the newest of them.
# - The index of scores is in the order of a sort by feedback, so only as many traces are read as a page needs.

MAX_LOOKUPS = 20_000  # traces whose score is looked up one by one; for more, the index of scores is read

_TRACE_VALUES = {
    "start": "t.start_ns",
    "latency_ms": "(t.end_ns - t.start_ns)",
    "time_to_first_token_ms": "t.time_to_first_token_ms",
    "cost": "t.cost",
    "tokens": "(t.input_tokens + t.output_tokens)",
    "errors": "-t.error_count",
    "runs": "t.span_count",
}
_SESSION_VALUES = {
    "start": "min(t.start_ns)",
    "duration_ms": "max(t.end_ns) - min(t.start_ns)",
    "traces": "count(*)",
    "errors": "-sum(t.status = 'error')",
    "tokens": "sum(t.input_tokens + t.output_tokens)",
    "cost": "sum(t.cost)",
}
assert (tuple(_TRACE_VALUES), tuple(_SESSION_VALUES)) == (TRACE_COLUMNS, SESSION_COLUMNS)
_IS_SCORE = "f.key = ? AND f.standing = 2 AND f.score IS NOT NULL"
_SCORE = f"(SELECT f.score FROM feedback f {FEEDBACK_OF_TRACE} AND {_IS_SCORE})"
_NUMBER = int | float | None


class SortedPage(NamedTuple):
    """Ids of one page in order, the cursor of the next page, and `Page.newest`."""

    ids: list[Any]
    next: str | None
    newest: int | None


class SortedSet(NamedTuple):
    """Bounds of the traces that all pages of a list sort."""

    upto: int  # highest integer key of a trace when the first page was read
    since_ns: int | None  # earliest start, if there are more traces than can be sorted
    lowest: int  # lowest integer key in the set
    size: int

    @property
    def newest(self) -> int | None:
        """Return the number of newest traces in the set; None if it has all traces that pass."""
        return None if self.since_ns is None else self.size

    def restrict(self, plan: QueryPlan) -> QueryPlan:
        """Return the plan restricted to the set."""
        where, values = f"{plan.where} AND +t.id <= ?", (*plan.values, self.upto)
        if self.since_ns is not None:
            where, values = f"{where} AND t.start_ns >= ?", (*values, self.since_ns)
        return QueryPlan(plan.source, where, values)


def _find_set(db: sqlite3.Connection, plan: QueryPlan, *, unlimited: bool = False) -> SortedSet:
    """Return the set of the traces that pass now. `unlimited`: all of them can be sorted, and are not counted."""
    [upto] = db.execute("SELECT coalesce(max(id), 0) FROM traces").fetchone()
    if unlimited:
        return SortedSet(upto, None, 0, 0)
    newest = f"SELECT t.id AS id, t.start_ns AS start_ns FROM {plan.source} WHERE {plan.where} ORDER BY t.start_ns DESC"
    sql = f"SELECT count(*), coalesce(min(id), 0) FROM ({newest} LIMIT {filters.MAX_SORTED + 1})"
    count, lowest = db.execute(sql, plan.values).fetchone()
    if count <= filters.MAX_SORTED:
        return SortedSet(upto, None, lowest, count)
    [_, since_ns] = db.execute(f"{newest} LIMIT 1 OFFSET {filters.MAX_SORTED - 1}", plan.values).fetchone()
    return SortedSet(upto, since_ns, lowest, filters.MAX_SORTED)


def _sort_page(
    db: sqlite3.Connection, rows: str, values: Sequence[Any], order: SortOrder, last: Sequence[Any], limit: int
) -> list[Any]:
    """Return the rows of one page and one more, as (key, value, id).

    `rows` is a statement with the columns `key`, `v` and `id`. `last` has the value and the id of the last row of the
    previous page.
    """
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
    db: sqlite3.Connection, plan: QueryPlan, bounds: SortedSet, order: SortOrder, last: Sequence[Any], limit: int
) -> list[Any]:
    """Return the same rows as `_sort_page` for a sort by feedback, read from the index of scores.

    Traces without a score follow when no scores are left.
    """
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


def list_sorted_traces(db: sqlite3.Connection, filter: Filter, sort: str, limit: int, cursor: str | None) -> SortedPage:
    """Return one page of traces, by their integer keys. Raises `Refused` for an unknown order or another list's
    cursor.
    """
    order, mark, plan = (
        parse_sort(sort, TRACE_COLUMNS, feedback=True),
        fingerprint(sort, filter),
        plan_query(db, filter),
    )
    last, bounds = _read_position(cursor, mark)
    if bounds is None:
        bounds = _find_set(db, plan, unlimited=order.column == "start")  # an index is in the order of starts
    plan = bounds.restrict(plan)
    if order.column == "feedback" and bounds.size > MAX_LOOKUPS:
        rows = _walk_scores(db, plan, bounds, order, last, limit)
    else:
        value, values = (_SCORE, (order.key,)) if order.column == "feedback" else (_TRACE_VALUES[order.column], ())
        select = f"SELECT t.id AS key, {value} AS v, t.trace_id AS id FROM {plan.source} WHERE {plan.where}"
        rows = _sort_page(db, select, (*values, *plan.values), order, last, limit)
    return _cut_page(rows, limit, mark, bounds)


def list_sorted_sessions(
    db: sqlite3.Connection, filter: Filter, sort: str, limit: int, cursor: str | None
) -> tuple[SortedPage, int]:
    """Return one page of sessions, by their ids, and the highest integer key of the traces that they cover."""
    order, mark, plan = parse_sort(sort, SESSION_COLUMNS), fingerprint(sort, filter), plan_query(db, filter)
    last, bounds = _read_position(cursor, mark)
    if bounds is None:
        bounds = _find_set(db, plan)
    plan = bounds.restrict(plan)
    select = (
        f"SELECT t.session_id AS key, {_SESSION_VALUES[order.column]} AS v, t.session_id AS id FROM {plan.source}"
        f" WHERE {plan.where} AND t.session_id IS NOT NULL GROUP BY t.session_id"
    )
    rows = _sort_page(db, select, plan.values, order, last, limit)
    return _cut_page(rows, limit, mark, bounds), bounds.upto


def _read_position(cursor: str | None, mark: str) -> tuple[Sequence[Any], SortedSet | None]:
    """Return the last value and id of the previous page, and the set of traces; () and None without a cursor."""
    if cursor is None:
        return (), None
    value, id, *bounds = read_cursor(cursor, mark, (_NUMBER, str, int, int | None, int, int))
    return (value, id), SortedSet(*bounds)


def _cut_page(rows: Sequence[Any], limit: int, mark: str, bounds: SortedSet) -> SortedPage:
    next = make_cursor(mark, (*rows[limit - 1][1:], *bounds)) if len(rows) > limit else None
    return SortedPage([key for key, _, _ in rows[:limit]], next, bounds.newest)


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

METADATA_FIELD = "metadata"
_METADATA = (
    "(SELECT metadata AS x FROM traces INDEXED BY {}"
    f" WHERE {{}} {_VISIBLE} ORDER BY start_ns DESC LIMIT {NEWEST_TRACES}) t, json_each(t.x) m"
)


def list_values(reader: Reader, field: str, limit: int, project: str | None) -> list[str]:
    """Return the values of a field in order, at most `limit`. Raise `Refused` for an unknown field."""
    db, (name, _, key) = reader.db, field.partition(".")
    if name == METADATA_FIELD:
        return list_metadata(db, key, limit, project)
    if field not in ALL_PROJECTS_SQL:
        raise Refused(f"unknown field {field!r}; expected one of: {', '.join((*ALL_PROJECTS_SQL, METADATA_FIELD))}")
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
    if cursor is not None:
        where.append("(f.created_ns, f.rowid) < (?, ?)")
        values.extend(parse_cursor(cursor))
    sql = f"{feedback_table.SELECT_FEEDBACK.replace(' FROM', ', f.rowid FROM')} WHERE {' AND '.join(where) or '1'}"
    by = "f.created_ns" if target is None else "+f.created_ns"  # a target has few rows: use its own index, then sort
    fetched = reader.db.execute(f"{sql} ORDER BY {by} DESC, f.rowid DESC LIMIT ?", (*values, limit + 1)).fetchall()
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


def list_experiment_scores(reader: Reader, experiment_id: str, limit: int, cursor: str | None) -> Page[RunScores]:
    """Return one page of an experiment's runs with their scores, earliest start first."""
    after = parse_cursor(cursor) if cursor is not None else (-1 << 63, 0)
    fetched = reader.db.execute(_SELECT_RUNS, (experiment_id, *after, limit + 1)).fetchall()
    rows, next = cut_page(fetched, limit, time=5, key=0)
    newest = read_newest_scores(reader.db, [row[0] for row in rows], _SELECT_COUNTED)
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
    reader: Reader, filter: Filter, limit: int, cursor: str | None, sort: str | None = None
) -> Page[SessionSummary]:
    """Return one page of sessions, in the order of a number or latest first.

    The latest are found by walking traces from the latest on and aggregating each session found. All pages cover the traces that were stored when the first page was read, so a session that gets another trace
    keeps its position.
    """
    db, (where, values) = reader.db, join_conditions(compile_visible_filter(filter))
    if sort:
        page, upto = list_sorted_sessions(db, filter, sort, limit, cursor)
        if not page.ids:  # SQLite refuses a forced index if it knows that no row can match
            return Page(items=(), newest=page.newest)
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
