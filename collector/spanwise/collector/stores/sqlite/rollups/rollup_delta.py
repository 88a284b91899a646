"""Contribution of traces and feedback to the rollup of their hour, latency histograms included.

A trace counts in the cell of its hour, project, environment and name, and in one more cell for each model that it
called, with that model's tokens and cost. Its feedback counts in the same cells. Amounts are integers in units of
2^-80, so that subtracting what was added, in any order, leaves exactly 0.
"""

from __future__ import annotations

import sqlite3
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import msgspec
from ddsketch.mapping import LogarithmicMapping

from spanwise.collector.filters import EVALUATOR_KIND
from spanwise.collector.statistics import nearest_rank
from spanwise.collector.stores.table_rows import INT_MAX, select_many
from spanwise.collector.stores.trace_summary import SummaryRow

# Latency histograms (DDSketch bins) and their percentiles.
#
# The bins are those of DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch", VLDB
# 2019): the value of a bin is within `RELATIVE_ERROR` of all latencies in it.
#
# Format of a blob of bins:
#
# - The first byte is the width of the counts. The number of the first bin plus 1 follows (2 bytes), so that none is
#   negative, and then the counts of consecutive bins.
# - With width 0, pairs follow: a bin plus 1, and its count, 2 bytes each. This form is for a few latencies that are far
#   apart.

RELATIVE_ERROR = 0.01  # relative error of a percentile
ZERO_BIN = -1  # bin of latency 0; a latency of 1 ns is in bin 0
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
_ARRAY_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}  # type codes of `array`, by width
_COUNT_WIDTHS = (1, 2, 4)  # widths of counts
_LANE_BYTES = 8  # bytes of each count in the large integers by which blobs are added


def find_bin(latency_ns: int) -> int:
    """Return the bin of a latency."""
    return _MAPPING.key(float(latency_ns)) if latency_ns > 0 else ZERO_BIN


def get_bin_latency(bin: int) -> float:
    """Return the nanoseconds that a bin represents."""
    return 0.0 if bin == ZERO_BIN else float(_MAPPING.value(bin))


def pack_bins(bins: Mapping[int, int]) -> bytes:
    """Pack counts by bin into a blob without empty bins; no bins give an empty blob."""
    here = {bin: count for bin, count in bins.items() if count}
    if not here:
        return b""
    first, most = min(here), max(here.values())
    size, width = max(here) - first + 1, 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4
    if size * width > 4 * len(here) and most < 1 << 16:
        return b"\0" + _array_bytes(array("H", (x for bin in sorted(here) for x in (bin + 1, here[bin]))))
    counts = array(_ARRAY_CODES[width], bytes(size * width))
    for bin, count in here.items():
        counts[bin - first] = count
    return bytes([width]) + (first + 1).to_bytes(2, "little") + _array_bytes(counts)


def add_to_bins(blob: bytes, more: Mapping[int, int]) -> bytes:
    """Return a blob with the counts `more`, which may be negative, added. Raises `ValueError` if a count would be
    negative.
    """
    if blob:  # nearly always the counts fit into the blob as it is
        made = _add_to_counts(blob, more) if blob[0] else _add_to_pairs(blob, more)
        if made is not None:
            return made
    bins = unpack_bins([blob])
    for bin, times in more.items():
        bins[bin] += times
    if any(times < 0 for times in bins.values()):
        raise ValueError("the count of a bin would be negative")
    return pack_bins(bins)


def _add_to_counts(blob: bytes, more: Mapping[int, int]) -> bytes | None:
    """Add to a blob of consecutive counts; return None if the result needs other bins or wider counts."""
    width, first = blob[0], blob[1] + (blob[2] << 8) - 1
    if width not in _COUNT_WIDTHS or (len(blob) - 3) % width:
        return None
    counts, most = _read_array(_ARRAY_CODES[width], blob[3:]), 1 << 8 * width
    for bin, times in more.items():
        place = bin - first
        if not 0 <= place < len(counts) or not 0 <= counts[place] + times < most:
            return None
        counts[place] += times
    return blob[:3] + _array_bytes(counts) if counts[0] and counts[-1] else None


def _add_to_pairs(blob: bytes, more: Mapping[int, int]) -> bytes | None:
    """Add to a blob of pairs; return None if its bins change or a count does not fit."""
    flat = _read_array("H", blob[1:])
    bins = flat[::2]
    for bin, times in more.items():
        place = bisect_left(bins, bin + 1)
        if place == len(bins) or bins[place] != bin + 1 or not 0 < flat[2 * place + 1] + times < 1 << 16:
            return None
        flat[2 * place + 1] += times
    return b"\0" + _array_bytes(flat)


def unpack_bins(blobs: Iterable[bytes]) -> Counter[int]:
    """Return the counts by bin, added over all blobs. Raises `ValueError` for an invalid blob."""
    bins: dict[int, int] = {}
    # First bin, and the counts of consecutive bins as one large integer, so that one addition adds all of them
    runs: list[tuple[int, int]] = []
    for blob in blobs:
        if blob[:1] == b"\0":
            flat = _read_array("H", blob[1:])
            for bin, count in zip(flat[::2], flat[1::2], strict=True):
                bins[bin - 1] = bins.get(bin - 1, 0) + count
        elif blob:
            run = _counts_as_integer(blob)
            runs.append((blob[1] + (blob[2] << 8) - 1, run))
    if runs:
        least = min(first for first, _ in runs)
        total = sum(run << 8 * _LANE_BYTES * (first - least) for first, run in runs)
        size = -(-total.bit_length() // (8 * _LANE_BYTES))
        for bin, count in enumerate(_read_array("Q", total.to_bytes(size * _LANE_BYTES, "little")), least):
            if count:
                bins[bin] = bins.get(bin, 0) + count
    return Counter(bins)


def _counts_as_integer(blob: bytes) -> int:
    """Return consecutive counts as one integer, with `_LANE_BYTES` bytes per count."""
    width, size = blob[0], len(blob) - 3
    if width not in _COUNT_WIDTHS or size < width or size % width:
        raise ValueError(f"invalid latency bins: {blob[:16]!r}")
    lanes = bytearray(_LANE_BYTES * size // width)
    for place in range(width):
        lanes[place::_LANE_BYTES] = blob[3 + place :: width]
    return int.from_bytes(lanes, "little")


def _read_array(code: str, data: bytes) -> array[int]:
    values = array(code, data)
    if sys.byteorder == "big":  # blobs are little-endian, so that a file can be moved to another machine
        values.byteswap()
    return values


def _array_bytes(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def compute_bin_percentiles(bins: Mapping[int, int], *percents: int) -> list[float]:
    """Return percentiles in nanoseconds, within `RELATIVE_ERROR` of `statistics.percentile`. Raises `ValueError`
    without counts.
    """
    counted = sorted(bins.items())
    upto = list(accumulate(count for _, count in counted))
    if not upto or upto[-1] <= 0:
        raise ValueError("a percentile needs at least one latency")
    ranks = [nearest_rank(upto[-1], percent) for percent in percents]
    return [get_bin_latency(counted[bisect_left(upto, rank)][0]) for rank in ranks]


# Contribution of traces and feedback to the rollup of their hour, as exact deltas.

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS
AMOUNT_BITS = 80  # fractional binary digits of an amount
TRACES_PER_READ = 500  # traces read between two pauses
MAX_HOUR_ROWS = 4_000  # maximum number of rollup rows of an hour, even if a sender gives each trace another name
# Limits of the models of one trace: their number, and the characters of their JSON. Beyond them, the hour of the
# trace is read from rows.
MAX_MODELS, MAX_MODELS_CHARACTERS = 100, 50_000
EVALUATOR_TRACE, LIVE_TRACE, EXPERIMENT_TRACE = 0, 1, 2
ALL_MODELS = ""  # model of the cell that counts whole traces
# Hour (start_ns // HOUR_NS, rounded towards zero as in SQL), project, environment, name, shown, model
RollupKey: TypeAlias = tuple[int, str, str, str, int, str]

# Category of a trace: evaluator's own (not shown in lists), live, or of an experiment
_SHOWN_SQL = f"CASE WHEN t.experiment_id IS NOT NULL THEN {EXPERIMENT_TRACE} ELSE t.kind IS NOT '{EVALUATOR_KIND}' END"
_TEXTS = ", ".join(f"CAST(coalesce(t.{name}, '') AS TEXT)" for name in ("project", "environment", "name"))
_TOKENS = ", ".join(f"CAST(coalesce(t.{name}, 0) AS INTEGER)" for name in ("input_tokens", "output_tokens"))
# Damaged rows count with defaults, so that they can be updated and deleted.
_ROW = (
    f"t.id, t.start_ns / {HOUR_NS}, {_TEXTS}, {_SHOWN_SQL}, max(0, coalesce(t.end_ns, t.start_ns) - t.start_ns),"
    f" t.status IS 'error', {_TOKENS}, CAST(t.cost AS REAL), CAST(t.models AS TEXT)"
)
_SELECT_TRACES = f"SELECT {_ROW} FROM traces t WHERE t.span_count > 0 AND t.start_ns IS NOT NULL AND t.id IN (%s)"
# Condition on a row `f` of a trace: human feedback under a key that a judge scored on the same trace
CHECKS_JUDGE_SQL = (
    "(f.source = 'human' AND EXISTS (SELECT 1 FROM feedback j INDEXED BY feedback_by_trace"
    " WHERE j.trace = f.trace AND j.key = f.key AND j.source = 'model'))"
)
# Feedback on documents has the suffix `bucket_totals.DOCUMENT_SUFFIX`
COUNTED_KEY_SQL = "CASE WHEN f.document IS NULL THEN f.key ELSE f.key || char(31) || 'document' END"
COUNTED_FEEDBACK_SQL = f"f.standing >= 1 AND NOT {CHECKS_JUDGE_SQL}"
_SELECT_ALL_FEEDBACK = (
    f"SELECT f.trace, {COUNTED_KEY_SQL}, f.label, f.outcome, f.score, {COUNTED_FEEDBACK_SQL} FROM feedback f"
)
_SELECT_COUNTED_FEEDBACK = (
    f"SELECT f.trace, {COUNTED_KEY_SQL}, f.label, f.outcome, f.score FROM feedback f WHERE {COUNTED_FEEDBACK_SQL}"
)

ModelAmounts: TypeAlias = tuple[int, int, int, float | None]  # calls, input tokens, output tokens, cost
_MODELS_DECODER = msgspec.json.Decoder(dict[str, ModelAmounts])


class RollupTooLarge(Exception):
    """Rollup limit exceeded: the hour is read from rows instead."""


class TraceContribution(NamedTuple):
    """Contribution of a trace to the rollup of its hour."""

    hour: int
    project: str
    environment: str
    name: str
    shown: int
    latency_ns: int
    error: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    models: str | None

    def cells(self) -> list[RollupKey]:
        """Return the cells in which the trace counts. Raises `RollupTooLarge`."""
        return [(*self[:5], model) for model in (ALL_MODELS, *map(encode_name, self.by_model()))]

    def by_model(self) -> dict[str, ModelAmounts]:
        """Return calls, input tokens, output tokens and cost by model. Raises `RollupTooLarge`."""
        if self.models is None:
            return {}
        if len(self.models) > MAX_MODELS_CHARACTERS:
            raise RollupTooLarge
        try:
            by_model = _MODELS_DECODER.decode(self.models)
        except msgspec.MsgspecError:  # the column is damaged
            raise RollupTooLarge from None
        if not 0 < len(by_model) <= MAX_MODELS:
            raise RollupTooLarge
        return by_model

    @property
    def place(self) -> tuple[object, ...]:
        """Return a value that is equal for traces in the same cells."""
        try:
            return tuple(self.cells())
        except RollupTooLarge:
            return self[:5]


def make_contribution(rolled: SummaryRow) -> TraceContribution:
    """Return the contribution of a trace from its summary. `read_contributions` returns the same once the row is
    written.
    """
    shown = EXPERIMENT_TRACE if rolled.experiment_id is not None else int(rolled.kind != EVALUATOR_KIND)
    return TraceContribution(
        rolled.start_ns // HOUR_NS,
        rolled.project,
        rolled.environment,
        rolled.name,
        shown,
        rolled.end_ns - rolled.start_ns if rolled.end_ns > rolled.start_ns else 0,
        rolled.status == "error",
        rolled.input_tokens,
        rolled.output_tokens,
        rolled.cost,
        rolled.models,
    )


def encode_name(value: str) -> str:
    """Return a model or label as stored in the tables: with a prefix, so that an empty text differs from a missing
    one.
    """
    return f"={value}"


def to_units(amount: float) -> int:
    """Convert an amount to units of 2^-80, rounded to the nearest. Raises `RollupTooLarge` if it is not finite."""
    try:
        numerator, denominator = amount.as_integer_ratio()
    except (OverflowError, ValueError):
        raise RollupTooLarge from None
    return ((numerator << AMOUNT_BITS + 1) // denominator + 1) >> 1


def from_units(units: int) -> float:
    """Convert units to an amount. Raises `RollupTooLarge` if no float can hold it."""
    try:
        return units / (1 << AMOUNT_BITS)
    except OverflowError:
        raise RollupTooLarge from None


class TraceAmounts:
    """Change of a cell's trace counts, tokens, cost and latency bins; negative amounts are subtracted."""

    __slots__ = ("bins", "cost", "errors", "input_tokens", "n", "output_tokens")

    def __init__(self) -> None:
        self.n = self.errors = self.input_tokens = self.output_tokens = self.cost = 0
        self.bins: Counter[int] = Counter()

    def add(self, sign: int, bin: int, error: int, input_tokens: int, output_tokens: int, cost: float) -> None:
        self.n += sign
        self.errors += sign * error
        self.input_tokens += sign * input_tokens
        self.output_tokens += sign * output_tokens
        if cost:
            self.cost += sign * to_units(cost)
        self.bins[bin] += sign

    def merge(self, other: TraceAmounts) -> None:
        self.n += other.n
        self.errors += other.errors
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cost += other.cost
        for bin, count in other.bins.items():
            self.bins[bin] += count


class FeedbackAmounts:
    """Change of the feedback under a key and a label in a cell. `scores` has the change in the number of each score."""

    __slots__ = ("failed", "n", "said", "scores", "skipped", "total")

    def __init__(self) -> None:
        self.said = self.n = self.total = self.failed = self.skipped = 0
        self.scores: Counter[float] = Counter()

    def add(self, sign: int, outcome: str, score: float | None) -> None:
        if outcome == "score":
            self.said += sign
        elif outcome == "error":
            self.failed += sign
        else:
            self.skipped += sign
        if score is not None:
            self.n += sign
            self.total += sign * to_units(score)
            self.scores[score] += sign

    def merge(self, other: FeedbackAmounts) -> None:
        self.said += other.said
        self.n += other.n
        self.total += other.total
        self.failed += other.failed
        self.skipped += other.skipped
        for score, times in other.scores.items():
            self.scores[score] += times

    def condense(self) -> None:
        """Keep only the smallest and the largest score. Requires that scores were only added."""
        if len(self.scores) > 2:
            least, most = min(self.scores), max(self.scores)
            self.scores = Counter({least: self.scores[least], most: self.scores[most]})


class RollupDelta:
    """Change of the rollup of one hour."""

    __slots__ = ("cells", "feedback")

    def __init__(self) -> None:
        self.cells: dict[RollupKey, TraceAmounts] = {}
        self.feedback: dict[tuple[RollupKey, str, str], FeedbackAmounts] = {}

    def add_trace(self, one: TraceContribution, sign: int) -> None:
        """Add (`sign` 1) or subtract (-1) a trace. Raises `RollupTooLarge`."""
        bin, place = find_bin(one.latency_ns), one[:5]
        whole = self._cell((*place, ALL_MODELS))
        whole.add(sign, bin, one.error, one.input_tokens, one.output_tokens, one.cost or 0.0)
        for model, (_, tokens_in, tokens_out, cost) in one.by_model().items():
            self._cell((*place, encode_name(model))).add(sign, bin, one.error, tokens_in, tokens_out, cost or 0.0)

    def add_feedback(self, cells: Iterable[RollupKey], row: Sequence[Any], sign: int) -> None:
        """Add or subtract a row of feedback: key, label, outcome, score. Raises `RollupTooLarge`."""
        key, label, outcome, score = row
        label = "" if label is None else encode_name(label)
        for cell in cells:
            said = self.feedback.get((cell, key, label))
            if said is None:
                said = self.feedback[cell, key, label] = FeedbackAmounts()
            said.add(sign, outcome, score)

    def add(self, other: RollupDelta) -> None:
        """Add another delta."""
        for cell, part in other.cells.items():
            self._cell(cell).merge(part)
        for place, said in other.feedback.items():
            if place in self.feedback:
                self.feedback[place].merge(said)
            else:
                self.feedback[place] = said

    def _cell(self, cell: RollupKey) -> TraceAmounts:
        part = self.cells.get(cell)
        if part is None:
            part = self.cells[cell] = TraceAmounts()
        return part


class RollupChanges:
    """Changes of one write by hour, with the hours that need a recount or are too large."""

    def __init__(self) -> None:
        self.deltas: dict[int, RollupDelta] = {}
        self.stale: set[int] = set()
        self.too_large: set[int] = set()

    def add_traces(self, traces: Iterable[TraceContribution], sign: int) -> None:
        """Add (`sign` 1) or subtract (-1) traces."""
        for trace in traces:
            try:
                self._delta(trace.hour).add_trace(trace, sign)
            except RollupTooLarge:
                self.too_large.add(trace.hour)

    def add_feedback(self, traces: Mapping[int, TraceContribution], rows: Iterable[Sequence[Any]], sign: int) -> None:
        """Add or subtract feedback in the cells of its trace. Feedback on traces that do not count is ignored."""
        cells: dict[int, list[RollupKey]] = {}
        for key, *row in rows:
            if (trace := traces.get(key)) is not None:
                try:
                    if key not in cells:
                        cells[key] = trace.cells()
                    self._delta(trace.hour).add_feedback(cells[key], row, sign)
                except RollupTooLarge:
                    self.too_large.add(trace.hour)

    def _delta(self, hour: int) -> RollupDelta:
        return self.deltas.setdefault(hour, RollupDelta())


def read_contributions(db: sqlite3.Connection, keys: Iterable[int]) -> dict[int, TraceContribution]:
    """Return the contributions of traces by key. Traces that only have feedback contribute nothing."""
    return {row[0]: TraceContribution(*row[1:]) for row in select_many(db, _SELECT_TRACES, keys)}


def read_counted_feedback(db: sqlite3.Connection, keys: Iterable[int]) -> list[Any]:
    """Return the rows of feedback on traces that count: trace, key, label, outcome, score."""
    return select_many(db, _SELECT_COUNTED_FEEDBACK + " AND f.trace IN (%s)", keys)


def read_feedback_under(db: sqlite3.Connection, pairs: Iterable[tuple[int, str]]) -> list[Any]:
    """Return the rows of feedback under one key per trace, with a last column that tells whether the row counts.

    Feedback of these traces under other keys, which may be a lot, is not read.
    """
    by_key: dict[str, list[int]] = {}
    for trace, key in pairs:
        by_key.setdefault(key, []).append(trace)
    sql = _SELECT_ALL_FEEDBACK + " WHERE f.key = ? AND f.trace IN (%s)"
    return [row for key, traces in by_key.items() for row in select_many(db, sql, traces, (key,))]


def get_period_range(hour: int, width: int = HOUR_NS) -> tuple[int, int | None]:
    """Return the start times [since, until) for which `start_ns / width`, rounded towards zero, is `hour`.

    `until` is None for the last hour that a column can hold.
    """
    if hour > 0:
        until = (hour + 1) * width
        return hour * width, until if until <= INT_MAX else None
    return (hour - 1) * width + 1, (width if hour == 0 else hour * width + 1)


def get_hour_bounds(hour: int) -> tuple[int, int]:
    """Return the first and the last start time in an hour."""
    since, until = get_period_range(hour)
    return since, INT_MAX if until is None else until - 1


def iterate_trace_keys(db: sqlite3.Connection, hour: int, at_once: int) -> Iterator[list[int]]:
    """Yield the keys of the traces that start within an hour, `at_once` at a time."""
    sql = "SELECT id FROM traces INDEXED BY traces_by_start WHERE start_ns BETWEEN ? AND ? AND span_count > 0"
    cursor = db.execute(sql, get_hour_bounds(hour))
    while rows := cursor.fetchmany(at_once):
        yield [row[0] for row in rows]


def sum_hour(db: sqlite3.Connection, hour: int, rest: Callable[[], object] = lambda: None) -> RollupDelta | None:
    """Return the rollup of an hour, computed from its rows; None if it is too large. Calls `rest` between reads."""
    counted = RollupDelta()
    try:
        for keys in iterate_trace_keys(db, hour, TRACES_PER_READ):
            _add_traces(db, counted, keys)
            if len(counted.cells) + len(counted.feedback) > MAX_HOUR_ROWS:
                return None
            rest()
    except RollupTooLarge:
        return None
    return counted


def _add_traces(db: sqlite3.Connection, delta: RollupDelta, keys: list[int]) -> None:
    traces = read_contributions(db, keys)
    for one in traces.values():
        delta.add_trace(one, 1)
    cells = {key: one.cells() for key, one in traces.items()}
    for trace, *row in read_counted_feedback(db, traces):
        delta.add_feedback(cells[trace], row, 1)
    for said in delta.feedback.values():
        said.condense()
