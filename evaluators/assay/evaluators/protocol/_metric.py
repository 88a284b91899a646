"""What is known about the numbers that an evaluator gives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Metric:
    """One key of an evaluator: the range of its scores, which direction is good, and from where on it passes.

    `range` is (lowest, highest), either may be infinite; None says nothing. `threshold` None: passing is not defined,
    except for booleans, which pass when they are on the good side.
    """

    key: str
    range: tuple[float, float] | None = (0.0, 1.0)
    higher_is_better: bool = True
    threshold: float | None = None
    primary: bool = False

    def passes(self, score: float | bool) -> bool | None:
        """Whether a score (or a mean of scores) is on the good side of the threshold; a score equal to it passes."""
        threshold = 0.5 if self.threshold is None and isinstance(score, bool) else self.threshold
        if threshold is None:
            return None
        return score >= threshold if self.higher_is_better else score <= threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; infinite ends of the range become None."""
        plain = asdict(self)
        if self.range is not None:
            plain["range"] = [None if abs(end) == float("inf") else end for end in self.range]
        if self.threshold is not None and abs(self.threshold) == float("inf"):
            plain["threshold"] = None
        return plain
