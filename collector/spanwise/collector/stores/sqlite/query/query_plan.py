"""Query plans: choice of the index that leads a query over traces.

- A condition with its own index (a score, words) is probed first. If it holds for few traces, they are fetched by id.
- If it holds for many traces, the query walks the traces, latest first, and tests the condition on each.
- If several conditions each hold for many traces but together for hardly any of the latest, that walk would be long.
  The query then intersects their indexes.
- A value that no run ever had needs no search.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spanwise.collector.filters import EVALUATOR_KIND, Filter
from spanwise.collector.stores.sqlite.database.column_values import INT_MAX
from spanwise.collector.stores.sqlite.query.filter_sql import (
    SQLCondition,
    compile_filter,
    compile_visible_filter,
    join_conditions,
)
from spanwise.collector.stores.sqlite.rollups.rollup_delta import HOUR_NS

FEW_TRACES = 3000
PROBE_TRACES, PROBE_PAGE = 5000, 50  # traces that a probe walks to see if they fill a page, and the length of that page
# Excludes sealed hours whose set of run names is complete and lacks this name
_MAY_HAVE_NAME = (
    f"t.start_ns / {HOUR_NS} NOT IN (SELECT hour FROM sums_hours WHERE named = 1"
    " EXCEPT SELECT hour FROM sums_names WHERE name = ?)"
)
INDEX_BY_START = "INDEXED BY traces_by_start"
INDEX_VISIBLE = "INDEXED BY traces_shown"


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """`FROM source WHERE where`, with `values` for its parameters. The row is named `t`."""

    source: str
    where: str
    values: tuple[Any, ...]

    def after(self, start_ns: int, key: int) -> QueryPlan:
        """Return the plan restricted to rows after a position, in the order latest first."""
        sql = f"{self.where} AND t.start_ns <= ? AND (t.start_ns < ? OR t.id < ?)"
        return replace(self, where=sql, values=(*self.values, start_ns, start_ns, key))


def plan_query(db: sqlite3.Connection, filter: Filter, *, in_order: bool = True, judgements: bool = False) -> QueryPlan:
    """Return the plan for a filter.

    `in_order`: the query reads the latest matching traces, not all of them. `judgements`: evaluators' own traces pass
    like all others.
    """
    if has_unknown_value(db, filter):
        return QueryPlan("traces t NOT INDEXED", "0", ())
    conditions = compile_filter(filter) if judgements else compile_visible_filter(filter)
    if filter.any_name is not None:
        conditions.append(SQLCondition(_MAY_HAVE_NAME, (filter.any_name,)))
    indexed = [(_count_matches(db, condition), condition) for condition in conditions if condition.ids is not None]
    matches, leading = min(indexed, key=lambda pair: pair[0], default=(FEW_TRACES + 1, None))
    if leading is not None and matches <= FEW_TRACES:
        return _plan_by_ids(conditions, [leading])
    index = _choose_index(filter, shown=not judgements and filter.leaves_out_judgements)
    reads_all = (
        not in_order
        and index in (INDEX_BY_START, INDEX_VISIBLE)
        and filter.since_ns is None
        and filter.until_ns is None
    )
    walk = QueryPlan("traces t NOT INDEXED" if reads_all else f"traces t {index}", *join_conditions(conditions))
    if len(indexed) > 1 and not (in_order and _fills_page(db, walk, filter)):
        return _plan_by_ids(conditions, [condition for _, condition in indexed])
    return walk


def plan_experiments(filter: Filter) -> QueryPlan:
    """Return the plan that finds traces of any experiment."""
    conditions = [SQLCondition("t.experiment_id IS NOT NULL"), *compile_visible_filter(filter)]
    return QueryPlan("traces t INDEXED BY traces_by_experiment", *join_conditions(conditions))


def _plan_by_ids(conditions: Sequence[SQLCondition], leading: Sequence[SQLCondition]) -> QueryPlan:
    """Return the plan that intersects the indexes of the leading conditions and tests the others on each trace."""
    common = " INTERSECT ".join(str(condition.ids) for condition in leading)
    driven = SQLCondition(
        f"t.id IN ({common})", tuple(value for condition in leading for value in condition.ids_values)
    )
    others = (condition for condition in conditions if not any(condition is other for other in leading))
    return QueryPlan("traces t NOT INDEXED", *join_conditions([driven, *others]))


def plan_latencies(filter: Filter) -> QueryPlan:
    """Return the plan for reading latencies, led by the most selective index. The filter must only have conditions on
    columns.
    """
    index = _choose_index(filter, shown=filter.leaves_out_judgements)
    return QueryPlan(f"traces t {index}", *join_conditions(compile_visible_filter(filter)))


def _count_matches(db: sqlite3.Connection, condition: SQLCondition) -> int:
    """Return the number of traces for which the condition holds, at most `FEW_TRACES` + 1."""
    sql = f"SELECT count(*) FROM (SELECT 1 FROM ({condition.ids}) LIMIT {FEW_TRACES + 1})"
    return int(db.execute(sql, condition.ids_values).fetchone()[0])


def _fills_page(db: sqlite3.Connection, walk: QueryPlan, filter: Filter) -> bool:
    """Return whether the matches among the latest `PROBE_TRACES` traces fill a page, or a walk would visit no other
    traces.
    """
    sql = "SELECT start_ns FROM traces WHERE start_ns < ? ORDER BY start_ns DESC LIMIT 1 OFFSET ?"
    last = db.execute(sql, (INT_MAX if filter.until_ns is None else filter.until_ns, PROBE_TRACES)).fetchone()
    if last is None or (filter.since_ns is not None and filter.since_ns >= last[0]):
        return True
    among = f"SELECT 1 FROM {walk.source} WHERE {walk.where} AND t.start_ns > ? LIMIT {PROBE_PAGE}"
    return bool(db.execute(f"SELECT count(*) FROM ({among})", (*walk.values, *last)).fetchone()[0] == PROBE_PAGE)


def has_unknown_value(db: sqlite3.Connection, filter: Filter) -> bool:
    """Return whether a condition asks for a value that no run has had.

    The table `known` holds all values of stored runs, and some of deleted ones.
    """
    values = (
        ("environment", filter.environment),
        ("kind", filter.kind),
        ("kind", filter.any_kind),
        ("model", filter.model),
        ("prompt", filter.prompt),
        ("prompt_version", filter.prompt_version),
        ("agent", filter.agent),
        ("finish_reason", filter.finish_reason),
        *(("tag", tag) for tag in filter.tags),
    )
    sql = "SELECT 1 FROM known WHERE field = ? AND value = ?"
    return any(value is not None and not db.execute(sql, (field, value)).fetchone() for field, value in values)


def _choose_index(filter: Filter, *, shown: bool) -> str:
    """Return the most selective index that has the order of the list. All of them are small."""
    if filter.trace_ids is not None:
        return ""
    for value, index in (
        (filter.session, "traces_by_session"),
        (filter.user, "traces_by_user"),
        (filter.experiment or filter.experiments is not None, "traces_by_experiment"),
        (filter.error or filter.status == "error", "traces_with_errors"),
        (filter.name, "traces_by_name"),
        (filter.kind == EVALUATOR_KIND, "traces_of_evaluators"),
        (filter.project and shown, "traces_shown_by_project"),  # no index by project includes evaluators' own traces
    ):
        if value:
            return f"INDEXED BY {index}"
    return INDEX_VISIBLE if shown else INDEX_BY_START
