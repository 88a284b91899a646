"""Per key: how many scores, their mean, minimum and maximum, what failed, what was skipped, what share passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from assay.collector.records import Feedback

Passes: TypeAlias = Callable[[float | bool], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStats:
    """One key over many feedbacks. `mean`, `minimum` and `maximum` are over the n scores, None without any.

    `failed` counts errors and `skipped` skips; neither is a score. `passed` is the share of the scores that pass, None
    where passing is not defined. `labels` counts labels.
    """

    key: str
    n: int = 0
    mean: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    failed: int = 0
    skipped: int = 0
    passed: float | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def newest(feedback: Iterable[Feedback]) -> list[Feedback]:
    """The newest feedback per target, key, source and author, in the order of the first of each.

    So a newer version of an evaluator takes the place of an older one, and people's votes are kept apart.
    """
    kept: dict[tuple[Any, ...], Feedback] = {}
    for one in feedback:
        # An evaluator's later versions, and rules, replace each other; people without a name are not the same person.
        who = (one.author or one.id) if one.source == "human" else one.author
        place = (one.target, one.key, one.source, who)
        if place not in kept or kept[place].created_ns <= one.created_ns:
            kept[place] = one
    return list(kept.values())


def summarise(feedback: Iterable[Feedback], passes: Mapping[str, Passes] | None = None) -> dict[str, KeyStats]:
    """Statistics per key, by key. `passes` says per key whether a score passes; booleans pass when true elsewhere.

    Every row counts: take `newest` first where rows may repeat each other.
    """
    rows: dict[str, list[Feedback]] = {}
    for one in feedback:
        rows.setdefault(one.key, []).append(one)
    known = passes or {}
    return {key: _of_key(key, rows[key], known.get(key, _true_passes)) for key in sorted(rows)}


def _of_key(key: str, rows: list[Feedback], passes: Passes) -> KeyStats:
    scores = [one.score for one in rows if one.outcome == "score" and one.score is not None]
    outcomes = Counter(one.outcome for one in rows)
    verdicts = [verdict for score in scores if (verdict := passes(score)) is not None]
    return KeyStats(
        key=key,
        n=len(scores),
        mean=math.fsum(scores) / len(scores) if scores else None,
        minimum=float(min(scores)) if scores else None,
        maximum=float(max(scores)) if scores else None,
        failed=outcomes["error"],
        skipped=outcomes["skip"],
        passed=sum(verdicts) / len(verdicts) if verdicts else None,
        labels=dict(Counter(one.label for one in rows if one.outcome == "score" and one.label is not None)),
    )


def _true_passes(score: float | bool) -> bool | None:
    return score if isinstance(score, bool) else None
