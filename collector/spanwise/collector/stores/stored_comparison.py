"""Comparison of stored experiments: scores, rules of their keys, contrasts, robustness against perturbations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from math import fsum, isfinite
from typing import TypeAlias

from spanwise.collector.records import JSON, Example, Experiment, RunScores, find_root_id, is_perturbed, iterate_pages
from spanwise.collector.statistics import (
    MEASURES,
    TASK_OK,
    Contrast,
    ExperimentScores,
    KeyRule,
    PassRule,
    collect_scores,
    compare_scores,
    get_direction,
    make_pass_rules,
    wilson_interval,
)
from spanwise.collector.stores.experiment_statistics import (
    iterate_examples,
    list_metrics,
    list_primary_keys,
    read_run_examples,
)
from spanwise.collector.stores.store_interfaces import Store

# Comparison of stored experiments: their scores, the declared rules of their keys, and contrasts per comparison.

SCORE_PAGE = 5_000  # runs per page of scores
MAX_MARGIN = 1e300  # margins are differences of scores
MIN_SLICE = 5  # fewest pairs inside and outside of a slice that is listed

Side: TypeAlias = tuple[Store, Experiment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """Options of a comparison.

    `primary` names the keys that decide; None: the keys of evaluators declared primary, or else all keys. `margin`
    gives per key the largest difference that does not matter, in units of the score. `good_labels` gives per key the
    labels that count as good. `cluster` names a field of the examples' metadata: examples with the same value count
    as one pair; without it, examples with the same original base case do. With `all_pairs`, every experiment is compared with
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
        if self.cluster is not None and not isinstance(self.cluster, str):
            raise ValueError(f"cluster must be the name of a metadata field, got {self.cluster!r:.100}")
        if isinstance(self.primary, str):
            raise ValueError(f"primary must be a list of keys, got the string {self.primary!r:.100}")
        for key, labels in (self.good_labels or {}).items():
            if isinstance(labels, str):
                raise ValueError(f"the good labels of {key!r} must be a list of labels, got the string {labels!r:.100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changed mean score of one example under one key; of labels, whether the label is good (1 or 0).

    `better` tells whether the score changed in the direction that is better for the key; None if that is unknown.
    """

    example_id: str
    key: str
    before: float
    after: float
    better: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Part of the examples, and how much one key changed in it. A slice is exploratory: it has no conclusion.

    `name` is such as "split=hard". `change` is the mean difference over its `n` examples, `elsewhere` that over all
    other examples, and `distance` the difference of the two in standard errors.
    """

    name: str
    key: str
    n: int
    change: float
    elsewhere: float
    distance: float


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
        return [read_counted_runs(*side) for side in self.sides]

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
        """Return all keys with scores: `task_ok` first, then in order of first occurrence, measures last.

        Measures that no run has recorded are left out.
        """
        keys = dict.fromkeys(key for scores in self.scores for key, of_key in scores.items() if of_key.is_recorded)
        return sorted(keys, key=lambda key: (key != TASK_OK, key in self.measures))

    @cached_property
    def measures(self) -> frozenset[str]:
        """Return the keys that are measures of the runs: latency, cost and tokens, unless an evaluator reports them."""
        scored = {key for scores in self.scores for key, of_key in scores.items() if not of_key.is_measure}
        return frozenset(MEASURES.keys() - scored)

    @cached_property
    def primary(self) -> list[str] | None:
        """Return the keys that decide; None if all do. Raises `ValueError` for a key without scores."""
        if self.options.primary is not None:
            self._check_keys("primary", self.options.primary)
            return list(self.options.primary)
        return list(dict.fromkeys(key for _, record in self.sides for key in list_primary_keys(record))) or None

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
            return {id: find_root_id(example, self.examples) for id, example in self.examples.items()}
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
        self._check_good_labels()
        scores = self.scores
        if ids is not None:
            wanted = set(ids)
            chosen = [[run for run in runs if (run.example_id or run.trace_id) in wanted] for runs in self.runs]
            scores = [collect_scores(runs, tasks=self.has_failed_tasks, measures=True) for runs in chosen]
        contrasts = compare_scores(
            scores, self.comparisons, self._get_rules, primary=self.primary, clusters=self.clusters
        )
        return [{key: each[key] for key in self.keys if key in each} for each in contrasts]

    def changes(self, comparison: int) -> Iterator[Change]:
        """Yield the examples whose score changed in one of `comparisons`, by key and example; measures are left out."""
        baseline, other = self.comparisons[comparison]
        for key, contrast in self.contrasts[comparison].items():
            if key not in self.measures:
                before, after = (self._get_values(side, key, contrast) for side in (baseline, other))
                for example_id, value in after.items():
                    earlier = before.get(example_id)
                    if earlier is not None and (moved := get_direction(value - earlier)):
                        better = None if contrast.rising is None else (moved > 0) == contrast.rising
                        yield Change(example_id=example_id, key=key, before=earlier, after=value, better=better)

    def _get_values(self, side: int, key: str, contrast: Contrast) -> Mapping[str, float]:
        """Return the scores of one key by example id; of labels 1 if the label is good, else 0."""
        scores = self.scores[side].get(key)
        if scores is None:
            return {}
        if contrast.kind == "labels" or contrast.table:
            good = contrast.rule.good_labels
            return {id: float(label in good) for id, label in scores.labels.items()} if good else {}
        return scores.values

    def rank_changes(self, comparison: int) -> dict[str, list[Change]]:
        """Return the changes by example id: regressions first, by the number of primary keys, then by size.

        A change counts as a share of the range of its key's scores.
        """
        contrasts = self.contrasts[comparison]
        scale: dict[str, float] = {}
        for key, contrast in contrasts.items():
            values = [
                value
                for side in self.comparisons[comparison]
                for value in self._get_values(side, key, contrast).values()
            ]
            scale[key] = max(values, default=0.0) - min(values, default=0.0) or 1.0
        changes: defaultdict[str, list[Change]] = defaultdict(list)
        for change in self.changes(comparison):
            changes[change.example_id].append(change)

        def rank(example_id: str) -> tuple[int, int, float, str]:
            worse = [change for change in changes[example_id] if change.better is False]
            primary = sum(contrasts[change.key].is_primary for change in worse)
            shown = worse or changes[example_id]
            size = sum(abs(change.after - change.before) / scale[change.key] for change in shown)
            return -bool(worse), -primary, -size, example_id

        return {example_id: changes[example_id] for example_id in sorted(changes, key=rank)}

    def slices(self, comparison: int, limit: int = 10) -> list[Slice]:
        """Return the slices in which a primary key changed most compared with the other examples.

        Slices are the examples with an equal value of: a tag of their runs, split, category, metadata, or an
        evaluator's label in the later experiment. They leave at least `MIN_SLICE` examples on each side.
        """
        baseline, other = self.comparisons[comparison]
        members = self._list_members(other)
        found: list[Slice] = []
        for key, contrast in self.contrasts[comparison].items():
            if not contrast.is_primary:
                continue
            before, after = (self._get_values(side, key, contrast) for side in (baseline, other))
            differences = {id: value - before[id] for id, value in after.items() if id in before}
            whole = _Sums.of(differences.values())
            for name, ids in members.items():
                inside = _Sums.of(differences[id] for id in ids if id in differences)
                outside = whole.without(inside)
                if min(inside.n, outside.n) < MIN_SLICE or name.startswith(f"{key}="):
                    continue
                if get_direction(inside.mean - outside.mean):
                    error = max((inside.variance / inside.n + outside.variance / outside.n) ** 0.5, 1e-9)
                    found.append(
                        Slice(
                            name=name,
                            key=key,
                            n=inside.n,
                            change=inside.mean,
                            elsewhere=outside.mean,
                            distance=(inside.mean - outside.mean) / error,
                        )
                    )
        return sorted(found, key=lambda each: (-abs(each.distance), each.name, each.key))[:limit]

    def contrast_slice(self, name: str, comparison: int) -> dict[str, Contrast]:
        """Return the contrasts over one slice, such as "split=hard". Raises `ValueError` for an unknown slice."""
        members = self._list_members(self.comparisons[comparison][1])
        if name not in members:
            known = ", ".join(sorted(members)[:20]) or "none"
            raise ValueError(f"there is no slice {name!r}; slices: {known}")
        return self.contrast_examples(members[name])[comparison]

    def _list_members(self, other: int) -> dict[str, set[str]]:
        """Return the example ids of each slice by its name."""
        members: defaultdict[str, set[str]] = defaultdict(set)
        for run in self.runs[other]:
            id = run.example_id or run.trace_id
            for tag in run.tags:
                members[f"tag={tag}"].add(id)
            for key, value in run.scores.items():
                if isinstance(value, str):
                    members[f"{key}={value}"].add(id)
        for id, example in self.examples.items():
            if example.split:
                members[f"split={example.split}"].add(id)
            for category in example.categories:
                members[f"category={category}"].add(id)
            for name, value in example.metadata.items():
                if isinstance(value, str | int | float | bool):
                    members[f"metadata.{name}={value}"].add(id)
        return dict(members)

    def _check_good_labels(self) -> None:
        for key, labels in (self.options.good_labels or {}).items():
            known = {label for scores in self.scores if key in scores for label in scores[key].labels.values()}
            if known and not known & set(labels):
                raise ValueError(
                    f"good_labels of {key!r}: no run has one of {', '.join(map(repr, labels))}; labels: "
                    f"{', '.join(map(repr, sorted(known)[:20]))}"
                )

    def _get_rules(self, before: int, after: int) -> dict[str, KeyRule]:
        """Return the rules of all keys for a comparison. A direction or version that differs is stated in a note."""
        earlier, later = (list_metrics(self.sides[side][1]) for side in (before, after))
        rules: dict[str, KeyRule] = {}
        for key in self.keys:
            declared = [side[key] for side in (earlier, later) if key in side]
            directions = {each.is_rising for each in declared}
            versions = {str(each.version) for each in declared}
            rising: bool | None = next(iter(directions)) if len(directions) == 1 else None
            if key == TASK_OK or key in self.measures:
                rising = key == TASK_OK
            notes = ["the experiments declare opposite directions"] * (len(directions) > 1)
            notes += ["the evaluators have different versions"] * (len(versions) > 1)
            labels = (self.options.good_labels or {}).get(key)
            if labels is None:
                sets = {frozenset(map(str, each.metric.get("good_labels") or ())) for each in declared} - {frozenset()}
                labels = next(iter(sets)) if len(sets) == 1 else ()
                notes += ["the experiments declare different good labels"] * (len(sets) > 1)
            rules[key] = KeyRule(
                rising=True if labels else rising,
                good_labels=frozenset(labels),
                margin=(self.options.margin or {}).get(key),
                notes=tuple(notes),
            )
        return rules


@dataclass(frozen=True, slots=True)
class _Sums:
    """Number, sum and sum of squares of values."""

    n: int
    total: float
    squares: float

    @classmethod
    def of(cls, values: Iterable[float]) -> _Sums:
        listed = list(values)
        return cls(len(listed), fsum(listed), fsum(value * value for value in listed))

    def without(self, others: _Sums) -> _Sums:
        """Return the sums without the others."""
        return _Sums(self.n - others.n, self.total - others.total, self.squares - others.squares)

    @property
    def mean(self) -> float:
        return self.total / self.n

    @property
    def variance(self) -> float:
        """Return the sample variance, not below 0 despite rounding."""
        return max(0.0, self.squares - self.n * self.mean**2) / (self.n - 1)


def read_counted_runs(store: Store, record: Experiment) -> list[RunScores]:
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


# Robustness of a stored experiment against perturbations: stable base cases and flips, by kind and key.


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Base case and a perturbation of it, of which one passes and the other fails.

    Scores are means over repetitions. Each trace is that of the first run of its example.
    """

    key: str
    kind: str
    base_id: str
    example_id: str
    base_inputs: JSON
    inputs: JSON
    base_score: float
    score: float
    base_trace_id: str
    trace_id: str
    base_passes: bool

    @property
    def direction(self) -> str:
        """Return "pass→fail" or "fail→pass", from the base case to the perturbation."""
        return "pass→fail" if self.base_passes else "fail→pass"


@dataclass(slots=True, kw_only=True)
class KindRobustness:
    """Robustness of one key against one kind of perturbation.

    A base case is stable if all its perturbations of the kind pass, or fail, as it does. Base cases that are not in
    the experiment (`missing`) or have no score under the key (`unscored`), as after an error, are left out. So are
    perturbations without a score (`perturbations_unscored`).
    """

    kind: str
    key: str
    cases: int = 0
    stable: int = 0
    missing: int = 0
    unscored: int = 0
    perturbations: int = 0  # perturbations with a score, of the counted base cases
    perturbations_unscored: int = 0
    flips: list[Flip] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """Return the share of base cases that are stable; None without base cases."""
        return self.stable / self.cases if self.cases else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the share over base cases (Wilson); None without base cases."""
        return wilson_interval(self.stable, self.cases) if self.cases else None


@dataclass(frozen=True, slots=True)
class _KeyOutcomes:
    """Scores of one key by example, as means over repetitions, and which of them pass."""

    scores: Mapping[str, float]
    passes: Mapping[str, bool]


def measure_robustness(store: Store, record: Experiment) -> dict[tuple[str, str], KindRobustness]:
    """Return the robustness of an experiment by kind of perturbation and key.

    Keys are those with a threshold, those whose scores are all 0 or 1, and `task_ok` if a task has failed.
    """
    runs = read_counted_runs(store, record)
    examples = {example.id: example for example in read_run_examples(store, record, runs)}
    declared = {key: (each.threshold, each.is_rising) for key, each in list_metrics(record).items()}
    return compare_perturbations(runs, examples, make_pass_rules(runs, declared))


def compare_perturbations(
    runs: Sequence[RunScores], examples: Mapping[str, Example], rules: Mapping[str, PassRule]
) -> dict[tuple[str, str], KindRobustness]:
    """Return the robustness of runs, such as those of one model, by kind of perturbation and key of `rules`.

    A perturbation of a perturbation is compared with the original base case, under the kinds joined by "+".
    """
    first_traces: dict[str, str] = {}
    for run in runs:
        first_traces.setdefault(run.example_id or run.trace_id, run.trace_id)
    groups: defaultdict[str, defaultdict[str, list[Example]]] = defaultdict(lambda: defaultdict(list))
    for example in examples.values():
        if is_perturbed(example) and example.id in first_traces:
            base_id, kind = _find_base(example, examples)
            groups[kind][base_id].append(example)
    if not groups:
        return {}
    scores = collect_scores(runs, tasks=any(run.status == "error" for run in runs))
    outcomes = {
        key: _KeyOutcomes(scores[key].values, {id: rule.passes(score) for id, score in scores[key].values.items()})
        for key, rule in rules.items()
        if key in scores and scores[key].values
    }
    result: dict[tuple[str, str], KindRobustness] = {}
    for kind, cases in groups.items():
        for key, of_key in outcomes.items():
            counts = result[kind, key] = KindRobustness(kind=kind, key=key)
            for base_id, perturbed in cases.items():
                _count_case(counts, of_key, examples.get(base_id), base_id, perturbed, first_traces)
    return result


def _count_case(
    counts: KindRobustness,
    outcomes: _KeyOutcomes,
    base: Example | None,
    base_id: str,
    perturbed: Sequence[Example],
    first_traces: Mapping[str, str],
) -> None:
    """Count one base case with its perturbations of one kind, under one key."""
    if base is None or base_id not in first_traces:
        counts.missing += 1
        return
    if base_id not in outcomes.passes:
        counts.unscored += 1
        return
    scored = [example for example in perturbed if example.id in outcomes.passes]
    counts.perturbations_unscored += len(perturbed) - len(scored)
    if not scored:
        return
    base_passes = outcomes.passes[base_id]
    flipped = [example for example in scored if outcomes.passes[example.id] != base_passes]
    counts.cases += 1
    counts.stable += not flipped
    counts.perturbations += len(scored)
    counts.flips += [
        Flip(
            key=counts.key,
            kind=counts.kind,
            base_id=base_id,
            example_id=example.id,
            base_inputs=base.inputs,
            inputs=example.inputs,
            base_score=outcomes.scores[base_id],
            score=outcomes.scores[example.id],
            base_trace_id=first_traces[base_id],
            trace_id=first_traces[example.id],
            base_passes=base_passes,
        )
        for example in flipped
    ]


def _find_base(example: Example, examples: Mapping[str, Example]) -> tuple[str, str]:
    """Return the id of the original base case of a perturbation, and the kinds between them, joined by "+"."""
    kinds: list[str] = []
    seen = {example.id}
    current = example
    while is_perturbed(current) and current.base_id is not None:
        kinds.insert(0, current.categories[-1])
        base = examples.get(current.base_id)
        if base is None or base.id in seen:
            return current.base_id, "+".join(kinds)
        seen.add(base.id)
        current = base
    return current.id, "+".join(kinds)
