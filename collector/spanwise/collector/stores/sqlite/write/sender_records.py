"""Tables about the senders of spans: resources, processes, open runs, destinations, and values for filter menus.

A destination takes part in a project once a span of that project continues a call that another span of the project
made to it. A sender with a project's API key always belongs to that project. Therefore no sender can add destinations
to another project.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from spanwise.collector.records import JSON, OpenRun, Process, ProcessReport
from spanwise.collector.stores.sqlite.database.bulk_statements import build_upsert_clause, insert_many, select_many
from spanwise.collector.stores.sqlite.database.column_values import INT_MAX, clean, dumps, loads
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.write.run_codec import Fact
from spanwise.tracer import attribute_names as names
from spanwise.tracer.propagation_targets import MAX_DESTINATIONS

MAX_OPEN_RUNS = 10_000
MAX_OPEN_RUN_AGE_NS = 7 * 86_400 * 10**9  # age of an open run after which its process has surely died
MAX_TEXT_CHARACTERS = 1000
OPEN_RUN_COLUMNS = tuple(field.name for field in fields(OpenRun))
_WITHOUT_SPANS = "NOT EXISTS (SELECT 1 FROM traces t WHERE t.trace_id = o.trace_id AND t.span_count > 0)"
_SELECT_OPEN_RUNS = f"SELECT {','.join(f'o.{name}' for name in OPEN_RUN_COLUMNS)} FROM open_runs o"


class OpenRunTable:
    """Table of open runs, with an index in memory: a trace without open runs costs one dict lookup."""

    def __init__(self, db: sqlite3.Connection, clock: StoreClock) -> None:
        self._db, self._clock, self.most = db, clock, MAX_OPEN_RUNS
        self._by_trace: dict[str, dict[str, str | None]] = {}  # trace -> span -> local root
        self._next_look = 0.0  # next time to look for old runs
        self.forget()

    def __bool__(self) -> bool:
        """Return whether any run is open."""
        return bool(self._by_trace)

    def forget(self) -> None:
        """Read the table again, because the index in memory may be wrong after a rollback."""
        self._by_trace.clear()
        for trace, span, local_root in self._db.execute("SELECT trace_id, span_id, local_root FROM open_runs"):
            self._by_trace.setdefault(trace, {})[span] = local_root

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Drop deleted traces from memory."""
        for trace_id in trace_ids:
            self._by_trace.pop(trace_id, None)

    def remove_ended(self, trace_id: str, key: int, new: Iterable[str], *, settled: bool) -> int:
        """Remove the open runs of a trace that these new spans end; return the number of runs still open.

        If the trace is settled, also remove open runs whose local root has arrived, because their process has dropped
        them.
        """
        still_open = self._by_trace.get(trace_id)
        if still_open is None:
            return 0
        ended = {span for span in new if span in still_open}
        if settled:
            roots = {root for root in still_open.values() if root is not None}
            sql = "SELECT span_id FROM spans WHERE trace = ? AND span_id IN (%s)"
            stored = {row[0] for row in select_many(self._db, sql, roots, (key,))}
            ended |= {span for span, root in still_open.items() if root in stored}
        self._remove([(trace_id, span) for span in ended])
        return len(still_open)

    def add(self, runs: Sequence[OpenRun]) -> tuple[set[str], set[str]]:
        """Store the open runs that are not known yet.

        Returns their trace ids, and the ids of traces whose summary must be rewritten because their old open runs
        were removed.
        """
        new_runs = {(run.trace_id, run.span_id): run for run in map(_truncate_open_run, runs) if self._is_new(run)}
        now = self._clock.now()
        rows = [(*(getattr(run, name) for name in OPEN_RUN_COLUMNS), now) for run in new_runs.values()]
        insert_many(self._db, "open_runs", (*OPEN_RUN_COLUMNS, "seen_ns"), rows)
        for run in new_runs.values():
            self._by_trace.setdefault(run.trace_id, {})[run.span_id] = run.local_root
        mark = "UPDATE traces SET running = running + 1, complete = 0, updated_ns = ? WHERE trace_id = ?"
        self._db.executemany(mark, [(now, trace_id) for trace_id, _ in new_runs])
        return {trace_id for trace_id, _ in new_runs}, self._trim()

    def expire(self, before_ns: int, project: str | None) -> None:
        """Remove open runs that began before a time, of traces without spans. Others are deleted with their trace."""
        sql = f"SELECT o.trace_id, o.span_id FROM open_runs o WHERE {_WITHOUT_SPANS} AND o.start_ns < ?"
        condition = "" if project is None else " AND o.project = ?"
        self._remove(self._db.execute(sql + condition, (before_ns, *([project] if condition else ()))).fetchall())

    def _is_new(self, run: OpenRun) -> bool:
        if run.span_id in self._by_trace.get(run.trace_id, ()):
            return False
        is_stored = "EXISTS (SELECT 1 FROM spans s WHERE s.trace = t.id AND s.span_id = ?)"
        sql = f"SELECT {is_stored} OR (t.complete IS 1 AND {is_stored}) FROM traces t WHERE t.trace_id = ?"
        row = self._db.execute(sql, (run.span_id, run.local_root, run.trace_id)).fetchone()
        return row is None or not row[0]

    def _trim(self) -> set[str]:
        """Remove runs that are too old, and the oldest beyond the limit.

        Removes a tenth more than necessary, because finding them scans the table.
        """
        count = sum(map(len, self._by_trace.values()))
        excess = count - self.most + self.most // 10 if count > self.most else 0
        if not excess and time.monotonic() < self._next_look:
            return set()
        self._next_look = time.monotonic() + 60
        sql = "SELECT trace_id, span_id, seen_ns < ? FROM open_runs ORDER BY seen_ns, start_ns"
        oldest = self._db.execute(sql, (self._clock.now() - MAX_OPEN_RUN_AGE_NS,)).fetchall()
        outdated = [(trace, span) for position, (trace, span, old) in enumerate(oldest) if old or position < excess]
        self._remove(outdated)
        return {trace for trace, _ in outdated}

    def _remove(self, keys: Sequence[tuple[str, str]]) -> None:
        self._db.executemany("DELETE FROM open_runs WHERE trace_id = ? AND span_id = ?", keys)
        for trace_id, span_id in keys:
            del self._by_trace[trace_id][span_id]
            if not self._by_trace[trace_id]:
                del self._by_trace[trace_id]


def _truncate_open_run(run: OpenRun) -> OpenRun:
    """Clean and truncate a run for the table."""
    fields = {name: clean(getattr(run, name)) for name in OPEN_RUN_COLUMNS}
    texts = {name: value[:MAX_TEXT_CHARACTERS] for name, value in fields.items() if isinstance(value, str)}
    return OpenRun(**{**fields, **texts, "start_ns": max(0, min(run.start_ns, INT_MAX))})


def list_open_runs(
    db: sqlite3.Connection, trace_id: str | None, project: str | None, environment: str | None, limit: int
) -> list[OpenRun]:
    """Return open runs, latest start first."""
    conditions = {"trace_id": trace_id, "project": project, "environment": environment}
    values = {name: value for name, value in conditions.items() if value is not None}
    where = [f"o.{name} = ?" for name in values]
    sql = f"{_SELECT_OPEN_RUNS} WHERE {' AND '.join(where) or '1'} ORDER BY o.start_ns DESC, o.span_id LIMIT ?"
    return [_open_run_from_row(row) for row in db.execute(sql, (*values.values(), limit))]


def read_open_runs(db: sqlite3.Connection, trace_ids: Iterable[str]) -> dict[str, list[OpenRun]]:
    """Return open runs by trace, in order of start time."""
    by_trace: dict[str, list[OpenRun]] = {}
    for row in select_many(db, f"{_SELECT_OPEN_RUNS} WHERE o.trace_id IN (%s) ORDER BY o.start_ns", trace_ids):
        by_trace.setdefault(row[0], []).append(_open_run_from_row(row))
    return by_trace


def _open_run_from_row(row: Sequence[Any]) -> OpenRun:
    return OpenRun(**dict(zip(OPEN_RUN_COLUMNS, row, strict=True)))


MAX_PROCESSES = 10_000
MAX_DROP_REASONS = 50  # maximum number of drop reasons in one report
MAX_INSTANCE_CHARACTERS = 200
_COUNT_FIELDS = ("started", "open", "delivered", "spilled", "pending")
_PROCESS_FIELDS = ("service", "project", "environment", "pid")
_REPORT_COLUMNS = ("instance", "seen_ns", *_PROCESS_FIELDS, "reported_ns", "progress", "report")
_ADD_STORED_COUNT = (
    f"INSERT INTO processes (instance, stored, seen_ns, {','.join(_PROCESS_FIELDS)}) VALUES (?,?,?,?,?,?,?)"
    " ON CONFLICT (instance) DO UPDATE SET stored = stored + excluded.stored, seen_ns = excluded.seen_ns"
)
_PUT_REPORT = (
    f"INSERT INTO processes ({','.join(_REPORT_COLUMNS)}) VALUES (?,?,?,?,?,?,?,?,?) {build_upsert_clause(_REPORT_COLUMNS)}"
    " WHERE excluded.progress >= coalesce(processes.progress, 0)"
)
_LEAST_RECENT = "instance IN (SELECT instance FROM processes ORDER BY seen_ns DESC LIMIT -1 OFFSET ?)"


class SenderProcess(NamedTuple):
    """Process named by a resource."""

    instance: str
    service: str | None
    pid: int | None


def read_sender_process(resource: Mapping[str, JSON]) -> SenderProcess | None:
    """Return the process that a resource names, or None."""
    instance, service, pid = (resource.get(name) for name in (names.INSTANCE, "service.name", names.REPORT_PID))
    if not isinstance(instance, str) or not 0 < len(instance) <= MAX_INSTANCE_CHARACTERS:
        return None
    return SenderProcess(instance, service if isinstance(service, str) else None, pid if isinstance(pid, int) else None)


class ProcessTable:
    """Table of sender processes, for the writer."""

    def __init__(self, db: sqlite3.Connection, clock: StoreClock) -> None:
        self._db, self._clock, self.most = db, clock, MAX_PROCESSES
        self._untrimmed = MAX_PROCESSES

    def count(self, arrived: Counter[tuple[SenderProcess, str, str]]) -> None:
        """Count new spans by process, project and environment."""
        now = self._clock.now()
        rows = [
            (process.instance, count, now, process.service, project, environment, process.pid)
            for (process, project, environment), count in arrived.items()
        ]
        self._db.executemany(_ADD_STORED_COUNT, rows)
        self._trim(len(rows))

    def report(self, reports: Sequence[ProcessReport]) -> None:
        """Store the reports that are newer than the stored ones."""
        now = self._clock.now()
        self._db.executemany(_PUT_REPORT, [_report_row(report, now) for report in reports])
        self._trim(len(reports))

    def _trim(self, written: int) -> None:
        self._untrimmed += written
        if self._untrimmed > self.most // 10:
            self._untrimmed = 0
            self._db.execute(f"DELETE FROM processes WHERE {_LEAST_RECENT}", (self.most,))


def _report_row(report: ProcessReport, now: int) -> tuple[Any, ...]:
    counts: dict[str, JSON] = {name: _bounded_count(getattr(report, name)) for name in _COUNT_FIELDS}
    dropped = {
        str(reason)[:64]: _bounded_count(count) for reason, count in islice(report.dropped.items(), MAX_DROP_REASONS)
    }
    process = (clean(getattr(report, name)) for name in _PROCESS_FIELDS)
    # These counts never decrease, so they tell which report is later even if the process's clock is set back.
    progress = _bounded_count(report.started + report.delivered + sum(report.dropped.values()))
    data = dumps({**counts, "dropped": dropped})
    return (clean(report.instance), now, *process, _bounded_count(report.reported_ns), progress, data)


def _bounded_count(value: int) -> int:
    return max(0, min(value, INT_MAX))


def list_processes(db: sqlite3.Connection, since_ns: int | None, limit: int) -> list[Process]:
    """Return processes, the most recently active first."""
    columns = f"instance, stored, seen_ns, {','.join(_PROCESS_FIELDS)}, reported_ns, report"
    sql = f"SELECT {columns} FROM processes WHERE seen_ns >= ? ORDER BY seen_ns DESC, instance LIMIT ?"
    processes = list[Process]()
    for instance, count, seen_ns, *values, reported_ns, data in db.execute(sql, (since_ns or 0, limit)):
        fields: dict[str, Any] = dict(zip(_PROCESS_FIELDS, values, strict=True))
        report: ProcessReport | None = None
        if data is not None:
            report = ProcessReport(instance=instance, reported_ns=reported_ns, **fields, **loads(data))
        processes.append(Process(instance=instance, stored=count, seen_ns=seen_ns, **fields, report=report))
    return processes


# Limits of the caches of resources and of distinct values, and characters of a cached resource: senders may invent
# new ones forever.
CACHED_RESOURCES, CACHED_VALUES, MAX_CACHED_CHARACTERS = 2_000, 5_000, 4_000


class ResourceTable:
    """Table of resources, each stored once, with a cache of their keys and processes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._keys: dict[str, int] = {}
        self._processes: dict[int, SenderProcess | None] = {}

    def __len__(self) -> int:
        """Return the number of cached resources."""
        return max(len(self._keys), len(self._processes))

    def forget(self) -> None:
        """Clear the cache, which may be ahead of the file after a rollback."""
        self._keys.clear()
        self._processes.clear()

    def trim(self) -> None:
        """Clear the cache if it exceeds its limit. Keys that `key` returned since the last call stay valid."""
        if len(self._processes) > CACHED_RESOURCES:
            self.forget()

    def key(self, blob: str) -> int:
        """Return the key of a resource; insert it if it is missing."""
        key = self._keys.get(blob)
        if key is None:
            self._db.execute("INSERT OR IGNORE INTO resources (data) VALUES (?)", (blob,))
            key = int(self._db.execute("SELECT id FROM resources WHERE data = ?", (blob,)).fetchone()[0])
            self._processes[key] = read_sender_process(loads(blob))
            if len(blob) <= MAX_CACHED_CHARACTERS:
                self._keys[blob] = key
        return key

    def count_by_process(self, spans: Sequence[tuple[int, Fact]]) -> Counter[tuple[SenderProcess, str, str]]:
        """Count spans, given with their resource, by process, project and environment."""
        # a process belongs to one project, so the first span of each resource names it
        first = dict(reversed(spans))
        counts: Counter[tuple[SenderProcess, str, str]] = Counter()
        for resource, count in Counter([resource for resource, _ in spans]).items():
            if process := self._processes.get(resource):
                counts[process, first[resource].project, first[resource].environment] += count
        return counts


class FilterValueTable:
    """Distinct values for filter menus that no index can list."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._stored: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        """Return the number of cached values."""
        return len(self._stored)

    def forget(self) -> None:
        """Clear the cache, which may be ahead of the file after a rollback."""
        self._stored.clear()

    def add(self, facts: Sequence[Fact]) -> None:
        """Store the values of spans that are not stored yet."""
        values = {("kind", fact.kind) for fact in facts} | {("environment", fact.environment) for fact in facts}
        values |= {("model", fact.model) for fact in facts if fact.model is not None}
        values |= {("tag", tag) for fact in facts for tag in fact.tags}
        for labels in {fact.labels for fact in facts if fact.labels is not None}:
            prompt_name, prompt_version, agent_name, finish_reasons, _ = labels
            named = (("prompt", prompt_name), ("prompt_version", prompt_version), ("agent", agent_name))
            values |= {(field, value) for field, value in named if value is not None}
            values |= {("finish_reason", reason) for reason in finish_reasons}
        if new := values - self._stored:
            insert_many(self._db, "known", ("field", "value"), sorted(new), "ON CONFLICT DO NOTHING")
            if len(self._stored) + len(new) > CACHED_VALUES:
                self._stored.clear()
            self._stored |= new if len(new) <= CACHED_VALUES else set()


T = TypeVar("T")
# Field in the table `known`; a value is a project and a destination, separated by a line break
DESTINATION_FIELD = "destination"
MAX_PROJECTS = 1_000
MAX_PENDING_CALLS = 20_000  # maximum number of calls, and of continuations, whose counterpart has not arrived


class DestinationTable:
    """Destinations that take part in traces, by project. The writer changes it; `of` is safe in any thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._by_project: dict[str, tuple[str, ...]] = {}
        # project and destination of calls, by trace and span
        self._calls: OrderedDict[tuple[int, str], tuple[str, str]] = OrderedDict()
        # Projects of continuations, by trace and parent
        self._continued: OrderedDict[tuple[int, str], str] = OrderedDict()
        self.forget()

    def forget(self) -> None:
        """Read the destinations again, because memory may be ahead of the file after a rollback."""
        self._calls.clear()
        self._continued.clear()
        by_project: dict[str, tuple[str, ...]] = {}
        for (value,) in self._db.execute("SELECT value FROM known WHERE field = ?", (DESTINATION_FIELD,)):
            project, _, name = value.rpartition("\n")
            by_project[project] = (*by_project.get(project, ()), name)
        self._by_project = by_project

    def of(self, project: str) -> Sequence[str]:
        """Return the destinations of a project."""
        return self._by_project.get(project, ())

    def note(self, traces: Iterable[int], facts: Iterable[Fact]) -> None:
        """Search written spans for calls and for the spans that continue them, and store the destinations of continued
        calls.
        """
        for trace, fact in zip(traces, facts, strict=True):
            if fact.route:
                if self._continued.pop((trace, fact.span_id), None) == fact.project:
                    self._add(fact.project, fact.route)
                else:
                    _remember_bounded(self._calls, (trace, fact.span_id), (fact.project, fact.route))
            elif fact.route is not None and fact.parent_id is not None:
                call = self._calls.get((trace, fact.parent_id))
                if call is None:
                    _remember_bounded(self._continued, (trace, fact.parent_id), fact.project)
                elif call[0] == fact.project:
                    del self._calls[trace, fact.parent_id]
                    self._add(*call)

    def _add(self, project: str, name: str) -> None:
        known = self._by_project.get(project, ())
        if name in known or (not known and len(self._by_project) >= MAX_PROJECTS):
            return
        dropped = known[: len(known) + 1 - MAX_DESTINATIONS]
        self._by_project[project] = (*known[len(dropped) :], name)
        rows = [(DESTINATION_FIELD, f"{project}\n{one}") for one in dropped]
        self._db.executemany("DELETE FROM known WHERE field = ? AND value = ?", rows)
        self._db.execute("INSERT OR IGNORE INTO known VALUES (?, ?)", (DESTINATION_FIELD, f"{project}\n{name}"))


def _remember_bounded(pending: OrderedDict[tuple[int, str], T], key: tuple[int, str], value: T) -> None:
    pending[key] = value
    if len(pending) > MAX_PENDING_CALLS:
        pending.popitem(last=False)
