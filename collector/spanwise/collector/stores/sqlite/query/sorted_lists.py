"""Traces and sessions sorted by a number, page by page.

- Ties are in the order of the trace id (or session id). Missing values come last in both directions.
- The first page fixes the set of traces: those that are stored at that moment and pass. Later pages cover the same
  set, so that traces that arrive meanwhile shift nothing. A cursor is the last value and id, and the bounds of the set.
- Sorting reads all traces of the set. If more than `MAX_SORTED` pass, the set is the newest of them.
- The index of scores is in the order of a sort by feedback, so only as many traces are read as a page needs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from spanwise.collector.filters import Filter
from spanwise.collector.sorting import (
    SESSION_COLUMNS,
    TRACE_COLUMNS,
    SortOrder,
    fingerprint,
    make_cursor,
    parse_sort,
    read_cursor,
)
from spanwise.collector.stores.sqlite.query.filter_sql import FEEDBACK_OF_TRACE
from spanwise.collector.stores.sqlite.query.query_plan import QueryPlan, plan_query

MAX_SORTED = 100_000  # traces; each takes less than a microsecond
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
    sql = f"SELECT count(*), coalesce(min(id), 0) FROM ({newest} LIMIT {MAX_SORTED + 1})"
    count, lowest = db.execute(sql, plan.values).fetchone()
    if count <= MAX_SORTED:
        return SortedSet(upto, None, lowest, count)
    [_, since_ns] = db.execute(f"{newest} LIMIT 1 OFFSET {MAX_SORTED - 1}", plan.values).fetchone()
    return SortedSet(upto, since_ns, lowest, MAX_SORTED)


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
