"""Copies of traces, feedback and records of senders out of and into a ClickHouse database, with their numbers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from spanwise.collector.records import JSON, Feedback, Target, normalize_feedback
from spanwise.collector.stores import trace_assembly
from spanwise.collector.stores.backends import ExportedRun, NumberedFeedback, SideRecord, TracePosition
from spanwise.collector.stores.clickhouse import schema, span_rows
from spanwise.collector.stores.clickhouse.connection import Database, QueryParameters, get_day
from spanwise.collector.stores.clickhouse.feedback_rows import (
    FEEDBACK_COLUMNS,
    decode_feedback,
    encode_feedback,
    make_feedback_columns,
)
from spanwise.collector.stores.clickhouse.feedback_writer import read_outlets
from spanwise.collector.stores.clickhouse.senders import PROCESS_COLUMNS
from spanwise.collector.stores.clickhouse.span_rows import SpanRow
from spanwise.collector.stores.clickhouse.span_writer import SpanWriter
from spanwise.collector.stores.side_records import OPEN_RUN_COLUMNS, SIDE_RECORD_FIELDS, make_side_record
from spanwise.collector.stores.table_rows import dumps, loads

RUNS_PER_BATCH = 500
TOMBSTONE_NS = schema.TOMBSTONE_DAYS * 86_400 * 10**9
_SIDE_TABLES = ("open_runs", "processes", "amendments", "tombstones", "outlets")
# Id of the marker that moves a trace in the feed to where it was, if no row of the trace is there
_MARKER = "moved"


class ClickHouseTraceCopy:
    """`TraceCopy` of a ClickHouse database. No insert has the deduplication of equal blocks, so that rows that were
    deleted can be inserted again.
    """

    def __init__(self, db: Database, spans: SpanWriter) -> None:
        self._db, self._spans = db, spans

    # export

    def list_positions(self, after: int, limit: int) -> list[TracePosition]:
        sql = (
            "SELECT number, trace_id, span_count, start_ns, change FROM traces FINAL WHERE number > {after:UInt64}"
            " ORDER BY number LIMIT {limit:UInt64} WITH TIES"  # two inserts may assign the same numbers
        )
        rows = self._db.query(sql, {"after": after, "limit": limit})
        changes = self._read_feedback_changes([row[1] for row in rows])
        return [
            TracePosition(number, trace_id, count, start_ns, max(change, changes.get(trace_id, 0)), change, change)
            for number, trace_id, count, start_ns, change in rows
        ]

    def _read_feedback_changes(self, trace_ids: Sequence[str]) -> dict[str, int]:
        """Return the positions in the feed of the latest feedback on traces. Started runs are left out: they end."""
        if not trace_ids:
            return {}
        sql = (
            "SELECT trace_id, max(number) FROM feedback WHERE rule = '' AND trace_id IN {ids:Array(String)}"
            " GROUP BY trace_id"
        )
        return dict(self._db.query(sql, {"ids": list(trace_ids)}))

    def read_runs(self, positions: Sequence[TracePosition]) -> Iterator[list[ExportedRun]]:
        several, count = list[str](), 0
        for position in positions:
            if count + position.span_count > RUNS_PER_BATCH and several:
                yield self._read_traces(several)
                several, count = [], 0
            if position.span_count > RUNS_PER_BATCH:
                yield from self._read_large_trace(position.trace_id)
            elif position.span_count:
                several.append(position.trace_id)
                count += position.span_count
        if several:
            yield self._read_traces(several)

    def _read_traces(self, trace_ids: Sequence[str]) -> list[ExportedRun]:
        sql = f"SELECT {span_rows.RUN_COLUMNS} FROM spans FINAL WHERE trace_id IN {{ids:Array(String)}}"
        rows = self._db.query(f"{sql} ORDER BY trace_id, start_ns, span_id", {"ids": list(trace_ids)})
        return list(map(_export_run, rows))

    def _read_large_trace(self, trace_id: str) -> Iterator[list[ExportedRun]]:
        sql = (
            f"SELECT {span_rows.RUN_COLUMNS} FROM spans FINAL WHERE trace_id = {{id:String}} AND span_id > {{after:String}}"
            f" ORDER BY span_id LIMIT {RUNS_PER_BATCH}"
        )
        after = ""
        while rows := self._db.query(sql, {"id": trace_id, "after": after}):
            yield (batch := list(map(_export_run, rows)))
            after = batch[-1].run.span_id

    def list_feedback(self, after: str | None, limit: int) -> tuple[list[NumberedFeedback], str | None]:
        number, _, id = (after or "0.").partition(".")
        parameters = QueryParameters()
        position = f"({parameters.bind(int(number), 'UInt64')}, {parameters.text(id)})"
        sql = (
            f"SELECT {FEEDBACK_COLUMNS}, number FROM feedback FINAL WHERE (number, id) > {position}"
            f" ORDER BY number, id LIMIT {parameters.integer(limit)}"
        )
        rows = [NumberedFeedback(row[-1], decode_feedback(row)) for row in self._db.query(sql, parameters)]
        return rows, f"{rows[-1].number}.{rows[-1].feedback.id}" if rows else after

    def list_side_records(self) -> Iterator[SideRecord]:
        for row in self._db.query(f"SELECT {', '.join(OPEN_RUN_COLUMNS)}, number FROM open_runs FINAL ORDER BY 1, 2"):
            yield make_side_record("open_run", row)
        sql = (
            "SELECT instance, stored, seen_ns, tupleElement(sender, 'data'), tupleElement(report, 'reported_ns'),"
            " tupleElement(report, 'progress'), tupleElement(report, 'data') FROM processes FINAL ORDER BY instance"
        )
        for *process, sender, reported_ns, progress, report in self._db.query(sql):
            reported = (reported_ns, progress - 1, report) if report else (None, None, None)
            yield make_side_record("process", (*process, *loads(sender), *reported))
        yield from self._list_waiting_amendments()
        sql = "SELECT trace_id, toInt64(toUnixTimestamp(deleted)) FROM tombstones FINAL ORDER BY deleted, trace_id"
        for trace_id, deleted in self._db.query(sql):
            yield make_side_record("tombstone", (trace_id, deleted * 10**9 + TOMBSTONE_NS))
        for row in read_outlets(self._db):
            yield make_side_record("outlet", row)

    def _list_waiting_amendments(self) -> Iterator[SideRecord]:
        """Yield the amendments whose run has not arrived, merged by target."""
        sql = (
            "SELECT trace_id, span_id, project, fields, number FROM amendments FINAL WHERE applied = 0"
            " AND (trace_id, span_id) NOT IN (SELECT trace_id, span_id FROM spans) ORDER BY number"
        )
        merged: dict[tuple[str, ...], tuple[dict[str, JSON], int]] = {}
        for *target, text, number in self._db.query(sql):
            before, seen_ns = merged.get(tuple(target), ({}, number))
            merged[tuple(target)] = trace_assembly.merge_fields(before, loads(text)), seen_ns
        for key, (found, seen_ns) in merged.items():
            text = dumps(found)
            yield make_side_record("amendment", (*key, text, len(text.encode()), seen_ns))

    def read_identity(self) -> str:
        return self._db.read_identity()

    # import

    def begin_import(self) -> None: ...

    def import_traces(self, positions: Sequence[TracePosition], runs: Iterable[Sequence[ExportedRun]]) -> None:
        known = {position.trace_id: position for position in positions if position.span_count}
        spans: dict[str, dict[str, SpanRow]] = {}
        for batch in runs:
            ids = [exported.run.trace_id for exported in batch]
            rows = [
                span_rows.encode_runs([exported.run]).rows[0]
                if exported.sent is None
                else span_rows.encode_amended_row(exported.run, exported.amended, exported.sent, 1)
                for exported in batch
            ]
            days = [get_day(known[trace_id].start_ns) for trace_id in ids]
            keep = [self._spans.find_keep_days(row.fact.project) for row in rows]
            self._db.insert_by_month("spans", span_rows.make_span_columns(ids, rows, days, keep), secrets.token_hex(8))
            for trace_id, row in zip(ids, rows, strict=True):
                # only what a summary needs
                spans.setdefault(trace_id, {})[row.fact.span_id] = row._replace(payload=b"", words="", resource="")
        if not spans:
            return
        summaries = {
            trace_id: span_rows.summarize_facts(
                (row.fact, row.version, row.service_version) for row in of_trace.values()
            )
            for trace_id, of_trace in spans.items()
        }
        numbers = {trace_id: known[trace_id].number for trace_id in spans}
        columns = span_rows.make_summary_columns(summaries, numbers, self._db.now(), 0, self._spans.find_keep_days)
        changes = [known[trace_id].runs_change or known[trace_id].number for trace_id in spans]
        self._db.insert_by_month("traces", {**columns, "change": changes}, secrets.token_hex(8))

    def import_feedback(self, rows: Sequence[NumberedFeedback]) -> None:
        encoded = [encode_feedback(normalize_feedback(row.feedback)) for row in rows]
        # the position of feedback in the feed is its number, and its trace must not move
        numbers = [max(1, min(row.number, row.change or row.number)) for row in rows]
        self._db.insert("feedback", {**make_feedback_columns(encoded, 0), "number": numbers}, secrets.token_hex(8))

    def import_positions(self, positions: Sequence[TracePosition]) -> None:
        """Move traces in the feed whose last change no row has, such as a deletion of feedback: by markers."""
        moved = [one for one in positions if one.span_count and (one.change or 0) > (one.runs_change or 0)]
        stored = self._read_feedback_changes([one.trace_id for one in moved])
        moved = [one for one in moved if stored.get(one.trace_id, 0) < (one.change or 0)]
        if moved:
            targets = [Target(trace_id=one.trace_id) for one in moved]
            markers = [encode_feedback(Feedback(target=one, id=_MARKER, key=_MARKER, score=0.0)) for one in targets]
            columns = {**make_feedback_columns((), 0, markers), "number": [one.change for one in moved]}
            self._db.insert("feedback", columns, secrets.token_hex(8))

    def import_side_records(self, records: Sequence[SideRecord], *, first: bool) -> None:
        for table in _SIDE_TABLES if first else ():
            target, _, cluster = schema.get_mutation_target(table, self._db.cluster).partition(" ")
            self._db.command(f"TRUNCATE TABLE {target} {cluster}")
        by_kind: dict[str, list[Sequence[Any]]] = {}
        for kind, fields in records:
            values = [fields[name] for name in SIDE_RECORD_FIELDS[kind]]
            by_kind.setdefault(kind, []).append(_IMPORTED[kind].make_row(*values))
        for kind, rows in by_kind.items():
            table, columns, _ = _IMPORTED[kind]
            self._db.insert_rows(table, columns, rows, secrets.token_hex(8))

    def finish_import(self, latest_change: int, identity: str) -> None:
        """Take over the id of the source. The feed continues with the server's time, which is above all numbers.

        Positions that the source has issued are valid, although they are before the creation of this database.
        """
        self._db.insert("database_facts", {"name": ["created_ns"], "value": ["1"]}, secrets.token_hex(8))
        self._db.created_ns = 1
        if identity != self._db.read_identity():
            target = schema.get_mutation_target("database_facts", self._db.cluster)
            self._db.command(f"ALTER TABLE {target} DELETE WHERE name = 'identity'")
            self._db.insert("database_facts", {"name": ["identity"], "value": [identity]}, secrets.token_hex(8))


def _export_run(row: Sequence[Any]) -> ExportedRun:
    sent, amended = span_rows.decode_amendments(row) or (None, {})
    return ExportedRun(span_rows.decode_run(row), amended, sent)


class _ImportedTable(NamedTuple):
    """Table and columns of a kind of side records. `make_row` takes the fields of a record."""

    name: str
    columns: Sequence[str]
    make_row: Callable[..., Sequence[Any]]


def _make_process(instance: str, stored: int, seen_ns: int, *fields: Any) -> Sequence[Any]:
    *sender, reported_ns, progress, report = fields
    progress = 0 if report is None else progress + 1
    return instance, stored, seen_ns, (progress, seen_ns, dumps(sender)), (progress, reported_ns or 0, report or "")


_IMPORTED = {
    "open_run": _ImportedTable("open_runs", (*OPEN_RUN_COLUMNS, "number"), lambda *fields: fields),
    "process": _ImportedTable("processes", PROCESS_COLUMNS, _make_process),
    "amendment": _ImportedTable(
        "amendments",
        ("trace_id", "span_id", "project", "fields", "number", "id"),
        lambda *fields: (*fields[:4], fields[5], "copied"),
    ),
    "tombstone": _ImportedTable(
        "tombstones",
        ("trace_id", "deleted", "batch"),
        lambda trace_id, until_ns: (trace_id, max(0, until_ns - TOMBSTONE_NS) // 10**9, "copied"),
    ),
    "outlet": _ImportedTable(
        "outlets",
        ("name", "url", "cursor", "sent", "dropped", "opened_ns", "status"),
        lambda *fields: (*fields[:5], fields[6], (fields[6], fields[5])),
    ),
}
