"""Two experiments over the same examples, key by key: how many went up, how many down, and whether it is chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from assay.collector.statistics._paired import Paired, paired
from assay.collector.statistics._sum import Sum

TOLERANCE = 1e-9  # differences below it are rounding

# Per example id and key the mean score over the example's repetitions
Scores: TypeAlias = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One key of two experiments: the differences, after minus before, over the examples that both have scored.

    `test` says whether they are more than chance; None without pairs. `only_before` and `only_after` count the examples
    that just one of the two has scored. `rising` is whether a higher score is the better one, None if nobody knows.
    """

    key: str
    differences: Mapping[str, float]  # by example id
    test: Paired | None
    up: int
    down: int
    same: int
    only_before: int
    only_after: int
    rising: bool | None

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


def by_example(scores: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """The mean per example and key of (example id, key, score), so that an example weighs the same however often it
    was repeated. In the order in which they first occur.
    """
    sums: dict[str, dict[str, list[float]]] = {}
    for example_id, key, score in scores:
        sums.setdefault(example_id, {}).setdefault(key, []).append(score)
    return {
        example_id: {key: float(Sum(values)) / len(values) for key, values in keys.items()}
        for example_id, keys in sums.items()
    }


def compare(before: Scores, after: Scores, rising: Mapping[str, bool] | None = None) -> dict[str, Contrast]:
    """Contrasts by key, of all keys under which either has a score, by name."""
    keys = {key for side in (before, after) for scores in side.values() for key in scores}
    return {
        key: _contrast(key, _column(before, key), _column(after, key), (rising or {}).get(key)) for key in sorted(keys)
    }


def direction(difference: float) -> int:
    """1 for up, −1 for down, 0 for what is rounding only."""
    return (difference > TOLERANCE) - (difference < -TOLERANCE)


def _column(scores: Scores, key: str) -> dict[str, float]:
    return {example_id: keys[key] for example_id, keys in scores.items() if key in keys}


def _contrast(key: str, before: Mapping[str, float], after: Mapping[str, float], rising: bool | None) -> Contrast:
    differences = {example_id: after[example_id] - before[example_id] for example_id in after if example_id in before}
    directions = [direction(difference) for difference in differences.values()]
    return Contrast(
        key=key,
        differences=differences,
        test=paired(sorted(differences.values())) if differences else None,
        up=directions.count(1),
        down=directions.count(-1),
        same=directions.count(0),
        only_before=len(before) - len(differences),
        only_after=len(after) - len(differences),
        rising=rising,
    )
