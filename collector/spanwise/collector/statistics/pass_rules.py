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
    """Return the rules of all keys whose scores pass or fail, that of `task_ok` included.

    `declared` holds threshold and `higher_is_better` by key. The rules have its order, after `task_ok`; other keys
    follow in alphabetical order.
    """
    are_boolean: dict[str, bool] = {TASK_OK: True}
    for run in runs:
        for key, score in run.scores.items():
            if isinstance(score, int | float) and isfinite(score):
                are_boolean[key] = are_boolean.get(key, True) and score in (0.0, 1.0)
    position = {key: place for place, key in enumerate([TASK_OK, *declared])}
    rules: dict[str, PassRule] = {}
    for key in sorted(are_boolean, key=lambda key: (position.get(key, len(position)), key)):
        threshold, higher_is_better = declared.get(key, (None, True))
        if rule := make_pass_rule(threshold, higher_is_better, is_boolean=are_boolean[key]):
            rules[key] = rule
    return rules
