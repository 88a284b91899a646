"""Source records of the flat tables: SQL of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Page
from spanwise.collector.stores.queries.table_reader import RESULT_COLUMNS, TRACE_COLUMNS, TableReader
from spanwise.collector.stores.queries.trace_reader import Place
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.query.filter_sql import HAS_SPANS, VISIBLE_SQL, complete_sql, plan_query
from spanwise.collector.stores.sqlite.query.record_lists import restrict_feedback, select_feedback
from spanwise.collector.stores.sqlite.write import feedback_table
from spanwise.collector.stores.table_rows import cut_page, loads, parse_cursor, select_many

_PLACE = "t.id, t.start_ns"
_COLUMNS = {
    "traces": f"{_PLACE}, t.root, {complete_sql()}, t.metadata, t.models, {TRACE_COLUMNS}",
    "runs": (f"{_PLACE}, t.trace_id, (SELECT s.span_id FROM spans s WHERE s.id = t.root), t.span_count, t.size"),
    "experiment_results": f"{_PLACE}, {RESULT_COLUMNS}",
}
# Feedback on traces that are not in the table `traces`, such as evaluators' own, would refer to a missing row
_OF_VISIBLE_TRACE = (
    "(f.trace_id IS NULL OR EXISTS"
    f" (SELECT 1 FROM traces t WHERE t.id = f.trace AND {HAS_SPANS.sql} AND {VISIBLE_SQL.format('t')}))"
)
_SELECT_NEWEST = (
    f"{feedback_table.SELECT_FEEDBACK} WHERE f.standing = 2 AND f.trace IN (%s) ORDER BY f.trace, f.key, f.rowid"
)


class TableRecords(TableReader[Reader]):
    """Reader of source records. The keys are those of `traces` and `spans`."""

    def select_traces(
        self, reader: Reader, filter: Filter, table: str, limit: int, cursor: str | None
    ) -> tuple[Sequence[Any], str | None]:
        plan = plan_query(reader.db, filter)
        if cursor is not None:
            plan = plan.after(*parse_cursor(cursor))
        where = f"{plan.where} AND t.experiment_id IS NOT NULL" if table == "experiment_results" else plan.where
        sql = f"SELECT {_COLUMNS[table]} FROM {plan.source} WHERE {where} ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
        return cut_page(reader.db.execute(sql, (*plan.values, limit + 1)).fetchall(), limit, time=1, key=0)

    def load_lists(self, models: Any, tags: Any) -> tuple[Sequence[str], Sequence[str]]:
        return [name for name in loads(models) if name != "null"] if models else (), loads(tags) if tags else ()

    def find_trace(self, reader: Reader, cursor: str) -> Sequence[Any] | None:
        sql = f"SELECT {_COLUMNS['runs']} FROM traces t WHERE t.id = ? AND t.root IS NOT NULL"
        row: Sequence[Any] | None = reader.db.execute(sql, (parse_cursor(cursor)[1],)).fetchone()
        return row

    def describe_roots(self, reader: Reader, places: Sequence[Place]) -> Mapping[Place, tuple[str, int]]:
        sql = "SELECT trace, id, span_id, size FROM spans WHERE id IN (%s)"
        rows = select_many(reader.db, sql, [row for _, row in places])
        return {(trace, row): (span_id, size) for trace, row, span_id, size in rows}

    def list_feedback(self, reader: Reader, filter: Filter, limit: int, cursor: str | None) -> Page[Feedback]:
        where, values = restrict_feedback(reader.db, filter)
        return select_feedback(reader.db, where or [_OF_VISIBLE_TRACE], values, limit, cursor)

    def select_results(self, reader: Reader, keys: Collection[int]) -> Iterator[tuple[int, Feedback]]:
        return feedback_table.read_feedback_rows(select_many(reader.db, _SELECT_NEWEST, keys))
