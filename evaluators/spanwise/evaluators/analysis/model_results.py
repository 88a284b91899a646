"""Results by model: the runs of one or more experiments, grouped by the model that answered."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from statistics import fmean
from typing import Any

from spanwise.collector.records import JSON, Example, Feedback, RunScores, Target, is_perturbed
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import (
    MEASURES,
    RATE_ENDINGS,
    TASK_OK,
    Contrast,
    KeyRule,
    KeyScores,
    PassRule,
    ScoreSample,
    collect_scores,
    compare_scores,
    get_question,
    make_pass_rules,
)
from spanwise.collector.stores import (
    KindRobustness,
    Store,
    StoredComparison,
    compare_perturbations,
    read_run_examples,
)
from spanwise.evaluators.interface import CASE_SCORES, Metric

SEVERAL_MODELS = "several models"
_TRACE_PAGE = 200
MAX_TRACES = 10_000  # traces of an experiment that are read for their examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Result of one model under one key: number of scores, mean, its 95 % interval, and the share that passes.

    `passed` is None if the key has neither a threshold nor boolean scores. All values but `n` are None without scores.
    Of a set-level score, `n` is the number of cases, `passed` 1 or 0, and the interval None.
    """

    model: str
    key: str
    n: int = 0
    mean: float | None = None
    interval: tuple[float, float] | None = None
    passed: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluatorRecord:
    """Evaluator as an experiment records it: its id ("" if it is not registered), its metrics and standards."""

    id: str
    key: str
    metrics: tuple[Metric, ...]
    standards: tuple[str, ...]
    parameters: Mapping[str, Any]

    @property
    def primary(self) -> Metric | None:
        """Return the main metric, or the first one; None without metrics."""
        return next((metric for metric in self.metrics if metric.primary), next(iter(self.metrics), None))

    @property
    def is_boolean_family(self) -> bool:
        """Return whether it reports the rates of a boolean evaluator: passes, failures, retrieval failures, …"""
        keys = {metric.key for metric in self.metrics}
        return any(f"{key}{RATE_ENDINGS[0]}" in keys for key in keys)


class ModelResults:
    """Runs of experiments by model, with the metrics of their evaluators. Everything is read when it is used.

    The model of a run is `metadata["model"]` of its experiment, else the only model of the run's LLM calls, else the
    experiment's name. Runs with several models are grouped under "several models".
    """

    def __init__(self, sides: Sequence[tuple[Store, Record]], models: Sequence[str] | None = None) -> None:
        """Take the experiments; `models` names the model of each, instead of deriving it."""
        self.sides = sides
        self._models = models
        self._stored = StoredComparison(sides)

    @cached_property
    def _set_feedback(self) -> list[dict[str, Feedback]]:
        """Return the scores of set-level evaluators by key, for each experiment."""
        found: list[dict[str, Feedback]] = []
        for store, record in self.sides:
            found.append({})
            if any(evaluator.get("summary") is True for evaluator in record.evaluators):
                for feedback in store.feedbacks(target=Target(experiment_id=record.id)):  # the newest first
                    found[-1].setdefault(feedback.key, feedback)
        return found

    @cached_property
    def runs_by_side(self) -> list[dict[str, list[RunScores]]]:
        """Return the runs of each model, for each experiment.

        Set-level evaluators that score the single cases, too, have these scores here.
        """
        names = Counter(record.name for _, record in self.sides)
        found: list[dict[str, list[RunScores]]] = []
        for place, ((_, record), runs) in enumerate(zip(self.sides, self._stored.runs, strict=True)):
            case_scores = {
                key: scores
                for key, feedback in self._set_feedback[place].items()
                if isinstance(scores := feedback.metadata.get(CASE_SCORES), Mapping)
            }
            declared = self._models[place] if self._models else record.metadata.get("model")
            name = f"{record.name} ({record.id[:8]})" if names[record.name] > 1 else record.name
            found.append({})
            for run in runs:
                if isinstance(declared, str) and declared:
                    model = declared
                else:
                    model = name if not run.models else run.models[0] if len(run.models) == 1 else SEVERAL_MODELS
                if case_scores:
                    scored = {
                        key: scores[run.trace_id] for key, scores in case_scores.items() if run.trace_id in scores
                    }
                    run = replace(run, scores={**run.scores, **scored})
                found[-1].setdefault(model, []).append(run)
        return found

    @cached_property
    def runs(self) -> dict[str, list[RunScores]]:
        """Return the runs of each model, in the order of the experiments."""
        by_model: defaultdict[str, list[RunScores]] = defaultdict(list)
        for of_side in self.runs_by_side:
            for model, runs in of_side.items():
                by_model[model] += runs
        return dict(by_model)

    @cached_property
    def set_scores(self) -> dict[tuple[str, str], tuple[float, int]]:
        """Return the set-level scores without scores of single cases, by model and key: score, and number of cases.

        A score of an experiment with several models is left out. Of several experiments of one model, the mean by
        cases counts.
        """
        parts: defaultdict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for by_model, by_key in zip(self.runs_by_side, self._set_feedback, strict=True):
            for key, feedback in by_key.items() if len(by_model) == 1 else ():
                score, cases = feedback.score, feedback.metadata.get("cases")
                if isinstance(score, int | float) and isinstance(cases, int) and CASE_SCORES not in feedback.metadata:
                    parts[next(iter(by_model)), key].append((float(score), cases))
        totals = {place: sum(cases for _, cases in values) for place, values in parts.items()}
        return {
            place: (sum(score * cases for score, cases in values) / totals[place], totals[place])
            for place, values in parts.items()
            if totals[place]
        }

    @property
    def models(self) -> list[str]:
        """Return the models in order of first occurrence."""
        return list(self.runs)

    @cached_property
    def scores(self) -> dict[str, dict[str, KeyScores]]:
        """Return the scores by model and key, averaged over the repetitions of an example."""
        failed = self._stored.has_failed_tasks
        return {model: collect_scores(runs, tasks=failed, measures=True) for model, runs in self.runs.items()}

    @cached_property
    def keys(self) -> list[str]:
        """Return the keys with numeric scores: `task_ok` first, then as the evaluators declare them; no measures."""
        found = dict.fromkeys(
            key
            for scores in self.scores.values()
            for key, of_key in scores.items()
            if of_key.values and not of_key.is_measure
        )
        found.update(dict.fromkeys(key for _, key in self.set_scores))
        declared = {key: place for place, key in enumerate(self.metrics)}
        return sorted(found, key=lambda key: (key != TASK_OK, declared.get(key, len(declared)), key))

    @cached_property
    def evaluators(self) -> list[EvaluatorRecord]:
        """Return the evaluators of all experiments; of equal keys the last one counts."""
        found: dict[str, EvaluatorRecord] = {}
        for _, record in self.sides:
            for evaluator in record.evaluators:
                metrics = [metric for metric in evaluator.get("metrics") or () if isinstance(metric, Mapping)]
                recorded = evaluator.get("origin")
                origin: Mapping[str, Any] = recorded if isinstance(recorded, Mapping) else {}
                found[str(evaluator.get("key"))] = EvaluatorRecord(
                    id=str(origin.get("type") or ""),
                    key=str(evaluator.get("key")),
                    metrics=tuple(_read_metric(metric) for metric in metrics if "key" in metric),
                    standards=tuple(map(str, evaluator.get("standards") or ())),
                    parameters=dict(origin.get("init_parameters") or {}),
                )
        return list(found.values())

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """Return the declared metrics by key."""
        return {metric.key: metric for evaluator in self.evaluators for metric in evaluator.metrics}

    @cached_property
    def primary_keys(self) -> list[str]:
        """Return the keys that answer a question of their own: one per boolean evaluator, all others as they are."""
        return [key for key in self.keys if get_question(key, self.keys) == key]

    def get_metric(self, key: str) -> Metric:
        """Return the metric of a key; `task_ok` and undeclared keys have a default one without a range."""
        return self.metrics.get(key) or (Metric(key, threshold=None) if key == TASK_OK else Metric(key, range=None))

    @cached_property
    def cells(self) -> dict[tuple[str, str], Cell]:
        """Return the results by model and key, over all scores, with intervals clustered by example."""
        cells: dict[tuple[str, str], Cell] = {}
        for model in self.models:
            samples = self._collect_samples(model)
            for key in self.keys:
                sample = samples.get(key) or ScoreSample()
                if (model, key) in self.set_scores and not sample.scores:
                    mean, n = self.set_scores[model, key]
                    passes = self.get_metric(key).passes(mean)
                    passed = None if passes is None else float(passes)
                    cells[model, key] = Cell(model=model, key=key, n=n, mean=mean, passed=passed)
                    continue
                n = len(sample.scores)
                rule = self.pass_rules.get(key)
                cells[model, key] = Cell(
                    model=model,
                    key=key,
                    n=n,
                    mean=fmean(sample.scores) if n else None,
                    interval=sample.interval() if n else None,
                    passed=rule.count_passing(sample.scores) / n if n and rule else None,
                )
        return cells

    def _collect_samples(self, model: str) -> dict[str, ScoreSample]:
        """Return all scores of a model by key; those of keys with one score per example need no look at the runs."""
        by_key = {key: scores for key, scores in self.scores[model].items() if scores.values and not scores.is_measure}
        samples = {
            key: ScoreSample() if scores.averaged else ScoreSample(scores.values.values(), scores.values)
            for key, scores in by_key.items()
        }
        averaged = [key for key, scores in by_key.items() if scores.averaged]
        for run in self.runs[model] if averaged else ():
            example_id = run.example_id or run.trace_id
            for key in averaged:
                score = run.scores.get(key)
                if key == TASK_OK and self._stored.has_failed_tasks:
                    score = float(run.status != "error")
                if isinstance(score, int | float) and isfinite(score):
                    samples[key].add(float(score), example_id)
        return samples

    @cached_property
    def pass_rules(self) -> dict[str, PassRule]:
        """Return the rules of the keys whose scores pass or fail: those with a threshold or boolean scores."""
        declared = {key: (metric.threshold, metric.higher_is_better) for key, metric in self.metrics.items()}
        return make_pass_rules((run for runs in self.runs.values() for run in runs), declared)

    @cached_property
    def robustness(self) -> dict[str, dict[tuple[str, str], KindRobustness]]:
        """Return by model the robustness against perturbations, by kind and primary key; {} without perturbations."""
        if not any(map(is_perturbed, self.examples.values())):
            return {}
        rules = {key: rule for key, rule in self.pass_rules.items() if key in self.primary_keys}
        return {model: compare_perturbations(runs, self.examples, rules) for model, runs in self.runs.items()}

    @cached_property
    def unscored_keys(self) -> frozenset[str]:
        """Return the keys under which an evaluator failed or skipped on a run."""
        return frozenset(
            key for runs in self.runs.values() for run in runs for key, score in run.scores.items() if score is None
        )

    @cached_property
    def first_traces(self) -> dict[tuple[str, str], str]:
        """Return the trace of the first run of each model and example."""
        first: dict[tuple[str, str], str] = {}
        for model, runs in self.runs.items():
            for run in runs:
                first.setdefault((model, run.example_id or run.trace_id), run.trace_id)
        return first

    def get_values(self, key: str) -> dict[str, Mapping[str, float]]:
        """Return the scores of a key by model and example, averaged over the repetitions of an example."""
        return {model: scores[key].values for model, scores in self.scores.items() if key in scores}

    def list_failed(self, model: str, key: str) -> dict[str, float]:
        """Return the scores of a model that do not pass, by example; {} if they neither pass nor fail."""
        rule = self.pass_rules.get(key)
        values = self.get_values(key).get(model, {})
        return {id: score for id, score in values.items() if not rule.passes(score)} if rule else {}

    def measure(self, model: str, key: str) -> float | None:
        """Return the mean of a measure (`MEASURES`) over a model's examples; None if no run has one."""
        values = self.scores[model].get(key)
        if key not in MEASURES or values is None or not values.is_measure or not values.values:
            return None
        return fmean(values.values.values())

    @cached_property
    def examples(self) -> Mapping[str, Example]:
        """Return the examples by id. Those of a dataset that was not stored are read from at most `MAX_TRACES` traces."""
        found = dict(self._stored.examples)
        for (store, record), runs in zip(self.sides, self._stored.runs, strict=True):
            if record.dataset_version is None:
                for example in read_run_examples(store, record, runs[:MAX_TRACES]):
                    found.setdefault(example.id, example)
        return found

    def read_outputs(self, trace_ids: Sequence[str]) -> dict[str, JSON]:
        """Return the outputs of runs by trace id."""
        wanted = list(dict.fromkeys(trace_ids))
        stores = {id(store): store for store, _ in self.sides}.values()
        return {
            trace.trace_id: trace.root.outputs
            for store in stores
            for start in range(0, len(wanted), _TRACE_PAGE)
            for trace in store.many(wanted[start : start + _TRACE_PAGE])
        }

    def describe_example(self, example_id: str, characters: int = 80) -> str:
        """Return the beginning of an example's inputs; its id if the example is not stored."""
        example = self.examples.get(example_id)
        if example is None:
            return example_id[:12]
        inputs = example.inputs
        if isinstance(inputs, Mapping) and len(inputs) == 1:
            inputs = next(iter(inputs.values()))
        text = inputs if isinstance(inputs, str) else json.dumps(inputs, ensure_ascii=False, default=str)
        text = " ".join(text.split())
        return text if len(text) <= characters else f"{text[:characters]}…"

    def contrast(self, key: str, first: str, second: str, family: int = 1) -> Contrast:
        """Return how the second model differs from the first under a key or measure, paired by example."""
        rising = False if key in MEASURES and key not in self.keys else self.get_metric(key).higher_is_better
        sides = [{key: self.scores[model].get(key, KeyScores())} for model in (first, second)]
        contrast = compare_scores(sides, [(0, 1)], {key: KeyRule(rising=rising)}, primary=[key])[0][key]
        return replace(contrast, family=family)


def _read_metric(plain: Mapping[str, Any]) -> Metric:
    metric = Metric.from_dict(plain)
    return Metric(
        metric.key, metric.range, metric.higher_is_better, metric.threshold, primary=plain.get("primary") is True
    )
