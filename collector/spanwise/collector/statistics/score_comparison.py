"""Comparison of the scores of two experiments per key: paired permutation test, intervals, conclusions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal, TypeAlias

from spanwise.collector.records import RunScores
from spanwise.collector.statistics.feedback_tally import ExactSum
from spanwise.collector.statistics.quantiles import t_quantile

MAX_EXACT_PAIRS = 12  # maximum number of differences for which all 2^n sign patterns are enumerated
# Most differences for which patterns are sampled. For more, the normal distribution is as good
MAX_SAMPLED_PAIRS = 1_000
SIGN_PATTERNS = 10_000
SCATTER_TOLERANCE = 1e-9  # if the differences span no more than this, they are equal except for rounding errors


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Test of n paired differences: `mean` with its 95 % interval (t distribution) from `low` to `high`, and `p`.

    With fewer than two differences, or if all are equal, their spread is unknown. Then `error`, the standard error of
    the mean, and the interval are None, rather than an interval of width 0.

    The value `p` is the two-sided p-value of the sign-flip permutation test: if neither side were better, each
    difference would be equally likely with the opposite sign. The test assumes no distribution, so it also holds for
    scores that are only 0 and 1.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float
    error: float | None = None

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Return the interval at another confidence level; None if the spread of the differences is unknown."""
        if self.error is None:
            return None
        half = t_quantile((1 + level) / 2, self.n - 1) * self.error
        return self.mean - half, self.mean + half

    def beyond_chance(self, level: float = 0.95) -> bool:
        """Return whether the mean differs from 0, both by the interval and by the permutation test.

        Either test alone is not enough. If there are few scores and all are 0 or 1, the interval is too narrow. If
        all differences are equal, there is no interval, and only the permutation test can tell whether there are
        enough of them.
        """
        low, high = self.interval(level) or (self.mean, self.mean)
        return self.p <= (1 - level) * (1 + 1e-9) and not low <= 0 <= high


def paired_test(differences: Sequence[float]) -> PairedTest:
    """Test the differences between pairs, after minus before. Raises `ValueError` if there are none."""
    if not differences:
        raise ValueError("no pairs to compare")
    n, mean = len(differences), fmean(differences)
    scatter = max(differences) - min(differences) > SCATTER_TOLERANCE
    error = stdev(differences) / sqrt(n) if scatter else None
    half = None if error is None else t_quantile(0.975, n - 1) * error
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return PairedTest(n, mean, low, high, _p_value([difference for difference in differences if difference]), error)


def _p_value(differences: Sequence[float]) -> float:
    """Return the p-value of the non-zero differences. A difference of 0 has no effect, because its sign does not
    matter.
    """
    observed = abs(sum(differences)) * (1 - 1e-12)
    if not differences:
        return 1.0
    if len(differences) <= MAX_EXACT_PAIRS:
        patterns = product((1, -1), repeat=len(differences))
        hits = sum(abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed for signs in patterns)
        return hits / (1 << len(differences))
    if len(differences) <= MAX_SAMPLED_PAIRS:
        return _sampled_p_value(differences, observed)
    return 2 * NormalDist().cdf(-observed / sqrt(sum(difference * difference for difference in differences)))


def _sampled_p_value(differences: Sequence[float], observed: float) -> float:
    """Estimate the p-value from random sign patterns with a fixed seed, so that equal numbers give an equal p.

    The result is never 0, because the observed pattern counts as one of the samples.
    """
    import numpy

    signs = numpy.random.default_rng(0).integers(0, 2, (SIGN_PATTERNS, len(differences)), dtype=numpy.int8) * 2 - 1
    sums = signs @ numpy.asarray(differences)
    return float((numpy.abs(sums) >= observed).sum() + 1) / (SIGN_PATTERNS + 1)


DIFFERENCE_TOLERANCE = 1e-9  # smaller differences are rounding errors

# By example id and key: the mean score over the example's repetitions
Scores: TypeAlias = Mapping[str, Mapping[str, float]]
Conclusion: TypeAlias = Literal["better", "worse", "higher", "lower", "unclear", "same"]

# key of the score that tells whether the task ended without an error; computed for every run, not stored
TASK_OK = "task_ok"
FAMILY_LEVEL = 0.95  # joint level of the intervals of all keys of a comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Comparison of one key of two experiments: the differences, after minus before, over the examples scored in both.

    The `test` is for this key alone; None without pairs. `only_before` and `only_after` count the examples scored in
    only one of the two experiments. `rising` tells whether a higher score is better; None if unknown. `family` is the
    number of comparisons that are made together. `level` accounts for it, because one of twenty comparisons is
    expected to differ by chance.
    """

    key: str
    differences: Mapping[str, float]  # by example id
    test: PairedTest | None
    up: int
    down: int
    same: int
    only_before: int
    only_after: int
    rising: bool | None
    family: int = 1

    @property
    def level(self) -> float:
        """Return the confidence level of this key's interval.

        At this level, the intervals of the whole family hold jointly at 95 % (Bonferroni).
        """
        return 1 - (1 - FAMILY_LEVEL) / self.family

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the interval of the mean difference at `level`.

        The interval is None without pairs, or if all differences are equal.
        """
        return self.test.interval(self.level) if self.test else None

    @property
    def verdict(self) -> Conclusion | None:
        """Return the conclusion for the key; None without pairs.

        The conclusion is "better" or "worse", or "higher" or "lower" if it is unknown which direction is better. It
        is "unclear" if the differences may be due to chance at `level`, and "same" if there are none.
        """
        if self.test is None:
            return None
        if not self.test.beyond_chance(self.level):
            return "unclear" if self.up or self.down else "same"
        if self.rising is None:
            return "higher" if self.test.mean > 0 else "lower"
        return "better" if (self.test.mean > 0) == self.rising else "worse"

    @property
    def pairs(self) -> int:
        """Return the number of examples scored in both experiments."""
        return len(self.differences)

    @property
    def better(self) -> int | None:
        """Return the number of examples that improved; None if the better direction is unknown."""
        return None if self.rising is None else self.up if self.rising else self.down

    @property
    def worse(self) -> int | None:
        """Return the number of examples that got worse; None if the better direction is unknown."""
        return None if self.rising is None else self.down if self.rising else self.up


def mean_by_example(scores: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """Return the mean score by example id and key, in order of first occurrence.

    The scores are tuples (example id, key, score). Each example has the same weight, however often it was repeated.
    """
    sums: dict[str, dict[str, list[float]]] = {}
    for example_id, key, score in scores:
        sums.setdefault(example_id, {}).setdefault(key, []).append(score)
    return {
        example_id: {key: float(ExactSum(values)) / len(values) for key, values in keys.items()}
        for example_id, keys in sums.items()
    }


def iterate_scores(runs: Iterable[RunScores], *, tasks: bool = False) -> Iterator[tuple[str, str, float]]:
    """Yield (example id, key, score) for the runs of an experiment, as input for `mean_by_example`.

    Labels, errors and skips are left out. With `tasks`, also yield a score under the key `task_ok`: 0 if the task
    failed, else 1. Scores that were reported under this key are then left out.
    """
    for run in runs:
        example_id = run.example_id or run.trace_id
        if tasks:
            yield example_id, TASK_OK, float(run.status != "error")
        for key, score in run.scores.items():
            if isinstance(score, float | int) and not (tasks and key == TASK_OK):
                yield example_id, key, float(score)


def compare_scores(
    before: Scores, after: Scores, rising: Mapping[str, bool] | None = None, *, others: int = 1
) -> dict[str, Contrast]:
    """Return the contrasts of all keys under which either experiment has scores, sorted by key.

    Pass in `others` the number of experiments with which `before` is compared. The size of the family is this number
    times the number of keys that have pairs.
    """
    columns = {
        key: (_scores_of_key(before, key), _scores_of_key(after, key))
        for key in sorted({key for side in (before, after) for scores in side.values() for key in scores})
    }
    family = others * sum(not before.keys().isdisjoint(after) for before, after in columns.values())
    directions = {TASK_OK: True, **(rising or {})}
    return {key: _build_contrast(key, *both, directions.get(key), max(1, family)) for key, both in columns.items()}


def get_direction(difference: float) -> int:
    """Return 1 for an increase, −1 for a decrease, and 0 for a difference that is only a rounding error."""
    return (difference > DIFFERENCE_TOLERANCE) - (difference < -DIFFERENCE_TOLERANCE)


def _scores_of_key(scores: Scores, key: str) -> dict[str, float]:
    return {example_id: keys[key] for example_id, keys in scores.items() if key in keys}


def _build_contrast(
    key: str, before: Mapping[str, float], after: Mapping[str, float], rising: bool | None, family: int
) -> Contrast:
    differences = {example_id: after[example_id] - before[example_id] for example_id in after if example_id in before}
    directions = [get_direction(difference) for difference in differences.values()]
    moved = [difference if get_direction(difference) else 0.0 for difference in differences.values()]
    return Contrast(
        key=key,
        differences=differences,
        test=paired_test(sorted(moved)) if moved else None,
        up=directions.count(1),
        down=directions.count(-1),
        same=directions.count(0),
        only_before=len(before) - len(differences),
        only_after=len(after) - len(differences),
        rising=rising,
        family=family,
    )
