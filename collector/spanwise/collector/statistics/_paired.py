"""Is one experiment better than another on the same examples: the mean difference, its interval, its p-value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import NormalDist, fmean, stdev

from spanwise.collector.statistics._student import quantile

EXACT = 12  # differences up to which all 2^n sign patterns are tried
SAMPLED = 1_000  # differences up to which patterns are sampled; with more the normal distribution is as good
PATTERNS = 10_000
ALIKE = 1e-9  # a range of differences within which they differ by rounding only


@dataclass(frozen=True, slots=True)
class Paired:
    """`mean` of n differences with its 95 % interval (t distribution) from `low` to `high`, and `p`.

    With fewer than two differences, or where all are alike, nothing says how far they scatter: `error`, the standard
    error of the mean, and the interval are None, rather than 0 wide. `p` is two-sided, of the sign-flip permutation
    test: if neither were better, each difference would be as likely the other way round. It needs no distribution, so
    it also holds for scores that are only 0 and 1.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float
    error: float | None = None

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The interval at another level; None where nothing says how far the differences scatter."""
        if self.error is None:
            return None
        half = quantile((1 + level) / 2, self.n - 1) * self.error
        return self.mean - half, self.mean + half

    def beyond_chance(self, level: float = 0.95) -> bool:
        """Whether the mean is other than 0: by the interval, and by the permutation test, which needs no distribution.

        Either alone would not do: the interval of few scores that are 0 or 1 is too narrow, and there is none where
        all differences are alike, which two may well be, and ten can hardly be by chance.
        """
        low, high = self.interval(level) or (self.mean, self.mean)
        return self.p <= (1 - level) * (1 + 1e-9) and not low <= 0 <= high


def paired(differences: Sequence[float]) -> Paired:
    """Test differences between pairs, after minus before. Raises `ValueError` if there are none."""
    if not differences:
        raise ValueError("no pairs to compare")
    n, mean = len(differences), fmean(differences)
    scatter = max(differences) - min(differences) > ALIKE
    error = stdev(differences) / sqrt(n) if scatter else None
    half = None if error is None else quantile(0.975, n - 1) * error
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Paired(n, mean, low, high, _p([difference for difference in differences if difference]), error)


def _p(differences: Sequence[float]) -> float:
    """Pairs without a difference are the same either way, and left out."""
    observed = abs(sum(differences)) * (1 - 1e-12)
    if not differences:
        return 1.0
    if len(differences) <= EXACT:
        patterns = product((1, -1), repeat=len(differences))
        hits = sum(abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed for signs in patterns)
        return hits / (1 << len(differences))
    if len(differences) <= SAMPLED:
        return _sampled(differences, observed)
    return 2 * NormalDist().cdf(-observed / sqrt(sum(difference * difference for difference in differences)))


def _sampled(differences: Sequence[float], observed: float) -> float:
    """Random patterns with a fixed seed: the same p for the same numbers. Never 0, as what was observed is one, too."""
    import numpy

    signs = numpy.random.default_rng(0).integers(0, 2, (PATTERNS, len(differences)), dtype=numpy.int8) * 2 - 1
    sums = signs @ numpy.asarray(differences)
    return float((numpy.abs(sums) >= observed).sum() + 1) / (PATTERNS + 1)
