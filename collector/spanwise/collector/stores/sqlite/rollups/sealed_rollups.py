"""Rollups of sealed hours and days: bucket totals, exact latencies and names of runs.

For each project, an hour has up to three rows: the totals of its traces, the totals by name, and the totals by model.
A row holds one bucket per environment and group. A bucket has the fields of `Bucket`, such as percentiles, and the
values from which they are computed. Therefore buckets of several groups, projects or hours can be added up.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf, isclose
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import msgpack

from spanwise.collector.records import Bucket, FeedbackStats
from spanwise.collector.statistics import Tally, percentile
from spanwise.collector.stores.sqlite.database.bulk_statements import insert_many
from spanwise.collector.stores.sqlite.database.column_values import loads
from spanwise.collector.stores.sqlite.rollups import latency_histogram
from spanwise.collector.stores.sqlite.rollups.latency_histogram import (
    MAX_EXACT_TRACES,
    find_bin,
    merge_latencies,
    pack_bins,
    pack_latencies,
    unpack_bins,
    unpack_latencies,
)
from spanwise.collector.stores.sqlite.rollups.rollup_delta import (
    ALL_MODELS,
    HOUR_NS,
    TRACES_PER_READ,
    RollupTooLarge,
    get_hour_bounds,
    iterate_trace_keys,
    read_contributions,
)
from spanwise.collector.stores.sqlite.write.trace_summary import MAX_LISTED


class BucketTotals:
    """Counts, latencies and feedback of a bucket while it is computed. `first` and `last` are the first and the last
    hour whose rollups were added.
    """

    __slots__ = (
        "bins",
        "cost",
        "errors",
        "first",
        "input_tokens",
        "is_summed",
        "last",
        "latencies",
        "ordered",
        "output_tokens",
        "percentiles",
        "starts",
        "tallies",
        "traces",
    )

    def __init__(self) -> None:
        self.traces = self.errors = 0
        self.is_summed = False
        self.input_tokens = self.output_tokens = self.cost = 0.0
        self.first: int | None = None
        self.last: int | None = None
        self.starts: list[int] = []
        self.latencies: list[int] = []
        self.ordered: list[bytes] = []  # more latencies, as blobs of `pack_latencies`
        self.bins: Mapping[int, int] = {}
        self.percentiles: dict[int, int] = {}  # already computed, in nanoseconds
        self.tallies: dict[str, Tally] = {}

    def add(self, traces: int, errors: int, input_tokens: float, output_tokens: float, cost: float) -> None:
        self.traces += traces
        self.errors += errors
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += cost

    def add_hours(self, first: int, last: int) -> None:
        """Record that a part of the bucket comes from the rollups of hours `first` to `last`."""
        self.is_summed = True
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)

    def add_said(
        self,
        key: str,
        label: str | None,
        said: int,
        n: int,
        total: float,
        minimum: float | None,
        maximum: float | None,
        failed: int,
        skipped: int,
    ) -> None:
        """Add outcomes with the same key and label. `said` counts those that are neither error nor skip; `n` of them
        have a score.
        """
        labels = {} if label is None else {label: said}
        self.add_outcomes(key, n, total, minimum, maximum, said - n, labels, failed, skipped)

    def add_outcomes(
        self,
        key: str,
        n: int,
        total: float,
        minimum: float | None,
        maximum: float | None,
        labelled: int,
        labels: Mapping[str, int],
        failed: int,
        skipped: int,
    ) -> None:
        """Add outcomes of a key. `n` of them have a score; without any, the extremes are None."""
        self.tally(key).add_counts(
            n=n,
            total=total,
            minimum=inf if minimum is None else minimum,
            maximum=-inf if maximum is None else maximum,
            labelled=labelled,
            labels=labels,
            failed=failed,
            skipped=skipped,
        )

    def tally(self, key: str) -> Tally:
        """Return the tally of a key; create it if it is missing."""
        found = self.tallies.get(key)
        if found is None:
            found = self.tallies[key] = Tally()
        return found

    def percentile_ms(self, percent: int) -> float:
        if self.bins:
            return latency_histogram.compute_bin_percentile(self.bins, percent) / 1e6
        if percent in self.percentiles:
            return self.percentiles[percent] / 1e6
        self.latencies.sort()
        return percentile(self.latencies, percent) / 1e6

    @property
    def latency_error(self) -> float:
        return latency_histogram.RELATIVE_ERROR if self.bins else 0.0

    def stats(self) -> tuple[FeedbackStats, ...]:
        """Return the statistics of all keys, by key."""
        return tuple(self.tallies[key].stats(key) for key in sorted(self.tallies))


UNGROUPED, BY_NAME, BY_MODEL = 0, 1, 2  # `side` of a row: all traces together, by name, by model
_HOUR_COLUMNS = ("hour", "side", "project", "data")
_SELECT_CELLS = (
    "SELECT s.id, s.project, s.environment, s.shown, s.name,"
    f" CASE WHEN s.model <> '{ALL_MODELS}' THEN substr(s.model, 2) END, s.latencies,"
    " s.n, s.errors, s.input_tokens, s.output_tokens, s.cost FROM sums s WHERE s.hour = ?"
)
_SELECT_HOUR_FEEDBACK = (
    "SELECT f.cell, f.key, nullif(f.label, ''), f.said, f.n, f.total, f.minimum, f.maximum, f.failed, f.skipped"
    " FROM sums s CROSS JOIN sums_said f ON f.cell = s.id WHERE s.hour = ?"
)

# Hour, side, project, encoded buckets
HourRow: TypeAlias = tuple[int, int, str, bytes]


class FeedbackSums(msgspec.Struct, array_like=True, gc=False):
    """Fields of `FeedbackStats`, and the sum of the scores."""

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


class HourBucket(msgspec.Struct, array_like=True, gc=False):
    """Fields of `Bucket`, and its latencies in order, where they are few enough for exact percentiles."""

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
    feedback: tuple[FeedbackSums, ...]
    newest: int | None = None

    def bucket(self) -> Bucket:
        """Convert to a `Bucket`. Requires that no other totals belong to the bucket."""
        return msgspec.convert(self, Bucket, from_attributes=True)

    def add_to(self, total: BucketTotals) -> None:
        total.add(self.traces, self.errors, self.input_tokens, self.output_tokens, self.cost)
        total.add_hours(self.start_ns // HOUR_NS, self.start_ns // HOUR_NS)
        if self.ordered is not None and total.traces <= MAX_EXACT_TRACES:
            total.ordered.append(self.ordered)
        for one in self.feedback:
            said = (one.key, one.n, one.total, one.minimum, one.maximum, one.labelled, one.labels)
            total.add_outcomes(*said, one.failed, one.skipped)


_BUCKETS_DECODER = msgspec.msgpack.Decoder(list[HourBucket])


def decode_buckets(data: bytes) -> list[HourBucket]:
    """Decode the buckets of a row. Raises `ValueError` if the data is damaged."""
    return _BUCKETS_DECODER.decode(data)


class _BucketPlace(NamedTuple):
    """Key of one bucket in the rows of an hour."""

    side: int
    project: str
    environment: str
    shown: int
    group: str


def build_hour(db: sqlite3.Connection, hour: int, in_order: Mapping[int, bytes]) -> list[HourRow] | None:
    """Build the rows of a sealed hour; None if the data is damaged or too large for a row.

    `in_order` has the latencies by cell, except for cells of more than `MAX_EXACT_TRACES` traces.
    """
    sums: dict[_BucketPlace, BucketTotals] = {}
    bins: dict[_BucketPlace, list[bytes]] = {}
    places: dict[int, list[_BucketPlace]] = {}
    for cell, project, environment, shown, name, model, blob, *counts in db.execute(_SELECT_CELLS, (hour,)):
        places[cell] = [
            _BucketPlace(side, project, environment, shown, group)
            for side, group in ([(UNGROUPED, ""), (BY_NAME, name)] if model is None else [(BY_MODEL, model)])
        ]
        for place in places[cell]:
            total = sums.setdefault(place, BucketTotals())
            total.add(*counts)
            total.ordered += [in_order[cell]] if cell in in_order else []
            bins.setdefault(place, []).append(blob)
    for cell, key, label, *counts in db.execute(_SELECT_HOUR_FEEDBACK, (hour,)):
        for place in places[cell]:
            sums[place].add_said(key, None if label is None else label[1:], *counts)
    try:
        found = [(place, _build_bucket(hour, place, sums[place], bins[place])) for place in sorted(sums)]
        rows: dict[tuple[int, str], list[HourBucket]] = {}
        for place, part in found:
            rows.setdefault(place[:2], []).append(part)
        return [(hour, side, project, msgspec.msgpack.encode(some)) for (side, project), some in rows.items()]
    except (ValueError, OverflowError):
        return None


def _build_bucket(hour: int, place: _BucketPlace, total: BucketTotals, bins: Sequence[bytes]) -> HourBucket:
    ordered = None if total.traces > MAX_EXACT_TRACES else merge_latencies(total.ordered)
    if ordered is None:
        total.bins = unpack_bins(bins)
    else:
        total.latencies = unpack_latencies(ordered)
    return HourBucket(
        place.environment,
        place.shown,
        ordered,
        hour * HOUR_NS,
        HOUR_NS,
        place.group if place.side != UNGROUPED else None,
        total.traces,
        total.errors,
        total.percentile_ms(50),
        total.percentile_ms(95),
        total.latency_error,
        int(total.input_tokens),
        int(total.output_tokens),
        total.cost,
        tuple(_feedback_sums(key, total.tallies[key]) for key in sorted(total.tallies)),
    )


def _feedback_sums(key: str, tally: Tally) -> FeedbackSums:
    return FeedbackSums(**asdict(tally.stats(key)), total=float(tally.plain))


def put_hour(db: sqlite3.Connection, hour: int, rows: Sequence[HourRow]) -> None:
    """Replace the rows of a sealed hour."""
    drop_hour(db, hour)
    insert_many(db, "sums_of_hours", _HOUR_COLUMNS, rows)


def drop_hour(db: sqlite3.Connection, hour: int) -> None:
    """Delete the rows of a sealed hour."""
    db.execute("DELETE FROM sums_of_hours WHERE hour = ?", (hour,))


MAX_HOUR_TRACES = 100_000  # most traces of an hour whose latencies are read
MAX_HOUR_NAMES = 1_000  # most run names that an hour stores
_SELECT_NAMES = (
    "SELECT DISTINCT names FROM traces INDEXED BY traces_by_start"
    " WHERE start_ns BETWEEN ? AND ? AND span_count > 0 AND names IS NOT NULL"
)
# Project, environment, name, shown, model
DayKey: TypeAlias = tuple[str, str, str, int, str]
_KEY_COLUMNS = "s.project, s.environment, s.name, s.shown, s.model"
_DAY_COLUMNS = (
    *("id", "day", "project", "environment", "name", "shown", "model"),
    *("n", "errors", "input_tokens", "output_tokens", "cost", "first", "last", "latencies", "ordered"),
)
_DAY_FEEDBACK_COLUMNS = ("cell", "key", "label", "said", "n", "total", "minimum", "maximum", "failed", "skipped")
_SELECT_DAY_COUNTS = (
    f"SELECT {_KEY_COLUMNS}, sum(s.n), sum(s.errors), total(s.input_tokens), total(s.output_tokens), total(s.cost),"
    " min(s.hour), max(s.hour) FROM sums s WHERE s.hour BETWEEN ? AND ? GROUP BY 1, 2, 3, 4, 5"
)
_SELECT_DAY_LATENCIES = (
    f"SELECT {_KEY_COLUMNS}, s.latencies, l.data FROM sums s LEFT JOIN sums_latencies l ON l.cell = s.id"
    " WHERE s.hour BETWEEN ? AND ?"
)
_SELECT_DAY_FEEDBACK = (
    f"SELECT {_KEY_COLUMNS}, f.key, f.label, sum(f.said), sum(f.n), total(f.total), min(f.minimum), max(f.maximum),"
    " sum(f.failed), sum(f.skipped) FROM sums s CROSS JOIN sums_said f ON f.cell = s.id"
    " WHERE s.hour BETWEEN ? AND ? GROUP BY 1, 2, 3, 4, 5, 6, 7"
)


class DayRows(NamedTuple):
    """Totals of a day: rows with `_DAY_COLUMNS` and `_DAY_FEEDBACK_COLUMNS`, without id and day.

    `said` pairs each feedback row with the key of its cell instead of the cell's id.
    """

    rows: dict[DayKey, tuple[Any, ...]]
    said: list[tuple[DayKey, tuple[Any, ...]]]


def insert_day(db: sqlite3.Connection, day: int, found: DayRows) -> None:
    first = db.execute("SELECT coalesce(max(id), 0) + 1 FROM sums_of_days").fetchone()[0]
    ids = {kind: id for id, kind in enumerate(found.rows, first)}
    rows = [(ids[kind], day, *kind, *row) for kind, row in found.rows.items()]
    insert_many(db, "sums_of_days", _DAY_COLUMNS, rows)
    insert_many(db, "sums_said_of_days", _DAY_FEEDBACK_COLUMNS, [(ids[kind], *row) for kind, row in found.said])


def collect_latencies(
    db: sqlite3.Connection, hour: int, rest: Callable[[], object] = lambda: None
) -> dict[int, bytes] | None:
    """Return the sorted latencies of an hour by cell, except for cells of more than `MAX_EXACT_TRACES` traces.

    Returns None if the hour has too many traces, or if its rows differ from its rollup. Calls `rest` between reads.
    """
    cells = db.execute(f"SELECT s.hour, {_KEY_COLUMNS}, s.id, s.n FROM sums s WHERE s.hour = ?", (hour,)).fetchall()
    if sum(row[7] for row in cells if row[5] == ALL_MODELS) > MAX_HOUR_TRACES:
        return None
    asked: dict[Any, list[int]] = {row[:6]: [] for row in cells if row[7] <= MAX_EXACT_TRACES}
    try:
        for keys in iterate_trace_keys(db, hour, TRACES_PER_READ):
            for one in read_contributions(db, keys).values():
                for cell in one.cells():
                    if cell in asked:
                        asked[cell].append(one.latency_ns)
            rest()
    except RollupTooLarge:  # a row is damaged or too large
        return None
    if any(len(asked.get(row[:6], ())) != row[7] for row in cells if row[7] <= MAX_EXACT_TRACES):
        return None
    return {row[6]: pack_latencies(asked[row[:6]]) for row in cells if row[:6] in asked}


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


def build_day(db: sqlite3.Connection, day: int) -> DayRows:
    """Compute the totals of a day from the rollups of its hours."""
    hours = (24 * day, 24 * day + 23)
    bins: dict[DayKey, list[bytes]] = {}
    parts: dict[DayKey, list[bytes | None]] = {}
    for *kind, latencies, data in db.execute(_SELECT_DAY_LATENCIES, hours):
        bins.setdefault(tuple(kind), []).append(latencies)
        parts.setdefault(tuple(kind), []).append(data)
    rows = {}
    for *kind, n, errors, tokens_in, tokens_out, cost, first, last in db.execute(_SELECT_DAY_COUNTS, hours):
        key: DayKey = tuple(kind)
        together = pack_bins(unpack_bins(bins[key]))
        rows[key] = (n, errors, tokens_in, tokens_out, cost, first, last, together, _merge_day_latencies(n, parts[key]))
    said = [(tuple(row[:5]), tuple(row[5:])) for row in db.execute(_SELECT_DAY_FEEDBACK, hours)]
    return DayRows(rows, said)


def _merge_day_latencies(n: int, parts: Sequence[bytes | None]) -> bytes | None:
    if n > MAX_EXACT_TRACES or None in parts:
        return None
    try:
        return merge_latencies([part for part in parts if part is not None])
    except ValueError:  # a blob is damaged
        return None


def count_wrong_periods(db: sqlite3.Connection) -> int:
    """Return how many sealed hours and days have totals that differ from the rollups they were built from."""
    hours = [row[0] for row in db.execute("SELECT hour FROM sums_hours WHERE rest = 1")]
    days = [row[0] for row in db.execute("SELECT day FROM sums_days WHERE rest = 1")]
    bad_hours = sum(not (all(_check_latencies(db, hour)) and _is_hour_correct(db, hour)) for hour in hours)
    return bad_hours + sum(not _is_equal(_read_day(db, day), build_day(db, day)) for day in days)


def _is_equal(one: object, other: object) -> bool:
    """Return whether two values are equal, except for rounding that depends on the order of additions."""
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, dict) and isinstance(other, dict):
        return _is_equal(sorted(one.items()), sorted(other.items()))
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return one == other


def _check_latencies(db: sqlite3.Connection, hour: int) -> Iterator[bool]:
    sql = "SELECT s.latencies, l.data FROM sums s LEFT JOIN sums_latencies l ON l.cell = s.id WHERE s.hour = ?"
    for bins, data in db.execute(f"{sql} AND s.n <= {MAX_EXACT_TRACES}", (hour,)):
        try:
            yield data is not None and Counter(map(find_bin, unpack_latencies(data))) == unpack_bins([bins])
        except ValueError:
            yield False


def _is_hour_correct(db: sqlite3.Connection, hour: int) -> bool:
    latencies = "SELECT l.cell, l.data FROM sums s CROSS JOIN sums_latencies l ON l.cell = s.id WHERE s.hour = ?"
    expected = build_hour(db, hour, dict(db.execute(latencies, (hour,)).fetchall()))
    rows = db.execute("SELECT hour, side, project, data FROM sums_of_hours WHERE hour = ?", (hour,)).fetchall()
    try:
        return expected is not None and _is_equal(_decode_rows(rows), _decode_rows(expected))
    except ValueError:  # a row is damaged
        return False


def _decode_rows(rows: Sequence[HourRow]) -> list[Any]:
    return sorted((*row[:3], msgpack.decode(row[3])) for row in rows)


def _read_day(db: sqlite3.Connection, day: int) -> DayRows:
    rows, kinds = {}, {}
    for id, _, *row in db.execute(f"SELECT {', '.join(_DAY_COLUMNS)} FROM sums_of_days WHERE day = ?", (day,)):
        kinds[id] = tuple(row[:5])
        rows[kinds[id]] = tuple(row[5:])
    sql = (
        f"SELECT {_KEY_COLUMNS}, {', '.join('f.' + name for name in _DAY_FEEDBACK_COLUMNS[1:])} FROM sums_of_days s"
        " CROSS JOIN sums_said_of_days f ON f.cell = s.id WHERE s.day = ? ORDER BY 1, 2, 3, 4, 5, 6, 7"
    )
    return DayRows(rows, [(tuple(row[:5]), tuple(row[5:])) for row in db.execute(sql, (day,))])
