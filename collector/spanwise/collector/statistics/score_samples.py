"""Mean of the scores of one key of an experiment, with its interval, clustered by example."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from math import fsum, isfinite

from spanwise.collector.statistics.intervals import (
    MIN_DISTINCT,
    Interval,
    Moments,
    get_scale,
    mean_interval,
    wilson_interval,
)

_DIGITS = 12  # values that are equal to this many binary-scaled decimal places count as equal


class ScoreSample:
    """Scores of one key of an experiment, with the example of each.

    Repetitions of an example, and several scores of one run, are not independent. The interval of the mean therefore
    treats the examples as the sample, not the scores.
    """

    __slots__ = ("examples", "scores")

    def __init__(self, scores: Iterable[float] = (), examples: Iterable[str] = ()) -> None:
        self.scores = array("d", scores)
        self.examples = list(examples)

    def add(self, score: float, example: str) -> None:
        """Add a score of an example."""
        self.scores.append(score)
        self.examples.append(example)

    def interval(self, level: float = 0.95) -> Interval | None:
        """Return the interval of the mean, or None if there are too few scores.

        - If all scores are 0 or 1 and each example has one, this is Wilson's interval.
        - Otherwise it is `mean_interval`. If an example has several scores, the mean of all scores is a ratio: Σsᵢ/Σnᵢ
          for examples with nᵢ scores of sum sᵢ. Its interval follows from the residuals (sᵢ − mean · nᵢ) / n̄ of the
          examples (Cochran 1977, section 6.4).
        - Fewer than `MIN_DISTINCT` examples whose mean is not the most frequent one are too few. Repeated scores of 0
          and 1 then have Wilson's interval for the effective number of examples (Σnᵢ)²/Σnᵢ², which is that of
          repetitions that always agree. Other scores have none.
        """
        scores, n = self.scores, len(self.scores)
        if not n or not all(map(isfinite, scores)):
            return None
        is_boolean = all(score in (0.0, 1.0) for score in scores)
        is_clustered = len(set(self.examples)) < n
        if is_boolean and not is_clustered:
            return wilson_interval(fsum(scores), n, level)
        scale = get_scale(scores)
        scaled = [score / scale for score in scores]
        if not is_clustered:
            if _count_distinct(scaled) < MIN_DISTINCT:
                return None
            low, high = mean_interval(Moments.of(scaled), level)
        else:
            groups: dict[str, list[float]] = {}
            for example, score in zip(self.examples, scaled, strict=True):
                groups.setdefault(example, []).append(score)
            sums = [(fsum(group), len(group)) for group in groups.values()]
            mean, per_example = fsum(scaled) / n, n / len(sums)
            if _count_distinct([total / count for total, count in sums]) < MIN_DISTINCT:
                size = n * n / sum(count * count for _, count in sums)
                return wilson_interval(mean * size, size, level) if is_boolean else None
            moments = Moments.of([(total - mean * count) / per_example for total, count in sums])
            low, high = mean_interval(Moments(moments.n, mean, moments.error, moments.skewness), level)
        if is_boolean:
            low, high = max(0.0, low), min(1.0, high)
        low, high = low * scale, high * scale
        return (low, high) if isfinite(low) and isfinite(high) else None


def _count_distinct(values: Sequence[float]) -> int:
    """Return the number of values other than the most frequent one. The largest absolute value is below 2."""
    return len(values) - max(Counter(round(value, _DIGITS) for value in values).values())
