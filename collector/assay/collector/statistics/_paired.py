"""Is one experiment better than another on the same examples: the mean difference, its interval, its p-value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import NormalDist, fmean, stdev

EXACT = 12  # differences up to which all 2^n sign patterns are tried
SAMPLED = 1_000  # differences up to which patterns are sampled; with more the normal distribution is as good
PATTERNS = 10_000
# Quantiles of t at 0.975, where the expansion below is not good enough
_FEW = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}


@dataclass(frozen=True, slots=True)
class Paired:
    """`mean` of n differences with its 95 % interval (t distribution; None with fewer than two), and `p`.

    `p` is two-sided, of the sign-flip permutation test: if neither were better, each difference would be as likely
    the other way round. It needs no distribution, so it also holds for scores that are only 0 and 1.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float


def paired(differences: Sequence[float]) -> Paired:
    """Test differences between pairs, after minus before. Raises `ValueError` if there are none."""
    if not differences:
        raise ValueError("no pairs to compare")
    n, mean = len(differences), fmean(differences)
    half = _t(n - 1) * stdev(differences) / sqrt(n) if n > 1 else None
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Paired(n, mean, low, high, _p([difference for difference in differences if difference]))


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


def _t(freedom: int) -> float:
    """The 0.975 quantile of Student's t: Cornish-Fisher expansion around the normal one (Abramowitz, Stegun 26.7.5)."""
    if freedom in _FEW:
        return _FEW[freedom]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / (freedom * freedom) + third / (freedom * freedom * freedom)
