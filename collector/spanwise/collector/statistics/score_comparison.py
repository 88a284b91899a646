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

MAX_EXACT_PAIRS = 12  # differences up to which all 2^n sign patterns are tried
MAX_SAMPLED_PAIRS = 1_000  # differences up to which patterns are sampled; with more the normal distribution is as good
SIGN_PATTERNS = 10_000
SCATTER_TOLERANCE = 1e-9  # a range of differences within which they differ by rounding only


@dataclass(frozen=True, slots=True)
class PairedTest:
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
        half = t_quantile((1 + level) / 2, self.n - 1) * self.error
        return self.mean - half, self.mean + half

    def beyond_chance(self, level: float = 0.95) -> bool:
        """Whether the mean is other than 0: by the interval, and by the permutation test, which needs no distribution.

        Either alone would not do: the interval of few scores that are 0 or 1 is too narrow, and there is none where
        all differences are alike, which two may well be, and ten can hardly be by chance.
        """
        low, high = self.interval(level) or (self.mean, self.mean)
        return self.p <= (1 - level) * (1 + 1e-9) and not low <= 0 <= high


def paired_test(differences: Sequence[float]) -> PairedTest:
    """Test differences between pairs, after minus before. Raises `ValueError` if there are none."""
    if not differences:
        raise ValueError("no pairs to compare")
    n, mean = len(differences), fmean(differences)
    scatter = max(differences) - min(differences) > SCATTER_TOLERANCE
    error = stdev(differences) / sqrt(n) if scatter else None
    half = None if error is None else t_quantile(0.975, n - 1) * error
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return PairedTest(n, mean, low, high, _p_value([difference for difference in differences if difference]), error)


def _p_value(differences: Sequence[float]) -> float:
    """Pairs without a difference are the same either way, and left out."""
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
    """Random patterns with a fixed seed: the same p for the same numbers. Never 0, as what was observed is one, too."""
    import numpy

    signs = numpy.random.default_rng(0).integers(0, 2, (SIGN_PATTERNS, len(differences)), dtype=numpy.int8) * 2 - 1
    sums = signs @ numpy.asarray(differences)
    return float((numpy.abs(sums) >= observed).sum() + 1) / (SIGN_PATTERNS + 1)


DIFFERENCE_TOLERANCE = 1e-9  # differences below it are rounding

# Per example id and key the mean score over the example's repetitions
Scores: TypeAlias = Mapping[str, Mapping[str, float]]
Conclusion: TypeAlias = Literal["better", "worse", "higher", "lower", "unclear", "same"]

TASK_OK = "task_ok"  # the key of whether the task came to an end without an error: of every run, kept nowhere
FAMILY_LEVEL = 0.95  # of the intervals of all keys of a comparison together


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One key of two experiments: the differences, after minus before, over the examples that both have scored.

    `test` is of this key alone; None without pairs. `only_before` and `only_after` count the examples that just one of
    the two has scored. `rising` is whether a higher score is the better one, None if nobody knows. `family` is how many
    differences are looked at together: who looks at twenty finds one that is chance.
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
        """The level of this key's interval with which those of the whole family hold together at 95 % (Bonferroni)."""
        return 1 - (1 - FAMILY_LEVEL) / self.family

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the mean difference at `level`; None without pairs, or where all differences are alike."""
        return self.test.interval(self.level) if self.test else None

    @property
    def verdict(self) -> Conclusion | None:
        """What can be said of the key: "better" or "worse", "higher" or "lower" where nobody knows which is good.

        "unclear" where the differences may be chance at `level`, "same" where there are none; None without pairs.
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
        """How many examples both have scored."""
        return len(self.differences)

    @property
    def better(self) -> int | None:
        """How many examples moved to the good side of the key; None where it is not known."""
        return None if self.rising is None else self.up if self.rising else self.down

    @property
    def worse(self) -> int | None:
        """How many examples moved to the bad side of the key; None where it is not known."""
        return None if self.rising is None else self.down if self.rising else self.up


def mean_by_example(scores: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """The mean per example and key of (example id, key, score), so that an example weighs the same however often it
    was repeated. In the order in which they first occur.
    """
    sums: dict[str, dict[str, list[float]]] = {}
    for example_id, key, score in scores:
        sums.setdefault(example_id, {}).setdefault(key, []).append(score)
    return {
        example_id: {key: float(ExactSum(values)) / len(values) for key, values in keys.items()}
        for example_id, keys in sums.items()
    }


def iterate_scores(runs: Iterable[RunScores], *, tasks: bool = False) -> Iterator[tuple[str, str, float]]:
    """(example id, key, score) of an experiment's runs, for `by_example`; labels, errors and skips are no scores.

    With `tasks` also `task_ok`: 0 where the task failed, else 1. Nobody's own score passes for it.
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
    """Contrasts by key, of all keys under which either has a score, by name.

    Their family are the keys with pairs, as often as `before` is compared with any of the `others`.
    """
    columns = {key: (_scores_of_key(before, key), _scores_of_key(after, key)) for key in _list_keys(before, after)}
    family = others * sum(not before.keys().isdisjoint(after) for before, after in columns.values())
    directions = {TASK_OK: True, **(rising or {})}
    return {key: _build_contrast(key, *both, directions.get(key), max(1, family)) for key, both in columns.items()}


def get_direction(difference: float) -> int:
    """1 for up, −1 for down, 0 for what is rounding only."""
    return (difference > DIFFERENCE_TOLERANCE) - (difference < -DIFFERENCE_TOLERANCE)


def _scores_of_key(scores: Scores, key: str) -> dict[str, float]:
    return {example_id: keys[key] for example_id, keys in scores.items() if key in keys}


def _list_keys(before: Scores, after: Scores) -> list[str]:
    return sorted({key for side in (before, after) for scores in side.values() for key in scores})


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
