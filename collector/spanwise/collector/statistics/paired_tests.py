"""Tests of paired data: exact McNemar, sign flips, Tango's score test of a difference, Bhapkar's test of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import erfc, exp, fsum, inf, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist

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
