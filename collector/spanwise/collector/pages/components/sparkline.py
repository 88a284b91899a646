"""SVG sparklines: time buckets and bar geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spanwise.collector.records import Bucket

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
