"""What an hour at rest adds up to (see `_rest`), so that a chart by hours need not add up its cells.

For each project an hour has up to three rows: its traces as a whole, by name, and by model. A row holds parts, each of
an environment, and of a name or a model. A part is a `Bucket` of the hour, with percentiles and means; and it has what
these are made of, so that parts can be added up, to other groups, of several projects, and to longer buckets.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple, TypeAlias

import msgspec

from spanwise.collector.records import Bucket
from spanwise.collector.statistics import Tally
from spanwise.collector.stores.sqlite._counted import HOUR_NS, WHOLE
from spanwise.collector.stores.sqlite._latencies import EXACT, all_of, together, unpacked
from spanwise.collector.stores.sqlite._sql import insert_many
from spanwise.collector.stores.sqlite._total import Total

AS_WHOLE, BY_NAME, BY_MODEL = 0, 1, 2  # sides
_COLUMNS = ("hour", "side", "project", "data")
_CELLS = (
    "SELECT s.id, s.project, s.environment, s.shown, s.name,"
    f" CASE WHEN s.model <> '{WHOLE}' THEN substr(s.model, 2) END, s.latencies,"
    " s.n, s.errors, s.input_tokens, s.output_tokens, s.cost FROM sums s WHERE s.hour = ?"
)
_SAID = (
    "SELECT f.cell, f.key, nullif(f.label, ''), f.said, f.n, f.total, f.minimum, f.maximum, f.failed, f.skipped"
    " FROM sums s CROSS JOIN sums_said f ON f.cell = s.id WHERE s.hour = ?"
)

# Hour, side, project, parts
Row: TypeAlias = tuple[int, int, str, bytes]


class Stats(msgspec.Struct, array_like=True, gc=False):
    """As `FeedbackStats`, and the sum of the scores."""

    key: str
    n: int
    mean: float | None
    minimum: float | None
    maximum: float | None
    passed: float | None
    labelled: int
    labels: dict[str, int]
    failed: int
    skipped: int
    unweighted: int
    effective: float | None
    total: float


class Part(msgspec.Struct, array_like=True, gc=False):
    """As `Bucket`, and its latencies in order where they are few enough to be exact."""

    environment: str
    shown: int
    ordered: bytes | None
    start_ns: int
    width_ns: int
    group: str | None
    traces: int
    errors: int
    p50_ms: float | None
    p95_ms: float | None
    latency_error: float
    input_tokens: int
    output_tokens: int
    cost: float
    feedback: tuple[Stats, ...]
    newest: int | None = None

    def bucket(self) -> Bucket:
        """The hour's, where this is all of it."""
        return msgspec.convert(self, Bucket, from_attributes=True)

    def add_to(self, total: Total) -> None:
        total.add(self.traces, self.errors, self.input_tokens, self.output_tokens, self.cost)
        total.add_hours(self.start_ns // HOUR_NS, self.start_ns // HOUR_NS)
        if self.ordered is not None and total.traces <= EXACT:
            total.ordered.append(self.ordered)
        for one in self.feedback:
            said = (one.key, one.n, one.total, one.minimum, one.maximum, one.labelled, one.labels)
            total.add_outcomes(*said, one.failed, one.skipped)


_PARTS = msgspec.msgpack.Decoder(list[Part])


def parts(data: bytes) -> list[Part]:
    """Those of a row. Raises `ValueError` for what is none."""
    return _PARTS.decode(data)


class _Place(NamedTuple):
    """Where cells are added up."""

    side: int
    project: str
    environment: str
    shown: int
    group: str


def added_up(db: sqlite3.Connection, hour: int, in_order: Mapping[int, bytes]) -> list[Row] | None:
    """The rows of an hour, of whose cells the latencies are in order, but for those of more than `EXACT`; None where
    something is damaged, or larger than a row can hold.
    """
    sums: dict[_Place, Total] = {}
    bins: dict[_Place, list[bytes]] = {}
    places: dict[int, list[_Place]] = {}
    for cell, project, environment, shown, name, model, blob, *counts in db.execute(_CELLS, (hour,)):
        places[cell] = [_Place(side, project, environment, shown, group) for side, group in _groups(name, model)]
        for place in places[cell]:
            total = sums.setdefault(place, Total())
            total.add(*counts)
            total.ordered += [in_order[cell]] if cell in in_order else []
            bins.setdefault(place, []).append(blob)
    for cell, key, label, *counts in db.execute(_SAID, (hour,)):
        for place in places[cell]:
            sums[place].add_said(key, None if label is None else label[1:], *counts)
    try:
        found = [(place, _part(hour, place, sums[place], bins[place])) for place in sorted(sums)]
        return list(_rows(hour, found))
    except (ValueError, OverflowError):
        return None


def _groups(name: str, model: str | None) -> list[tuple[int, str]]:
    """On which sides a cell stands, and under what."""
    return [(AS_WHOLE, ""), (BY_NAME, name)] if model is None else [(BY_MODEL, model)]


def _part(hour: int, place: _Place, total: Total, bins: Sequence[bytes]) -> Part:
    ordered = None if total.traces > EXACT else together(total.ordered)
    if ordered is None:
        total.bins = unpacked(bins)
    else:
        total.latencies = all_of(ordered)
    return Part(
        place.environment,
        place.shown,
        ordered,
        hour * HOUR_NS,
        HOUR_NS,
        place.group if place.side != AS_WHOLE else None,
        total.traces,
        total.errors,
        total.percentile_ms(50),
        total.percentile_ms(95),
        total.latency_error,
        int(total.input_tokens),
        int(total.output_tokens),
        total.cost,
        tuple(_stats(key, total.tallies[key]) for key in sorted(total.tallies)),
    )


def _stats(key: str, tally: Tally) -> Stats:
    return Stats(**asdict(tally.stats(key)), total=float(tally.plain))


def _rows(hour: int, found: Sequence[tuple[_Place, Part]]) -> Iterator[Row]:
    rows: dict[tuple[int, str], list[Part]] = {}
    for place, part in found:
        rows.setdefault(place[:2], []).append(part)
    for (side, project), some in rows.items():
        yield hour, side, project, msgspec.msgpack.encode(some)


def put(db: sqlite3.Connection, hour: int, rows: Sequence[Row]) -> None:
    """In place of those that are there."""
    drop(db, hour)
    insert_many(db, "sums_of_hours", _COLUMNS, rows)


def drop(db: sqlite3.Connection, hour: int) -> None:
    """Forget what an hour adds up to."""
    db.execute("DELETE FROM sums_of_hours WHERE hour = ?", (hour,))
