"""Sums of measures of traces: for which of them a condition is true, block by block.

The sums of measures that alerts read are kept, per block of their window. A query computes only the blocks that it finds
without sums, and those in which traces have changed since the latest update. The change feed names the changed traces,
so that writing a span costs nothing; triggers record the grains from which traces were deleted or moved.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from spanwise.collector.alert_policy import get_block_s, has_kept_sums
from spanwise.collector.records import Alert, ScoreSums
from spanwise.collector.stores.queries.measure_query import SUMS, MeasureQuery
from spanwise.collector.stores.sqlite.database.score_sum_schema import forget_measured_traces, watch_measured_traces
from spanwise.collector.stores.sqlite.query.filter_sql import COMPILERS, compile_visible_filter, join_conditions
from spanwise.collector.stores.sqlite.score_sums.contributions import get_group_sql
from spanwise.collector.stores.table_rows import decode_record, insert_many
from spanwise.collector.stores.weighted_sums import GRAIN_NS

_NS = 1_000_000_000
# First the sums of each cluster (a session, or a trace without one), then those of all clusters of a block and group
_SQL = """
SELECT block, grp, sum(n), sum(w), sum(y), sum(w * w), sum(w * y), sum(y * y) FROM (
  SELECT (t.start_ns - :since) / :block AS block, {group} AS grp, count(*) AS n,
    total(1.0 / coalesce(t.probability, 1.0)) AS w,
    total(({measure}) / coalesce(t.probability, 1.0)) AS y
  FROM traces t {join} WHERE {where} GROUP BY 1, 2, coalesce('s' || t.session_id, t.id)
) {grouped} GROUP BY 1, 2
"""


_NAME = "(project, measure, conditions, field, block_s)"


def find_measure(db: sqlite3.Connection, query: MeasureQuery) -> int | None:
    row = db.execute(f"SELECT id FROM trace_measures WHERE {_NAME} = (?, ?, ?, ?, ?)", query.name).fetchone()
    return None if row is None else int(row[0])


def is_read_by_alert(db: sqlite3.Connection, query: MeasureQuery) -> bool:
    sql = "SELECT data FROM alerts WHERE project = ? AND json_extract(data, '$.measure') = ?"
    alerts = (decode_record(Alert, data) for (data,) in db.execute(sql, (query.project, query.measure)))
    return any(has_kept_sums(alert) and _name_measure(alert) == query.name for alert in alerts)


def register_measure(db: sqlite3.Connection, query: MeasureQuery) -> None:
    """Keep the sums of a measure from now on."""
    if not db.execute("SELECT 1 FROM trace_measures LIMIT 1").fetchone():
        sql = "UPDATE measure_state SET applied = (SELECT change FROM feed), generation = generation + 1"
        db.execute(sql)
        db.execute("DELETE FROM measure_changes")
    sql = f"INSERT OR IGNORE INTO trace_measures {_NAME} VALUES (?, ?, ?, ?, ?)"
    db.execute(sql, query.name)
    watch_measured_traces(db)


def remove_measure(db: sqlite3.Connection, alert: Alert, others: Sequence[Alert]) -> None:
    """Delete the sums of an alert's measure, unless one of the other alerts has the same."""
    if not has_kept_sums(alert):
        return
    name = _name_measure(alert)
    if any(has_kept_sums(other) and _name_measure(other) == name for other in others):
        return
    for (id,) in db.execute(f"SELECT id FROM trace_measures WHERE {_NAME} = (?, ?, ?, ?, ?)", name).fetchall():
        for table, column in (("measure_sums", "measure"), ("measure_blocks", "measure"), ("trace_measures", "id")):
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (id,))
        db.execute("UPDATE measure_state SET generation = generation + 1")
    if not db.execute("SELECT 1 FROM trace_measures LIMIT 1").fetchone():
        forget_measured_traces(db)


def _name_measure(alert: Alert) -> tuple[str, str, str, str, int]:
    assert alert.measure is not None
    return MeasureQuery(alert.measure, alert.filter, alert.project, 0, 0, get_block_s(alert), alert.by).name


class MeasureState(NamedTuple):
    """State of the kept sums in one transaction: changes that they include, and grains that have changed since."""

    generation: int
    change: int  # of the change feed
    grains: set[int]
    left: list[tuple[int, int]]  # rows of `measure_changes`


def read_measure_state(db: sqlite3.Connection) -> MeasureState:
    applied, generation = db.execute("SELECT applied, generation FROM measure_state").fetchone()
    [change] = db.execute("SELECT change FROM feed").fetchone()
    # feedback changes a trace, too, but no measure
    changed = db.execute(
        f"SELECT DISTINCT start_ns / {GRAIN_NS} FROM traces INDEXED BY traces_by_change"
        " WHERE change > ? AND runs_change > ? AND start_ns IS NOT NULL",
        (applied, applied),
    )
    left = db.execute("SELECT grain, count FROM measure_changes").fetchall()
    grains = {grain for (grain,) in changed} | {grain for grain, _ in left}
    return MeasureState(generation, change, grains, left)


def read_kept_sums(db: sqlite3.Connection, id: int, query: MeasureQuery, first: int, last: int) -> list[ScoreSums]:
    sql = (
        "SELECT block, value, n, weight, total, weight_squares, products, total_squares FROM measure_sums"
        " WHERE measure = ? AND block >= ? AND block < ?"
    )
    rows = db.execute(sql, (id, first, last))
    return [query.make_sums(block * query.block_ns, value, *sums) for block, value, *sums in rows]


def keep_sums(
    db: sqlite3.Connection,
    id: int,
    query: MeasureQuery,
    state: MeasureState,
    blocks: Sequence[int],
    computed: Sequence[ScoreSums],
) -> None:
    """Store computed blocks, and remove the blocks of all measures that have changed.

    If another query has updated the sums since the blocks were computed, nothing is stored.
    """
    sql = "UPDATE measure_state SET applied = ?, generation = generation + 1 WHERE generation = ?"
    if not db.execute(sql, (state.change, state.generation)).rowcount:
        return
    for measure, block_s in db.execute("SELECT id, block_s FROM trace_measures").fetchall():
        changed = {(measure, grain * GRAIN_NS // (block_s * _NS)) for grain in state.grains}
        db.executemany("DELETE FROM measure_blocks WHERE (measure, block) = (?, ?)", changed)
    # a grain that has lost further traces meanwhile stays changed
    db.executemany("DELETE FROM measure_changes WHERE (grain, count) = (?, ?)", state.left)
    oldest = (query.until_ns - MAX_AGE_S * _NS) // query.block_ns
    db.executemany("DELETE FROM measure_sums WHERE (measure, block) = (?, ?)", [(id, block) for block in blocks])
    for table in ("measure_sums", "measure_blocks"):
        db.execute(f"DELETE FROM {table} WHERE measure = ? AND block < ?", (id, oldest))
    insert_many(db, "measure_blocks", ("measure", "block"), [(id, block) for block in blocks], "ON CONFLICT DO NOTHING")
    rows = [
        (id, each.start_ns // query.block_ns, each.group or "", *(getattr(each, name) for name in SUMS))
        for each in computed
    ]
    insert_many(db, "measure_sums", ("measure", "block", "value", *SUMS), rows)


def sum_measure(db: sqlite3.Connection, query: MeasureQuery) -> list[ScoreSums]:
    """Return the sums of a measure over the traces that pass its conditions, computed from all of these traces."""
    comparison, filter = query.parse()
    [truth] = COMPILERS[comparison.field]((comparison.operator, comparison.number))
    where, values = join_conditions(compile_visible_filter(filter))
    group, join, group_values = ("NULL", "", ()) if query.by is None else get_group_sql(query.by)
    sql = (
        _SQL.format(
            group=group,
            measure=f"coalesce({truth.sql}, 0)",
            join=join,
            where=where,
            grouped="" if query.by is None else "WHERE grp IS NOT NULL",
        )
        .replace(":since", str(query.since_ns))
        .replace(":block", str(query.block_ns))
    )
    rows = db.execute(sql, (*truth.values, *group_values, *values))
    return [query.make_sums(query.since_ns + block * query.block_ns, grp, *sums) for block, grp, *sums in rows]


MAX_AGE_S = 15 * 86_400  # age of the oldest block that is kept: the longest window, and the baseline before it
