"""Sums of measures of traces: for which of them a condition is true, block by block."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from spanwise.collector.alert_policy import parse_measure
from spanwise.collector.filters import extend_filter, validate_filter
from spanwise.collector.records import JSON, ScoreSums
from spanwise.collector.stores.sqlite.query.filter_sql import COMPILERS, compile_visible_filter, join_conditions
from spanwise.collector.stores.sqlite.score_sums.contributions import get_group_sql

# First the sums of each cluster (a session, or a trace without one), then those of all clusters of a block and group
_SQL = """
SELECT block, grp, sum(n), sum(w), sum(y), sum(w * w), sum(w * y), sum(y * y) FROM (
  SELECT (t.start_ns - :since) / :block AS block, {group} AS grp, count(*) AS n,
    total(1.0 / coalesce(t.probability, 1.0)) AS w,
    total(({measure}) / coalesce(t.probability, 1.0)) AS y
  FROM traces t {join} WHERE {where} GROUP BY 1, 2, coalesce('s' || t.session_id, t.id)
) {grouped} GROUP BY 1, 2
"""


def sum_measure(
    db: sqlite3.Connection,
    measure: str,
    conditions: Mapping[str, JSON],
    *,
    project: str,
    since_ns: int,
    until_ns: int,
    block_s: int,
    by: str | None,
) -> list[ScoreSums]:
    """Return the sums of a measure over the traces that pass a filter, as `ControlStore.measure_sums` does."""
    comparison = parse_measure(measure)
    [truth] = COMPILERS[comparison.field]((comparison.operator, comparison.number))
    limits = {"project": project, "since_ns": since_ns, "until_ns": until_ns}
    filter = validate_filter(extend_filter(None, {**conditions, **limits}))
    where, values = join_conditions(compile_visible_filter(filter))
    group, join, group_values = ("NULL", "", ()) if by is None else get_group_sql(by)
    sql = (
        _SQL.format(
            group=group,
            measure=f"coalesce({truth.sql}, 0)",
            join=join,
            where=where,
            grouped="" if by is None else "WHERE grp IS NOT NULL",
        )
        .replace(":since", str(since_ns))
        .replace(":block", str(block_s * 1_000_000_000))
    )
    return [
        ScoreSums(
            key=measure,
            group=None if grp is None else str(grp),
            start_ns=since_ns + block * block_s * 1_000_000_000,
            n=n,
            weight=weight,
            total=total,
            weight_squares=weight_squares,
            products=products,
            total_squares=total_squares,
        )
        for block, grp, n, weight, total, weight_squares, products, total_squares in db.execute(
            sql, (*truth.values, *group_values, *values)
        )
    ]
