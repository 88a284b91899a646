"""Reading runs back. Readers have connections of their own and never hold up the writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import zstandard

from assay.collector.errors import Closed, Halted, StoreError
from assay.collector.records import JSON, Run
from assay.collector.stores.sqlite._beside import connect_read_only
from assay.collector.stores.sqlite._codec import COLUMNS, Decoder, Fact, decode, facts
from assay.collector.stores.sqlite._errors import DAMAGED, translate
from assay.collector.stores.sqlite._fork import Origin
from assay.collector.stores.sqlite._sql import find_many
from assay.collector.stores.sqlite._values import loads

_SPAN = ",".join(f"s.{name}" for name in Fact._fields[:COLUMNS])
_RUNS = f"SELECT s.trace, s.resource, s.payload, {_SPAN} FROM spans s WHERE s.trace IN (%s)"
_STORED = f"SELECT s.id, s.resource, s.payload, {_SPAN} FROM spans s WHERE "

CLOSED = "the store is closed"
STEPS = 200_000  # of SQLite between two looks at whether the store is closed; some milliseconds
READERS = 8  # more would only share the same cores, and each has a page cache
IDLE = 3  # kept open for the next question; what a rush has opened beyond them would keep its cache for ever


class Stored(NamedTuple):
    """A run as the file has it."""

    row: int
    resource: int  # its row in `resources`
    run: Run
    fact: Fact
    amended: dict[str, JSON]  # fields that came later, which are in the run, too


class Reader:
    """A connection, and what it takes to turn rows into runs."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._decoder = Decoder({})
        self._resources: dict[int, dict[str, JSON]] = {}

    def runs_of(self, traces: dict[int, str]) -> dict[int, list[Run]]:
        """All runs of traces (key: trace id), by start time."""
        by_trace: dict[int, list[Run]] = {key: [] for key in traces}
        for row in find_many(self.db, _RUNS, traces):
            by_trace[row[0]].append(self.run(traces[row[0]], row))
        for runs in by_trace.values():
            runs.sort(key=lambda run: (run.start_ns, -run.end_ns))
        return by_trace

    def in_order(self, trace_id: str, key: int) -> list[Stored]:
        """Runs of a trace in order of arrival."""
        rows = self.db.execute(f"{_STORED} s.trace = ? ORDER BY s.id", (key,)).fetchall()
        return [self._stored(trace_id, row) for row in rows]

    def in_rows(self, trace_id: str, rows: Sequence[int]) -> list[Stored]:
        """The runs in rows, in their order."""
        found = find_many(self.db, f"{_STORED} s.id IN (%s)", rows)
        return [self._stored(trace_id, row) for row in sorted(found, key=lambda row: row[0])]

    def stored(self, trace_id: str, row: int) -> Stored:
        """The run in a row."""
        return self._stored(trace_id, self.db.execute(f"{_STORED} s.id = ?", (row,)).fetchone())

    def _stored(self, trace_id: str, row: Sequence[Any]) -> Stored:
        payload = self.payload(row[2])
        run = decode(trace_id, row[3:], payload, self._resource(row[1]))
        fact, (sent, amended) = facts(run), payload.get("amended", (None, {}))
        if sent is not None:
            fact = fact._replace(size=row[3 + Fact._fields.index("size")], sent=sent)
        return Stored(row[0], row[1], run, fact, amended)

    def payloads(self, rows: Sequence[int]) -> dict[int, dict[str, JSON]]:
        """Payloads of spans, by row id."""
        blobs = find_many(self.db, "SELECT id, payload FROM spans WHERE id IN (%s)", rows)
        return {row: self.payload(blob) for row, blob in blobs}

    def run(self, trace_id: str, row: Sequence[Any]) -> Run:
        """The run of a row: trace, resource, payload and the columns of a fact."""
        return decode(trace_id, row[3:], self.payload(row[2]), self._resource(row[1]))

    def payload(self, blob: bytes) -> dict[str, JSON]:
        """The JSON object of a payload. Raises `StoreError` if it is damaged."""
        try:
            return self.decoder(blob).payload(blob)
        except (zstandard.ZstdError, KeyError, ValueError) as error:  # of a dictionary that is gone, of JSON
            raise StoreError(
                f"what a span holds cannot be read, so the database is damaged: {error}; {DAMAGED}"
            ) from error

    def decoder(self, blob: bytes) -> Decoder:
        """A decoder that knows the dictionary of this payload."""
        if not self._decoder.knows_frame(blob):
            self._decoder = Decoder(dict(self.db.execute("SELECT id, data FROM dictionaries").fetchall()))
        return self._decoder

    def _resource(self, key: int) -> dict[str, JSON]:
        if key not in self._resources:
            if len(self._resources) > 1000:
                self._resources.clear()
            row = self.db.execute("SELECT data FROM resources WHERE id = ?", (key,)).fetchone()
            self._resources[key] = loads(row[0]) if row else {}
        return self._resources[key]


class Readers:
    """A pool of at most `READERS` connections; who finds all in use waits. Not to be taken twice by one thread.

    `now` is the store's clock, `store_now()` in SQL. `damaged` is called when the file turns out to be.
    """

    def __init__(
        self, path: str, now: Callable[[], int], connect: Callable[[str], sqlite3.Connection] = connect_read_only
    ) -> None:
        self._path, self._now, self._origin = path, now, Origin()
        self._connect = connect
        self.damaged: Callable[[Halted], object] = lambda _: None
        self._places = threading.BoundedSemaphore(READERS)
        self._lock = threading.Lock()
        self._free: list[Reader] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Reader]:
        """A reader in one consistent snapshot of the file. Raises `Closed` once the store is, also in mid-query."""
        self._origin.check()
        with self._places:
            try:
                reader = self._take()
                try:
                    reader.db.execute("BEGIN")
                    yield reader
                finally:
                    self._give_back(reader)
            except sqlite3.Error as error:
                if self._closed:
                    raise Closed(CLOSED) from error
                translated = translate(error)
                if isinstance(translated, Halted):
                    self.damaged(translated)
                raise translated from error

    def _take(self) -> Reader:
        with self._lock:
            if self._closed:
                raise Closed(CLOSED)
            return self._free.pop() if self._free else self._new()

    def _new(self) -> Reader:
        db = self._connect(self._path)
        db.create_function("store_now", 0, self._now)
        db.set_progress_handler(lambda: self._closed, STEPS)  # ends a query once the store is closed
        return Reader(db)

    def _give_back(self, reader: Reader) -> None:
        if reader.db.in_transaction:
            reader.db.execute("ROLLBACK")
        with self._lock:
            if self._closed or len(self._free) >= IDLE:
                reader.db.close()
            else:
                self._free.append(reader)

    def close(self) -> None:
        """Close every connection, and give no more. One in use is closed by whoever gives it back, soon: closed under a
        thread that is inside of SQLite it would take the process with it.
        """
        with self._lock:
            self._closed = True
            while self._free:
                self._free.pop().db.close()
