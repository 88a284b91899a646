"""Rollups of sealed hours and days.

For each project, a sealed period has up to three rows: the totals of its traces, the totals by name, and the totals by
model. A row holds one bucket per environment and group. A bucket has the fields of `Bucket` and the values from which
they are computed. Therefore buckets of several groups, projects or periods can be added up. The buckets of a day are
those of its hours, added up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import inf, isclose
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import msgpack

from spanwise.collector.records import Bucket
from spanwise.collector.stores import bucket_totals
from spanwise.collector.stores.sqlite.rollups.rollup_delta import (
    ALL_MODELS,
    DAY_NS,
    HOUR_NS,
    MAX_HOUR_ROWS,
    RELATIVE_ERROR,
    compute_bin_percentiles,
    find_bin,
    get_hour_bounds,
    pack_bins,
    unpack_bins,
)
from spanwise.collector.stores.table_rows import insert_many, loads
from spanwise.collector.stores.trace_summary import MAX_LISTED


class BucketTotals(bucket_totals.BucketTotals):
    """Totals of a bucket with parts from rollups.

    `first` and `last` are the first and the last hour whose rollups were added, None if there were none. `blobs` has
    the bins of the latencies that are not in `latencies`.
    """

    __slots__ = ("blobs", "first", "last")

    def __init__(self) -> None:
        super().__init__()
        self.first: int | None = None
        self.last: int | None = None
        self.blobs: list[bytes] = []

    def add_hours(self, first: int, last: int) -> None:
        """Record that a part of the bucket comes from the rollups of hours `first` to `last`."""
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)

    def percentiles_ms(self) -> tuple[float, float, float, float]:
        """Return the 50th, 95th and 99th percentile of the latencies, and their relative error."""
        if not self.blobs:
            return super().percentiles_ms()
        bins = unpack_bins(self.blobs)
        bins.update(map(find_bin, self.latencies))
        p50, p95, p99 = (ns / 1e6 for ns in compute_bin_percentiles(bins, 50, 95, 99))
        return p50, p95, p99, RELATIVE_ERROR


class Period(NamedTuple):
    """Kind of a sealed period."""

    width_ns: int
    column: str  # number of the period
    states: str  # table of periods; its column `rest` tells whether a period is sealed
    totals: str  # table of the rows of sealed periods


HOURS = Period(HOUR_NS, "hour", "sums_hours", "sums_of_hours")
DAYS = Period(DAY_NS, "day", "sums_days", "sums_of_days")

UNGROUPED, BY_NAME, BY_MODEL = 0, 1, 2  # `side` of a row: all traces together, by name, by model
_SELECT_CELLS = (
    "SELECT s.id, s.project, s.environment, s.shown, s.name,"
    f" CASE WHEN s.model <> '{ALL_MODELS}' THEN substr(s.model, 2) END, s.latencies,"
    " s.n, s.errors, s.input_tokens, s.output_tokens, s.cost FROM sums s WHERE s.hour = ?"
)
# Number of scores of a row of `sums_said` that are 0 or 1, as far as its extremes tell: all of them, if all are
BINARY_SQL = (
    "CASE WHEN f.minimum < f.maximum THEN (f.minimum IN (0, 1)) * f.minimum_n + (f.maximum IN (0, 1)) * f.maximum_n"
    " ELSE f.n * (coalesce(f.minimum, 0) IN (0, 1)) END"
)
_SELECT_HOUR_FEEDBACK = (
    "SELECT f.cell, f.key, nullif(f.label, ''), f.said, f.n, f.total,"
    f" {BINARY_SQL}, f.minimum, f.maximum, f.failed, f.skipped"
    " FROM sums s CROSS JOIN sums_said f ON f.cell = s.id WHERE s.hour = ?"
)

SealedRow: TypeAlias = tuple[int, str, bytes]  # side, project, encoded buckets


class FeedbackSums(msgspec.Struct, array_like=True, gc=False):
    """Fields of `FeedbackStats`, the sum of the scores, and the number of those that are 0 or 1."""

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
    binary: bool
    total: float
    zeros_and_ones: int


class SealedBucket(msgspec.Struct, array_like=True, gc=False):
    """Fields of `Bucket`, the bins of its latencies, and its first and last hour with traces."""

    environment: str
    shown: int
    first: int
    last: int
    bins: bytes
    start_ns: int
    width_ns: int
    group: str | None
    traces: int
    errors: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    latency_error: float
    input_tokens: int
    output_tokens: int
    cost: float
    feedback: tuple[FeedbackSums, ...]
    newest: int | None = None

    def bucket(self) -> Bucket:
        """Convert to a `Bucket`. Requires that no other totals belong to the bucket."""
        bucket = msgspec.convert(self, Bucket, from_attributes=True)
        return replace(bucket, feedback=tuple(map(bucket_totals.name_target, bucket.feedback)))

    def add_to(self, total: BucketTotals) -> None:
        total.add(self.traces, self.errors, self.input_tokens, self.output_tokens, self.cost)
        total.add_hours(self.first, self.last)
        total.blobs.append(self.bins)
        for one in self.feedback:
            total.tallies[one.key].add_counts(
                n=one.n,
                total=one.total,
                binary=one.zeros_and_ones,
                minimum=inf if one.minimum is None else one.minimum,
                maximum=-inf if one.maximum is None else one.maximum,
                labelled=one.labelled,
                labels=one.labels,
                failed=one.failed,
                skipped=one.skipped,
            )


_BUCKETS_DECODER = msgpack.Decoder(list[SealedBucket])


def decode_buckets(data: bytes) -> list[SealedBucket]:
    """Decode the buckets of a row. Raises `ValueError` if the data is damaged."""
    return _BUCKETS_DECODER.decode(data)


class _BucketPlace(NamedTuple):
    """Key of one bucket in the rows of a period."""

    side: int
    project: str
    environment: str
    shown: int
    group: str


def build_hour(db: sqlite3.Connection, hour: int) -> list[SealedRow] | None:
    """Build the rows of an hour from its cells; None if the data is damaged or too large for a row."""
    sums: dict[_BucketPlace, BucketTotals] = {}
    places: dict[int, list[_BucketPlace]] = {}
    for cell, project, environment, shown, name, model, blob, *counts in db.execute(_SELECT_CELLS, (hour,)):
        places[cell] = [
            _BucketPlace(side, project, environment, shown, group)
            for side, group in ([(UNGROUPED, ""), (BY_NAME, name)] if model is None else [(BY_MODEL, model)])
        ]
        for place in places[cell]:
            total = sums.setdefault(place, BucketTotals())
            total.add(*counts)
            total.add_hours(hour, hour)
            total.blobs.append(blob)
    for cell, key, label, *counts in db.execute(_SELECT_HOUR_FEEDBACK, (hour,)):
        for place in places[cell]:
            sums[place].add_feedback(key, None if label is None else label[1:], *counts)
    return _build_rows(HOURS, hour, sums)


def build_day(db: sqlite3.Connection, day: int) -> list[SealedRow] | None:
    """Build the rows of a day from those of its hours; None if the data is damaged, too large or too much."""
    sums: dict[_BucketPlace, BucketTotals] = {}
    sql = "SELECT side, project, data FROM sums_of_hours WHERE hour BETWEEN ? AND ? ORDER BY hour"
    try:
        for side, project, data in db.execute(sql, (24 * day, 24 * day + 23)):
            for part in decode_buckets(data):
                place = _BucketPlace(side, project, part.environment, part.shown, part.group or "")
                part.add_to(sums.setdefault(place, BucketTotals()))
    except ValueError:
        return None
    return _build_rows(DAYS, day, sums) if len(sums) <= MAX_HOUR_ROWS else None


def _build_rows(period: Period, number: int, sums: Mapping[_BucketPlace, BucketTotals]) -> list[SealedRow] | None:
    rows: dict[tuple[int, str], list[SealedBucket]] = {}
    try:
        for place in sorted(sums):
            bucket = _build_bucket(number * period.width_ns, period.width_ns, place, sums[place])
            rows.setdefault((place.side, place.project), []).append(bucket)
        return [(side, project, msgpack.encode(buckets)) for (side, project), buckets in rows.items()]
    except (ValueError, OverflowError):
        return None


def _build_bucket(start_ns: int, width_ns: int, place: _BucketPlace, total: BucketTotals) -> SealedBucket:
    assert total.first is not None
    assert total.last is not None
    return SealedBucket(
        place.environment,
        place.shown,
        total.first,
        total.last,
        pack_bins(unpack_bins(total.blobs)),
        start_ns,
        width_ns,
        place.group if place.side != UNGROUPED else None,
        total.traces,
        total.errors,
        *total.percentiles_ms(),
        int(total.input_tokens),
        int(total.output_tokens),
        total.cost,
        tuple(
            FeedbackSums(
                total=float(tally.plain),
                zeros_and_ones=tally.binary,
                # without the target, which the key tells (see `name_target`), and without weighted means
                **{n: value for n, value in asdict(tally.stats(key)).items() if n in FeedbackSums.__struct_fields__},
            )
            for key, tally in sorted(total.tallies.items())
        ),
    )


def put_rows(db: sqlite3.Connection, period: Period, number: int, rows: Sequence[SealedRow]) -> None:
    """Replace the rows of a sealed hour or day."""
    db.execute(f"DELETE FROM {period.totals} WHERE {period.column} = ?", (number,))
    insert_many(db, period.totals, (period.column, "side", "project", "data"), [(number, *row) for row in rows])


MAX_HOUR_NAMES = 1_000  # maximum number of run names that an hour stores
_SELECT_NAMES = (
    "SELECT DISTINCT names FROM traces INDEXED BY traces_by_start"
    " WHERE start_ns BETWEEN ? AND ? AND span_count > 0 AND names IS NOT NULL"
)


def collect_names(db: sqlite3.Connection, hour: int) -> list[str] | None:
    """Return the names of the runs of an hour; None if there are too many, or a trace does not list all of them."""
    found = set[str]()
    for (listed,) in db.execute(_SELECT_NAMES, get_hour_bounds(hour)):
        try:
            some = loads(listed)
            found.update(some)
        except (ValueError, TypeError):  # the column is damaged
            return None
        if len(some) >= MAX_LISTED or len(found) > MAX_HOUR_NAMES:
            return None
    return sorted(found)


def count_wrong_periods(db: sqlite3.Connection) -> int:
    """Return how many sealed hours and days have totals that differ from the rollups they were built from."""
    bad = 0
    for period, build in ((HOURS, build_hour), (DAYS, build_day)):
        numbers = db.execute(f"SELECT {period.column} FROM {period.states} WHERE rest = 1").fetchall()
        sql = f"SELECT side, project, data FROM {period.totals} WHERE {period.column} = ?"
        for (number,) in numbers:
            expected, stored = build(db, number), db.execute(sql, (number,)).fetchall()
            try:
                bad += expected is None or not _is_equal(_decode_rows(stored), _decode_rows(expected))
            except ValueError:  # a row is damaged
                bad += 1
    return bad


def _decode_rows(rows: Sequence[SealedRow]) -> list[Any]:
    return sorted((side, project, msgpack.decode(data)) for side, project, data in rows)


def _is_equal(one: object, other: object) -> bool:
    """Return whether two values are equal, except for rounding that depends on the order of additions."""
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, dict) and isinstance(other, dict):
        return _is_equal(sorted(one.items()), sorted(other.items()))
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return one == other
