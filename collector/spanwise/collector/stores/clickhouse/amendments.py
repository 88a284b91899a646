"""Amendments: fields of runs that arrive outside their spans, before or after them.

An amendment is stored first and applied then. After the insert of a span, the writer looks for its amendments, and
after the insert of an amendment for its span. The later of the two applies it. Applying it twice changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from spanwise.collector.records import JSON, Amendment, Feedback, Target
from spanwise.collector.stores import trace_assembly
from spanwise.collector.stores.clickhouse import deletion, span_rows
from spanwise.collector.stores.clickhouse.connection import Database
from spanwise.collector.stores.clickhouse.span_rows import SpanRow
from spanwise.collector.stores.run_codec import Fact, extract_fact
from spanwise.collector.stores.side_records import (
    ANY_PROJECT,
    MAX_AMENDED_BYTES,
    NO_TRACE,
    AmendmentTarget,
    check_amended_size,
    find_amended_spans,
    get_amendment_target,
)
from spanwise.collector.stores.table_rows import dumps, loads
from spanwise.collector.stores.trace_assembly import FEEDBACK_FIELD

MAX_CANDIDATES = 8  # spans with the same response id


class RunWriter(Protocol):
    """Span writer as amendments use it. `stored` are summaries by trace, as `read_stored` returns them."""

    def put_feedback(self, feedback: Sequence[Feedback], /) -> object: ...

    def read_stored(self, trace_ids: Iterable[str]) -> Mapping[str, Any]: ...

    def read_runs(self, trace_id: str, span_ids: Sequence[str]) -> Sequence[Sequence[Any]]: ...

    def insert(self, spans: Mapping[str, Mapping[str, SpanRow]], stored: Mapping[str, Any]) -> None: ...

    def summarize(self, trace_ids: Collection[str], stored: Mapping[str, Any], new: Mapping[str, Any]) -> None: ...


class StoredAmendment(NamedTuple):
    """Row of `amendments`, without `applied`."""

    trace_id: str
    span_id: str
    project: str
    id: str
    fields: str
    number: int


_COLUMNS = ", ".join(StoredAmendment._fields)


def add_amendments(db: Database, writer: RunWriter, amended: Sequence[Amendment]) -> list[bool]:
    """Store amendments, and apply those whose run is stored. Return for each whether its run is stored or was deleted.

    Raise `Refused` for invalid fields; then nothing is stored.
    """
    encoded = [(get_amendment_target(one), trace_assembly.encode_fields(one.fields)) for one in amended]
    rows = list[StoredAmendment]()
    gone = deletion.find_deleted(db, {target.trace_id for target, _ in encoded} - {NO_TRACE})
    for target, fields in encoded:
        spans = [target]
        if target.trace_id == NO_TRACE:
            calls = _find_by_response(db, [target.span_id], target.project)
            spans = find_amended_spans(target, fields, calls) or spans
        if target.trace_id not in gone:
            text = dumps(fields)
            check_amended_size(f"the amendment of span {target.span_id!r}", len(text), MAX_AMENDED_BYTES)
            id = hashlib.sha256(f"{target}{text}".encode()).hexdigest()[:32]
            rows += [StoredAmendment(*span, id, text, 0) for span in spans]
    _insert(db, rows)
    traces = {row.trace_id: None for row in rows if row.trace_id != NO_TRACE}
    responses = [row.span_id for row in rows if row.trace_id == NO_TRACE]
    traces.update(dict.fromkeys(trace_id for trace_id, _ in _find_by_response(db, responses)))
    stored = writer.read_stored(traces)
    apply_waiting(db, writer, stored, stored)
    writer.summarize(stored, stored, {})
    gone |= deletion.remove_deleted(db, traces)
    sql = (
        "SELECT trace_id, span_id, project FROM spans FINAL"
        " WHERE trace_id IN {traces:Array(String)} AND span_id IN {spans:Array(String)}"
    )
    spans_found = db.query(sql, {"traces": [row.trace_id for row in rows], "spans": [row.span_id for row in rows]})
    present = {AmendmentTarget(row[0], row[1], name) for row in spans_found for name in (row[2], ANY_PROJECT)}
    return [
        target.trace_id in gone
        or target in present
        or (target.trace_id == NO_TRACE and bool(_find_by_response(db, [target.span_id], target.project)))
        for target, _ in encoded
    ]


def _insert(db: Database, rows: Sequence[StoredAmendment], *, applied: int = 0) -> None:
    """Insert rows. The same amendment sent again is the latest, and is applied again."""
    if not applied and rows:
        first = db.now()  # above the numbers of all amendments that any collector has stored
        rows = [row._replace(number=first + position) for position, row in enumerate(rows)]
    db.insert_rows("amendments", StoredAmendment._fields, rows, applied=applied)


def _find_by_response(db: Database, response_ids: Sequence[str], project: str = ANY_PROJECT) -> list[tuple[str, Fact]]:
    """Return the spans with these response ids, each as trace id and fact, the latest first."""
    if not response_ids:
        return []
    sql = (
        f"SELECT {span_rows.RUN_COLUMNS} FROM spans FINAL WHERE response_id IN {{ids:Array(String)}} AND {{project:String}} IN ('', project)"
        " ORDER BY start_ns DESC LIMIT {most:UInt32} BY response_id"
    )
    rows = db.query(sql, {"ids": list(response_ids), "project": project, "most": MAX_CANDIDATES})
    return [(run.trace_id, extract_fact(run)) for run in map(span_rows.decode_run, rows)]


def apply_waiting(db: Database, writer: RunWriter, trace_ids: Iterable[str], stored: Mapping[str, Any]) -> None:
    """Apply the amendments of traces that are not part of their stored runs, and store the feedback in them."""
    ids = list(trace_ids)
    if not ids or not db.query("SELECT 1 FROM amendments LIMIT 1"):
        return
    of_traces = f"SELECT {_COLUMNS}, applied, '' FROM amendments FINAL WHERE trace_id IN {{ids:Array(String)}}"
    # amendments of model responses, with the spans that have these responses
    calls = (
        "SELECT s.trace_id, s.span_id, a.project, a.id, a.fields, a.number, 0, a.span_id FROM amendments AS a FINAL INNER JOIN"
        " (SELECT trace_id, span_id, response_id FROM spans FINAL WHERE trace_id IN {ids:Array(String)} AND response_id <> '') AS s"
        " ON a.span_id = s.response_id WHERE a.trace_id = '' AND a.applied = 0"
    )
    by_span: dict[tuple[str, str], list[StoredAmendment]] = {}
    new: dict[StoredAmendment, list[StoredAmendment]] = {}  # not applied yet -> rows to be marked as applied
    for *row, applied, response_id in (*db.query(of_traces, {"ids": ids}), *db.query(calls, {"ids": ids})):
        amendment = StoredAmendment(*row)
        by_span.setdefault(amendment[:2], []).append(amendment)
        if not applied:
            of_response = amendment._replace(trace_id=NO_TRACE, span_id=response_id)
            new[amendment] = [amendment, of_response] if response_id else [amendment]
    feedback, done = list[Feedback](), list[StoredAmendment]()
    changed: dict[str, dict[str, SpanRow]] = {}
    for (trace_id, span_id), waiting in by_span.items():
        found = writer.read_runs(trace_id, [span_id])
        if not found:
            continue
        [[*row, version]] = found
        project = extract_fact(span_rows.decode_run(row)).project
        allowed = sorted((one for one in waiting if one.project in (ANY_PROJECT, project)), key=lambda one: one.number)
        target = Target(trace_id=trace_id, span_id=span_id)
        for amendment in allowed:
            if amendment in new:
                done += new[amendment]
                feedback += trace_assembly.make_feedback(target, loads(amendment.fields).get(FEEDBACK_FIELD, {}))
        count = max(version & span_rows.MAX_AMENDMENTS, len(allowed)) + 1
        if amended := _amend_row(row, [loads(amendment.fields) for amendment in allowed], count):
            changed.setdefault(trace_id, {})[span_id] = amended
    writer.insert(changed, stored)
    writer.put_feedback(feedback)
    _insert(db, done, applied=1)


def _amend_row(row: Sequence[Any], all_fields: Sequence[dict[str, JSON]], count: int) -> SpanRow | None:
    """Return the stored run with its amendments; None if it has them already. Raise `Refused` if it becomes too large."""
    earlier = span_rows.decode_amendments(row)
    before = earlier[1] if earlier else {}
    fields = [{name: value for name, value in one.items() if name != FEEDBACK_FIELD} for one in all_fields]
    merged = trace_assembly.merge_fields(before, *fields)
    if merged == before:
        return None
    run = span_rows.decode_run(row)
    sent = earlier[0] if earlier else extract_fact(run).size
    amended = span_rows.encode_amended_row(trace_assembly.apply_amendment(run, merged, before), merged, sent, count)
    check_amended_size(f"amended span {run.span_id!r}", len(amended.payload), MAX_AMENDED_BYTES)
    return amended
