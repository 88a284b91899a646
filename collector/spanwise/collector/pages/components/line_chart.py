"""SVG line charts: one value per experiment with the band of its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT, MARGIN = 320, 72, 6


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
    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)

    def scale(value: float) -> float:
        return round(MARGIN + (HEIGHT - 2 * MARGIN) * (1 - (value - lowest) / span), 1)

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
