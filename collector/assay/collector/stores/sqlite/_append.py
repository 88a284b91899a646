"""Write batches: inside the writer's transaction, in few statements, with integer keys given out here.

Rows go in by statements of many rows each: SQLite gives up the interpreter's lock for every statement, and where other
threads compute, getting it back costs more than the row.
"""

from __future__ import annotations

import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from assay.collector.stores.sqlite._codec import COLUMNS, Batch, Compressor, Fact
from assay.collector.stores.sqlite._rollup import RollUp, roll_up

ROWS = 50  # per statement
CACHED_SPANS = 20_000

SPAN_COLUMNS = (
    "id",
    "trace",
    "resource",
    "payload",
    "span_id",
    "parent_id",
    "name",
    "kind",
    "status",
    "error",
    "start_ns",
    "end_ns",
    "model",
    "input_tokens",
    "output_tokens",
    "cost",
    "session_id",
    "user_id",
    "size",
)
TRACE_COLUMNS = ("id", "trace_id", "updated_ns", "root", *RollUp._fields)


def overwrite(columns: Sequence[str]) -> str:
    """The clause that puts a row in place of the one with its key (the first column), touching indexes where needed."""
    return f"ON CONFLICT ({columns[0]}) DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in columns[1:])


def insert_many(
    db: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], conflict: str = ""
) -> None:
    """Insert rows, `ROWS` at a time; `conflict` is an `ON CONFLICT` clause."""
    for start in range(0, len(rows), ROWS):
        chunk = rows[start : start + ROWS]
        marks = ",".join(["(" + ",".join("?" * len(columns)) + ")"] * len(chunk))
        sql = f"INSERT INTO {table} ({','.join(columns)}) VALUES {marks} {conflict}"
        db.execute(sql, [value for row in chunk for value in row])


def find_many(db: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> list[Any]:
    """Rows of a statement with `IN (%s)` for any number of values; `before` fills the marks that stand in front."""
    rest, found = list(values), []
    for start in range(0, len(rest), 500):
        chunk = rest[start : start + 500]
        found.extend(db.execute(sql % ",".join("?" * len(chunk)), (*before, *chunk)).fetchall())
    return found


_OVERWRITE_SPAN = overwrite(SPAN_COLUMNS)
_OVERWRITE_TRACE = overwrite(TRACE_COLUMNS)


class Known:
    """The spans of one trace as the file has them: facts and row ids, in order of arrival."""

    __slots__ = ("facts", "key", "rows")

    def __init__(self, key: int) -> None:
        self.key = key
        self.facts: dict[str, Fact] = {}
        self.rows: dict[str, int] = {}


class _Row(NamedTuple):
    """A span on its way into the file."""

    id: int
    trace: int
    resource: int
    fact: Fact
    payload: bytes  # as JSON


class Appender:
    """Writes batches for the one writer. Remembers the traces that were written last, so that a late span is cheap."""

    def __init__(
        self, db: sqlite3.Connection, load: Callable[[str, int], Known], before_replacing: Callable[[int], None]
    ) -> None:
        self._db = db
        self._load = load  # a trace from the file
        self._compressor = Compressor()
        self._before_replacing = before_replacing  # told the key of a trace of which a run will be overwritten
        self._cache: OrderedDict[str, Known] = OrderedDict()
        self._cached_spans = 0
        self._resources: dict[str, int] = {}
        self._values: set[tuple[str, str]] = set()
        self.forget()

    def forget(self) -> None:
        """Drop what is remembered: after a rollback or a deletion it may be wrong."""
        self._cache.clear()
        self._cached_spans = 0
        self._resources.clear()
        self._values = set(self._db.execute("SELECT field, value FROM known").fetchall())
        self._next_trace = self._highest("traces") + 1
        self._next_span = self._highest("spans") + 1

    def adopt(self, dictionary: bytes | None) -> None:
        """Compress with this dictionary from now on. From any thread."""
        self._compressor = Compressor(dictionary)

    def _highest(self, table: str) -> int:
        return int(self._db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0])

    def keys(self, trace_ids: Iterable[str]) -> dict[str, int]:
        """Integer keys of traces; those that are new get a row without spans, which no list shows."""
        wanted = list(dict.fromkeys(trace_ids))
        found = dict(find_many(self._db, "SELECT trace_id, id FROM traces WHERE trace_id IN (%s)", wanted))
        new = [(trace_id, self._take_trace()) for trace_id in wanted if trace_id not in found]
        insert_many(self._db, "traces", ("trace_id", "id"), new)
        return {**found, **dict(new)}

    def _take_trace(self) -> int:
        self._next_trace += 1
        return self._next_trace - 1

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Drop what is remembered of these traces."""
        for trace_id in trace_ids:
            if state := self._cache.pop(trace_id, None):
                self._cached_spans -= len(state.facts)

    def write(self, batches: Sequence[Batch]) -> None:
        """Insert or merge the batches, all of them by the same few statements."""
        known = self._known({trace_id: None for batch in batches for trace_id in batch.traces})
        spans: list[_Row] = []
        touched: dict[str, Known] = {}
        for batch in batches:
            resources = [self._resource(blob) for blob in batch.resource_blobs]
            for trace_id, positions in batch.traces.items():
                if self._merge(known[trace_id], batch, positions, resources, spans):
                    touched[trace_id] = known[trace_id]
        self._insert_spans(spans)
        self._insert_traces(touched)
        self._keep_values([row.fact for row in spans])
        self._trim()

    def _insert_spans(self, rows: Sequence[_Row]) -> None:
        payloads = self._compressor.all([row.payload for row in rows])
        found = [
            (row.id, row.trace, row.resource, payload, *row.fact[:COLUMNS])
            for row, payload in zip(rows, payloads, strict=True)
        ]
        insert_many(self._db, "spans", SPAN_COLUMNS, found, _OVERWRITE_SPAN)

    def _insert_traces(self, touched: Mapping[str, Known]) -> None:
        now = time.time_ns()
        rows = []
        for trace_id, state in touched.items():
            found, root = roll_up(list(state.facts.values()))
            rows.append((state.key, trace_id, now, list(state.rows.values())[root], *found))
        insert_many(self._db, "traces", TRACE_COLUMNS, rows, _OVERWRITE_TRACE)
        waiting = [(row[0], now) for row in rows]
        insert_many(self._db, "unindexed", ("trace", "since_ns"), waiting, "ON CONFLICT DO NOTHING")

    def _merge(
        self, state: Known, batch: Batch, positions: Sequence[int], resources: Sequence[int], out: list[_Row]
    ) -> bool:
        """Add rows for the runs that are new or fuller than what is known; whether there are any."""
        before = len(out)
        for position in positions:
            fact = batch.facts[position]
            old = state.facts.get(fact.span_id)
            if old is None:
                row, self._next_span = self._next_span, self._next_span + 1
                self._cached_spans += 1
            elif _supersedes(fact, old):
                row = state.rows[fact.span_id]
                self._before_replacing(state.key)
            else:
                continue
            state.facts[fact.span_id] = fact
            state.rows[fact.span_id] = row
            out.append(_Row(row, state.key, resources[batch.resources[position]], fact, batch.payloads[position]))
        return len(out) > before

    def _known(self, trace_ids: Iterable[str]) -> dict[str, Known]:
        """What is known of these traces: remembered, read from the file, or new."""
        found = {trace_id: self._cache[trace_id] for trace_id in trace_ids if trace_id in self._cache}
        for trace_id in found:
            self._cache.move_to_end(trace_id)
        missing = [trace_id for trace_id in trace_ids if trace_id not in found]
        stored = dict(find_many(self._db, "SELECT trace_id, id FROM traces WHERE trace_id IN (%s)", missing))
        for trace_id in missing:
            key = stored.get(trace_id)
            state = Known(self._take_trace()) if key is None else self._load(trace_id, key)
            self._cached_spans += len(state.facts)
            self._cache[trace_id] = found[trace_id] = state
        return found

    def _keep_values(self, facts: Sequence[Fact]) -> None:
        """Note values that menus offer and no index can list."""
        found = {("kind", fact.kind) for fact in facts} | {("environment", fact.environment) for fact in facts}
        found |= {("model", fact.model) for fact in facts if fact.model is not None}
        found |= {("tag", tag) for fact in facts for tag in fact.tags}
        if new := found - self._values:
            insert_many(self._db, "known", ("field", "value"), sorted(new), "ON CONFLICT DO NOTHING")
            self._values |= new

    def _trim(self) -> None:
        while self._cached_spans > CACHED_SPANS and len(self._cache) > 1:
            _, state = self._cache.popitem(last=False)
            self._cached_spans -= len(state.facts)

    def _resource(self, blob: str) -> int:
        key = self._resources.get(blob)
        if key is None:
            self._db.execute("INSERT OR IGNORE INTO resources (data) VALUES (?)", (blob,))
            key = int(self._db.execute("SELECT id FROM resources WHERE data = ?", (blob,)).fetchone()[0])
            self._resources[blob] = key
        return key


def _supersedes(new: Fact, old: Fact) -> bool:
    """Later and fuller wins; the same run sent twice changes nothing."""
    rank_new, rank_old = (new.end_ns, new.size), (old.end_ns, old.size)
    return rank_new > rank_old or (rank_new == rank_old and new != old)
