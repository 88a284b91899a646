"""What is known about the numbers that an evaluator gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from spanwise.evaluators.protocol._infinite import in_json, number_of


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
        """Plain JSON values: infinite ends of the range become None, an infinite threshold the word "Infinity"."""
        plain = {**asdict(self), "threshold": in_json(self.threshold)}
        if self.range is not None:
            plain["range"] = [None if abs(end) == float("inf") else end for end in self.range]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """What is known of passing from what `to_dict` gave: key, direction and threshold."""
        return cls(plain["key"], None, plain.get("higher_is_better", True), number_of(plain.get("threshold")))
