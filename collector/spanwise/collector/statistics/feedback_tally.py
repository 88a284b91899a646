"""Feedback tally: latest feedback, exact sums, weighted means, pass shares, and the mean of a score sample."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, inf, isfinite
from types import MappingProxyType
from typing import TypeAlias

from spanwise.collector.records import Feedback, FeedbackStats
from spanwise.collector.statistics.intervals import (
    MIN_DISTINCT,
    Interval,
    Moments,
    get_scale,
    mean_interval,
    wilson_interval,
)

# Feedback tally: latest feedback, exact sums, weighted means and pass shares per key.


def select_latest(feedback: Iterable[Feedback]) -> list[Feedback]:
    """Return the newest feedback of each slot, in order of first occurrence. Of equally old feedback, the last one
    counts.

    A slot is (target, key, source, author, rule). A later version of an evaluator replaces an earlier one, while
    labels of several people, and two rules under one key, do not replace each other. Anonymous people count as
    different people. All aggregates use this selection: in the terminal, in experiments, in stores and on pages.
    """
    rows = list(feedback)
    if len({row.key for row in rows}) == len(rows):
        return rows
    latest: dict[Hashable, Feedback] = {}
    for row in rows:
        slot = get_feedback_slot(row)
        if slot not in latest or latest[slot].created_ns <= row.created_ns:
            latest[slot] = row
    return list(latest.values())


def get_feedback_slot(feedback: Feedback) -> Hashable:
    """Return the slot of a feedback. Later feedback in the same slot replaces it (see `select_latest`)."""
    anonymous = is_anonymous(feedback.source, feedback.author)
    return (
        feedback.target,
        feedback.key,
        feedback.source,
        feedback.author,
        feedback.rule,
        feedback.id if anonymous else None,
    )


def is_anonymous(source: str, author: str | None) -> bool:
    """Return whether feedback comes from a person without a name, so that no other feedback can replace it."""
    return source == "human" and not author


# numbers that are collected before they are compressed: enough that compressing costs little per number
MAX_PENDING_PARTS = 256


class ExactSum:
    """Exact sum of numbers, rounded only when it is read. It does not depend on the order of additions and merges.

    Added numbers are collected in `parts`. Whenever `parts` has `MAX_PENDING_PARTS` numbers, a few numbers with the
    same exact sum replace them. Beyond the range of floats the sum is infinite, as with `sum`.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[float] = ()) -> None:
        self.parts = array("d", parts)

    def add(self, value: float) -> None:
        """Add a number."""
        self.parts.append(value)
        if len(self.parts) >= MAX_PENDING_PARTS:
            self.compress()

    def merge(self, other: ExactSum) -> None:
        """Add another exact sum."""
        self.parts.extend(other.parts)
        self.compress()

    def compress(self) -> None:
        """Replace the collected numbers by a few numbers with the same exact sum."""
        self.parts = array("d", exact_expansion(self.parts))

    def __float__(self) -> float:
        return _rounded_sum(self.parts)


def exact_expansion(values: Sequence[float]) -> list[float]:
    """Return a few numbers that have the same exact sum as the values.

    The first is the rounded sum, as returned by `math.fsum`. Each further number is the rounded remainder, until the
    remainder is 0 (Shewchuk 1997, section 2.8).
    """
    remaining, parts = list(values), list[float]()
    while part := _rounded_sum(remaining):
        parts.append(part)
        if not isfinite(part):
            return [part]
        remaining.append(-part)
    return parts


def _rounded_sum(values: Sequence[float]) -> float:
    try:
        return fsum(values)
    # An intermediate sum is too large for a float, or there are infinities of both signs
    except (OverflowError, ValueError):
        return sum(values)


@dataclass(slots=True, eq=False)
class WeightedSums:
    """Sums of scores whose weight is not 1. The counts include all of these scores, the sums only those of known
    weight.
    """

    n: int = 0
    unknown: int = 0
    judged: int = 0
    passed: int = 0
    weight: ExactSum = field(default_factory=ExactSum)  # Σw
    squares: ExactSum = field(default_factory=ExactSum)  # Σw²
    total: ExactSum = field(default_factory=ExactSum)  # Σwy
    of_judged: ExactSum = field(default_factory=ExactSum)  # Σw of the scores for which passing is defined
    of_passed: ExactSum = field(default_factory=ExactSum)  # Σw of the scores that pass

    def add(self, score: float, weight: float | None, passes: bool | None) -> None:
        """Add a score. Raises `ValueError` if the weight is negative, infinite or NaN."""
        if weight is None:
            self.unknown += 1
        elif isfinite(weight) and weight >= 0:
            self.weight.add(weight)
            self.squares.add(weight * weight)
            self.total.add(weight * score)
            if passes is not None:
                self.of_judged.add(weight)
                self.of_passed.add(weight * passes)
        else:
            raise ValueError(f"a weight must be a finite number >= 0, or None if it is unknown, got {weight!r}")
        self.n += 1
        self.judged += passes is not None
        self.passed += bool(passes)

    def merge(self, other: WeightedSums) -> None:
        """Add all scores of another instance."""
        self.n += other.n
        self.unknown += other.unknown
        self.judged += other.judged
        self.passed += other.passed
        self.weight.merge(other.weight)
        self.squares.merge(other.squares)
        self.total.merge(other.total)
        self.of_judged.merge(other.of_judged)
        self.of_passed.merge(other.of_passed)


UNPARSED = "parse failure"  # label of a case whose judgement could not be parsed: neither a pass nor a failure

PassCondition: TypeAlias = Callable[[float | bool], bool | None]


def passes_if_true(score: float | bool) -> bool | None:
    """Return a boolean score unchanged. Return None for other scores, because passing is not defined for them."""
    return score if isinstance(score, bool) else None


@dataclass(slots=True, eq=False)
class Tally:
    """Counts and sums of the feedback under one key.

    Every outcome is in exactly one of `n`, `labelled`, `failed` and `skipped`. `n` counts scores, `labelled` labels
    without a score, and `labels` every label, also of a score. Of the n scores, `judged` are those for which `passes`
    returns a boolean, and `passed` those for which it returns True.

    A score's weight is 1 by default. `mean` is Σwy/Σw, and `share` is the weighted share of the judged scores that
    pass. A score of unknown weight (None) is omitted from `mean` and `share` and counted in `unweighted`. Counts,
    minimum and maximum include all scores. Sums are exact (see `ExactSum`; only a product w·y is rounded), so results
    do not depend on the order of additions.
    """

    passes: PassCondition = passes_if_true
    n: int = 0
    labelled: int = 0
    failed: int = 0
    skipped: int = 0
    judged: int = 0
    passed: int = 0
    binary: int = 0  # number of scores that are 0 or 1
    minimum: float = inf
    maximum: float = -inf
    labels: dict[str, int] = field(default_factory=dict)
    plain: ExactSum = field(default_factory=ExactSum)  # sum of the scores whose weight is 1
    weighted: WeightedSums | None = None  # scores of any other weight, if there are any

    def add(self, feedback: Feedback, weight: float | None = 1.0) -> bool | None:
        """Add an outcome; return whether it passes. Raises `ValueError` if the weight is negative, infinite or NaN."""
        outcome = feedback.outcome
        if outcome == "score":
            label, score = feedback.label, feedback.score
            if label is not None:
                self.labels[label] = self.labels.get(label, 0) + 1
            if score is not None:
                return self._add_score(score, weight)
            self.labelled += 1
        elif outcome == "error":
            self.failed += 1
        else:
            self.skipped += 1
        return None

    def _add_score(self, score: float | bool, weight: float | None) -> bool | None:
        value, passes = float(score), self.passes(score)
        if weight == 1.0:
            parts = self.plain.parts  # `ExactSum.add` is inlined, because this runs for every example
            parts.append(value)
            if len(parts) >= MAX_PENDING_PARTS:
                self.plain.compress()
        else:
            self.weighted = self.weighted or WeightedSums()
            self.weighted.add(value, weight, passes)
        self.n += 1
        if passes is not None:
            self.judged += 1
            self.passed += passes
        if value == 1.0 or value == 0.0:
            self.binary += 1
        if value < self.minimum:
            self.minimum = value
        if value > self.maximum:
            self.maximum = value
        return passes

    def add_counts(
        self,
        *,
        n: int = 0,
        total: float = 0.0,
        binary: int = 0,
        minimum: float = inf,
        maximum: float = -inf,
        labelled: int = 0,
        labels: Mapping[str, int] = MappingProxyType({}),
        failed: int = 0,
        skipped: int = 0,
    ) -> None:
        """Add outcomes that were counted elsewhere, as in SQL: `n` scores of weight 1 with their `total`."""
        self.n += n
        self.binary += binary
        self.plain.add(total)
        self.minimum = min(self.minimum, minimum)
        self.maximum = max(self.maximum, maximum)
        self.labelled += labelled
        for label, times in labels.items():
            self.labels[label] = self.labels.get(label, 0) + times
        self.failed += failed
        self.skipped += skipped

    def merge(self, other: Tally) -> None:
        """Add all outcomes of another tally of the key."""
        self.add_counts(
            n=other.n,
            binary=other.binary,
            minimum=other.minimum,
            maximum=other.maximum,
            labelled=other.labelled,
            labels=other.labels,
            failed=other.failed,
            skipped=other.skipped,
        )
        self.plain.merge(other.plain)
        self.judged += other.judged
        self.passed += other.passed
        if other.weighted is not None:
            self.weighted = self.weighted or WeightedSums()
            self.weighted.merge(other.weighted)

    @property
    def mean(self) -> float | None:
        """Return Σwy/Σw, or None if no score has a known weight above 0."""
        if self.weighted is None:
            return float(self.plain) / self.n if self.n else None
        weight = self.n - self.weighted.n + float(self.weighted.weight)
        return float(ExactSum([*self.plain.parts, *self.weighted.total.parts])) / weight if weight else None

    @property
    def share(self) -> float | None:
        """Return Σw of the scores that pass, divided by Σw of the scores that pass or fail; None without such scores."""
        if self.weighted is None:
            return self.passed / self.judged if self.judged else None
        judged = self.judged - self.weighted.judged + float(self.weighted.of_judged)
        return (self.passed - self.weighted.passed + float(self.weighted.of_passed)) / judged if judged else None

    @property
    def effective(self) -> float | None:
        """Return the effective sample size (Σw)²/Σw² (Kish 1965); None if every weight is 1."""
        if self.weighted is None:
            return None
        unit_weights = self.n - self.weighted.n
        weight, squares = unit_weights + float(self.weighted.weight), unit_weights + float(self.weighted.squares)
        return weight * weight / squares if squares else 0.0

    def stats(self, key: str) -> FeedbackStats:
        """Return the statistics as a record."""
        return FeedbackStats(
            key=key,
            n=self.n,
            mean=self.mean,
            minimum=self.minimum if self.n else None,
            maximum=self.maximum if self.n else None,
            passed=self.share,
            labelled=self.labelled,
            labels=dict(self.labels),
            failed=self.failed,
            skipped=self.skipped,
            unweighted=self.weighted.unknown if self.weighted else 0,
            effective=self.effective,
            binary=self.binary == self.n > 0,
        )


def summarize_by_key(
    feedback: Iterable[Feedback], passes: Mapping[str, PassCondition] | None = None
) -> dict[str, FeedbackStats]:
    """Return statistics by key. `passes` maps a key to its condition for passing; under other keys, True passes.

    Every row counts. If rows may replace each other, call `select_latest` first.
    """
    known = passes or {}
    tallies: dict[str, Tally] = {}
    for row in feedback:
        if row.key not in tallies:
            tallies[row.key] = Tally(known.get(row.key, passes_if_true))
        tallies[row.key].add(row)
    return {key: tallies[key].stats(key) for key in sorted(tallies)}


# Mean of the scores of one key of an experiment, with its interval, clustered by example.

_DIGITS = 12  # values that are equal to this many binary-scaled decimal places count as equal


class ScoreSample:
    """Scores of one key of an experiment, with the example of each.

    Repetitions of an example, and several scores of one run, are not independent. The interval of the mean therefore
    treats the examples as the sample, not the scores.
    """

    __slots__ = ("examples", "scores")

    def __init__(self, scores: Iterable[float] = (), examples: Iterable[str] = ()) -> None:
        self.scores = array("d", scores)
        self.examples = list(examples)

    def add(self, score: float, example: str) -> None:
        """Add a score of an example."""
        self.scores.append(score)
        self.examples.append(example)

    def interval(self, level: float = 0.95) -> Interval | None:
        """Return the interval of the mean, or None if there are too few scores.

        - If all scores are 0 or 1 and each example has one, this is Wilson's interval.
        - Otherwise it is `mean_interval`. If an example has several scores, the mean of all scores is a ratio: Σsᵢ/Σnᵢ
          for examples with nᵢ scores of sum sᵢ. Its interval follows from the residuals (sᵢ − mean · nᵢ) / n̄ of the
          examples (Cochran 1977, section 6.4).
        - Fewer than `MIN_DISTINCT` examples whose mean is not the most frequent one are too few. Repeated scores of 0
          and 1 then have Wilson's interval for the effective number of examples (Σnᵢ)²/Σnᵢ², which is that of
          repetitions that always agree. Other scores have none.
        """
        scores, n = self.scores, len(self.scores)
        if not n or not all(map(isfinite, scores)):
            return None
        is_boolean = all(score in (0.0, 1.0) for score in scores)
        is_clustered = len(set(self.examples)) < n
        if is_boolean and not is_clustered:
            return wilson_interval(fsum(scores), n, level)
        scale = get_scale(scores)
        scaled = [score / scale for score in scores]
        if not is_clustered:
            if _count_distinct(scaled) < MIN_DISTINCT:
                return None
            low, high = mean_interval(Moments.of(scaled), level)
        else:
            groups: dict[str, list[float]] = {}
            for example, score in zip(self.examples, scaled, strict=True):
                groups.setdefault(example, []).append(score)
            sums = [(fsum(group), len(group)) for group in groups.values()]
            mean, per_example = fsum(scaled) / n, n / len(sums)
            if _count_distinct([total / count for total, count in sums]) < MIN_DISTINCT:
                size = n * n / sum(count * count for _, count in sums)
                return wilson_interval(mean * size, size, level) if is_boolean else None
            moments = Moments.of([(total - mean * count) / per_example for total, count in sums])
            low, high = mean_interval(Moments(moments.n, mean, moments.error, moments.skewness), level)
        if is_boolean:
            low, high = max(0.0, low), min(1.0, high)
        low, high = low * scale, high * scale
        return (low, high) if isfinite(low) and isfinite(high) else None


def _count_distinct(values: Sequence[float]) -> int:
    """Return the number of values other than the most frequent one. The largest absolute value is below 2."""
    return len(values) - max(Counter(round(value, _DIGITS) for value in values).values())
