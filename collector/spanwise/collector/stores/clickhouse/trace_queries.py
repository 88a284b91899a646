"""Trace queries: SQL of lists of summaries, whole traces, and parts of traces.

Lists read the table of summaries in one pass, however many conditions a filter has, without `FINAL`; then they read the
current rows of the traces found (`record_lists.find_places`). All rows of a trace are found by primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Feedback, OpenRun, Run
from spanwise.collector.stores.clickhouse import record_lists, senders
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters, Row
from spanwise.collector.stores.clickhouse.filter_sql import COMPLETE_SQL, TRACES, compile_filter, current_rows
from spanwise.collector.stores.clickhouse.span_rows import RUN_COLUMNS, decode_run
from spanwise.collector.stores.queries.trace_reader import (
    SUMMARY_FIELDS,
    SUMMARY_LISTS,
    ListedTrace,
    Place,
    Position,
    StoredTrace,
    TraceReader,
)
from spanwise.collector.stores.table_rows import loads, parse_text_cursor
from spanwise.collector.stores.trace_assembly import DerivationNode, RunNode

_SUMMARY_COLUMNS = ", ".join(
    (
        *("t.trace_id", "t.root", "t.end_ns", COMPLETE_SQL),
        "countEqual((SELECT groupArray(trace_id) FROM open_runs FINAL), t.trace_id)",
        *(f"t.{name}" for name in (*SUMMARY_LISTS, *SUMMARY_FIELDS)),
    )
)
IN_ORDER = "ORDER BY trace_id, start_ns, -end_ns, span_id"


def select_traces(
    db: Connection, filter: Filter, columns: str, limit: int, cursor: str | None, *, where: str = "1"
) -> tuple[list[Any], str | None]:
    """Return rows of the traces that pass, latest start first, and the cursor of the next page.

    The first column is `t.trace_id`. Columns are only read from the rows of few traces. Raise `Refused` for an invalid
    cursor.
    """
    rows, most = dict[str, Any](), limit + 1

    def ask(source: str, parameters: QueryParameters, last: record_lists.Place | None, limit: int) -> list[Any]:
        condition = f"{compile_filter(filter, parameters)} AND {where}"
        if last is not None:
            start_ns, trace_id = last
            condition += (
                f" AND (t.start_ns, t.trace_id) < ({parameters.integer(start_ns)}, {parameters.text(trace_id)})"
            )
        order = f"ORDER BY t.start_ns DESC, t.trace_id DESC LIMIT {parameters.integer(limit)}"
        are_few = parameters.within is not None and limit <= most
        shown = columns if are_few else "t.trace_id"
        found = db.query(f"SELECT t.start_ns, {shown} FROM {source} WHERE {condition} {order}", parameters)
        rows.update((row[1], row[1:]) for row in found if are_few)
        return [row[:2] for row in found]

    found = record_lists.find_places(ask, most, None if cursor is None else parse_text_cursor(cursor))
    next = "{}.{}".format(*found[limit - 1]) if len(found) > limit else None
    trace_ids = list(dict.fromkeys(trace_id for _, trace_id in found[:limit]))  # a start may just have moved
    rows.update((row[0], row) for row in read_in_order(db, columns, [id for id in trace_ids if id not in rows]))
    return [rows[trace_id] for trace_id in trace_ids if trace_id in rows], next


def read_in_order(db: Connection, columns: str, trace_ids: Sequence[str]) -> list[Any]:
    """Return the rows of traces in the order requested. The first column is `t.trace_id`."""
    if not trace_ids:
        return []
    parameters = QueryParameters()
    sql = f"SELECT {columns} FROM {current_rows(parameters.texts(trace_ids))}"
    rows = {row[0]: row for row in db.query(sql, parameters)}
    return [rows[trace_id] for trace_id in trace_ids if trace_id in rows]  # some may just have been deleted


def select_spans(db: Connection, columns: str, places: Collection[Place]) -> Iterator[tuple[Place, Any]]:
    """Yield spans that are given by trace id and span id, each with other columns."""
    if not places:
        return
    parameters, wanted = QueryParameters(), set(places)
    traces, ids = (parameters.texts(dict.fromkeys(each)) for each in zip(*places, strict=True))
    sql = (
        f"SELECT trace_id, span_id, {columns} FROM spans WHERE trace_id IN {traces} AND span_id IN {ids}"
        " ORDER BY version DESC, number DESC LIMIT 1 BY trace_id, span_id"
    )
    for trace_id, span_id, *values in db.query(sql, parameters):
        if (trace_id, span_id) in wanted:
            yield (trace_id, span_id), values


class TraceQueries(TraceReader[Connection]):
    """Reader of traces. The keys are trace ids and span ids."""

    span_id_column, payload_column = 1, -2
    prefetched_bytes = 64 * 1024

    def select_summaries(
        self, reader: Connection, filter: Filter, limit: int, cursor: str | None, sort: str | None
    ) -> tuple[Iterable[ListedTrace], str | None, int | None]:
        newest = None
        if sort:
            page = record_lists.list_sorted_traces(reader, filter, sort, limit, cursor)
            rows, next, newest = read_in_order(reader, _SUMMARY_COLUMNS, page.keys), page.next, page.newest
        else:
            rows, next = select_traces(reader, filter, _SUMMARY_COLUMNS, limit, cursor)
        return (ListedTrace.from_row(row, lambda names: names) for row in rows), next, newest

    def select_newest_feedback(self, reader: Connection, keys: Collection[str]) -> Sequence[Row]:
        sql = (
            "SELECT trace_id, key, newest.1, newest.2, newest.3 FROM (SELECT trace_id, key,"
            " argMax(tuple(outcome, score, label), tuple(created_ns, number)) AS newest FROM feedback FINAL"
            " WHERE trace_id IN {ids:Array(String)} AND document IS NULL GROUP BY trace_id, key) ORDER BY key"
        )
        return reader.query(sql, {"ids": list(keys)})

    def select_payloads(self, reader: Connection, places: Collection[Place]) -> Iterator[tuple[Place, Any]]:
        for place, (payload,) in select_spans(reader, "payload", places):
            yield place, payload

    def decode_payload(self, reader: Connection, payload: Any) -> Mapping[str, JSON]:
        return loads(payload) if payload else {}

    def select_nodes(self, reader: Connection, keys: Collection[str]) -> Sequence[Row]:
        columns = ", ".join(DerivationNode._fields)
        sql = f"SELECT trace_id, span_id, size, {columns} FROM spans FINAL WHERE trace_id IN {{ids:Array(String)}}"
        return reader.query(sql, {"ids": list(keys)})

    def select_headers(self, reader: Connection, trace_ids: Collection[str]) -> Sequence[Row]:
        columns = f"t.trace_id, t.trace_id, t.root, t.size, {COMPLETE_SQL}, t.dropped, t.calls_sent"
        sql = f"SELECT {columns} FROM {TRACES} WHERE t.trace_id IN {{ids:Array(String)}}"
        return reader.query(sql, {"ids": list(trace_ids)})

    def select_feedback(self, reader: Connection, keys: Collection[str]) -> Iterable[tuple[str, Feedback]]:
        return record_lists.read_feedback(reader, "ORDER BY created_ns, number", keys)

    def read_open_runs(self, reader: Connection, trace_ids: Sequence[str]) -> dict[str, list[OpenRun]]:
        return senders.read_open_runs(reader, trace_ids)

    def read_rows(self, reader: Connection, keys: Sequence[str]) -> dict[str, list[Any]]:
        by_trace: dict[str, list[Any]] = {trace_id: [] for trace_id in keys}
        if by_trace:
            where = "trace_id IN {ids:Array(String)}"
            sql = f"SELECT trace_id, span_id, size, {RUN_COLUMNS} FROM spans FINAL WHERE {where} {IN_ORDER}"
            for row in reader.query(sql, {"ids": list(by_trace)}):
                by_trace[row[0]].append(row)
        return by_trace

    def measure_row(self, row: Any) -> int:
        return int(row[2])

    def decoder(self, reader: Connection, rows: Iterable[Any], *, detached: bool) -> Callable[[str, Any], Run]:
        return lambda _, row: decode_run(row[3:])

    def find_trace(self, reader: Connection, trace_id: str) -> StoredTrace | None:
        sql = f"SELECT t.trace_id, t.root, t.span_count FROM {TRACES} WHERE t.trace_id = {{id:String}}"
        return next((StoredTrace(*row) for row in reader.query(sql, {"id": trace_id})), None)

    def select_tree(self, reader: Connection, key: str) -> Sequence[Row]:
        sql = f"SELECT {', '.join(RunNode._fields)} FROM spans FINAL WHERE trace_id = {{id:String}}"
        return reader.query(sql, {"id": key})

    def count_feedback(self, reader: Connection, key: str, span_ids: Collection[str]) -> Sequence[Row]:
        sql = (
            "SELECT span_id, count(), countIf(outcome = 'error') FROM feedback FINAL"
            " WHERE trace_id = {id:String} AND span_id IN {spans:Array(String)} GROUP BY span_id"
        )
        return reader.query(sql, {"id": key, "spans": list(span_ids)})

    def find_position(self, reader: Connection, key: str, span_id: str) -> Position | None:
        where = "WHERE trace_id = {id:String} AND span_id = {span:String}"
        sql = f"SELECT start_ns, -end_ns, span_id FROM spans FINAL {where}"
        return next(iter(reader.query(sql, {"id": key, "span": span_id})), None)

    def list_later(self, reader: Connection, key: str, position: Position | None, limit: int) -> Sequence[Row]:
        parameters = QueryParameters()
        where = f"trace_id = {parameters.text(key)}"
        if position is not None:
            bounds = ", ".join([*map(parameters.integer, position[:2]), parameters.text(position[2])])
            where += f" AND (start_ns, -end_ns, span_id) >= ({bounds})"
        sql = f"SELECT size, start_ns, -end_ns, span_id FROM spans FINAL WHERE {where} {IN_ORDER}"
        return reader.query(f"{sql} LIMIT {parameters.integer(limit)}", parameters)

    def read_some(self, reader: Connection, trace_id: str, key: str, span_ids: Collection[str]) -> list[Run]:
        parameters = QueryParameters()
        where = f"trace_id = {parameters.text(trace_id)} AND span_id IN {parameters.texts(span_ids)}"
        rows = reader.query(f"SELECT {RUN_COLUMNS} FROM spans FINAL WHERE {where}", parameters)
        return list(map(decode_run, rows))
