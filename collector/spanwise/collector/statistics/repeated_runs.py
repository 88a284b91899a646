"""Statistics of repeated runs: pass rules, pass@k, pass^k, variance within and between examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import comb, fsum, isfinite

from spanwise.collector.records import RunScores
from spanwise.collector.statistics.feedback_tally import ScoreSample
from spanwise.collector.statistics.intervals import Interval, get_scale
from spanwise.collector.statistics.score_comparison import TASK_OK

# Pass rules: which scores of a key pass, by its threshold or because all of them are 0 or 1.


def is_passing(score: float, threshold: float, higher_is_better: bool = True) -> bool:
    """Return whether a score (or a mean of scores) is on the better side of the threshold or equal to it."""
    return score >= threshold if higher_is_better else score <= threshold


@dataclass(frozen=True, slots=True)
class PassRule:
    """Threshold of a key, and the side of it on which scores pass."""

    threshold: float
    higher_is_better: bool = True

    def passes(self, score: float) -> bool:
        """Return whether a score, or a mean of scores, passes."""
        return is_passing(score, self.threshold, self.higher_is_better)

    def count_passing(self, scores: Iterable[float]) -> int:
        """Return the number of scores that pass."""
        if self.higher_is_better:
            return sum(score >= self.threshold for score in scores)
        return sum(score <= self.threshold for score in scores)


def make_pass_rule(threshold: float | None, higher_is_better: bool, *, is_boolean: bool) -> PassRule | None:
    """Return the rule of a key; None if its scores neither pass nor fail.

    Without a threshold, the scores must all be 0 or 1 (`is_boolean`). They pass like booleans, and their means from 0.5.
    """
    if threshold is None and not is_boolean:
        return None
    return PassRule(0.5 if threshold is None else threshold, higher_is_better)


def make_pass_rules(
    runs: Iterable[RunScores], declared: Mapping[str, tuple[float | None, bool]]
) -> dict[str, PassRule]:
    """Return the rules of all keys whose scores pass or fail: `task_ok`, those with a threshold, and boolean ones.

    `declared` holds threshold and `higher_is_better` by key. The rules have its order, after `task_ok`; other keys
    follow in alphabetical order.
    """
    decided = {key for key, (threshold, _) in declared.items() if threshold is not None}
    boolean: set[str] = {TASK_OK}
    for run in runs:
        for key, score in run.scores.items():
            if key not in decided and isinstance(score, int | float) and isfinite(score):
                if score in (0.0, 1.0):
                    boolean.add(key)
                else:
                    decided.add(key)
                    boolean.discard(key)
    others = sorted(boolean - declared.keys() - {TASK_OK})
    rules: dict[str, PassRule] = {}
    for key in [TASK_OK, *declared, *others]:
        threshold, higher_is_better = declared.get(key, (None, True))
        if rule := make_pass_rule(threshold, higher_is_better, is_boolean=key in boolean):
            rules[key] = rule
    return rules


# Statistics of repeated runs: pass@k, pass^k, variance within and between examples, flaky examples.

_EQUAL_SCORES = 1e-9  # scores of an example that differ by less are rounding errors


@dataclass(frozen=True, slots=True)
class RepeatedExample:
    """Runs of one example: their scores, the number of runs that can pass, and the number of those that passed.

    `runs` and `passed` are None if the scores neither pass nor fail.
    """

    scores: tuple[float, ...] = ()
    runs: int | None = None
    passed: int | None = None

    @property
    def mean(self) -> float | None:
        """Return the mean score; None without scores."""
        return fsum(self.scores) / len(self.scores) if self.scores else None

    @property
    def is_flaky(self) -> bool:
        """Return whether only some of the runs passed or, for scores that neither pass nor fail, whether they differ."""
        if self.runs is not None and self.passed is not None:
            return 0 < self.passed < self.runs
        return bool(self.scores) and max(self.scores) - min(self.scores) > _EQUAL_SCORES


@dataclass(frozen=True, slots=True)
class PassEstimate:
    """Estimated probability with its 95 % interval, and the number of examples it is based on.

    `left_out` is the number of examples with too few finished runs. Without any other example, `value` is None.
    """

    value: float | None
    interval: Interval | None
    examples: int
    left_out: int


@dataclass(frozen=True, kw_only=True)
class RepeatedRuns:
    """Scores of one key of an experiment whose task ran several times per example.

    A run passes if its score passes the threshold of the key. Without a threshold, the scores must be 0 or 1, and 1
    passes (0 if lower is better). A run with several scores passes if all of them pass. A run whose task failed counts
    as not passed, even if it has a score. A run that finished without a score is left out, because its evaluator
    failed or skipped it.
    """

    key: str
    repetitions: int
    examples: Mapping[str, RepeatedExample] = field(default_factory=dict)
    can_pass: bool = True  # whether the scores pass or fail

    def pass_at(self, k: int) -> PassEstimate:
        """Return pass@k: the probability that at least one of k runs of an example passes.

        It is the unbiased estimator of Chen et al. (2021, arXiv 2107.03374), averaged over examples. Its interval
        treats the examples as the sample. Raises `ValueError` for k above the number of repetitions, or if the scores
        neither pass nor fail.
        """
        return self._estimate(k, lambda n, c: 1 - comb(n - c, k) / comb(n, k))

    def pass_hat(self, k: int) -> PassEstimate:
        """Return pass^k: the probability that all of k runs of an example pass (Yao et al. 2024, arXiv 2406.12045).

        For estimator, interval and errors see `pass_at`.
        """
        return self._estimate(k, lambda n, c: comb(c, k) / comb(n, k))

    def _estimate(self, k: int, of_example: Callable[[int, int], float]) -> PassEstimate:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be an integer >= 1, got {k!r:.100}")
        if k > self.repetitions:
            raise ValueError(f"k must be at most the number of repetitions, {self.repetitions}, got {k}")
        if not self.can_pass:
            raise ValueError(
                f"the scores of {self.key!r} neither pass nor fail; declare a threshold, as in "
                f"evaluator(key={self.key!r}, threshold=0.5)"
            )
        values = {
            id: of_example(example.runs, example.passed)
            for id, example in self.examples.items()
            if example.runs is not None and example.passed is not None and example.runs >= k
        }
        value = fsum(values.values()) / len(values) if values else None
        interval = ScoreSample(values.values(), values).interval()
        if interval is not None:
            interval = max(0.0, interval[0]), min(1.0, interval[1])
        return PassEstimate(value, interval, len(values), len(self.examples) - len(values))

    @property
    def flaky(self) -> dict[str, RepeatedExample]:
        """Return the flaky examples by id, those with the smallest share of passed runs first."""
        found = {id: example for id, example in self.examples.items() if example.is_flaky}
        return dict(sorted(found.items(), key=lambda pair: ((pair[1].passed or 0) / (pair[1].runs or 1), pair[0])))

    @cached_property
    def _squares(self) -> tuple[float | None, float | None]:
        """Return the variance within and between examples."""
        groups = [example.scores for example in self.examples.values() if example.scores]
        k, n = len(groups), sum(map(len, groups))
        if n == k:
            return None, None
        scale = get_scale(score for group in groups for score in group)
        scaled = [[score / scale for score in group] for group in groups]
        means = [fsum(group) / len(group) for group in scaled]
        mean = fsum(score for group in scaled for score in group) / n
        deviations = (score - of_group for group, of_group in zip(scaled, means, strict=True) for score in group)
        within = fsum(deviation * deviation for deviation in deviations) / (n - k)
        if k < 2:
            return within * scale * scale, None
        size = (n - sum(len(group) ** 2 for group in groups) / n) / (k - 1)
        squares = (len(group) * (of_group - mean) ** 2 for group, of_group in zip(groups, means, strict=True))
        between = max(0.0, (fsum(squares) / (k - 1) - within) / size)
        return within * scale * scale, between * scale * scale

    @property
    def within(self) -> float | None:
        """Return the variance of the scores of an example over its runs (mean square within examples).

        It is None if no example has two scores.
        """
        return self._squares[0]

    @property
    def between(self) -> float | None:
        """Return the variance of the examples' expected scores, by the one-way random effects model.

        It is max(0, (mean square between − mean square within) / n₀). It is None with fewer than two examples, or if
        `within` is None.
        """
        return self._squares[1]


def collect_repeated_runs(
    key: str,
    repetitions: int,
    runs: Mapping[str, tuple[str, bool]],
    scores: Iterable[tuple[str, float]],
    *,
    threshold: float | None = None,
    higher_is_better: bool = True,
) -> RepeatedRuns:
    """Return the repeated runs of a key.

    `runs` maps the id of each run to the id of its example and whether its task ended without an error. `scores` are
    pairs of a run's id and a score; scores of other runs are left out.
    """
    known = [(run, score) for run, score in scores if run in runs]
    is_boolean = bool(known) and all(score in (0.0, 1.0) for _, score in known)
    rule = make_pass_rule(threshold, higher_is_better, is_boolean=is_boolean)
    passes: dict[str, bool] = {}  # by run, whether all of its scores pass
    values: dict[str, list[float]] = {example: [] for example, _ in runs.values()}
    for run, score in known:
        values[runs[run][0]].append(score)
        if rule is not None:
            passes[run] = rule.passes(score) and passes.get(run, True)
    finished, passed = Counter[str](), Counter[str]()
    for run, (example, is_ok) in runs.items():
        if run in passes or not is_ok:
            finished[example] += 1
            passed[example] += is_ok and passes[run]
    return RepeatedRuns(
        key=key,
        repetitions=repetitions,
        can_pass=rule is not None,
        examples={
            example: RepeatedExample(tuple(of_example), finished[example], passed[example])
            if rule is not None
            else RepeatedExample(tuple(of_example))
            for example, of_example in values.items()
        },
    )
