"""Span writer: inserts batches of spans, merges versions and amendments, and writes summaries.

Any number of collectors write at once, also spans of the same trace, and none locks anything. Two rules make that
safe:

- A collector first inserts and then reads what others may have inserted meanwhile. Of two collectors, the one that
  reads later therefore sees the rows of both.
- Of two rows with one key, the engine keeps that with the higher version. The version of a summary is the server's
  time after its spans were inserted and before they were read, so the summary of more spans is kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spanwise.collector.records import Feedback
from spanwise.collector.stores import trace_assembly
from spanwise.collector.stores.clickhouse import amendments, deletion, senders
from spanwise.collector.stores.clickhouse.connection import Database, get_day
from spanwise.collector.stores.clickhouse.span_rows import (
    CHECKSUM,
    FACT_COLUMNS,
    RUN_COLUMNS,
    SpanBatch,
    SpanRow,
    Summary,
    decode_amendments,
    decode_fact,
    decode_run,
    encode_amended_row,
    get_checksum,
    make_span_columns,
    make_summary_columns,
    summarize_facts,
)
from spanwise.collector.stores.run_codec import SPAN_COLUMN_COUNT, Fact, supersedes

LARGE_TRACE_SPANS = 10_000  # a trace with more spans is summed up at most once in `LARGE_TRACE_SECONDS`
LARGE_TRACE_SECONDS = 10.0
TRACES_PER_READ = 2_000  # traces whose spans are read by one query


class StoredTrace(NamedTuple):
    """Fields of a stored summary that a writer needs."""

    number: int
    change: int
    start_ns: int
    span_count: int
    checksum: int


class StoredSpan(NamedTuple):
    """Fact of a stored span, the version of its row, and the version of its service."""

    fact: Fact
    version: int
    service_version: str | None


class SpanWriter:
    """Writer of spans and summaries. Any thread may use it."""

    def __init__(self, db: Database, put_feedback: Callable[[Sequence[Feedback]], object]) -> None:
        """`put_feedback` stores the feedback in amendments."""
        self._db, self.put_feedback = db, put_feedback
        self.late = 0  # spans of deleted traces that were not stored
        self.keep_days: Mapping[str, int] = {}  # by project, "" for all; see `deletion.read_keep_days`
        self.destinations = senders.Destinations(db)

    def write(self, batches: Sequence[SpanBatch]) -> None:
        """Insert the runs of all batches, and the summaries of their traces. Return when they are durable."""
        incoming = _latest_versions(batches)
        gone, known = deletion.find_deleted_and_present(self._db, incoming, "traces")
        self.late += sum(len(incoming.pop(trace_id)) for trace_id in gone)
        if not incoming:
            return
        stored = self._read_summaries(known - gone)
        before = self._read_versions(incoming, stored)
        changed = self._choose_changed(incoming, before)
        self.insert(changed, stored)
        amendments.apply_waiting(self._db, self, incoming, stored)
        new = {trace_id: rows for trace_id, rows in changed.items() if trace_id not in stored}
        self.summarize(incoming, stored, new, forced=changed)
        # deleted since the first look, but before the rows were inserted
        gone, running = deletion.find_deleted_and_present(self._db, incoming, "open_runs")
        senders.end_open_runs(self._db, running)
        arrived = {
            trace_id: [row for span_id, row in rows.items() if (trace_id, span_id) not in before]
            for trace_id, rows in changed.items()
        }
        senders.count_spans(self._db, [row for rows in arrived.values() for row in rows])
        if gone:
            deletion.remove_rows(self._db, gone)

    def read_stored(self, trace_ids: Iterable[str]) -> dict[str, StoredTrace]:
        """Return the stored summaries of traces."""
        sql = "SELECT DISTINCT trace_id FROM traces WHERE trace_id IN {ids:Array(String)}"
        # most traces are new, and one column takes half the time
        return self._read_summaries(row[0] for row in self._db.query(sql, {"ids": list(trace_ids)}))

    def _read_summaries(self, trace_ids: Iterable[str]) -> dict[str, StoredTrace]:
        ids = {"ids": list(trace_ids)}
        columns = "trace_id, number, change, start_ns, span_count, checksum"
        sql = f"SELECT {columns} FROM traces FINAL WHERE trace_id IN {{ids:Array(String)}}"
        return {row[0]: StoredTrace(*row[1:]) for row in self._db.query(sql, ids)} if ids["ids"] else {}

    def _read_versions(
        self, incoming: Mapping[str, Mapping[str, SpanRow]], stored: Iterable[str]
    ) -> dict[tuple[str, str], StoredSpan]:
        """Return the stored versions of incoming spans, by trace and span id."""
        traces = list(stored)
        spans = [span_id for trace_id in traces for span_id in incoming[trace_id]]
        where = "trace_id IN {ids:Array(String)} AND span_id IN {spans:Array(String)}"
        found = self._read_facts(where, {"ids": traces, "spans": spans}) if spans else {}
        return {
            (trace_id, span.fact.span_id): span
            for trace_id, of_trace in found.items()
            for span in of_trace
            if span.fact.span_id in incoming[trace_id]
        }

    def _read_facts(self, where: str, parameters: Mapping[str, Any]) -> dict[str, list[StoredSpan]]:
        sql = f"SELECT {', '.join(FACT_COLUMNS)}, trace_id FROM spans FINAL WHERE {where} ORDER BY number"
        found: dict[str, list[StoredSpan]] = {}
        for row in self._db.query(sql, parameters):
            found.setdefault(row[-1], []).append(StoredSpan(decode_fact(row), row[-3], row[-2]))
        return found

    def _choose_changed(
        self, incoming: Mapping[str, Mapping[str, SpanRow]], before: Mapping[tuple[str, str], StoredSpan]
    ) -> dict[str, dict[str, SpanRow]]:
        """Return the spans that are new or replace their stored version. They keep earlier amendments."""
        changed: dict[str, dict[str, SpanRow]] = {}
        for trace_id, rows in incoming.items():
            for span_id, row in rows.items():
                old = before.get((trace_id, span_id))
                if old is not None and not supersedes(row.fact, old.fact):
                    continue
                if old is not None and old.fact.sent is not None:
                    row = self._keep_amendments(trace_id, row)
                changed.setdefault(trace_id, {})[span_id] = row
        return changed

    def _keep_amendments(self, trace_id: str, row: SpanRow) -> SpanRow:
        """Return a new version of an amended run with the amendments of the stored version."""
        stored = self.read_runs(trace_id, [row.fact.span_id])
        amended = decode_amendments(stored[0][:-1]) if stored else None
        if not amended:  # deleted meanwhile
            return row
        sent = decode_run((trace_id, *row.fact[:SPAN_COLUMN_COUNT], row.payload, row.resource))
        run = trace_assembly.reapply_amendments(sent, amended[1])
        return encode_amended_row(run, amended[1], row.fact.size, 1)

    def read_runs(self, trace_id: str, span_ids: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return rows of `RUN_COLUMNS`, and the version of the row, of some runs of a trace."""
        where = "trace_id = {trace:String} AND span_id IN {spans:Array(String)}"
        sql = f"SELECT {RUN_COLUMNS}, version FROM spans FINAL WHERE {where}"
        return self._db.query(sql, {"trace": trace_id, "spans": list(span_ids)})

    def insert(self, spans: Mapping[str, Mapping[str, SpanRow]], stored: Mapping[str, StoredTrace]) -> None:
        """Insert spans, by trace and span id, in the partition of their trace's first start."""
        trace_ids, rows, days = list[str](), list[SpanRow](), list[int]()
        for trace_id, of_trace in spans.items():
            starts = [row.fact.start_ns for row in of_trace.values()]
            first = min(starts) if trace_id not in stored else min(*starts, stored[trace_id].start_ns)
            trace_ids += [trace_id] * len(of_trace)
            rows += of_trace.values()
            days += [get_day(first)] * len(of_trace)
        if rows:
            keep = [self.find_keep_days(row.fact.project) for row in rows]
            columns = make_span_columns(trace_ids, rows, days, keep)
            self._db.insert_by_month("spans", columns, secrets.token_hex(8))

    def find_keep_days(self, project: str) -> int:
        """Return the number of days after which the engine deletes rows of a project; 0: never."""
        return deletion.find_keep_days(self.keep_days, project)

    def summarize(
        self,
        trace_ids: Collection[str],
        stored: Mapping[str, StoredTrace],
        new: Mapping[str, Mapping[str, SpanRow]],
        forced: Iterable[str] = (),
        *,
        postpone: bool = True,
    ) -> None:
        """Write the summaries of traces whose spans have been inserted.

        `new` has all spans of traces that had none before. Their summary is computed without reading them, unless other
        collectors have inserted more. A summary that includes all spans is not written again, except for `forced`.
        """
        version, forced = self._db.now(), set(forced).intersection(stored)
        large = {id for id in trace_ids if id in stored and stored[id].span_count > LARGE_TRACE_SPANS}
        if postpone:
            recent = {id for id in large if version - stored[id].change < LARGE_TRACE_SECONDS * 1e9}
            marks: dict[str, Sequence[Any]] = {
                "trace_id": sorted(recent),
                "is_done": [0] * len(recent),
                "floor": [version] * len(recent),
            }
            self._db.insert("pending_summaries", marks)  # the summaries must be written, by any collector
            trace_ids, large, forced = [id for id in trace_ids if id not in recent], large - recent, forced - recent
        sums = self._sum_versions([id for id in trace_ids if id not in large and id not in forced])
        summaries: dict[str, Summary] = {}
        unread = [*large, *(forced - large)]
        for trace_id, checksum in sums.items():
            rows = new.get(trace_id, {}).values()
            if rows and checksum == get_checksum(row.version for row in rows):
                summaries[trace_id] = summarize_facts((row.fact, row.version, row.service_version) for row in rows)
            elif trace_id not in stored or stored[trace_id].checksum != checksum:
                unread.append(trace_id)
        for start in range(0, len(unread), TRACES_PER_READ):
            some = unread[start : start + TRACES_PER_READ]
            for trace_id, found in self._read_facts("trace_id IN {ids:Array(String)}", {"ids": some}).items():
                summary = summarize_facts(found)
                if trace_id in forced or trace_id not in stored or stored[trace_id].checksum != summary.checksum:
                    summaries[trace_id] = summary
                self.destinations.note([span.fact for span in found])
        for trace_id in summaries.keys() & new.keys():
            self.destinations.note([row.fact for row in new[trace_id].values()])
        if summaries:
            numbers = {trace_id: trace.number for trace_id, trace in stored.items()}
            summaries = {trace_id: summaries[trace_id] for trace_id in trace_ids if trace_id in summaries}
            columns = make_summary_columns(summaries, numbers, version, self._db.floor(), self.find_keep_days)
            self._db.insert_by_month("traces", columns, secrets.token_hex(8))

    def _sum_versions(self, trace_ids: Sequence[str]) -> dict[str, int]:
        """Return the sum over the versions of all rows of each trace.

        Rows that will be replaced are included. The sum is therefore the checksum of the spans, or higher. Without
        `FINAL`, the query takes a third of the time.
        """
        sql = f"SELECT trace_id, {CHECKSUM} FROM spans WHERE trace_id IN {{ids:Array(String)}} GROUP BY trace_id"
        return dict(self._db.query(sql, {"ids": list(trace_ids)})) if trace_ids else {}

    def write_postponed(self) -> None:
        """Write the summaries of large traces that were postponed `LARGE_TRACE_SECONDS` ago."""
        sql = "SELECT trace_id, number FROM pending_summaries FINAL WHERE number <= {before:UInt64} LIMIT 100"
        due = dict(self._db.query(sql, {"before": self._db.now() - int(LARGE_TRACE_SECONDS * 1e9)}))
        if due:
            self.summarize(due, self.read_stored(due), {}, forced=due, postpone=False)
            # The marker has the number of the row that it replaces. A trace that was postponed again has a higher one
            done = {"trace_id": list(due), "is_done": [1] * len(due), "number": list(due.values())}
            self._db.insert("pending_summaries", done)
            deletion.remove_deleted(self._db, due)


def _latest_versions(batches: Iterable[SpanBatch]) -> dict[str, dict[str, SpanRow]]:
    """Return the spans of batches by trace and id. Of several versions, return the one that supersedes the others."""
    traces: dict[str, dict[str, SpanRow]] = {}
    for batch in batches:
        for trace_id, row in zip(batch.trace_ids, batch.rows, strict=True):
            spans = traces.setdefault(trace_id, {})
            earlier = spans.get(row.fact.span_id)
            if earlier is None or supersedes(row.fact, earlier.fact):
                spans[row.fact.span_id] = row
    return traces
