"""Student's t for whole degrees of freedom: how wide an interval of a mean has to be."""

from __future__ import annotations

from functools import lru_cache
from math import cos, pi, sin, sqrt, tan
from statistics import NormalDist

_MANY = 200  # degrees of freedom from which on the expansion below errs by less than 1e-7
_HALVINGS = 60


@lru_cache(maxsize=256)
def quantile(probability: float, freedom: int) -> float:
    """The value below which t lies with a probability in [0.5, 1). Raises `ValueError` outside, or without freedom."""
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(f"no quantile of t at {probability!r} with {freedom!r} degrees of freedom")
    return _expanded(probability, freedom) if freedom > _MANY else _searched(2 * probability - 1, freedom)


def _expanded(probability: float, freedom: int) -> float:
    """Cornish-Fisher expansion around the normal quantile (Abramowitz, Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _searched(within: float, freedom: int) -> float:
    """Where the probability of |t| reaches `within`, by halving the range of its angle."""
    low, high = 0.0, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < within else (low, middle)
    return tan(low) * sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """P(|t| ≤ tan(angle)·√freedom), the finite series of Abramowitz, Stegun 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
