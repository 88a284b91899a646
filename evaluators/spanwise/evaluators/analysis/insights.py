"""Insights: best and worst, fastest and cheapest model, and the test cases that most models failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from spanwise.collector.records import Feedback
from spanwise.collector.statistics import RATE_ENDINGS
from spanwise.evaluators.analysis.leaderboards import make_scale
from spanwise.evaluators.analysis.model_results import EvaluatorRecord, ModelResults
from spanwise.evaluators.analysis.problems import Problem

GROUNDING = ("groundedness", "groundedness_embedding", "hallucination")
# Evaluators of which H2O's document names the extremes of accuracy, speed and cost
EXTREMES = ("fact_check",)
# Evaluators of the retrieved context alone
RETRIEVAL = (
    *("context_precision", "context_recall", "context_relevancy", "context_relevancy_soft", "context_mrr"),
    *("chunk_relevance", "document_recall", "hit_at_k", "ir_map", "ir_mrr", "ir_ndcg", "precision_at_k"),
)
NO_DIFFERENCE = "no difference can be shown"
_MAX_FEEDBACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """One insight about models under a key. `shown` is False if chance explains the difference.

    `models` are the models that it names; several are tied. `cases` maps example ids to traces.
    """

    kind: str
    key: str
    text: str
    models: tuple[str, ...] = ()
    shown: bool = True
    cases: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def find_insights(results: ModelResults, case_problems: Sequence[Problem]) -> list[Insight]:
    """Return the insights of all evaluators, in their order, then those of the problems of cases."""
    insights: list[Insight] = []
    for evaluator in results.evaluators:
        primary = evaluator.primary
        if primary is None or primary.key not in results.keys:
            continue
        if evaluator.is_boolean_family or evaluator.id in EXTREMES:
            insights += _list_extremes(results, evaluator)
        else:
            insights += _name_extreme(results, primary.key, "best model", best=True)
        insights += _find_hardest(results, evaluator)
        if evaluator.id in GROUNDING:
            insights += _find_least_grounded(results, evaluator)
    # the findings of `agent_sanity`
    for problem in case_problems:
        if problem.kind in ("artifacts", "session"):
            insights.append(
                Insight(kind="checks", key=problem.key, text=problem.text, models=(problem.model,), cases=problem.cases)
            )
    return insights


def _list_extremes(results: ModelResults, evaluator: EvaluatorRecord) -> Iterator[Insight]:
    """Yield the extremes of accuracy, speed, cost and retrieval of a boolean evaluator or of `fact_check`."""
    key = evaluator.primary.key if evaluator.primary else evaluator.key
    yield from _name_extreme(results, key, "most accurate model", best=True)
    yield from _name_extreme(results, key, "least accurate model", best=False)
    for measure, best, worst in (("latency", "fastest", "slowest"), ("cost", "cheapest", "most expensive")):
        if any(results.measure(model, measure) is not None for model in results.models):
            yield from _name_extreme(results, measure, f"{best} model", best=True, about=key)
            yield from _name_extreme(results, measure, f"{worst} model", best=False, about=key)
    # the failures of retrieval that the evaluator counts itself, else the first evaluator of retrieval
    of_retrieval = [each.primary.key for each in results.evaluators if each.id in RETRIEVAL and each.primary]
    for retrieval in [key for key in (key + RATE_ENDINGS[1], *of_retrieval) if key in results.keys][:1]:
        yield from _name_extreme(results, retrieval, "best retrieval", best=True, about=key)
        yield from _name_extreme(results, retrieval, "worst retrieval", best=False, about=key)


def _name_extreme(
    results: ModelResults, key: str, kind: str, *, best: bool, about: str | None = None
) -> Iterator[Insight]:
    """Yield the model with the best (or worst) mean, if its difference to the next one is more than chance."""
    is_measure = key not in results.keys
    means = {
        model: value
        for model in results.models
        if (value := results.measure(model, key) if is_measure else results.cells[model, key].mean) is not None
    }
    if len(means) < 2:
        return
    rising = False if is_measure else results.get_metric(key).higher_is_better
    sign = 1 if rising == best else -1
    ordered = sorted(means, key=lambda model: -sign * means[model])
    first, others = ordered[0], ordered[1:]
    tied = tuple(model for model in ordered if means[model] == means[first])
    name = partial(Insight, kind=kind, key=about or key)
    if len(tied) > 1:
        text = f"{kind} by {key}: {_join(tied)} are tied at {means[first]:.4g}"
        yield name(text=f"{text}; {NO_DIFFERENCE}", models=tied, shown=False)
        return
    if (first, key) in results.set_scores:
        text = f"{kind} by {key}: {first} with {means[first]:.4g}; {NO_DIFFERENCE}, because each model has one score"
        yield name(text=text, models=(first,), shown=False)
        return
    contrast = results.contrast(key, others[0], first, family=len(others))
    wanted = "better" if best else "worse"
    if contrast.word == wanted:
        text = (
            f"{kind} by {key}: {first} with {means[first]:.4g}; the next one is {others[0]} with {means[others[0]]:.4g}"
        )
        yield name(text=text, models=(first,), metadata={"sentence": contrast.sentence})
    else:
        text = f"no {kind} by {key}: {NO_DIFFERENCE} between {first} ({means[first]:.4g}) and {others[0]} ({means[others[0]]:.4g})"
        yield name(text=text, models=(first, others[0]), shown=False, metadata={"sentence": contrast.sentence})


def _find_hardest(results: ModelResults, evaluator: EvaluatorRecord) -> Iterator[Insight]:
    """Yield the test case that most models failed: with a threshold by failures, else by the mean score."""
    assert evaluator.primary is not None
    key = evaluator.primary.key
    by_model = results.get_values(key)
    scale = make_scale(results.get_metric(key), [score for values in by_model.values() for score in values.values()])
    rule = results.pass_rules.get(key)
    by_example: defaultdict[str, list[float]] = defaultdict(list)
    for values in by_model.values():
        for example_id, score in values.items():
            by_example[example_id].append(score)
    if len(by_example) < 2:
        return

    def hardness(scores: Sequence[float]) -> tuple[int, float]:
        failures = len(scores) - rule.count_passing(scores) if rule else 0
        return failures, 1 - sum(map(scale, scores)) / len(scores)

    by_hardness: defaultdict[tuple[int, float], list[str]] = defaultdict(list)
    for example_id, scores in by_example.items():
        by_hardness[hardness(scores)].append(example_id)
    hardest = max(by_hardness)
    tied = by_hardness[hardest]
    failed, difficulty = hardest
    if not failed and not difficulty:
        return
    cases = {
        id: next(results.first_traces[model, id] for model, values in by_model.items() if id in values)
        for id in tied[:10]
    }
    models = len(results.models)
    if models == 1:
        text = (
            f"worst case of {key}: {_name_cases(results, tied)} (one model, so it is only the worst case of that model)"
        )
        kind = "worst case"
    else:
        verb = "hallucinated" if evaluator.id in GROUNDING else "failed"
        reason = f"{failed} of {models} models {verb}" if failed else f"mean {fmean(by_example[tied[0]]):.4g}"
        text = f"hardest test case of {key}: {_name_cases(results, tied)} ({reason})"
        kind = "hardest test case"
    yield Insight(kind=kind, key=key, text=text, cases=cases)


def _find_least_grounded(results: ModelResults, evaluator: EvaluatorRecord) -> Iterator[Insight]:
    """Yield the least grounded sentence of each model whose worst score is below the threshold."""
    metric = evaluator.primary
    if metric is None or metric.threshold is None or not metric.higher_is_better:
        return
    for model in results.models:
        failed = results.list_failed(model, metric.key)
        if not failed:
            continue
        worst = min(failed, key=failed.__getitem__)
        trace_id = results.first_traces[model, worst]
        feedback = _read_feedback(results, trace_id, metric.key)
        if feedback is not None:
            yield Insight(
                kind="least grounded sentence",
                key=metric.key,
                text=f"least grounded sentence of {model}, score {failed[worst]:.4g}: {feedback.comment or ''}",
                models=(model,),
                cases={worst: trace_id},
                metadata={"sentences": feedback.metadata.get("sentences", {})},
            )


def _read_feedback(results: ModelResults, trace_id: str, key: str) -> Feedback | None:
    """Return the newest score of a trace under a key; None if it was deleted."""
    for store, _ in results.sides:
        for feedback in store.feedbacks(trace_ids=(trace_id,), key=key, limit=_MAX_FEEDBACK):
            if feedback.score is not None:
                return feedback
    return None


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _name_cases(results: ModelResults, ids: Sequence[str]) -> str:
    name = results.describe_example(ids[0])
    return name if len(ids) == 1 else f"{len(ids)} cases are tied, such as {name}"
