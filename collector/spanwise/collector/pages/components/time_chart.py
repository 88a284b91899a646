"""SVG charts over time: bars or lines on axes, with gaps where there are no values.

Texts are HTML around the SVG, because the SVG is stretched to the width of its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

WIDTH, HEIGHT = 1000, 100
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
            height = max(1.5, min(1.0, (value - bottom) / (top - bottom)) * HEIGHT)
            width = slot.width * 0.8
            parts.append(f"M{slot.x + slot.width * 0.1:.1f} {HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z")
    return TimeChart((bottom, (bottom + top) / 2, top), "".join(parts))


def make_lines(slots: Sequence[Slot], series: Sequence[Sequence[float | None]], axis: tuple[float, float]) -> TimeChart:
    """Return a chart of one line per series of values, with gaps where a value is None."""
    bottom, top = axis

    def place(slot: Slot, value: float) -> str:
        return f"{slot.middle:.1f} {HEIGHT * (1 - (value - bottom) / (top - bottom)):.1f}"

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
        return f"{x:.1f} {HEIGHT * (1 - (inside - bottom) / (top - bottom)):.1f}"

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
        f"M{slot.middle:.1f} {HEIGHT * (1 - (value - bottom) / (top - bottom)):.1f}h0"
        for slot, value in zip(slots, values, strict=True)
        if value is not None
    )
