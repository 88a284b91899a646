"""Write batches: inside the writer's transaction, in few statements, with integer keys given out here."""

from __future__ import annotations

import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from assay.collector.errors import Refused
from assay.collector.records import JSON, OpenRun
from assay.collector.stores import _amend
from assay.collector.stores.sqlite import _responses, _words
from assay.collector.stores.sqlite._clock import Clock
from assay.collector.stores.sqlite._codec import COLUMNS, Batch, Compressor, Fact, decode, encode_amended
from assay.collector.stores.sqlite._processes import Origin, Processes, origin
from assay.collector.stores.sqlite._reader import Reader
from assay.collector.stores.sqlite._rollup import RollUp, roll_up
from assay.collector.stores.sqlite._running import Running
from assay.collector.stores.sqlite._sql import find_many, insert_many, overwrite
from assay.collector.stores.sqlite._sums import Sums
from assay.collector.stores.sqlite._tombstones import Tombstones
from assay.collector.stores.sqlite._values import loads
from assay.collector.stores.sqlite._waiting import ANY, NOBODY, Place, Waiting

CACHED_SPANS = 20_000  # remembered at most
GROWN_BYTES = 32 * 1024 * 1024  # of a run, beyond which nothing more is said of it

SPAN_COLUMNS = ("id", "trace", "resource", "payload", *Fact._fields[:COLUMNS])
TRACE_COLUMNS = ("id", "trace_id", "updated_ns", "root", "change", "runs_change", "changed_ns", *RollUp._fields)


_KEYS = "SELECT trace_id, id FROM traces WHERE trace_id IN (%s)"
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


class Written(NamedTuple):
    """What a write has changed: keys of traces."""

    new: dict[str, int]  # by id, those of which the file has had nothing before
    changed: set[int]  # those with a new place in the feed


class Appender:
    """Writes batches for the one writer, on whose connection `reader` is.

    Remembers the traces that were written last, so that a late span is cheap.
    """

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self.reader, self.db, self._clock = reader, reader.db, clock
        self.tombstones = Tombstones(reader.db, clock)
        self.disturbed: set[int] = set()  # keys of traces that changed since `Behind` has last looked
        self._compressor = Compressor(newest_dictionary(reader.db))
        self._cache: OrderedDict[str, Known] = OrderedDict()
        self._cached_spans, self.bound, self.grown = 0, CACHED_SPANS, GROWN_BYTES
        self._resources: dict[str, int] = {}
        self._origins: dict[int, Origin | None] = {}  # by key of the resource
        self.running, self.processes = Running(self.db, clock), Processes(self.db, clock)
        self.waiting = Waiting(self.db, clock)
        self.sums = Sums(self.db)
        self._values: set[tuple[str, str]] = set()
        self._next_trace = self._next_span = 1
        self.forget()

    def numbers(self, count: int) -> range:
        """So many numbers that come after all that were given out before."""
        return self._clock.take(self.db, count)[0]

    def forget(self) -> None:
        """Drop what is remembered: after a rollback or a deletion it may be wrong."""
        self._cache.clear()
        self._cached_spans = 0
        self._resources.clear()
        self._origins.clear()
        self.running.forget()
        self.waiting.forget()
        self.sums.forget()
        self._values = set(self.db.execute("SELECT field, value FROM known").fetchall())
        self.tombstones.forget()
        # No lower than before, whatever was deleted: cursors, and readers in mid-question, may still hold these
        self._next_trace = max(self._next_trace, self._highest("traces") + 1)
        self._next_span = max(self._next_span, self._highest("spans") + 1)

    def adopt(self, dictionary: bytes) -> None:
        """Compress with this dictionary from now on. From any thread."""
        self._compressor = Compressor(dictionary)

    def _highest(self, table: str) -> int:
        return int(self.db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0])

    def keys(self, trace_ids: Iterable[str]) -> dict[str, int]:
        """Integer keys of traces; those that are new get a row without spans, which no list shows. Those that were
        deleted get none.
        """
        wanted = list(dict.fromkeys(trace_ids))
        stored = dict(find_many(self.db, _KEYS, wanted))
        unknown = [trace_id for trace_id in wanted if trace_id not in stored]
        gone = self.tombstones.among(unknown)
        new = [(trace_id, self._take_trace()) for trace_id in unknown if trace_id not in gone]
        insert_many(self.db, "traces", ("trace_id", "id"), new)
        return {**stored, **dict(new)}

    def _take_trace(self) -> int:
        self._next_trace += 1
        return self._next_trace - 1

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Drop what is remembered of traces that went."""
        trace_ids = list(trace_ids)
        self.running.evict(trace_ids)
        self.waiting.evict(trace_ids)
        for trace_id in trace_ids:
            if state := self._cache.pop(trace_id, None):
                self._cached_spans -= len(state.facts)

    def write(self, batches: Sequence[Batch]) -> Written:
        """Insert or merge the runs of batches, all of them by the same few statements."""
        before, first = self._next_trace, self._next_span
        known = self._known({trace_id: None for batch in batches for trace_id in batch.traces})
        spans: list[_Row] = []
        touched: dict[str, Known] = {}
        for batch in batches:
            resources = [self._resource(blob) for blob in batch.resource_blobs]
            for trace_id, positions in batch.traces.items():
                if trace_id not in known:
                    self.tombstones.late += len(positions)
                elif self._merge(trace_id, known[trace_id], batch, positions, resources, spans):
                    touched[trace_id] = known[trace_id]
        self._insert_spans(spans)
        self._insert_traces(touched)
        self._keep_values([row.fact for row in spans])
        self._count([row for row in spans if row.id >= first])
        _responses.put(self.db, [(row.id, row.fact.response_id) for row in spans if row.fact.response_id])
        self._trim()
        new = {trace_id: state.key for trace_id, state in touched.items() if state.key >= before}
        return Written(new, {state.key for state in touched.values()})

    def move(self, keys: Iterable[int]) -> None:
        """Put traces at the end of the feed, as something but their runs has changed; those without runs stay out."""
        moved = sorted(keys)
        if not moved:
            return
        numbers, now = self._clock.take(self.db, len(moved))
        rows = [(number, now, key) for number, key in zip(numbers, moved, strict=True)]
        self.db.executemany("UPDATE traces SET change = ?, changed_ns = ? WHERE id = ? AND span_count > 0", rows)

    def amend(self, place: Place, fields: Mapping[str, JSON]) -> bool:
        """Fill in fields of a stored run (see `_amend`); whether it is here, or was deleted. Else they wait for it."""
        if place.trace_id == NOBODY:
            found = _responses.find(self.db, place.span_id)
            places = [Place(trace_id, span_id, place.project) for trace_id, span_id in found]
            return any(self._amend(there, fields) for there in places) or self._wait(place, fields)
        if not find_many(self.db, _KEYS, [place.trace_id]) and self.tombstones.among([place.trace_id]):
            self.tombstones.late += 1
            return True
        return self._amend(place, fields) or self._wait(place, fields)

    def _wait(self, place: Place, fields: Mapping[str, JSON]) -> bool:
        self.waiting.add(place, fields, self.grown)
        return False

    def _amend(self, place: Place, fields: Mapping[str, JSON]) -> bool:
        """Fill in fields of a run if it is here, and of the project; whether it is."""
        if not find_many(self.db, _KEYS, [place.trace_id]):
            return False
        state = self._known([place.trace_id])[place.trace_id]
        row = state.rows.get(place.span_id)
        if row is None or place.project not in (ANY, state.facts[place.span_id].project):
            return False
        stored = self.reader.stored(place.trace_id, row)
        run = _amend.amended(stored.run, fields, stored.amended)
        every = _amend.together(stored.amended, fields)
        if (run, every) != (stored.run, stored.amended):
            old = state.facts[place.span_id]
            fact, payload = encode_amended(run, every, old.size if old.sent is None else old.sent)
            if len(payload) > self.grown:
                raise Refused(f"span {place.span_id!r} holds {len(payload):,} bytes then, at most {self.grown:,}")
            self._disturb(state.key)
            state.facts[place.span_id] = fact
            self._insert_spans([_Row(row, state.key, stored.resource, fact, payload)])
            self._insert_traces({place.trace_id: state})
            self._keep_values([fact])
        self._trim()
        return True

    def sum_up(self, trace_ids: Sequence[str]) -> None:
        """Sum traces up anew from the runs that are stored."""
        for start in range(0, len(trace_ids), 1000):
            self._insert_traces(self._known(trace_ids[start : start + 1000]))
            self._trim()

    def start(self, runs: Sequence[OpenRun]) -> None:
        """Keep that runs have started."""
        gone = self.tombstones.among({run.trace_id for run in runs})
        begun, freed = self.running.add([run for run in runs if run.trace_id not in gone])
        self.tombstones.late += sum(run.trace_id in gone for run in runs)
        stored = dict(find_many(self.db, _KEYS + " AND span_count > 0", begun | freed))
        self.move(stored[trace_id] for trace_id in begun - freed if trace_id in stored)
        self._insert_traces(self._known([trace_id for trace_id in freed if trace_id in stored]))
        self._trim()

    def _insert_spans(self, rows: Sequence[_Row]) -> None:
        payloads = self._compressor.all([row.payload for row in rows])
        values = [
            (row.id, row.trace, row.resource, payload, *row.fact[:COLUMNS])
            for row, payload in zip(rows, payloads, strict=True)
        ]
        insert_many(self.db, "spans", SPAN_COLUMNS, values, _OVERWRITE_SPAN)

    def _insert_traces(self, touched: Mapping[str, Known]) -> None:
        if not touched:
            return
        rows = []
        numbers, now = self._clock.take(self.db, len(touched))
        for number, (trace_id, state) in zip(numbers, touched.items(), strict=True):
            rolled, root = roll_up(list(state.facts.values()))
            if running := self.running.left(trace_id, state.facts, settled=rolled.complete == 1):
                rolled = rolled._replace(running=running, complete=0)
            change = (number, number, now)
            rows.append((state.key, trace_id, now, list(state.rows.values())[root], *change, *rolled))
        with self.sums.of_traces([row[0] for row in rows]):
            insert_many(self.db, "traces", TRACE_COLUMNS, rows, _OVERWRITE_TRACE)
        waiting = [(row[0], now) for row in rows]
        insert_many(self.db, "unindexed", ("trace", "since_ns"), waiting, "ON CONFLICT DO NOTHING")

    def _merge(
        self,
        trace_id: str,
        state: Known,
        batch: Batch,
        positions: Sequence[int],
        resources: Sequence[int],
        out: list[_Row],
    ) -> bool:
        """Add rows for the runs that are new or fuller than what is known; whether there are any."""
        before = len(out)
        for position in positions:
            fact, payload = batch.facts[position], batch.payloads[position]
            old = state.facts.get(fact.span_id)
            if old is None:
                row, self._next_span = self._next_span, self._next_span + 1
                self._cached_spans += 1
                if self.waiting:
                    fact, payload = self._awaited(trace_id, fact, payload)
            elif _supersedes(fact, old):
                row = state.rows[fact.span_id]
                self._disturb(state.key)
                if old.sent is not None:
                    fact, payload = self._still_amended(row, fact, payload)
            else:
                continue
            state.facts[fact.span_id] = fact
            state.rows[fact.span_id] = row
            out.append(_Row(row, state.key, resources[batch.resources[position]], fact, payload))
        return len(out) > before

    def _disturb(self, key: int) -> None:
        """What must be done before a run of a trace is overwritten: its words are found by the old payloads."""
        _words.remove(self.reader, [key])
        self.disturbed.add(key)

    def _awaited(self, trace_id: str, fact: Fact, payload: bytes) -> tuple[Fact, bytes]:
        """A run that has come for the first time, with what was said of it before."""
        said = self.waiting.take(trace_id, fact.span_id, fact.project)
        if fact.response_id:
            said += self.waiting.take(NOBODY, fact.response_id, fact.project)
        if not said:
            return fact, payload
        run, every = decode("", fact, loads(payload), {}), dict[str, JSON]()
        for fields in said:
            run, every = _amend.amended(run, fields, every), _amend.together(every, fields)
        return encode_amended(run, every, fact.size)

    def _still_amended(self, row: int, fact: Fact, payload: bytes) -> tuple[Fact, bytes]:
        """A later version of a run that was amended, with what it does not bring itself."""
        fields = self.reader.stored("", row).amended
        run = _amend.kept(decode("", fact, loads(payload), {}), fields)
        return encode_amended(run, fields, fact.size)

    def _known(self, trace_ids: Iterable[str]) -> dict[str, Known]:
        """What is known of these traces: remembered, read from the file, or new; nothing of those that were deleted."""
        known = {trace_id: self._cache[trace_id] for trace_id in trace_ids if trace_id in self._cache}
        for trace_id in known:
            self._cache.move_to_end(trace_id)
        missing = [trace_id for trace_id in trace_ids if trace_id not in known]
        keys = dict(find_many(self.db, _KEYS, missing))
        gone = self.tombstones.among(trace_id for trace_id in missing if trace_id not in keys)
        for trace_id in missing:
            if trace_id in gone:
                continue
            key = keys.get(trace_id)
            state = Known(self._take_trace()) if key is None else self._load(trace_id, key)
            self._cached_spans += len(state.facts)
            self._cache[trace_id] = known[trace_id] = state
        return known

    def _load(self, trace_id: str, key: int) -> Known:
        """A trace as the file has it."""
        known = Known(key)
        for stored in self.reader.in_order(trace_id, key):
            known.facts[stored.run.span_id] = stored.fact
            known.rows[stored.run.span_id] = stored.row
        return known

    def _keep_values(self, facts: Sequence[Fact]) -> None:
        """Note values that menus offer and no index can list."""
        values = {("kind", fact.kind) for fact in facts} | {("environment", fact.environment) for fact in facts}
        values |= {("model", fact.model) for fact in facts if fact.model is not None}
        values |= {("tag", tag) for fact in facts for tag in fact.tags}
        if new := values - self._values:
            insert_many(self.db, "known", ("field", "value"), sorted(new), "ON CONFLICT DO NOTHING")
            self._values |= new

    def _count(self, rows: Sequence[_Row]) -> None:
        """Count spans that have come for the first time with the processes that they are of."""
        first = {row.resource: row.fact for row in reversed(rows)}  # a process is of one project
        arrived: Counter[tuple[Origin, str, str]] = Counter()
        for resource, count in Counter([row.resource for row in rows]).items():
            if whose := self._origins.get(resource):
                arrived[whose, first[resource].project, first[resource].environment] += count
        if arrived:
            self.processes.count(arrived)

    def _trim(self) -> None:
        while self._cached_spans > self.bound and len(self._cache) > 1:
            _, state = self._cache.popitem(last=False)
            self._cached_spans -= len(state.facts)

    def _resource(self, blob: str) -> int:
        key = self._resources.get(blob)
        if key is None:
            self.db.execute("INSERT OR IGNORE INTO resources (data) VALUES (?)", (blob,))
            key = int(self.db.execute("SELECT id FROM resources WHERE data = ?", (blob,)).fetchone()[0])
            self._resources[blob], self._origins[key] = key, origin(loads(blob))
        return key


def newest_dictionary(db: sqlite3.Connection) -> bytes | None:
    """The dictionary that payloads are compressed with now."""
    row = db.execute("SELECT data FROM dictionaries ORDER BY created_ns DESC LIMIT 1").fetchone()
    return row[0] if row else None


def _supersedes(new: Fact, old: Fact) -> bool:
    """Later and fuller wins; the same run sent twice changes nothing, nor does it undo what was amended since."""
    if old.sent is not None:
        return (new.end_ns, new.size) > (old.end_ns, old.sent)
    rank_new, rank_old = (new.end_ns, new.size), (old.end_ns, old.size)
    return rank_new > rank_old or (rank_new == rank_old and new != old)
