"""Reading runs back. Readers have connections of their own and never hold up the writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import zstandard

from spanwise.collector._asking import Question
from spanwise.collector.errors import StoreError
from spanwise.collector.records import JSON, Run
from spanwise.collector.stores.sqlite._codec import COLUMNS, Decoder, Fact, decode, facts
from spanwise.collector.stores.sqlite._errors import DAMAGED
from spanwise.collector.stores.sqlite._sql import each, find_many
from spanwise.collector.stores.sqlite._values import loads

RESOURCES, LONGEST = 1_000, 4_000  # that are remembered, and characters of one
_SPAN = ",".join(f"s.{name}" for name in Fact._fields[:COLUMNS])
_RUNS = f"SELECT s.trace, s.resource, s.payload, {_SPAN} FROM spans s WHERE s.trace IN (%s)"
RUN = f"SELECT s.id, s.resource, s.payload, {_SPAN} FROM spans s WHERE "  # as `Reader.run` takes a row


_START, _END = (3 + Fact._fields.index(name) for name in ("start_ns", "end_ns"))  # in a row of `_RUNS`


def _by_time(row: Sequence[Any]) -> tuple[int, int]:
    return row[_START], -row[_END]


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
        self.question: Question | None = None  # what it reads for; see `_pool`
        self._decoder = Decoder({})
        self._resources: dict[int, dict[str, JSON]] = {}

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more for what it reads."""
        return self.question is not None and self.question.is_over

    def look(self) -> None:
        """For loops that do not ask the file. Raises what `Question.check` raises."""
        if self.question is not None:
            self.question.check()

    def runs_of(self, traces: dict[int, str]) -> dict[int, list[Run]]:
        """All runs of traces (key: trace id), by start time."""
        by_trace: dict[int, list[Run]] = {key: [] for key in traces}
        for row in find_many(self.db, _RUNS, traces):
            by_trace[row[0]].append(self.run(traces[row[0]], row))
        for runs in by_trace.values():
            runs.sort(key=lambda run: (run.start_ns, -run.end_ns))
        return by_trace

    def rows_of(self, keys: Sequence[int]) -> dict[int, list[Any]]:
        """The same as rows that nobody has read yet, as `run` takes them."""
        by_trace: dict[int, list[Any]] = {key: [] for key in keys}
        for row in find_many(self.db, _RUNS, keys):
            by_trace[row[0]].append(row)
        for rows in by_trace.values():
            rows.sort(key=_by_time)
        return by_trace

    def apart(self, rows: Sequence[Any]) -> Apart:
        """What reads these rows at any later time, without the file."""
        dictionaries = dict(self.db.execute("SELECT id, data FROM dictionaries").fetchall())
        return Apart(self.db, Decoder(dictionaries), {row[1]: self._resource(row[1]) for row in rows})

    def in_order(self, trace_id: str, key: int) -> list[Stored]:
        """Runs of a trace in order of arrival."""
        rows = self.db.execute(f"{RUN} s.trace = ? ORDER BY s.id", (key,)).fetchall()
        return [self._stored(trace_id, row) for row in rows]

    def in_rows(self, trace_id: str, rows: Sequence[int]) -> list[Stored]:
        """The runs in rows, in their order."""
        found = find_many(self.db, f"{RUN} s.id IN (%s)", rows)
        return [self._stored(trace_id, row) for row in sorted(found, key=lambda row: row[0])]

    def stored(self, trace_id: str, row: int) -> Stored:
        """The run in a row."""
        return self._stored(trace_id, self.db.execute(f"{RUN} s.id = ?", (row,)).fetchone())

    def _stored(self, trace_id: str, row: Sequence[Any]) -> Stored:
        payload = self.payload(row[2])
        run = decode(trace_id, row[3:], payload, self._resource(row[1]))
        fact, (sent, amended) = facts(run), payload.get("amended", (None, {}))
        if sent is not None:
            fact = fact._replace(size=row[3 + Fact._fields.index("size")], sent=sent)
        return Stored(row[0], row[1], run, fact, amended)

    def payloads(self, rows: Sequence[int]) -> Iterator[tuple[int, dict[str, JSON]]]:
        """Payloads of spans with their row ids, one at a time: a thousand may each have megabytes."""
        for row, blob in each(self.db, "SELECT id, payload FROM spans WHERE id IN (%s)", rows):
            yield row, self.payload(blob)

    def run(self, trace_id: str, row: Sequence[Any]) -> Run:
        """The run of a row: trace or id, resource, payload and the columns of a fact."""
        return decode(trace_id, row[3:], self.payload(row[2]), self._resource(row[1]))

    def payload(self, blob: bytes) -> dict[str, JSON]:
        """The JSON object of a payload. Raises `StoreError` if it is damaged."""
        self.look()
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
        known = self._resources.get(key)
        if known is None:
            [data] = self.db.execute("SELECT data FROM resources WHERE id = ?", (key,)).fetchone() or ("{}",)
            known = loads(data)
            if len(data) <= LONGEST:
                if len(self._resources) > RESOURCES:
                    self._resources.clear()
                self._resources[key] = known
        return known


class Apart(Reader):
    """Reads rows that were fetched before, and never asks the connection, which is others' by now. For one thread."""

    def __init__(self, db: sqlite3.Connection, decoder: Decoder, resources: dict[int, dict[str, JSON]]) -> None:
        super().__init__(db)
        self._decoder, self._resources = decoder, resources

    def decoder(self, blob: bytes) -> Decoder:
        """The one that was made with the rows."""
        return self._decoder
