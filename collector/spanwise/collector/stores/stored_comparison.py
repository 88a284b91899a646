"""Comparison of stored experiments: their scores, the declared rules of their keys, and contrasts per comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from math import isfinite
from typing import Any, TypeAlias

from spanwise.collector.errors import Forbidden, NotFound
from spanwise.collector.records import Example, Experiment, RunScores, iterate_pages
from spanwise.collector.statistics import (
    MEASURES,
    TASK_OK,
    Contrast,
    ExperimentScores,
    KeyRule,
    collect_scores,
    compare_scores,
)
from spanwise.collector.stores.control_store import Store

SCORE_PAGE = 5_000  # runs per page of scores
EXAMPLE_PAGE = 1_000

Side: TypeAlias = tuple[Store, Experiment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """Options of a comparison.

    `primary` names the keys that decide; None: the keys of evaluators declared primary, or else all keys. `margin`
    gives per key the largest difference that does not matter, in units of the score. `good_labels` gives per key the
    labels that count as good. `cluster` names a field of the examples' metadata: examples with the same value count
    as one pair; without it, examples with the same `base_id` do. With `all_pairs`, every experiment is compared with
    every later one, otherwise only the first with the others.
    """

    primary: Sequence[str] | None = None
    margin: Mapping[str, float] | None = None
    good_labels: Mapping[str, Collection[str]] | None = None
    cluster: str | None = None
    all_pairs: bool = False

    def __post_init__(self) -> None:
        for key, margin in (self.margin or {}).items():
            if (
                isinstance(margin, bool)
                or not isinstance(margin, int | float)
                or not margin > 0
                or not isfinite(margin)
            ):
                raise ValueError(f"the margin of {key!r} must be a positive number, got {margin!r:.100}")
        if isinstance(self.primary, str):
            raise ValueError(f"primary must be a list of keys, got the string {self.primary!r:.100}")
        for key, labels in (self.good_labels or {}).items():
            if isinstance(labels, str):
                raise ValueError(f"the good labels of {key!r} must be a list of labels, got the string {labels!r:.100}")


class StoredComparison:
    """Comparison of two or more stored experiments, which may be in different stores. Everything is read when used."""

    def __init__(self, sides: Sequence[Side], options: ComparisonOptions | None = None) -> None:
        self.sides = sides
        self.options = options or ComparisonOptions()
        last = range(len(sides))
        self.comparisons: list[tuple[int, int]] = (
            list(combinations(last, 2)) if self.options.all_pairs else [(0, other) for other in last[1:]]
        )

    @cached_property
    def runs(self) -> list[list[RunScores]]:
        """Return the runs of each experiment that count, earliest start first."""
        return [_read_runs(*side) for side in self.sides]

    @cached_property
    def has_failed_tasks(self) -> bool:
        """Return whether a task has failed in any experiment. The other scores then cover only some of the runs."""
        return any(run.status == "error" for runs in self.runs for run in runs)

    @cached_property
    def scores(self) -> list[ExperimentScores]:
        """Return the scores of each experiment by key."""
        return [collect_scores(runs, tasks=self.has_failed_tasks, measures=True) for runs in self.runs]

    @cached_property
    def examples(self) -> Mapping[str, Example]:
        """Return the examples of all compared dataset versions by id; those of the first experiment win."""
        versions = {
            (id(store), record.dataset, record.dataset_version): (store, record) for store, record in self.sides
        }
        found: dict[str, Example] = {}
        for store, record in versions.values():
            for example in iterate_examples(store, record):
                found.setdefault(example.id, example)
        return found

    @cached_property
    def keys(self) -> list[str]:
        """Return all keys with scores: `task_ok` first, then in order of first occurrence, measures last."""
        keys = dict.fromkeys(key for scores in self.scores for key in scores)
        return sorted(keys, key=lambda key: (key != TASK_OK, key in MEASURES))

    @cached_property
    def primary(self) -> list[str] | None:
        """Return the keys that decide; None if all do. Raises `ValueError` for a key without scores."""
        if self.options.primary is not None:
            self._check_keys("primary", self.options.primary)
            return list(self.options.primary)
        declared = [
            key
            for _, record in self.sides
            for evaluator in record.evaluators
            if evaluator.get("primary") is True
            for key in _list_main_keys(evaluator)
        ]
        return list(dict.fromkeys(declared)) or None

    def _check_keys(self, name: str, keys: Iterable[str]) -> None:
        if unknown := [key for key in keys if key not in self.keys]:
            raise ValueError(f"{name}: no experiment has scores of {unknown[0]!r}; known keys: {', '.join(self.keys)}")

    @cached_property
    def clusters(self) -> Mapping[str, str]:
        """Return the cluster of each example that shares one with others, by example id."""
        field = self.options.cluster
        if field is None:
            if not any(example.base_id for example in self.examples.values()):
                return {}
            return {id: example.base_id or id for id, example in self.examples.items()}
        named = {id: example.metadata.get(field) for id, example in self.examples.items()}
        if all(value is None for value in named.values()):
            raise ValueError(f"cluster: no example has the field {field!r} in its metadata")
        return {id: f"{field}={value}" for id, value in named.items() if value is not None}

    @cached_property
    def contrasts(self) -> list[dict[str, Contrast]]:
        """Return the contrasts by key, one dict for each of `comparisons`. Raises `ValueError` for unknown keys."""
        return self.contrast_examples(None)

    def contrast_examples(self, ids: Collection[str] | None) -> list[dict[str, Contrast]]:
        """Return the contrasts over these examples only; None stands for all."""
        self._check_keys("margin", self.options.margin or ())
        self._check_keys("good_labels", self.options.good_labels or ())
        scores = self.scores
        if ids is not None:
            wanted = set(ids)
            chosen = [[run for run in runs if (run.example_id or run.trace_id) in wanted] for runs in self.runs]
            scores = [collect_scores(runs, tasks=self.has_failed_tasks, measures=True) for runs in chosen]
        contrasts = compare_scores(
            scores, self.comparisons, self._get_rules, primary=self.primary, clusters=self.clusters
        )
        return [{key: each[key] for key in self.keys if key in each} for each in contrasts]

    def _get_rules(self, before: int, after: int) -> dict[str, KeyRule]:
        """Return the rules of all keys for a comparison. A direction or version that differs is stated in a note."""
        earlier, later = (_list_metrics(self.sides[side][1]) for side in (before, after))
        rules: dict[str, KeyRule] = {}
        for key in self.keys:
            declared = [side[key] for side in (earlier, later) if key in side]
            directions = {is_rising(metric) for metric, _ in declared}
            versions = {str(version) for _, version in declared}
            rising: bool | None = next(iter(directions)) if len(directions) == 1 else None
            if key == TASK_OK or (key in MEASURES and not declared):
                rising = key == TASK_OK
            notes = ["the experiments declare opposite directions"] * (len(directions) > 1)
            notes += ["the evaluators have different versions"] * (len(versions) > 1)
            labels = (self.options.good_labels or {}).get(key)
            if labels is None:
                labels = [str(label) for metric, _ in declared for label in metric.get("good_labels") or ()]
            rules[key] = KeyRule(
                rising=True if labels else rising,
                good_labels=frozenset(labels),
                margin=(self.options.margin or {}).get(key),
                notes=tuple(notes),
            )
        return rules


def iterate_examples(store: Store, record: Experiment) -> Iterable[Example]:
    """Yield the examples of an experiment's dataset version; nothing if it was deleted or may not be read."""
    if record.dataset_version is None:
        return
    offset = 0
    try:
        while page := store.examples(record.dataset, record.dataset_version, limit=EXAMPLE_PAGE, offset=offset):
            yield from page
            offset += len(page)
    except (NotFound, Forbidden):
        return


def is_rising(metric: Mapping[str, Any]) -> bool:
    """Return whether a higher score is better, by the recorded metric."""
    return metric.get("higher_is_better") is not False


def _read_runs(store: Store, record: Experiment) -> list[RunScores]:
    """Return the runs of an experiment that count.

    A failed run does not count if a later run of the same example and repetition has replaced it. Such a run is
    still stored if the process that replaced it was killed before it deleted it. Without a stored dataset, example
    ids may repeat, so all runs count.
    """
    runs = list(iterate_pages(partial(store.scores, record.id, limit=SCORE_PAGE)))
    if record.dataset_version is None:
        return runs
    counting: dict[tuple[str, int], str] = {}
    for run in sorted(runs, key=lambda run: run.status != "error"):
        counting[run.example_id or run.trace_id, run.repetition] = run.trace_id
    return [
        run
        for run in runs
        if run.status != "error" or counting[run.example_id or run.trace_id, run.repetition] == run.trace_id
    ]


def _list_main_keys(evaluator: Mapping[str, Any]) -> list[str]:
    """Return the keys of an evaluator's main metrics, or all if none is the main one."""
    metrics = [metric for metric in evaluator.get("metrics") or () if isinstance(metric, Mapping) and "key" in metric]
    return [str(metric["key"]) for metric in metrics if metric.get("primary")] or [str(each["key"]) for each in metrics]


def _list_metrics(record: Experiment) -> dict[str, tuple[Mapping[str, Any], object]]:
    """Return per key its recorded metric and the version of its evaluator."""
    found: dict[str, tuple[Mapping[str, Any], object]] = {}
    for evaluator in record.evaluators:
        metrics = evaluator.get("metrics")
        for metric in metrics if isinstance(metrics, list | tuple) else ():
            if isinstance(metric, Mapping) and "key" in metric:
                found[str(metric["key"])] = metric, evaluator.get("version")
    return found
