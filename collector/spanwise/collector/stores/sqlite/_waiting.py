"""What was said of runs that are not here yet: beside the runs, and gone into them when they come."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Amendment
from spanwise.collector.stores import _amend
from spanwise.collector.stores.sqlite._clock import Clock
from spanwise.collector.stores.sqlite._codec import Fact
from spanwise.collector.stores.sqlite._sql import delete_many
from spanwise.collector.stores.sqlite._values import clean, dumps, loads

MOST = 10_000  # runs for which something waits
MOST_BYTES = 64 * 1024 * 1024  # of all that waits
OLDEST_NS = 7 * 86_400 * 10**9  # a spool keeps what it could not deliver for as long
NOBODY = ""  # the trace of what waits for a response of a model
ANY = ""  # the project of what is for a run of any


class Place(NamedTuple):
    """What something waits for: a span, or a response (of no trace); of one project, or of any."""

    trace_id: str
    span_id: str  # or the response's id
    project: str


class _Entry(NamedTuple):
    place: Place
    size: int
    seen_ns: int


def place_of(amendment: Amendment) -> Place:
    """What an amendment is about, as a table can hold it."""
    ids = (NOBODY, amendment.response_id) if amendment.response_id else (amendment.trace_id, amendment.span_id)
    return Place(*map(clean, (*ids, amendment.project or ANY)))


class Waiting:
    """What the writer remembers of its table, so that a span of which nothing was said costs one look into a dict."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock
        self.most, self.most_bytes = MOST, MOST_BYTES
        self.given_up = 0  # amendments whose run did not come, or was another project's, since the start
        self._rows: OrderedDict[int, _Entry] = OrderedDict()  # the oldest first
        self._of: dict[str, dict[str, dict[str, int]]] = {}  # trace → span → project → row
        self.forget()

    def __len__(self) -> int:
        return len(self._rows)

    def concerns(self, trace_id: str, facts: Iterable[Fact]) -> bool:
        """Whether anything may have been said of a run of a trace, or of a response of these."""
        return trace_id in self._of or (NOBODY in self._of and any(fact.response_id for fact in facts))

    def forget(self) -> None:
        """Read the table again: after a rollback what is remembered may be wrong."""
        self._rows.clear()
        self._of.clear()
        self.bytes = 0
        sql = "SELECT id, trace_id, span_id, project, size, seen_ns FROM amendments ORDER BY id"
        for row, trace_id, span_id, project, size, seen_ns in self._db.execute(sql):
            self._remember(row, _Entry(Place(trace_id, span_id, project), size, seen_ns))

    def add(self, place: Place, fields: Mapping[str, JSON], most: int) -> None:
        """Keep fields for a run that is not here; with what waits for it already they are one.

        Raises `Refused` where that is more than `most` bytes: each that comes costs as much as all before it.
        """
        row = self._of.get(place.trace_id, {}).get(place.span_id, {}).get(place.project)
        seen = self._clock.now()
        if row is not None:
            fields, seen = _amend.together(self._fields(row), fields), self._rows[row].seen_ns
        data = dumps(fields)
        size = len(data.encode())
        if size > most:
            raise Refused(f"{size:,} bytes would wait for span {place.span_id!r} then, at most {most:,}")
        values = (*place, data, size, seen)
        if row is None:
            sql = "INSERT INTO amendments (trace_id, span_id, project, fields, size, seen_ns) VALUES (?, ?, ?, ?, ?, ?)"
            row = int(self._db.execute(sql, values).lastrowid or 0)
        else:
            sql = "UPDATE amendments SET fields = ?, size = ? WHERE id = ?"
            self._db.execute(sql, (data, size, row))
            self.bytes -= self._rows[row].size
        self._remember(row, _Entry(place, size, int(seen)))
        self.trim()

    def take(self, trace_id: str, span_id: str, project: str) -> list[dict[str, JSON]]:
        """What was said of a run that has come now, the earlier first; of other projects' it is given up."""
        rows = self._of.get(trace_id, {}).get(span_id)
        if rows is None:
            return []
        said = [
            self._fields(row) for name, row in sorted(rows.items(), key=lambda one: one[1]) if name in (ANY, project)
        ]
        self.given_up += len(rows) - len(said)
        self._remove(list(rows.values()))
        return said

    def evict(self, trace_ids: Iterable[str]) -> None:
        """Remove what waits for runs of traces that went."""
        for trace_id in trace_ids:
            self._remove([row for rows in self._of.get(trace_id, {}).values() for row in rows.values()])

    def expire(self, before_ns: int, project: str | None) -> None:
        """Give up what came before a time."""
        self._give_up([row for row, entry in self._rows.items() if _is_of(entry, before_ns, project)])

    def trim(self) -> bool:
        """Give up what is too old, and the oldest of what is too much; whether there was any."""
        before, old = self.given_up, self._clock.now() - OLDEST_NS
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

    def _remember(self, row: int, entry: _Entry) -> None:
        self._rows[row] = entry
        self.bytes += entry.size
        of_trace = self._of.setdefault(entry.place.trace_id, {})
        of_trace.setdefault(entry.place.span_id, {})[entry.place.project] = row

    def _remove(self, rows: list[int]) -> None:
        delete_many(self._db, "amendments", "id", rows)
        for row in rows:
            place, size, _ = self._rows.pop(row)
            self.bytes -= size
            of_trace = self._of[place.trace_id]
            del of_trace[place.span_id][place.project]
            if not of_trace[place.span_id]:
                del of_trace[place.span_id]
            if not of_trace:
                del self._of[place.trace_id]


def _is_of(entry: _Entry, before_ns: int, project: str | None) -> bool:
    return entry.seen_ns < before_ns and project in (None, entry.place.project)
