"""SVG charts: lines over experiments, bars and lines over time, sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10

from spanwise.collector.records import Bucket

# SVG line charts: one value per experiment with the band of its interval.

LINE_CHART_WIDTH, LINE_CHART_HEIGHT, MARGIN = 320, 72, 6


@dataclass(frozen=True, slots=True)
class Mark:
    """Point of a line, in the coordinates of a WIDTH × HEIGHT box, with the ends of its interval."""

    x: float
    y: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class LineChart:
    """Marks of a line, its path, and the path of the band between the intervals' ends."""

    marks: Sequence[Mark]
    line: str
    band: str
    lowest: float
    highest: float


def make_line_chart(values: Sequence[tuple[float, float | None, float | None]]) -> LineChart:
    """Return the chart of values (mean, low, high), earliest first. `low` and `high` are None without an interval."""
    known = [end for value in values for end in value if end is not None]
    lowest, highest = min(known), max(known)
    span = highest - lowest or 1.0
    step = (LINE_CHART_WIDTH - 2 * MARGIN) / max(1, len(values) - 1)

    def scale(value: float) -> float:
        return round(MARGIN + (LINE_CHART_HEIGHT - 2 * MARGIN) * (1 - (value - lowest) / span), 1)

    marks = [
        Mark(
            round(MARGIN + place * step, 1),
            scale(mean),
            None if low is None else scale(low),
            None if high is None else scale(high),
        )
        for place, (mean, low, high) in enumerate(values)
    ]
    line = "M" + " L".join(f"{mark.x} {mark.y}" for mark in marks)
    bands = []
    for first, second in pairwise(marks):
        corners = (first.x, first.high), (second.x, second.high), (second.x, second.low), (first.x, first.low)
        if all(y is not None for _, y in corners):
            bands.append("M" + " L".join(f"{x} {y}" for x, y in corners) + "Z")
    return LineChart(marks, line, " ".join(bands), lowest, highest)


# SVG charts over time: bars or lines on axes, with gaps where there are no values.
#
# Texts are HTML around the SVG, because the SVG is stretched to the width of its place.

TIME_CHART_WIDTH, TIME_CHART_HEIGHT = 1000, 100
_STEPS = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0)  # upper ends of an axis, times a power of ten; their halves are short, too


@dataclass(frozen=True, slots=True)
class Slot:
    """Place of a bucket on the time axis, in the coordinates of a WIDTH × HEIGHT box."""

    x: float
    width: float

    @property
    def middle(self) -> float:
        """Return the position of a point."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class TimeChart:
    """Paths of a chart, and the values at the lower end, the middle and the upper end of its axis.

    A line has a subpath per gap-free run of values. Single values between two gaps are dots, in paths of their own.
    """

    axis: tuple[float, float, float]
    bars: str
    lines: Sequence[str] = ()
    dots: Sequence[str] = ()
    band: str = ""  # area between the ends of intervals
    uncertain: str = ""  # dots of values that are not part of a line


def choose_axis(low: float, high: float, smallest: float = 0.0) -> tuple[float, float]:
    """Return the ends of an axis for values from `low` to `high`: 0, and a round number of at least `smallest`."""
    top, bottom = round_up(max(high, smallest)), -round_up(-low) if low < 0 else 0.0
    return bottom, top if top > bottom else bottom + 1.0


def round_up(value: float) -> float:
    """Return the next number above that is an even digit, 1 or 10, times a power of ten; 0 for values up to 0."""
    if value <= 0:
        return 0.0
    power = 10.0 ** floor(log10(value))
    return next((step * power for step in _STEPS if step * power >= value * (1 - 1e-9)), 10 * power)


def make_bars(slots: Sequence[Slot], values: Sequence[float | None], axis: tuple[float, float]) -> TimeChart:
    """Return a chart of one bar per value above 0. Each has a visible height."""
    bottom, top = axis
    parts = []
    for slot, value in zip(slots, values, strict=True):
        if value:
            height = max(1.5, min(1.0, (value - bottom) / (top - bottom)) * TIME_CHART_HEIGHT)
            width = slot.width * 0.8
            parts.append(
                f"M{slot.x + slot.width * 0.1:.1f} {TIME_CHART_HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z"
            )
    return TimeChart((bottom, (bottom + top) / 2, top), "".join(parts))


def make_lines(slots: Sequence[Slot], series: Sequence[Sequence[float | None]], axis: tuple[float, float]) -> TimeChart:
    """Return a chart of one line per series of values, with gaps where a value is None."""
    bottom, top = axis

    def place(slot: Slot, value: float) -> str:
        return f"{slot.middle:.1f} {TIME_CHART_HEIGHT * (1 - (value - bottom) / (top - bottom)):.1f}"

    lines, dots = [], []
    for values in series:
        line, alone = [], []
        for slot, value, last, after in zip(slots, values, [None, *values], [*values[1:], None], strict=False):
            if value is not None:
                if last is None and after is None:
                    alone.append(f"M{place(slot, value)}h0")  # round line ends make a dot of it
                else:
                    line.append(("M" if last is None else "L") + place(slot, value))
        lines.append("".join(line))
        dots.append("".join(alone))
    return TimeChart((bottom, (bottom + top) / 2, top), "", lines, dots)


def make_bands(slots: Sequence[Slot], bands: Sequence[tuple[float, float] | None], axis: tuple[float, float]) -> str:
    """Return the path of a band between the ends of intervals, with gaps where there is none.

    An interval between two gaps has the width of its slot.
    """
    bottom, top = axis

    def place(x: float, value: float) -> str:
        inside = min(max(value, bottom), top)
        return f"{x:.1f} {TIME_CHART_HEIGHT * (1 - (inside - bottom) / (top - bottom)):.1f}"

    parts: list[str] = []
    run: list[tuple[float, tuple[float, float]]] = []
    for slot, band in [*zip(slots, bands, strict=True), (None, None)]:
        if band is not None and slot is not None:
            run += [(slot.x, band), (slot.middle, band), (slot.x + slot.width, band)]
            continue
        if len(run) > 3:  # a line goes through the middle of slots
            run = run[1::3]
        if run:
            upper = [place(x, ends[1]) for x, ends in run]
            lower = [place(x, ends[0]) for x, ends in reversed(run)]
            parts.append("M" + "L".join([*upper, *lower]) + "Z")
        run = []
    return "".join(parts)


def make_dots(slots: Sequence[Slot], values: Sequence[float | None], axis: tuple[float, float]) -> str:
    """Return the path of one dot per value."""
    bottom, top = axis
    return "".join(
        f"M{slot.middle:.1f} {TIME_CHART_HEIGHT * (1 - (value - bottom) / (top - bottom)):.1f}h0"
        for slot, value in zip(slots, values, strict=True)
        if value is not None
    )


# SVG sparklines: time buckets and bar geometry.

_FIRST, _LAST = -(2**63), 2**63 - 1  # range of 64-bit nanoseconds
WIDTH, HEIGHT = 240, 36
_MAX_BUCKETS = 48
# Widths of buckets in seconds. A chart uses the narrowest that covers its time range with at most 48 buckets.
_WIDTHS = (1, 2, 5, 10, 20, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800)


@dataclass(frozen=True, slots=True)
class Window:
    """Time range of a chart, divided into buckets."""

    since_ns: int
    until_ns: int
    width_ns: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart, in the coordinates of a WIDTH × HEIGHT box."""

    x: float
    y: float
    width: float
    height: float


def choose_window(since_ns: int, until_ns: int) -> Window:
    """Return a window of whole buckets that covers [since_ns, until_ns], within 64-bit nanoseconds."""
    span = max(1, until_ns - since_ns)
    width = (
        next((w for w in _WIDTHS if w * 10**9 * (_MAX_BUCKETS - 1) >= span), -(-span // (10**9 * _MAX_BUCKETS))) * 10**9
    )
    return Window(max(since_ns // width * width, _FIRST), min((until_ns // width + 1) * width, _LAST), width)


def fill_buckets(buckets: Sequence[Bucket], view: Window) -> list[Bucket]:
    """Return the buckets of a window in order, with empty buckets for gaps."""
    by_place = {(bucket.start_ns - view.since_ns) // view.width_ns: bucket for bucket in buckets}
    starts = range(view.since_ns, view.until_ns, view.width_ns)
    return [by_place.get(i) or Bucket(start_ns=start, width_ns=view.width_ns) for i, start in enumerate(starts)]


def bars(values: Sequence[float], top: float | None = None) -> list[Bar]:
    """Return bars of equal width. The highest value (or `top`) has full height; each value above 0 has a visible bar."""
    most = top or max(values, default=0) or 1
    step = WIDTH / max(1, len(values))
    heights = [max(1.5, min(1.0, value / most) * HEIGHT) if value else 0.0 for value in values]
    boxes = [(round(i * step, 2), round(height, 2)) for i, height in enumerate(heights)]
    return [Bar(x, round(HEIGHT - height, 2), round(step * 0.78, 2), height) for x, height in boxes if height]


def shares(buckets: Sequence[Bucket]) -> list[float]:
    """Return the share of failed traces per bucket."""
    return [bucket.errors / bucket.traces if bucket.traces else 0.0 for bucket in buckets]


def slow(buckets: Sequence[Bucket]) -> list[float]:
    """Return the p95 latency per bucket; 0 for empty buckets."""
    return [bucket.p95_ms or 0.0 for bucket in buckets]


def tokens(buckets: Sequence[Bucket]) -> list[float]:
    """Return the number of tokens per bucket."""
    return [float(bucket.input_tokens + bucket.output_tokens) for bucket in buckets]
