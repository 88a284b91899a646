"""Exact sums of floats as they come, in memory that stays small."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import fsum, isfinite

FULL = 256  # numbers that may wait: enough that compressing them costs little per number


class Sum:
    """The sum of all numbers added: correctly rounded, so the same in any order, and however parts were merged.

    Numbers wait in `parts`; when there are `FULL` of them, a few take their place whose exact sum is the same.
    Beyond the range of floats the sum is infinite, as that of `sum` is.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[float] = ()) -> None:
        self.parts = array("d", parts)

    def add(self, value: float) -> None:
        """Add one number."""
        self.parts.append(value)
        if len(self.parts) >= FULL:
            self.compress()

    def merge(self, other: Sum) -> None:
        """Add all that another sum holds."""
        self.parts.extend(other.parts)
        self.compress()

    def compress(self) -> None:
        """Replace what waits by its expansion."""
        self.parts = array("d", expansion(self.parts))

    def __float__(self) -> float:
        return _rounded(self.parts)


def expansion(values: Sequence[float]) -> list[float]:
    """A few numbers with the same exact sum: each is the sum, rounded, of what those before it leave.

    So the first is the sum that `math.fsum` gives, and the last leaves nothing (Shewchuk 1997, section 2.8).
    """
    rest, parts = list(values), list[float]()
    while part := _rounded(rest):
        parts.append(part)
        if not isfinite(part):
            return [part]
        rest.append(-part)
    return parts


def _rounded(values: Sequence[float]) -> float:
    try:
        return fsum(values)
    except (OverflowError, ValueError):  # too large for a float on the way, or infinities of both signs
        return sum(values)
