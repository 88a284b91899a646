"""Quantiles: nearest-rank percentiles and Student's t distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import cos, pi, sin, sqrt, tan
from statistics import NormalDist


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile: the smallest value such that at least `percent` % of the values are at or
    below it.

    The values in `ordered` are ascending integers, such as nanoseconds. The result is exactly one of them. Raises
    `ValueError` without values, or for a percent outside 1 to 100.
    """
    if not ordered or not 1 <= percent <= 100:
        raise ValueError(
            f"percentile needs at least one value and a percent from 1 to 100, got {len(ordered)} values, {percent!r}"
        )
    return ordered[nearest_rank(len(ordered), percent) - 1]


def nearest_rank(n: int, percent: int) -> int:
    """Return the rank of the percentile among `n` ordered values, starting at 1."""
    return (n * percent + 99) // 100


_EXPANSION_FREEDOM = 300  # degrees of freedom from which the expansion below errs by less than 1e-9
_HALVINGS = 60


@lru_cache(maxsize=256)
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution for a probability in [0.5, 1).

    Raises `ValueError` for other probabilities, and for less than one degree of freedom.
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(
            f"t_quantile needs 0.5 <= probability < 1 and freedom >= 1, got {probability!r} and {freedom!r}"
        )
    if freedom > _EXPANSION_FREEDOM:
        # Cornish-Fisher expansion around the normal quantile (Abramowitz, Stegun 26.7.5)
        z = NormalDist().inv_cdf(probability)
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
        return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4
    # Bisection over the angle of `_central_probability`, for P(|T| ≤ t)
    within = 2 * probability - 1
    low, high = 0.0, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_probability(middle, freedom) < within else (low, middle)
    return tan(low) * sqrt(freedom)


def _central_probability(angle: float, freedom: int) -> float:
    """Compute P(|T| ≤ tan(angle)·√freedom), by the finite series of Abramowitz, Stegun 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
