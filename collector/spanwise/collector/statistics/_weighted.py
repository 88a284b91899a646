"""Scores that stand for more, or for fewer, than themselves: those of a sample weigh one over their probability."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from spanwise.collector.statistics._sum import Sum


@dataclass(slots=True, eq=False)
class Weighted:
    """Scores whose weight is not 1: counts of all, and sums over those whose weight is known."""

    n: int = 0
    unknown: int = 0
    judged: int = 0
    passed: int = 0
    weight: Sum = field(default_factory=Sum)  # Σw
    squares: Sum = field(default_factory=Sum)  # Σw²
    total: Sum = field(default_factory=Sum)  # Σwy
    of_judged: Sum = field(default_factory=Sum)  # Σw of the judged
    of_passed: Sum = field(default_factory=Sum)  # Σw of the passed

    def add(self, score: float, weight: float | None, passes: bool | None) -> None:
        """Count one score. Raises `ValueError` for a weight that is negative, infinite or NaN."""
        if weight is None:
            self.unknown += 1
        elif isfinite(weight) and weight >= 0:
            self._weigh(score, weight, passes)
        else:
            raise ValueError(f"a weight is a number from 0 on, or None where it is not known, not {weight!r}")
        self.n += 1
        self.judged += passes is not None
        self.passed += bool(passes)

    def _weigh(self, score: float, weight: float, passes: bool | None) -> None:
        self.weight.add(weight)
        self.squares.add(weight * weight)
        self.total.add(weight * score)
        if passes is not None:
            self.of_judged.add(weight)
            self.of_passed.add(weight * passes)

    def merge(self, other: Weighted) -> None:
        """Count all that another has counted."""
        self.n += other.n
        self.unknown += other.unknown
        self.judged += other.judged
        self.passed += other.passed
        self.weight.merge(other.weight)
        self.squares.merge(other.squares)
        self.total.merge(other.total)
        self.of_judged.merge(other.of_judged)
        self.of_passed.merge(other.of_passed)
