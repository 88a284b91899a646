"""Two experiments over the same examples, key by key: how many went up, how many down, and whether it is chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from spanwise.collector.records import RunScores
from spanwise.collector.statistics._paired import Paired, paired
from spanwise.collector.statistics._sum import Sum

TOLERANCE = 1e-9  # differences below it are rounding

# Per example id and key the mean score over the example's repetitions
Scores: TypeAlias = Mapping[str, Mapping[str, float]]
Judgement: TypeAlias = Literal["better", "worse", "higher", "lower", "unclear", "same"]

TASK_OK = "task_ok"  # the key of whether the task came to an end without an error: of every run, kept nowhere
LEVEL = 0.95  # of the intervals of all keys of a comparison together


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One key of two experiments: the differences, after minus before, over the examples that both have scored.

    `test` is of this key alone; None without pairs. `only_before` and `only_after` count the examples that just one of
    the two has scored. `rising` is whether a higher score is the better one, None if nobody knows. `family` is how many
    differences are looked at together: who looks at twenty finds one that is chance.
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
    family: int = 1

    @property
    def level(self) -> float:
        """The level of this key's interval with which those of the whole family hold together at 95 % (Bonferroni)."""
        return 1 - (1 - LEVEL) / self.family

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the mean difference at `level`; None without pairs, or where all differences are alike."""
        return self.test.interval(self.level) if self.test else None

    @property
    def verdict(self) -> Judgement | None:
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


def scores_of(runs: Iterable[RunScores], *, tasks: bool = False) -> Iterator[tuple[str, str, float]]:
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


def compare(
    before: Scores, after: Scores, rising: Mapping[str, bool] | None = None, *, others: int = 1
) -> dict[str, Contrast]:
    """Contrasts by key, of all keys under which either has a score, by name.

    Their family are the keys with pairs, as often as `before` is compared with any of the `others`.
    """
    columns = {key: (_column(before, key), _column(after, key)) for key in _keys(before, after)}
    family = others * sum(not before.keys().isdisjoint(after) for before, after in columns.values())
    directions = {TASK_OK: True, **(rising or {})}
    return {key: _contrast(key, *both, directions.get(key), max(1, family)) for key, both in columns.items()}


def direction(difference: float) -> int:
    """1 for up, −1 for down, 0 for what is rounding only."""
    return (difference > TOLERANCE) - (difference < -TOLERANCE)


def _column(scores: Scores, key: str) -> dict[str, float]:
    return {example_id: keys[key] for example_id, keys in scores.items() if key in keys}


def _keys(before: Scores, after: Scores) -> list[str]:
    return sorted({key for side in (before, after) for scores in side.values() for key in scores})


def _contrast(
    key: str, before: Mapping[str, float], after: Mapping[str, float], rising: bool | None, family: int
) -> Contrast:
    differences = {example_id: after[example_id] - before[example_id] for example_id in after if example_id in before}
    directions = [direction(difference) for difference in differences.values()]
    moved = [difference if direction(difference) else 0.0 for difference in differences.values()]
    return Contrast(
        key=key,
        differences=differences,
        test=paired(sorted(moved)) if moved else None,
        up=directions.count(1),
        down=directions.count(-1),
        same=directions.count(0),
        only_before=len(before) - len(differences),
        only_after=len(after) - len(differences),
        rising=rising,
        family=family,
    )
