"""Pass rules: which scores of a key pass, by its threshold or because all of them are 0 or 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from spanwise.collector.records import RunScores
from spanwise.collector.statistics.score_comparison import TASK_OK


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
