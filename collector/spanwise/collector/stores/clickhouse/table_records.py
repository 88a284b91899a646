"""Source records of the flat tables: SQL of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Page
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.filter_sql import COMPLETE_SQL, TRACES, VISIBLE_SQL, compile_filter
from spanwise.collector.stores.clickhouse.record_lists import read_feedback, select_feedback
from spanwise.collector.stores.clickhouse.trace_queries import select_spans, select_traces
from spanwise.collector.stores.queries.table_reader import RESULT_COLUMNS, TRACE_COLUMNS, TableReader
from spanwise.collector.stores.queries.trace_reader import Place
from spanwise.collector.stores.table_rows import parse_text_cursor

_PLACE = "t.trace_id, t.start_ns"
_COLUMNS = {
    "traces": f"{_PLACE}, t.root, {COMPLETE_SQL}, t.metadata_json, mapKeys(t.models), {TRACE_COLUMNS}",
    "runs": f"{_PLACE}, t.trace_id, t.root, t.span_count, t.size",
    "experiment_results": f"{_PLACE}, {RESULT_COLUMNS}",
}


class TableRecords(TableReader[Connection]):
    """Reader of source records. The keys are trace ids and span ids."""

    def select_traces(
        self, reader: Connection, filter: Filter, table: str, limit: int, cursor: str | None
    ) -> tuple[Sequence[Any], str | None]:
        where = "t.experiment_id IS NOT NULL" if table == "experiment_results" else "1"
        return select_traces(reader, filter, _COLUMNS[table], limit, cursor, where=where)

    def load_lists(self, models: Any, tags: Any) -> tuple[Sequence[str], Sequence[str]]:
        return models, tags

    def find_trace(self, reader: Connection, cursor: str) -> Sequence[Any] | None:
        sql = f"SELECT {_COLUMNS['runs']} FROM {TRACES} WHERE t.trace_id = {{id:String}} AND t.span_count > 0"
        return next(iter(reader.query(sql, {"id": parse_text_cursor(cursor)[1]})), None)

    def describe_roots(self, reader: Connection, places: Sequence[Place]) -> Mapping[Place, tuple[str, int]]:
        return {place: (place[1], size) for place, (size,) in select_spans(reader, "size", places)}

    def list_feedback(self, reader: Connection, filter: Filter, limit: int, cursor: str | None) -> Page[Feedback]:
        parameters = QueryParameters()
        # Feedback on traces that are not in the table `traces`, such as evaluators' own, would refer to a missing row
        condition = compile_filter(filter, parameters) if filter != Filter() else f"t.span_count > 0 AND {VISIBLE_SQL}"
        where = f"trace_id IN (SELECT t.trace_id FROM {TRACES} WHERE {condition})"
        if filter == Filter():
            where = f"(trace_id = '' OR {where})"
        return select_feedback(reader, [where], parameters, limit, cursor)

    def select_results(self, reader: Connection, keys: Collection[str]) -> Iterable[tuple[str, Feedback]]:
        newest = "AND document IS NULL ORDER BY trace_id, key, created_ns DESC, number DESC LIMIT 1 BY trace_id, key"
        return read_feedback(reader, newest, keys)
