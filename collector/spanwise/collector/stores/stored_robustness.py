"""Robustness of a stored experiment against perturbations: stable base cases and flips, by kind and key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.collector.records import JSON, Example, Experiment, RunScores, is_perturbed
from spanwise.collector.statistics import PassRule, collect_scores, make_pass_rules, wilson_interval
from spanwise.collector.stores.control_store import Store
from spanwise.collector.stores.experiment_examples import read_run_examples
from spanwise.collector.stores.recorded_metrics import list_metrics
from spanwise.collector.stores.stored_comparison import read_counted_runs


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
