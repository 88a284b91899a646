"""Trace queries: SQL of lists of summaries, whole traces, and parts of traces."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, MAX_UNINDEXED, Feedback, OpenRun, Run
from spanwise.collector.stores.queries.trace_reader import (
    SUMMARY_FIELDS,
    SUMMARY_LISTS,
    ListedTrace,
    Place,
    Position,
    StoredTrace,
    TraceReader,
)
from spanwise.collector.stores.sqlite.database.connections import SELECT_RUN, Reader
from spanwise.collector.stores.sqlite.query import record_lists
from spanwise.collector.stores.sqlite.query.filter_sql import (
    compile_visible_filter,
    complete_sql,
    join_conditions,
    plan_query,
)
from spanwise.collector.stores.sqlite.write import feedback_table, side_tables
from spanwise.collector.stores.table_rows import cut_page, loads, parse_cursor, select_many
from spanwise.collector.stores.trace_assembly import DerivationNode, RunNode

_SUMMARY_COLUMNS = ", ".join(
    (
        *("t.id", "t.root", "t.end_ns", complete_sql(), "t.running"),
        *(f"t.{name}" for name in (*SUMMARY_LISTS, *SUMMARY_FIELDS)),
    )
)
_START_PLACE = 9 + SUMMARY_FIELDS.index("start_ns")
_SELECT_NODES = f"SELECT trace, id, 0, {','.join(DerivationNode._fields)} FROM spans WHERE trace IN (%s)"
_SELECT_NEWEST = (
    "SELECT trace, key, outcome, score, label FROM feedback WHERE standing = 2 AND trace IN (%s) ORDER BY key"
)
_SELECT_TREE = f"SELECT {','.join(RunNode._fields)} FROM spans WHERE trace = ?"
_SELECT_FEEDBACK_COUNTS = (
    "SELECT span_id, count(*), sum(outcome = 'error') FROM feedback WHERE trace = ? AND span_id IN (%s) GROUP BY 1"
)
_SELECT_LATER = (
    "SELECT size, start_ns, -end_ns, span_id FROM spans WHERE trace = ? AND (start_ns, -end_ns, span_id) >= (?, ?, ?)"
    " ORDER BY start_ns, -end_ns, span_id LIMIT ?"
)
_BEFORE_ALL = -(1 << 63)


class TraceQueries(TraceReader[Reader]):
    """Reader of traces. The keys are those of `traces` and `spans`."""

    span_id_column, payload_column = 3, 2
    prefetched_bytes = -1

    def select_summaries(
        self, reader: Reader, filter: Filter, limit: int, cursor: str | None, sort: str | None
    ) -> tuple[Iterable[ListedTrace], str | None, int | None]:
        newest: int | None = None
        rows: Sequence[Any]
        if sort:
            page = record_lists.list_sorted_traces(reader.db, filter, sort, limit, cursor)
            sql = f"SELECT {_SUMMARY_COLUMNS} FROM traces t WHERE t.id IN (%s)"
            found = {row[0]: row for row in select_many(reader.db, sql, page.keys)}
            rows, next, newest = [found[key] for key in page.keys if key in found], page.next, page.newest
        else:
            plan = plan_query(reader.db, filter)
            if cursor is not None:
                plan = plan.after(*parse_cursor(cursor))
            by = "ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
            sql = f"SELECT {_SUMMARY_COLUMNS} FROM {plan.source} WHERE {plan.where} {by}"
            fetched = reader.db.execute(sql, (*plan.values, limit + 1)).fetchall()
            rows, next = cut_page(fetched, limit, time=_START_PLACE, key=0)
        return (ListedTrace.from_row(row, lambda text: loads(text) if text else ()) for row in rows), next, newest

    def count_unindexed(self, reader: Reader, filter: Filter) -> int:
        return count_unindexed(reader.db, filter)

    def select_newest_feedback(self, reader: Reader, keys: Collection[int]) -> Sequence[Any]:
        return select_many(reader.db, _SELECT_NEWEST, keys)

    def select_payloads(self, reader: Reader, places: Collection[Place]) -> Iterator[tuple[Place, Any]]:
        by_row = {place[1]: place for place in places}
        for row, blob in reader.encoded_payloads(list(by_row)):
            yield by_row[row], blob

    def decode_payload(self, reader: Reader, payload: Any) -> Mapping[str, JSON]:
        return reader.payload(payload)

    def select_nodes(self, reader: Reader, keys: Collection[int]) -> Sequence[Any]:
        return select_many(reader.db, _SELECT_NODES, keys)

    def select_headers(self, reader: Reader, trace_ids: Collection[str]) -> Sequence[Any]:
        root = "(SELECT s.span_id FROM spans s WHERE s.id = t.root)"
        columns = f"t.trace_id, t.id, {root}, t.size, {complete_sql()}, t.dropped, t.calls_sent"
        sql = f"SELECT {columns} FROM traces t WHERE span_count > 0 AND t.trace_id IN (%s)"
        return select_many(reader.db, sql, trace_ids)

    def select_feedback(self, reader: Reader, keys: Collection[int]) -> Iterator[tuple[int, Feedback]]:
        sql = feedback_table.SELECT_FEEDBACK + " WHERE f.trace IN (%s) ORDER BY f.created_ns, f.rowid"
        return feedback_table.read_feedback_rows(select_many(reader.db, sql, keys))

    def read_open_runs(self, reader: Reader, trace_ids: Sequence[str]) -> dict[str, list[OpenRun]]:
        return side_tables.read_open_runs(reader.db, trace_ids)

    def read_rows(self, reader: Reader, keys: Sequence[int]) -> dict[int, list[Any]]:
        return reader.rows_of(keys)

    def measure_row(self, row: Any) -> int:
        return len(row[2])

    def decoder(self, reader: Reader, rows: Iterable[Any], *, detached: bool) -> Callable[[str, Any], Run]:
        return reader.detach(rows).run if detached else reader.run

    def find_trace(self, reader: Reader, trace_id: str) -> StoredTrace | None:
        sql = (
            "SELECT t.id, s.span_id, t.span_count FROM traces t JOIN spans s ON s.id = t.root"
            " WHERE t.trace_id = ? AND t.span_count > 0"
        )
        row = reader.db.execute(sql, (trace_id,)).fetchone()
        return None if row is None else StoredTrace(*row)

    def select_tree(self, reader: Reader, key: int) -> Iterator[Any]:
        yield from reader.db.execute(_SELECT_TREE, (key,))
        reader.check_stopped()

    def count_feedback(self, reader: Reader, key: int, span_ids: Collection[str]) -> Sequence[Any]:
        return select_many(reader.db, _SELECT_FEEDBACK_COUNTS, span_ids, (key,))

    def find_position(self, reader: Reader, key: int, span_id: str) -> Position | None:
        sql = "SELECT start_ns, -end_ns, span_id FROM spans WHERE trace = ? AND span_id = ?"
        position: Position | None = reader.db.execute(sql, (key, span_id)).fetchone()
        return position

    def list_later(self, reader: Reader, key: int, position: Position | None, limit: int) -> Sequence[Any]:
        values = (key, *(position or (_BEFORE_ALL, _BEFORE_ALL, "")), limit)
        return reader.db.execute(_SELECT_LATER, values).fetchall()

    def read_some(self, reader: Reader, trace_id: str, key: int, span_ids: Collection[str]) -> list[Run]:
        rows = select_many(reader.db, SELECT_RUN + "s.trace = ? AND s.span_id IN (%s)", span_ids, (key,))
        return [reader.run(trace_id, row) for row in rows]


def count_unindexed(db: sqlite3.Connection, filter: Filter) -> int:
    """Return the number of traces that meet all conditions except `text` and wait for full-text indexing; 0 for a
    filter without `text`.
    """
    if filter.text is None:
        return 0
    where, values = join_conditions(compile_visible_filter(replace(filter, text=None)))
    waiting = f"SELECT 1 FROM unindexed u CROSS JOIN traces t ON t.id = u.trace WHERE {where} LIMIT {MAX_UNINDEXED}"
    return int(db.execute(f"SELECT count(*) FROM ({waiting})", values).fetchone()[0])
