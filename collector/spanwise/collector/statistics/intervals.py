"""Confidence intervals, quantiles, and tests of paired data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import copysign, cos, erfc, exp, frexp, fsum, inf, ldexp, lgamma, log, log1p, pi, sin, sqrt, tan
from statistics import NormalDist
from typing import TypeAlias

# Quantiles: nearest-rank percentiles and Student's t distribution.


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
_QUANTILE_HALVINGS = 60


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
    for _ in range(_QUANTILE_HALVINGS):
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


# Tests of paired data: exact McNemar, sign flips, Tango's score test of a difference, Bhapkar's test of labels.

MAX_EXACT_PAIRS = 12  # most differences for which all 2^n sign patterns are enumerated
# Most differences for which patterns are sampled. For more, the normal distribution is as good
MAX_SAMPLED_PAIRS = 1_000
SIGN_PATTERNS = 10_000
_PATTERN_BLOCK = 250  # patterns whose sums are computed at once, so that they fit into the processor's cache
_MAX_SERIES = 200  # most degrees of freedom for which the chi-square probability is summed exactly
_TOLERANCE = 1e-9  # relative size of singular values that count as 0


def mcnemar_test(losses: int, wins: int) -> float:
    """Return the two-sided p-value of the exact test of McNemar: n discordant pairs fall either way like a coin."""
    n, fewer = losses + wins, min(losses, wins)
    tail, term = 0, 1
    for k in range(fewer + 1):
        tail += term
        term = term * (n - k) // (k + 1)
    return min(1.0, 2 * tail / (1 << n))


def sign_flip_test(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the permutation test that flips the signs of differences.

    It tests symmetry around 0: if neither side were better, each difference would be equally likely with the opposite
    sign. Differences of 0 have no effect. Up to `MAX_EXACT_PAIRS` differences the p-value is exact, up to
    `MAX_SAMPLED_PAIRS` it is estimated from `SIGN_PATTERNS` random patterns with a fixed seed, so that equal numbers
    give an equal p.
    """
    differences = [difference for difference in differences if difference]
    if not differences:
        return 1.0
    observed = abs(fsum(differences)) * (1 - 1e-12)
    if len(differences) <= MAX_EXACT_PAIRS:
        patterns = product((1, -1), repeat=len(differences))
        hits = sum(abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed for signs in patterns)
        return hits / (1 << len(differences))
    normal = 2 * NormalDist().cdf(-observed / sqrt(fsum(difference * difference for difference in differences)))
    if len(differences) > MAX_SAMPLED_PAIRS:
        return normal
    import numpy

    flips = numpy.random.default_rng(0).integers(0, 2, (SIGN_PATTERNS, len(differences)), dtype=numpy.int8)
    values = numpy.asarray(differences)
    hits = 0
    for start in range(0, SIGN_PATTERNS, _PATTERN_BLOCK):
        signs = flips[start : start + _PATTERN_BLOCK].astype(float) * 2 - 1
        hits += int((numpy.abs(signs @ values) >= observed).sum())
    # a p-value below the resolution of the sample comes from the normal distribution
    return (hits + 1) / (SIGN_PATTERNS + 1) if hits else min(normal, 1 / (SIGN_PATTERNS + 1))


def tango_statistic(losses: int, wins: int, n: int, difference: float) -> float:
    """Return Tango's score statistic of the hypothesis that the difference of two paired proportions is `difference`.

    It is asymptotically standard normal, and positive if the observed difference (wins − losses) / n is the larger
    one (Tango 1998, Statistics in Medicine 17). For a hypothesis of −1 or less it is infinite, for 1 or more minus
    infinite: no difference is beyond.
    """
    if abs(difference) >= 1:
        return -inf if difference > 0 else inf
    b = (2 * n - wins + losses) * difference - wins - losses
    c = -losses * difference * (1 - difference)
    share = (sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)  # of losses, the maximum likelihood under the hypothesis
    variance = n * (2 * share + difference * (1 - difference))
    distance = wins - losses - n * difference
    if variance <= 0:
        return 0.0 if not distance else inf if distance > 0 else -inf
    return distance / sqrt(variance)


def binomial_test(successes: int, n: int, share: float) -> float:
    """Return the probability of at most this many successes in n trials, with 0 < share < 1."""
    logs = (
        lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(share) + (n - k) * log1p(-share)
        for k in range(successes + 1)
    )
    return min(1.0, fsum(map(exp, logs)))


def bhapkar_test(table: Mapping[tuple[str, str], int]) -> float:
    """Return the p-value of Bhapkar's test (1966) that labels before and after have the same frequencies.

    The table counts examples by (label before, label after). The p-value is 1 if no example changed.
    """
    changed = {pair: count for pair, count in table.items() if pair[0] != pair[1] and count}
    labels = sorted({label for pair in changed for label in pair})
    if not labels:
        return 1.0
    import numpy

    place = {label: index for index, label in enumerate(labels)}
    counts = numpy.zeros((len(labels), len(labels)))
    for (before, after), count in changed.items():
        counts[place[before], place[after]] = count
    gains = counts.sum(axis=0) - counts.sum(axis=1)
    covariance = numpy.diag(counts.sum(axis=0) + counts.sum(axis=1)) - counts - counts.T
    # The statistic of Stuart and Maxwell, from which Bhapkar's follows. The covariance of all labels is singular
    values, vectors = numpy.linalg.eigh(covariance)
    kept = values > _TOLERANCE * values[-1]
    stuart_maxwell = float((((vectors[:, kept].T @ gains) ** 2) / values[kept]).sum())
    left = 1 - stuart_maxwell / sum(table.values())
    return chi_square_tail(stuart_maxwell / left, int(kept.sum())) if left > _TOLERANCE else 0.0


def chi_square_tail(value: float, freedom: int) -> float:
    """Return the probability that a chi-square variable exceeds `value` (Abramowitz, Stegun 26.4.4 and 26.4.5)."""
    if freedom > _MAX_SERIES:  # Wilson and Hilferty's approximation (26.4.14)
        root = (value / freedom) ** (1 / 3)
        return NormalDist().cdf((1 - 2 / (9 * freedom) - root) / sqrt(2 / (9 * freedom)))
    half = value / 2
    if freedom % 2:
        total, term = erfc(sqrt(half)), exp(-half) * sqrt(4 * half / pi)
        for k in range(1, freedom - 1, 2):
            total += term
            term *= value / (k + 2)
        return min(1.0, total)
    total, term = 0.0, exp(-half)
    for k in range(freedom // 2):
        total += term
        term *= half / (k + 1)
    return min(1.0, total)


# Confidence intervals: paired proportions, means of scores, proportions, and the examples a narrower one needs.

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
