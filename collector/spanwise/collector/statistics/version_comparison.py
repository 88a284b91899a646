"""Comparison of two versions in production: weighted difference of means with a confidence sequence.

A confidence sequence is an interval that holds at all looks together, however often somebody looks. A plain 95 %
interval holds for one look only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, log, sqrt

from spanwise.collector.statistics.score_comparison import Word

MIN_VERSION_TRACES = 200  # scored traces of each version from which an interval is shown, because it is asymptotic
_ALPHA = 0.05
_TAU = 0.05  # of the scale; the differences for which the interval is narrowest
_PRIOR_SCORES = 2.0  # scores at the middle of the scale in the mean that the variance is computed around
MAX_FURTHER = 10_000_000  # a larger number of further scores is not stated


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionScore:
    """Score of one trace of a version, with the weight 1/p of its sampling probability p.

    `cluster` is the user, otherwise the session, otherwise the trace. Without a `trace_id`, the score is the only one
    of its trace.
    """

    score: float
    weight: float
    cluster: str
    start_ns: int
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMean:
    """Weighted mean of a version's `n` scores of `traces`, with the variance of that mean over clusters."""

    mean: float
    variance: float
    n: int
    traces: int
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDifference:
    """Difference of two versions, b minus a, with its 95 % confidence sequence from `low` to `high`.

    The interval is None until both versions have `MIN_VERSION_TRACES` scored traces. `conclusion` has the words of
    `compare`. `further` is about how many more traces of each version would decide, if the difference stays as it is;
    None if it is decided, or if no reasonable number would do.
    """

    a: VersionMean | None
    b: VersionMean | None
    difference: float | None
    low: float | None
    high: float | None
    conclusion: Word
    further: int | None = None

    def __str__(self) -> str:
        """Format the conclusion, as "better" or "inconclusive (about 1,200 more traces of each version)"."""
        if self.low is None:
            return f"inconclusive: {MIN_VERSION_TRACES} scored traces of each version are needed"
        more = f" (about {self.further:,} more traces of each version)" if self.further else ""
        return f"{self.conclusion}{more}"


def compare_versions(
    a: Sequence[VersionScore],
    b: Sequence[VersionScore],
    *,
    rising: bool | None,
    margin: float | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
) -> VersionDifference:
    """Return the weighted difference of two versions, b minus a, and what it says.

    `rising` tells whether a higher score is better (None: neither). `margin` is the difference that is not worth
    speaking of. `scale` are the lowest and the highest possible score. The interval is a normal mixture: with the
    variance v of the difference, its half width is √(v(v+τ²)/τ² · ln((v+τ²)/(v·α²))) (Waudby-Smith and others, arXiv
    2103.06476). Raises `ValueError` for an empty scale or a margin below 0.
    """
    if not scale[0] < scale[1]:
        raise ValueError(f"scale must be a lower and a higher score, got {scale!r}")
    if margin is not None and not margin >= 0:
        raise ValueError(f"margin must be a number >= 0, got {margin!r}")
    of_a, of_b = _estimate_mean(a, scale), _estimate_mean(b, scale)
    difference = None if of_a is None or of_b is None else of_b.mean - of_a.mean
    if of_a is None or of_b is None or difference is None or min(of_a.traces, of_b.traces) < MIN_VERSION_TRACES:
        return VersionDifference(a=of_a, b=of_b, difference=difference, low=None, high=None, conclusion="inconclusive")
    tau = _TAU * (scale[1] - scale[0])
    variance = of_a.variance + of_b.variance
    half = _half_width(variance, tau)
    low, high = difference - half, difference + half
    conclusion = _conclude(low, high, rising, margin)
    further = None
    if conclusion == "inconclusive":
        further = _further_scores(difference, variance, max(of_a.traces, of_b.traces), tau, margin)
    return VersionDifference(
        a=of_a, b=of_b, difference=difference, low=low, high=high, conclusion=conclusion, further=further
    )


def _estimate_mean(scores: Iterable[VersionScore], scale: tuple[float, float]) -> VersionMean | None:
    clusters: dict[str, list[float]] = {}
    traces: set[str] = set()
    n = alone = 0
    for score in scores:
        sums = clusters.setdefault(score.cluster, [0.0, 0.0])
        sums[0] += score.weight
        sums[1] += score.weight * score.score
        n += 1
        if score.trace_id is None:
            alone += 1
        else:
            traces.add(score.trace_id)
    if not clusters:
        return None
    weight = fsum(w for w, _ in clusters.values())
    total = fsum(t for _, t in clusters.values())
    # Two scores at the middle of the scale keep the variance above 0 while all scores are equal
    prior = _PRIOR_SCORES * weight / n
    center = (total + prior * (scale[0] + scale[1]) / 2) / (weight + prior)
    variance = fsum((t - center * w) ** 2 for w, t in clusters.values()) / weight**2
    return VersionMean(mean=total / weight, variance=variance, n=n, traces=alone + len(traces), clusters=len(clusters))


def _half_width(variance: float, tau: float) -> float:
    if variance <= 0:
        return 0.0
    inflated = variance + tau**2
    return sqrt(variance * inflated / tau**2 * log(inflated / (variance * _ALPHA**2)))


def _conclude(low: float, high: float, rising: bool | None, margin: float | None) -> Word:
    if margin is not None and -margin <= low and high <= margin:
        return "equivalent"
    if low <= 0 <= high:
        return "inconclusive"
    if rising is None:
        return "higher" if low > 0 else "lower"
    return "better" if (low > 0) == rising else "worse"


def _further_scores(difference: float, variance: float, n: int, tau: float, margin: float | None) -> int | None:
    """Return how many more traces of each version would decide: the interval then excludes 0, or is within the margin."""
    target = abs(difference)
    if margin is not None:
        target = max(target, margin - abs(difference))
    if target <= 0:
        return None
    factor = 1.0
    while _half_width(variance / factor, tau) > target:
        factor *= 1.05
        if n * factor > MAX_FURTHER:
            return None
    further = n * (factor - 1)
    return max(10, 10 * round(further / 10)) if further < 1000 else 100 * round(further / 100)
