"""Side tables of the span writer: senders, open runs, pending amendments, response ids, tombstones."""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from spanwise.collector.records import JSON, OpenRun, Process, ProcessReport
from spanwise.collector.stores import trace_assembly
from spanwise.collector.stores.run_codec import Fact
from spanwise.collector.stores.side_records import (
    ANY_PROJECT,
    MAX_AMENDMENT_BYTES,
    MAX_AMENDMENTS,
    MAX_OPEN_RUNS,
    MAX_PROCESSES,
    NO_TRACE,
    OPEN_RUN_COLUMNS,
    PROCESS_FIELDS,
    AmendmentTarget,
    SenderProcess,
    check_amended_size,
    encode_report,
    group_open_runs,
    make_open_run,
    make_process,
    read_sender_process,
    truncate_open_run,
)
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.table_rows import (
    VALUES_PER_IN,
    build_upsert_clause,
    delete_many,
    dumps,
    hash_id,
    insert_many,
    loads,
    select_many,
)
from spanwise.tracer.http_connections import MAX_DESTINATIONS

# Tombstones: ids of deleted traces, whose late spans are rejected.

LIFETIME_NS = 8 * 24 * 3600 * 1_000_000_000  # a sender's spool keeps undelivered spans for seven days
MAX_TOMBSTONES = 1_000_000  # about 100 bytes each; the oldest are removed
PRUNE_ROWS = 5_000  # maximum number of rows checked at once


class Tombstones:
    """Ids of recently deleted traces. For the writer's thread."""

    def __init__(self, db: sqlite3.Connection, clock: StoreClock) -> None:
        self._db, self._clock = db, clock
        self.bound = MAX_TOMBSTONES
        self.late = 0  # spans, feedback and amendments rejected since the start
        self.forget()

    def forget(self) -> None:
        """Check again whether the table has rows, after a rollback."""
        self._any = self._db.execute("SELECT 1 FROM tombstones LIMIT 1").fetchone() is not None

    def put(self, trace_ids: Iterable[str]) -> None:
        """Record that these traces are deleted now."""
        until = self._clock.keep(self._db) + LIFETIME_NS
        rows = [(trace_id, until) for trace_id in dict.fromkeys(trace_ids)]
        # REPLACE gives a trace that is deleted again a new row id, so that rows stay in order of time
        self._db.executemany("INSERT OR REPLACE INTO tombstones (trace_id, until_ns) VALUES (?, ?)", rows)
        self._any = self._any or bool(rows)

    def among(self, trace_ids: Iterable[str]) -> set[str]:
        """Return the deleted traces among these. No query runs if the table is empty."""
        if not self._any:
            return set()
        sql = "SELECT trace_id FROM tombstones WHERE until_ns > ? AND trace_id IN (%s)"
        return {row[0] for row in select_many(self._db, sql, trace_ids, (self._clock.now(),))}

    def prune(self) -> bool:
        """Remove expired tombstones and those beyond `bound`, at most `PRUNE_ROWS`; return whether there were any."""
        first = f"(SELECT id, until_ns FROM tombstones ORDER BY id LIMIT {PRUNE_ROWS})"  # in order of expiry
        sql = f"SELECT id FROM {first} WHERE until_ns <= ? OR id <= (SELECT max(id) - ? FROM tombstones)"
        values = (self._clock.now(), self.bound)
        deleted = self._db.execute(f"DELETE FROM tombstones WHERE id IN ({sql})", values).rowcount
        self.forget()
        return deleted > 0


# Tables about the senders of spans: resources, processes, open runs, destinations, and values for filter menus.
#
# A destination takes part in a project once a span of that project continues a call that another span of the project
# made to it. A sender with a project's API key always belongs to that project. Therefore no sender can add
# destinations to another project.

MAX_OPEN_RUN_AGE_NS = 7 * 86_400 * 10**9  # age of an open run after which its process has surely died
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
        new_runs = {(run.trace_id, run.span_id): run for run in map(truncate_open_run, runs) if self._is_new(run)}
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


def list_open_runs(
    reader: Reader, trace_id: str | None, project: str | None, environment: str | None, limit: int
) -> list[OpenRun]:
    """Return open runs, latest start first."""
    conditions = {"trace_id": trace_id, "project": project, "environment": environment}
    values = {name: value for name, value in conditions.items() if value is not None}
    where = [f"o.{name} = ?" for name in values]
    sql = f"{_SELECT_OPEN_RUNS} WHERE {' AND '.join(where) or '1'} ORDER BY o.start_ns DESC, o.span_id LIMIT ?"
    return [make_open_run(row) for row in reader.db.execute(sql, (*values.values(), limit))]


def read_open_runs(db: sqlite3.Connection, trace_ids: Iterable[str]) -> dict[str, list[OpenRun]]:
    """Return open runs by trace, in order of start time."""
    return group_open_runs(
        select_many(db, f"{_SELECT_OPEN_RUNS} WHERE o.trace_id IN (%s) ORDER BY o.start_ns", trace_ids)
    )


_REPORT_COLUMNS = ("instance", "seen_ns", *PROCESS_FIELDS, "reported_ns", "progress", "report")
_ADD_STORED_COUNT = (
    f"INSERT INTO processes (instance, stored, seen_ns, {','.join(PROCESS_FIELDS)}) VALUES (?,?,?,?,?,?,?)"
    " ON CONFLICT (instance) DO UPDATE SET stored = stored + excluded.stored, seen_ns = excluded.seen_ns"
)
_PUT_REPORT = (
    f"INSERT INTO processes ({','.join(_REPORT_COLUMNS)}) VALUES (?,?,?,?,?,?,?,?,?) {build_upsert_clause(_REPORT_COLUMNS)}"
    " WHERE excluded.progress >= coalesce(processes.progress, 0)"
)
_LEAST_RECENT = "instance IN (SELECT instance FROM processes ORDER BY seen_ns DESC LIMIT -1 OFFSET ?)"


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
        self._db.executemany(_PUT_REPORT, [encode_report(report, now) for report in reports])
        self._trim(len(reports))

    def _trim(self, written: int) -> None:
        self._untrimmed += written
        if self._untrimmed > self.most // 10:
            self._untrimmed = 0
            self._db.execute(f"DELETE FROM processes WHERE {_LEAST_RECENT}", (self.most,))


def list_processes(reader: Reader, since_ns: int | None, limit: int) -> list[Process]:
    """Return processes, the most recently active first."""
    columns = f"instance, stored, seen_ns, {','.join(PROCESS_FIELDS)}, reported_ns, report"
    sql = f"SELECT {columns} FROM processes WHERE seen_ns >= ? ORDER BY seen_ns DESC, instance LIMIT ?"
    rows = reader.db.execute(sql, (since_ns or 0, limit))
    return [make_process(row[:3], row[3:-2], *row[-2:]) for row in rows]


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


# Amendments that wait for their run, and the index of model response ids.
#
# Response ids are random, so an index over all of them would write one page per id. Instead they are stored in blocks
# of about `BLOCK_SIZE` ids that arrived together. The lowest span row in a block identifies it. New ids go to the
# pages of the last block, and a lookup searches the blocks one by one.

# maximum number of response ids, 20 bytes each, those of the latest spans. Log records with content arrive within
# minutes, but feedback on a response often a day later
MAX_RESPONSES = 1_000_000
BLOCK_SIZE = 1_000
MAX_CANDIDATES = 8  # maximum number of spans with the same response id: several instrumentations may record one call
_BLOCKS = (  # newest block first; two index lookups per block
    "WITH RECURSIVE parts (part) AS (SELECT max(part) FROM responses UNION ALL"
    " SELECT (SELECT max(r.part) FROM responses r WHERE r.part < parts.part) FROM parts WHERE part IS NOT NULL)"
)
_BLOCKS_WITH_ID = (
    f"{_BLOCKS} SELECT part FROM parts"
    " WHERE EXISTS (SELECT 1 FROM responses r WHERE r.part = parts.part AND r.answer = ?) LIMIT ?"
)
_LATEST_SPANS = (
    "SELECT t.trace_id, s.id FROM responses r CROSS JOIN spans s ON s.id = r.span JOIN traces t ON t.id = s.trace"
    " WHERE r.part = ? AND r.answer = ? ORDER BY r.span DESC LIMIT ?"
)


class ResponseIdWriter:
    """Writer of response ids on the writer's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db, self.size = db, BLOCK_SIZE
        # Remains valid after rollbacks and deletions: the last block is above all earlier ones and below all later
        # rows.
        self._block = self._find_block(2**63 - 1)
        sql = "SELECT count(*) FROM responses WHERE part = ?"
        self._count = int(db.execute(sql, (self._block,)).fetchone()[0])

    def put(self, rows: Sequence[tuple[int, str]], new: int) -> None:
        """Store pairs of span row and response id. Rows from `new` on are new spans."""
        first = min([row for row, _ in rows if row >= new], default=None)
        if first is not None and (not self._block or self._count >= self.size):
            self._block, self._count = first, 0
        answers = [(self._block if row >= new else self._find_block(row), hash_id(id), row) for row, id in rows]
        insert_many(self._db, "responses", ("part", "answer", "span"), answers, "ON CONFLICT DO NOTHING")
        self._count += len(answers)

    def _find_block(self, row: int) -> int:
        """Return the block of a row: 0 for a row older than all blocks."""
        sql = "SELECT coalesce(max(part), 0) FROM responses WHERE part <= ?"
        return int(self._db.execute(sql, (row,)).fetchone()[0])


def find_by_response_id(reader: Reader, response_id: str) -> list[tuple[str, Fact]]:
    """Return the spans with a response id, each as trace id and fact, the latest first.

    Spans with another response id that has the same hash are left out.
    """
    number, rows = hash_id(response_id), list[tuple[str, int]]()
    for (part,) in reader.db.execute(_BLOCKS_WITH_ID, (number, MAX_CANDIDATES)).fetchall():
        rows += reader.db.execute(_LATEST_SPANS, (part, number, MAX_CANDIDATES - len(rows))).fetchall()
    facts = [(trace_id, reader.stored(trace_id, row).fact) for trace_id, row in rows]
    return [(trace_id, fact) for trace_id, fact in facts if fact.response_id == response_id]


def remove_response_ids(db: sqlite3.Connection, traces: Iterable[int]) -> None:
    """Remove the response ids of traces (by key). Must run before their spans are deleted."""
    spans = sorted(row[0] for row in select_many(db, "SELECT id FROM spans WHERE trace IN (%s)", traces))
    parts = sorted(row[0] for row in db.execute(f"{_BLOCKS} SELECT part FROM parts WHERE part IS NOT NULL"))
    for start in range(0, len(spans) if parts else 0, VALUES_PER_IN):
        some = spans[start : start + VALUES_PER_IN]
        among = {parts[at - 1] for at in (bisect_right(parts, span) for span in some) if at}
        marks = ",".join("?" * len(some))
        for part in among:
            db.execute(f"DELETE FROM responses WHERE part = ? AND span IN ({marks})", (part, *some))


def prune_response_ids(db: sqlite3.Connection, most: int = MAX_RESPONSES) -> None:
    """Remove old blocks so that about `most` ids remain."""
    keep = f"{_BLOCKS} SELECT part FROM parts WHERE part IS NOT NULL LIMIT {most // BLOCK_SIZE + 1}"
    db.execute(f"DELETE FROM responses WHERE part < (SELECT min(part) FROM ({keep}))")


MAX_AMENDMENT_AGE_NS = 7 * 86_400 * 10**9  # a sender's spool keeps undelivered spans for the same time


class _PendingEntry(NamedTuple):
    target: AmendmentTarget
    size: int
    seen_ns: int


class PendingAmendments:
    """Table of waiting amendments, with an index in memory: a span without amendments costs one dict lookup."""

    def __init__(self, db: sqlite3.Connection, clock: StoreClock) -> None:
        self._db, self._clock = db, clock
        self.most, self.most_bytes = MAX_AMENDMENTS, MAX_AMENDMENT_BYTES
        # Amendments dropped since the start, because their run did not arrive or is of another project
        self.given_up = 0
        self._rows: OrderedDict[int, _PendingEntry] = OrderedDict()  # oldest first
        self._by_trace: dict[str, dict[str, dict[str, int]]] = {}  # trace → span → project → row
        self.forget()

    def __len__(self) -> int:
        return len(self._rows)

    def concerns(self, trace_id: str, facts: Iterable[Fact]) -> bool:
        """Return whether amendments may wait for runs of a trace, or for response ids of these facts."""
        return trace_id in self._by_trace or (NO_TRACE in self._by_trace and any(fact.response_id for fact in facts))

    def forget(self) -> None:
        """Read the table again, because the index in memory may be wrong after a rollback."""
        self._rows.clear()
        self._by_trace.clear()
        self.bytes = 0
        sql = "SELECT id, trace_id, span_id, project, size, seen_ns FROM amendments ORDER BY id"
        for row, trace_id, span_id, project, size, seen_ns in self._db.execute(sql):
            self._remember(row, _PendingEntry(AmendmentTarget(trace_id, span_id, project), size, seen_ns))

    def add(self, target: AmendmentTarget, fields: Mapping[str, JSON], most: int) -> None:
        """Store fields for a run that has not arrived. They are merged with fields that already wait for the run.

        Raises `Refused` if the merged fields exceed `most` bytes, because each merge costs as much as all fields
        before it.
        """
        row = self._by_trace.get(target.trace_id, {}).get(target.span_id, {}).get(target.project)
        seen = self._clock.now()
        if row is not None:
            fields, seen = trace_assembly.merge_fields(self._fields(row), fields), self._rows[row].seen_ns
        data = dumps(fields)
        size = len(data.encode())
        check_amended_size(f"amendments waiting for span {target.span_id!r}", size, most)
        values = (*target, data, size, seen)
        if row is None:
            sql = "INSERT INTO amendments (trace_id, span_id, project, fields, size, seen_ns) VALUES (?, ?, ?, ?, ?, ?)"
            row = int(self._db.execute(sql, values).lastrowid or 0)
        else:
            sql = "UPDATE amendments SET fields = ?, size = ? WHERE id = ?"
            self._db.execute(sql, (data, size, row))
            self.bytes -= self._rows[row].size
        self._remember(row, _PendingEntry(target, size, int(seen)))
        self.trim()

    def take(self, trace_id: str, span_id: str, project: str) -> list[dict[str, JSON]]:
        """Remove and return the fields for a run that has arrived, in order of arrival. Fields for runs of other
        projects are dropped, except those by response id, because several projects may have the same response id.
        """
        rows = self._by_trace.get(trace_id, {}).get(span_id)
        if rows is None:
            return []
        taken = [row for name, row in sorted(rows.items(), key=lambda item: item[1]) if name in (ANY_PROJECT, project)]
        fields = [self._fields(row) for row in taken]
        if trace_id != NO_TRACE:
            self.given_up += len(rows) - len(taken)
            taken = list(rows.values())
        self._remove(taken)
        return fields

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Remove the amendments for runs of deleted traces."""
        for trace_id in trace_ids:
            self._remove([row for rows in self._by_trace.get(trace_id, {}).values() for row in rows.values()])

    def expire(self, before_ns: int, project: str | None) -> None:
        """Drop the amendments that arrived before a time."""
        entries = self._rows.items()
        self._give_up([row for row, e in entries if e.seen_ns < before_ns and project in (None, e.target.project)])

    def trim(self) -> bool:
        """Drop amendments that are too old, and the oldest beyond the limits; return whether there were any."""
        before, old = self.given_up, self._clock.now() - MAX_AMENDMENT_AGE_NS
        while self._rows:
            row, entry = next(iter(self._rows.items()))
            if len(self._rows) <= self.most and self.bytes <= self.most_bytes and entry.seen_ns >= old:
                break
            self._give_up([row])
        return self.given_up > before

    def _give_up(self, rows: list[int]) -> None:
        self.given_up += len(rows)
        self._remove(rows)

    def _fields(self, row: int) -> dict[str, JSON]:
        fields: dict[str, JSON] = loads(
            self._db.execute("SELECT fields FROM amendments WHERE id = ?", (row,)).fetchone()[0]
        )
        return fields

    def _remember(self, row: int, entry: _PendingEntry) -> None:
        self._rows[row] = entry
        self.bytes += entry.size
        of_trace = self._by_trace.setdefault(entry.target.trace_id, {})
        of_trace.setdefault(entry.target.span_id, {})[entry.target.project] = row

    def _remove(self, rows: list[int]) -> None:
        delete_many(self._db, "amendments", "id", rows)
        for row in rows:
            target, size, _ = self._rows.pop(row)
            self.bytes -= size
            of_trace = self._by_trace[target.trace_id]
            del of_trace[target.span_id][target.project]
            if not of_trace[target.span_id]:
                del of_trace[target.span_id]
            if not of_trace:
                del self._by_trace[target.trace_id]
