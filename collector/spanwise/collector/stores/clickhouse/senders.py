"""Tables about the senders of spans: open runs, processes, and destinations of traced calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from spanwise.collector.records import OpenRun, Process, ProcessReport
from spanwise.collector.stores.clickhouse.connection import Connection, Database, QueryParameters, Row
from spanwise.collector.stores.clickhouse.span_rows import SpanRow
from spanwise.collector.stores.run_codec import Fact
from spanwise.collector.stores.side_records import (
    MAX_OPEN_RUNS,
    OPEN_RUN_COLUMNS,
    encode_report,
    group_open_runs,
    make_open_run,
    make_process,
    read_sender_process,
    truncate_open_run,
)
from spanwise.collector.stores.table_rows import dumps, loads
from spanwise.tracer.http_connections import MAX_DESTINATIONS

# Open runs: runs that have started and not ended. After the insert of a span, the writer looks for
# open runs, and after the insert of an open run for its span, so that none stays open after its span was stored.

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
    rows = [[getattr(run, name) for name in OPEN_RUN_COLUMNS] for run in runs]
    db.insert_rows("open_runs", OPEN_RUN_COLUMNS, rows, is_deleted=is_deleted, floor=db.floor())


def _find_ended(db: Database, runs: Sequence[OpenRun]) -> set[tuple[str, str]]:
    """Return those of the open runs whose span is stored, or which their process dropped: their trace is settled, and
    the root of their process's part of it has arrived.
    """
    traces = {run.trace_id for run in runs}
    spans = {id for run in runs for id in (run.span_id, run.local_root) if id is not None}
    sql = "SELECT (trace_id, span_id) FROM spans WHERE trace_id IN {ids:Array(String)} AND span_id IN {spans:Array(String)}"
    stored = db.find(sql, traces, spans=list(spans))
    sql = "SELECT trace_id FROM traces FINAL WHERE trace_id IN {ids:Array(String)} AND complete = 1"
    settled = db.find(sql, traces)
    return {
        (run.trace_id, run.span_id)
        for run in runs
        if (run.trace_id, run.span_id) in stored
        or (run.trace_id in settled and (run.trace_id, run.local_root) in stored)
    }


def end_open_runs(db: Database, trace_ids: Iterable[str]) -> None:
    """Remove open runs of traces whose spans were stored."""
    runs = [run for of_trace in read_open_runs(db, list(trace_ids)).values() for run in of_trace]
    ended = _find_ended(db, runs)
    _insert_open_runs(db, [run for run in runs if (run.trace_id, run.span_id) in ended], is_deleted=1)


def read_open_runs(db: Connection, trace_ids: Sequence[str]) -> dict[str, list[OpenRun]]:
    """Return open runs by trace, in order of start time."""
    sql = f"{_SELECT_OPEN_RUNS} WHERE trace_id IN {{ids:Array(String)}} ORDER BY start_ns, span_id"
    return group_open_runs(db.query(sql, {"ids": trace_ids})) if trace_ids else {}


def trim_open_runs(db: Database) -> None:
    """Remove the oldest open runs beyond `MAX_OPEN_RUNS`."""
    rows = db.query(f"{_SELECT_OPEN_RUNS} ORDER BY number DESC LIMIT {MAX_OPEN_RUNS}, {MAX_OPEN_RUNS}")
    _insert_open_runs(db, list(map(make_open_run, rows)), is_deleted=1)


def list_open_runs(
    db: Database, trace_id: str | None, project: str | None, environment: str | None, limit: int
) -> list[OpenRun]:
    """Return open runs, latest start first."""
    parameters = QueryParameters()
    conditions = {"trace_id": trace_id, "project": project, "environment": environment}
    where = [f"{name} = {parameters.text(value)}" for name, value in conditions.items() if value is not None]
    order = f"ORDER BY start_ns DESC, span_id LIMIT {parameters.integer(limit)}"
    rows = db.query(f"{_SELECT_OPEN_RUNS} WHERE {' AND '.join(where) or '1'} {order}", parameters)
    return list(map(make_open_run, rows))


# Processes. Each row adds a number of spans, or replaces the report, so that collectors need not read before they write.

PROCESS_COLUMNS = ("instance", "stored", "seen_ns", "sender", "report")


def count_spans(db: Database, rows: Sequence[SpanRow]) -> None:
    """Count spans that are stored for the first time, by the process that sent them."""
    counts: Counter[str] = Counter(row.resource for row in rows)
    first = {row.resource: row.fact for row in reversed(rows)}  # a process belongs to one project
    now = db.floor()
    processes = list[Row]()
    for resource, count in counts.items():
        if process := read_sender_process(loads(resource)):
            fact = first[resource]
            sender = dumps([process.service, fact.project, fact.environment, process.pid])
            processes.append((process.instance, count, now, (0, now, sender), (0, 0, "")))
    db.insert_rows("processes", PROCESS_COLUMNS, processes)


def add_reports(db: Database, reports: Iterable[ProcessReport]) -> None:
    """Store the reports of processes. The report with the higher counts is kept."""
    processes, now = list[Row](), db.now()
    for report in reports:
        instance, _, *sender, reported_ns, progress, data = encode_report(report, now)
        # a report names its process better than spans do
        of_sender = progress + 1, now, dumps(sender)
        processes.append((instance, 0, now, of_sender, (progress + 1, reported_ns, data)))
    db.insert_rows("processes", PROCESS_COLUMNS, processes)


def list_processes(db: Database, since_ns: int | None, limit: int) -> list[Process]:
    """Return processes, the most recently active first."""
    sql = (
        "SELECT instance, stored, seen_ns, tupleElement(sender, 'data'), tupleElement(report, 'reported_ns'),"
        " tupleElement(report, 'data') FROM processes FINAL WHERE seen_ns >= {since:Int64}"
        " ORDER BY seen_ns DESC, instance LIMIT {limit:Int64}"
    )
    rows = db.query(sql, {"since": since_ns or 0, "limit": limit})
    return [make_process(row[:3], loads(row[3]), *row[4:]) for row in rows]


# Destinations of calls that take part in tracing.


class Destinations:
    """Destinations whose spans have continued calls of a project: a call and the span that continues it have the same
    project.

    `of` answers from memory, which `refresh` updates with the destinations that other collectors have found.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
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
        self._known = known
