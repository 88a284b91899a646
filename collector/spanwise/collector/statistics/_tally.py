"""One key's outcomes, counted as they come: the only place where scores become a mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import TypeAlias

from spanwise.collector.records import Feedback, FeedbackStats
from spanwise.collector.statistics._sum import FULL, Sum
from spanwise.collector.statistics._weighted import Weighted

UNPARSED = "parse failure"  # the label of a case whose judgement could not be parsed: neither a pass nor a failure

Passes: TypeAlias = Callable[[float | bool], bool | None]


def true_passes(score: float | bool) -> bool | None:
    """Booleans pass when true; for other scores passing is not defined."""
    return score if isinstance(score, bool) else None


@dataclass(slots=True, eq=False)
class Tally:
    """What was said under one key. Every outcome is in exactly one of `n`, `labelled`, `failed` and `skipped`.

    `n` counts scores, `labelled` labels without a score, `labels` every label (one beside a score, too). Of the n
    scores `judged` are those of which `passes` says yes or no, and `passed` those of which it says yes.

    A score's weight is 1 unless told: `mean` is Σwy/Σw, `share` (who passes) the same over the judged. A score of
    unknown weight (None) is left out of both, and counted in `unweighted`; counts, minimum and maximum are those of all
    scores. Sums are exact (see `Sum`; only a product w·y is rounded): no number depends on the order of what was added.
    """

    passes: Passes = true_passes
    n: int = 0
    labelled: int = 0
    failed: int = 0
    skipped: int = 0
    judged: int = 0
    passed: int = 0
    minimum: float = inf
    maximum: float = -inf
    labels: dict[str, int] = field(default_factory=dict)
    plain: Sum = field(default_factory=Sum)  # of the scores whose weight is 1
    weighted: Weighted | None = None  # the other scores, once there are any

    def add(self, feedback: Feedback, weight: float | None = 1.0) -> bool | None:
        """Count one outcome, and say whether it passes. Raises `ValueError` for a weight below 0, infinite or NaN."""
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
            parts = self.plain.parts  # as `Sum.add` does, without the call: every example comes by here
            parts.append(value)
            if len(parts) >= FULL:
                self.plain.compress()
        else:
            self.weighted = self.weighted or Weighted()
            self.weighted.add(value, weight, passes)
        self.n += 1
        if passes is not None:
            self.judged += 1
            self.passed += passes
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
        minimum: float = inf,
        maximum: float = -inf,
        labelled: int = 0,
        labels: Mapping[str, int] = MappingProxyType({}),
        failed: int = 0,
        skipped: int = 0,
    ) -> None:
        """Count many outcomes that were counted elsewhere, as by SQL: n scores of weight 1 with their `total`."""
        self.n += n
        self.plain.add(total)
        self.minimum = min(self.minimum, minimum)
        self.maximum = max(self.maximum, maximum)
        self.labelled += labelled
        for label, times in labels.items():
            self.labels[label] = self.labels.get(label, 0) + times
        self.failed += failed
        self.skipped += skipped

    def merge(self, other: Tally) -> None:
        """Count all that another tally of the key has counted."""
        self.add_counts(
            n=other.n,
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
            self.weighted = self.weighted or Weighted()
            self.weighted.merge(other.weighted)

    @property
    def mean(self) -> float | None:
        """Σwy/Σw; None without scores of a known weight above 0."""
        if self.weighted is None:
            return float(self.plain) / self.n if self.n else None
        weight = self.n - self.weighted.n + float(self.weighted.weight)
        return float(Sum([*self.plain.parts, *self.weighted.total.parts])) / weight if weight else None

    @property
    def share(self) -> float | None:
        """Σw of the scores that pass over Σw of those that pass or fail; None without any such."""
        if self.weighted is None:
            return self.passed / self.judged if self.judged else None
        judged = self.judged - self.weighted.judged + float(self.weighted.of_judged)
        return (self.passed - self.weighted.passed + float(self.weighted.of_passed)) / judged if judged else None

    @property
    def effective(self) -> float | None:
        """(Σw)²/Σw², of how many equal weights the mean is as sure (Kish 1965); None where every weight is 1."""
        if self.weighted is None:
            return None
        ones = self.n - self.weighted.n
        weight, squares = ones + float(self.weighted.weight), ones + float(self.weighted.squares)
        return weight * weight / squares if squares else 0.0

    def stats(self, key: str) -> FeedbackStats:
        """What has been counted so far, as a record."""
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
        )
