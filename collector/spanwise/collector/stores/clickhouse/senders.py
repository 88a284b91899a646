"""Tables about the senders of spans: open runs, processes, and destinations of traced calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from spanwise.collector.records import OpenRun, Process, ProcessReport
from spanwise.collector.stores.clickhouse.connection import Database, QueryParameters
from spanwise.collector.stores.clickhouse.span_rows import SpanRow
from spanwise.collector.stores.run_codec import Fact
from spanwise.collector.stores.side_records import (
    OPEN_RUN_COLUMNS,
    PROCESS_FIELDS,
    encode_report,
    read_sender_process,
    truncate_open_run,
)
from spanwise.collector.stores.table_rows import dumps, loads
from spanwise.tracer.http_connections import MAX_DESTINATIONS

# Open runs: runs that have started and not ended. After the insert of a span, the writer looks for
# open runs, and after the insert of an open run for its span, so that none stays open after its span was stored.

MAX_OPEN_RUNS = 10_000
_SELECT_OPEN_RUNS = f"SELECT {', '.join(OPEN_RUN_COLUMNS)} FROM open_runs FINAL"


def add_open_runs(db: Database, runs: Iterable[OpenRun], deleted: Collection[str]) -> None:
    """Record started runs, except those that are recorded or stored already, and those of deleted traces."""
    wanted = {(run.trace_id, run.span_id): run for run in map(truncate_open_run, runs) if run.trace_id not in deleted}
    if not wanted:
        return
    # without FINAL: a run that has ended does not open again
    where = "trace_id IN {traces:Array(String)} AND span_id IN {spans:Array(String)}"
    ids = {"traces": [trace_id for trace_id, _ in wanted], "spans": [span_id for _, span_id in wanted]}
    recorded = set(db.query(f"SELECT trace_id, span_id FROM open_runs WHERE {where}", ids))
    new = [run for key, run in wanted.items() if key not in recorded]
    ended = _find_ended(db, new)
    new = [run for run in new if (run.trace_id, run.span_id) not in ended]
    _insert_open_runs(db, new, is_deleted=0)
    end_open_runs(db, {run.trace_id for run in new})


def _insert_open_runs(db: Database, runs: Sequence[OpenRun], *, is_deleted: int) -> None:
    columns = {name: [getattr(run, name) for run in runs] for name in OPEN_RUN_COLUMNS}
    db.insert("open_runs", {**columns, "is_deleted": [is_deleted] * len(runs), "floor": [db.floor()] * len(runs)})


def _find_ended(db: Database, runs: Sequence[OpenRun]) -> set[tuple[str, str]]:
    """Return those of the open runs whose span is stored, or which their process dropped: their trace is settled, and
    the root of their process's part of it has arrived.
    """
    if not runs:
        return set()
    parameters = QueryParameters()
    traces = parameters.texts({run.trace_id for run in runs})
    spans = parameters.texts({id for run in runs for id in (run.span_id, run.local_root) if id is not None})
    stored = set(
        db.query(f"SELECT trace_id, span_id FROM spans WHERE trace_id IN {traces} AND span_id IN {spans}", parameters)
    )
    settled = {
        row[0]
        for row in db.query(
            f"SELECT trace_id FROM traces FINAL WHERE trace_id IN {traces} AND complete = 1", parameters
        )
    }
    return {
        (run.trace_id, run.span_id)
        for run in runs
        if (run.trace_id, run.span_id) in stored
        or (run.trace_id in settled and (run.trace_id, run.local_root) in stored)
    }


def end_open_runs(db: Database, trace_ids: Iterable[str]) -> None:
    """Remove open runs of traces whose spans were stored."""
    ids = {"ids": list(trace_ids)}
    rows = db.query(f"{_SELECT_OPEN_RUNS} WHERE trace_id IN {{ids:Array(String)}}", ids) if ids["ids"] else []
    runs = [OpenRun(**dict(zip(OPEN_RUN_COLUMNS, row, strict=True))) for row in rows]
    ended = _find_ended(db, runs)
    _insert_open_runs(db, [run for run in runs if (run.trace_id, run.span_id) in ended], is_deleted=1)


def trim_open_runs(db: Database) -> None:
    """Remove the oldest open runs beyond `MAX_OPEN_RUNS`."""
    rows = db.query(f"{_SELECT_OPEN_RUNS} ORDER BY number DESC LIMIT {MAX_OPEN_RUNS}, {MAX_OPEN_RUNS}")
    runs = [OpenRun(**dict(zip(OPEN_RUN_COLUMNS, row, strict=True))) for row in rows]
    _insert_open_runs(db, runs, is_deleted=1)


def list_open_runs(
    db: Database, trace_id: str | None, project: str | None, environment: str | None, limit: int
) -> list[OpenRun]:
    """Return open runs, latest start first."""
    parameters = QueryParameters()
    conditions = {"trace_id": trace_id, "project": project, "environment": environment}
    where = [f"{name} = {parameters.text(value)}" for name, value in conditions.items() if value is not None]
    order = f"ORDER BY start_ns DESC, span_id LIMIT {parameters.integer(limit)}"
    rows = db.query(f"{_SELECT_OPEN_RUNS} WHERE {' AND '.join(where) or '1'} {order}", parameters)
    return [OpenRun(**dict(zip(OPEN_RUN_COLUMNS, row, strict=True))) for row in rows]


# Processes. Each row adds a number of spans, or replaces the report, so that collectors need not read before they write.


def count_spans(db: Database, rows: Sequence[SpanRow]) -> None:
    """Count spans that are stored for the first time, by the process that sent them."""
    counts: Counter[str] = Counter(row.resource for row in rows)
    first = {row.resource: row.fact for row in reversed(rows)}  # a process belongs to one project
    now = db.floor()
    columns = _ProcessColumns()
    for resource, count in counts.items():
        if process := read_sender_process(loads(resource)):
            fact = first[resource]
            sender = dumps([process.service, fact.project, fact.environment, process.pid])
            columns.add(process.instance, count, now, (0, now, sender), (0, 0, ""))
    columns.insert(db)


def add_reports(db: Database, reports: Iterable[ProcessReport]) -> None:
    """Store the reports of processes. The report with the higher counts is kept."""
    columns = _ProcessColumns()
    now = db.now()
    for report in reports:
        instance, _, *sender, reported_ns, progress, data = encode_report(report, now)
        # a report names its process better than spans do
        columns.add(instance, 0, now, (progress + 1, now, dumps(sender)), (progress + 1, reported_ns, data))
    columns.insert(db)


class _ProcessColumns:
    """Columns of rows of `processes`."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in "instance stored seen_ns sender report".split()}

    def add(self, *values: Any) -> None:
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def insert(self, db: Database) -> None:
        db.insert("processes", self._columns)


def list_processes(db: Database, since_ns: int | None, limit: int) -> list[Process]:
    """Return processes, the most recently active first."""
    sql = (
        "SELECT instance, stored, seen_ns, tupleElement(sender, 'data'), tupleElement(report, 'reported_ns'),"
        " tupleElement(report, 'data') FROM processes FINAL WHERE seen_ns >= {since:Int64}"
        " ORDER BY seen_ns DESC, instance LIMIT {limit:Int64}"
    )
    processes = list[Process]()
    for instance, stored, seen_ns, sender, reported_ns, data in db.query(sql, {"since": since_ns or 0, "limit": limit}):
        fields: Mapping[str, Any] = dict(zip(PROCESS_FIELDS, loads(sender), strict=True))
        report = ProcessReport(instance=instance, reported_ns=reported_ns, **fields, **loads(data)) if data else None
        processes.append(Process(instance=instance, stored=stored, seen_ns=seen_ns, **fields, report=report))
    return processes


# Destinations of calls that take part in tracing.


class Destinations:
    """Destinations whose spans have continued calls of a project: a call and the span that continues it have the same
    project.

    `of` answers from memory, which `refresh` updates with the destinations that other collectors have found.
    """

    def __init__(self, db: Database) -> None:
        self._db, self._lock = db, threading.Lock()
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, project: str) -> Sequence[str]:
        """Return the destinations of a project."""
        return self._known.get(project, ())

    def note(self, facts: Sequence[Fact]) -> None:
        """Store the destinations of calls that other spans of this trace continue."""
        calls = {fact.span_id: fact for fact in facts if fact.route}
        found = {
            (call.project, call.route or "")
            for fact in facts
            if fact.route == ""
            and (call := calls.get(fact.parent_id or "")) is not None
            and call.project == fact.project
        }
        new = [(project, name) for project, name in found if name not in self._known.get(project, ())]
        if new:
            projects, names = zip(*new, strict=True)
            self._db.insert("destinations", {"project": projects, "destination": names})
            self.refresh()

    def refresh(self) -> None:
        """Read the destinations of all collectors, the latest of each project."""
        sql = "SELECT project, destination FROM destinations FINAL ORDER BY seen DESC LIMIT {most:UInt32} BY project"
        known: dict[str, tuple[str, ...]] = {}
        for project, name in self._db.query(sql, {"most": MAX_DESTINATIONS}):
            known[project] = (*known.get(project, ()), name)
        with self._lock:
            self._known = known
