"""Confidence intervals: paired proportions, means of scores, proportions, and the examples a narrower one needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import copysign, exp, frexp, fsum, inf, ldexp, sqrt
from statistics import NormalDist
from typing import TypeAlias

from spanwise.collector.statistics.paired_tests import binomial_test
from spanwise.collector.statistics.quantiles import t_quantile

Interval: TypeAlias = tuple[float, float]

# Fewest differences other than 0 (or scores other than the most frequent one) for which an interval of a mean has its stated
# coverage; `benchmarks/comparison.py` measures it
MIN_DISTINCT = 5
SPREAD_CONFIDENCE = 0.8  # confidence of the upper limit of a spread from which numbers of examples are computed
_SKEWNESS_TOLERANCE = 1e-9
MAX_EXAMPLES = 10**9  # largest number of examples that is computed
_HALVINGS = 30
_Z_SPREAD = NormalDist().inv_cdf(SPREAD_CONFIDENCE)


def z_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(probability)


@dataclass(frozen=True, slots=True)
class Moments:
    """Number of values, their mean, standard error of the mean, and skewness of the mean (third moment / error³)."""

    n: int
    mean: float
    error: float
    skewness: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments:
        """Return the moments of independent values. Raises `ValueError` without values."""
        if not values:
            raise ValueError("the moments of no values are undefined")
        n, scale = len(values), get_scale(values)  # without the scale, cubes of very large values would overflow
        mean = fsum(value / scale for value in values) / n
        deviations = [value / scale - mean for value in values]
        variance = fsum(deviation * deviation for deviation in deviations) / (n - 1) if n > 1 else 0.0
        third = fsum(deviation**3 for deviation in deviations) / n
        error = sqrt(variance / n)
        return cls(n, mean * scale, error * scale, third / n**2 / error**3 if error**3 else 0.0)


def get_scale(values: Iterable[float]) -> float:
    """Return the power of 2 by which values are divided so that the largest is from 1 to 2; 1 if all are 0."""
    largest = max(map(abs, values), default=0.0)
    return ldexp(1.0, frexp(largest)[1] - 1) if largest else 1.0


def mean_interval(moments: Moments, level: float = 0.95) -> Interval:
    """Return the interval of a mean: at each end the wider of Student's t and the interval of `hall_interval`."""
    if moments.n < 2:
        return -inf, inf
    half = t_quantile((1 + level) / 2, moments.n - 1) * moments.error
    low, high = hall_interval(moments, level)
    return min(moments.mean - half, low), max(moments.mean + half, high)


def hall_interval(moments: Moments, level: float = 0.95) -> Interval:
    """Return the interval of a mean, corrected for skewness (Hall 1992, JRSS B 54, the cubic transformation)."""
    t, skewness = t_quantile((1 + level) / 2, moments.n - 1), moments.skewness

    def invert(t: float) -> float:
        """Return the value of the uncorrected statistic at which the corrected one is t."""
        if abs(skewness) < _SKEWNESS_TOLERANCE:
            return t
        cube = 1 + skewness * (t - skewness / 6)
        return 3 / skewness * (copysign(abs(cube) ** (1 / 3), cube) - 1)

    return moments.mean - invert(t) * moments.error, moments.mean - invert(-t) * moments.error


def paired_proportions_interval(losses: int, wins: int, n: int, level: float = 0.95) -> Interval:
    """Return the interval of the difference of two proportions over n pairs, of which `wins` rose and `losses` fell.

    It is that of Bonett and Price (2012, Statistics in Medicine 31): a Wald interval after 1 is added to both
    discordant counts and 2 to n. It also exists if no pair changed.
    """
    difference, error = _adjusted_difference(losses, wins, n)
    half = z_quantile((1 + level) / 2) * error
    return max(-1.0, difference - half), min(1.0, difference + half)


def _adjusted_difference(losses: float, wins: float, n: float) -> tuple[float, float]:
    """Return Bonett and Price's estimate of the difference, and its standard error."""
    difference = (wins - losses) / (n + 2)
    return difference, sqrt(((wins + losses + 2) / (n + 2) - difference * difference) / (n + 2))


def wilson_interval(successes: float, n: float, level: float = 0.95) -> Interval:
    """Return the score interval of a proportion (Wilson 1927). Raises `ValueError` for n below 1."""
    if n < 1:
        raise ValueError(f"the interval of a proportion requires n >= 1, got {n}")
    z2 = z_quantile((1 + level) / 2) ** 2
    share = successes / n
    centre, half = share + z2 / (2 * n), sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n)))
    return max(0.0, (centre - half) / (1 + z2 / n)), min(1.0, (centre + half) / (1 + z2 / n))


def examples_for_mean(values: Sequence[float], half_width: float, level: float) -> int:
    """Return the number of examples at which the interval of the mean of such values has this half width or less.

    The spread is its upper confidence limit (`limit_spread`), because the observed spread is too small in half of all
    samples.
    """
    moments = Moments.of(values)
    spread, skewness = limit_spread(values), moments.skewness * sqrt(moments.n)  # of one value

    def is_enough(n: int) -> bool:
        low, high = mean_interval(Moments(n, 0.0, spread / sqrt(n), skewness / sqrt(n)), level)
        return high - low <= 2 * half_width

    return _smallest(is_enough, 2)


def limit_spread(values: Sequence[float]) -> float:
    """Return the upper confidence limit of the standard deviation, at `SPREAD_CONFIDENCE`.

    It is the larger of two limits: that of normal data (chi-square, approximated as by Wilson and Hilferty 1931), and
    Bonett's for other data (2006, Computational Statistics and Data Analysis 50), which uses the kurtosis.
    """
    moments = Moments.of(values)
    n, freedom = moments.n, moments.n - 1
    deviation = moments.error * sqrt(n)
    quantile = freedom * (1 - 2 / (9 * freedom) - _Z_SPREAD * sqrt(2 / (9 * freedom))) ** 3
    normal = deviation * sqrt(freedom / quantile)
    if n <= 4 or not deviation:
        return normal
    trimmed = int(n / (2 * sqrt(n - 4)))
    ordered = sorted(values)[trimmed : n - trimmed]
    centre = fsum(ordered) / len(ordered)
    fourth = fsum(((value - centre) / deviation) ** 4 for value in values)
    kurtosis = n * fourth / freedom**2
    factor = n / (n - _Z_SPREAD)
    error = factor * sqrt(max(0.0, kurtosis - (n - 3) / n) / freedom)
    return max(normal, deviation * sqrt(factor) * exp(_Z_SPREAD * error / 2))


def examples_for_proportions(losses: int, wins: int, n: int, half_width: float, level: float) -> int:
    """Return the number of pairs at which the interval of a difference of proportions has this half width or less.

    The share of discordant pairs is its upper confidence limit at `SPREAD_CONFIDENCE` (Clopper and Pearson 1934). The
    variance is that of Bonett and Price, which is never 0.
    """
    share = _limit_share(wins + losses, n)
    z = z_quantile((1 + level) / 2)
    difference = min(abs(wins - losses) / n, share)

    def is_enough(pairs: int) -> bool:
        more, fewer = pairs * (share + difference) / 2, pairs * (share - difference) / 2
        return z * _adjusted_difference(fewer, more, pairs)[1] <= half_width

    return _smallest(is_enough, 1)


def _limit_share(successes: int, n: int) -> float:
    """Return the upper confidence limit of a share at `SPREAD_CONFIDENCE`, by bisection."""
    if successes == n:
        return 1.0
    low, high = successes / n, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_test(successes, n, middle) > 1 - SPREAD_CONFIDENCE else (low, middle)
    return high


def _smallest(is_enough: object, start: int) -> int:
    """Return the smallest number from `start` on that is enough, by doubling and bisection."""
    assert callable(is_enough)
    low, high = start, start
    while not is_enough(high):
        low, high = high + 1, high * 2
        if high > MAX_EXAMPLES:
            return MAX_EXAMPLES
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low
