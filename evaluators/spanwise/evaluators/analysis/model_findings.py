"""Findings about models: leaderboards, problems, insights, compliance with standards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from statistics import fmean
from typing import Any, Literal, TypeAlias

from spanwise.collector.records import Feedback, iterate_pages
from spanwise.collector.statistics import RATE_ENDINGS, TASK_OK
from spanwise.evaluators.analysis.model_results import Cell, EvaluatorRecord, ModelResults
from spanwise.evaluators.interface import STANDARDS, Metric, get_registration

# Compliance: the nine standards of NIST AI RMF and SR 11-7, and the evaluators that address each.

MAPPING_NOTE = "Which evaluator addresses which standard is Spanwise's reading; the standards name no evaluators."


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardCoverage:
    """One standard with its summary, and the keys of the evaluators of a run that address it."""

    standard: str
    summary: str
    evaluators: tuple[str, ...]

    @property
    def is_covered(self) -> bool:
        """Return whether any evaluator addresses the standard."""
        return bool(self.evaluators)


def list_compliance(results: ModelResults) -> list[StandardCoverage]:
    """Return the coverage of all standards by the evaluators of the experiments."""
    return [
        StandardCoverage(
            standard=standard,
            summary=summary,
            evaluators=tuple(each.key for each in results.evaluators if standard in each.standards),
        )
        for standard, summary in STANDARDS.items()
    ]


# Leaderboards of models: heatmaps of means by metric and by prompt, and the rates of boolean evaluators.

Ranks: TypeAlias = tuple[int, int]  # first and last rank that a model may have

MAX_PROMPTS = 200  # prompts of one heatmap, the worst first


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapLeaderboard:
    """H2O's `llm-heatmap-leaderboard`: the cell of each model and metric, models with the best ranks first.

    `ranks` gives per key the first and last rank that a model may have. Models whose intervals overlap share a rank.
    `warmth` gives per model and key the position of the mean between the worst (0) and the best (1)
    value; None without a mean.
    """

    models: Sequence[str]
    keys: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]
    ranks: Mapping[str, Mapping[str, Ranks]]
    warmth: Mapping[tuple[str, str], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptHeatmap:
    """Models × prompts for one metric: the mean score of each model on each example, the worst examples first."""

    key: str
    models: Sequence[str]
    example_ids: Sequence[str]
    scores: Mapping[tuple[str, str], float]  # by model and example id
    warmth: Mapping[tuple[str, str], float]
    left_out: int  # examples beyond `MAX_PROMPTS`


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanRow:
    """Row of a boolean leaderboard: numbers of test cases and their shares; a rate is None without scores."""

    model: str
    ranks: Ranks
    cases: int
    succeeded: int
    passes: float | None
    failures: float | None
    retrieval_failures: float | None
    generation_failures: float | None
    parse_failures: float | None
    interval: tuple[float, float] | None  # of `passes`


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanLeaderboard:
    """H2O's `llm-bool-leaderboard` of one boolean evaluator, ordered by the number of test cases that succeeded."""

    key: str
    rows: Sequence[BooleanRow]


def make_heatmap(results: ModelResults) -> HeatmapLeaderboard:
    """Return the leaderboard of all models and primary keys."""
    keys = results.primary_keys
    ranks = {
        key: rank_models([results.cells[model, key] for model in results.models], results.get_metric(key))
        for key in keys
    }

    def sum_of_ranks(model: str) -> tuple[float, int]:
        known = [sum(by_model[model]) for by_model in ranks.values() if model in by_model]
        return (sum(known) / len(known) if known else float("inf")), results.models.index(model)

    warmth: dict[tuple[str, str], float | None] = {}
    for key in keys:
        means = {model: results.cells[model, key].mean for model in results.models}
        scale = make_scale(results.get_metric(key), list(means.values()))
        warmth.update({(model, key): None if mean is None else scale(mean) for model, mean in means.items()})
    return HeatmapLeaderboard(
        models=sorted(results.models, key=sum_of_ranks),
        keys=keys,
        cells={(model, key): results.cells[model, key] for model in results.models for key in keys},
        ranks=ranks,
        warmth=warmth,
    )


def rank_models(cells: Sequence[Cell], metric: Metric) -> dict[str, Ranks]:
    """Return the ranks that each model with a mean may have: 1 for the best.

    A model is ranked behind those whose whole interval is better, and before those whose whole interval is worse. So
    models whose intervals overlap share a rank. A model without an interval has its mean in its place.
    """
    sign = 1 if metric.higher_is_better else -1
    spans = {
        cell.model: sorted(sign * end for end in cell.interval or (cell.mean, cell.mean))
        for cell in cells
        if cell.mean is not None
    }
    return {
        model: (
            1 + sum(other[0] > span[1] for other in spans.values()),
            len(spans) - sum(other[1] < span[0] for other in spans.values()),
        )
        for model, span in spans.items()
    }


def format_ranks(ranks: Ranks | None) -> str:
    """Return "2", or "1–3" for a model that may have one of several ranks."""
    if ranks is None:
        return ""
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]}–{ranks[1]}"


def make_scale(metric: Metric, values: Sequence[float | None]) -> Callable[[float], float]:
    """Return a function that maps a value to 0 (worst) … 1 (best): over the metric's range, or over the values."""
    known = [value for value in values if value is not None]
    low, high = metric.range or (0.0, 0.0)
    if not (isfinite(low) and isfinite(high) and low < high):
        low, high = min(known, default=0.0), max(known, default=1.0)

    def scale(value: float) -> float:
        share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 1.0
        return share if metric.higher_is_better else 1 - share

    return scale


def make_prompt_heatmap(results: ModelResults, key: str) -> PromptHeatmap:
    """Return models × prompts for one key. Raises `ValueError` for a key without scores."""
    if key not in results.keys:
        raise ValueError(f"no model has scores of {key!r}; known keys: {', '.join(results.keys)}")
    by_model = results.get_values(key)
    scale = make_scale(results.get_metric(key), [score for values in by_model.values() for score in values.values()])
    warmth: dict[str, list[float]] = {}  # by example
    for values in by_model.values():
        for example_id, score in values.items():
            warmth.setdefault(example_id, []).append(scale(score))
    order = sorted(warmth, key=lambda id: sum(warmth[id]) / len(warmth[id]))
    scores = {
        (model, example_id): values[example_id]
        for model, values in by_model.items()
        for example_id in order[:MAX_PROMPTS]
        if example_id in values
    }
    return PromptHeatmap(
        key=key,
        models=results.models,
        example_ids=order[:MAX_PROMPTS],
        scores=scores,
        warmth={place: scale(score) for place, score in scores.items()},
        left_out=max(0, len(order) - MAX_PROMPTS),
    )


def make_boolean_leaderboards(results: ModelResults) -> list[BooleanLeaderboard]:
    """Return one leaderboard for each boolean evaluator that has scores."""
    boards = []
    for evaluator in results.evaluators:
        primary = evaluator.primary
        if primary is None or not evaluator.is_boolean_family or primary.key not in results.keys:
            continue
        ranks = rank_models([results.cells[model, primary.key] for model in results.models], primary)
        rows = []
        for model in results.models:
            cell = results.cells[model, primary.key]
            rates = [
                rate.mean if (rate := results.cells.get((model, primary.key + ending))) is not None else None
                for ending in RATE_ENDINGS
            ]
            rows.append(
                BooleanRow(
                    model=model,
                    ranks=ranks.get(model, (1, len(results.models))),
                    cases=cell.n,
                    succeeded=round((cell.mean or 0.0) * cell.n),
                    passes=cell.mean,
                    failures=rates[0],
                    retrieval_failures=rates[1],
                    generation_failures=rates[2],
                    parse_failures=rates[3],
                    interval=cell.interval,
                )
            )
        boards.append(
            BooleanLeaderboard(key=primary.key, rows=sorted(rows, key=lambda row: (-row.succeeded, row.model)))
        )
    return boards


# Problems of models: means on the wrong side of a threshold, flips of perturbed cases, and cases that failed a check.

SEVERE = 0.25  # severity from which a certain problem is severe
MAX_CASES = 100  # cases that a problem lists
FEEDBACK_PAGE = 5_000
# Errors and skips of evaluators on an answer without a sentence, or with an embedding of zeros
EMPTY_ANSWER = ("the answer has no sentence", "a vector of zeros", "an embedding of zeros")

ProblemKind = Literal["threshold", "flip", "empty answer", "artifacts", "session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem of one model under one metric.

    `severity` is from 0 to 1: of a mean the distance to the threshold in units of the metric's range, otherwise the
    share of cases. A problem of a mean is `certain` if the whole interval is on the wrong side of the threshold, and
    `severe` if it is certain with a severity of at least `SEVERE`. `cases` maps example ids to traces.
    """

    kind: ProblemKind
    model: str
    key: str
    text: str
    severity: float
    certain: bool
    cases: Mapping[str, str] = field(default_factory=dict)

    @property
    def severe(self) -> bool:
        """Return whether the problem is certain and its severity is at least `SEVERE`."""
        return self.certain and self.severity >= SEVERE


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableThreshold:
    """Threshold that raises no problem, with the reason: no score can meet it, or it belongs to another model."""

    key: str
    threshold: float
    reason: str


def find_problems(results: ModelResults, case_problems: Sequence[Problem]) -> list[Problem]:
    """Return all problems, the severe ones first, then by severity. `case_problems` are those of `find_case_problems`."""
    problems = [
        *_find_threshold_problems(results),
        *_find_flips(results),
        *case_problems,
    ]
    return sorted(problems, key=lambda each: (not each.severe, -each.severity, each.model, each.key))


def find_unusable_thresholds(results: ModelResults) -> list[UnusableThreshold]:
    """Return the thresholds that raise no problem."""
    found = []
    for evaluator in results.evaluators:
        registration = get_registration(evaluator.id)
        spec = registration.spec if registration else None
        declared = {metric.key: metric for metric in spec.metrics} if spec else {}
        for metric in evaluator.metrics:
            if metric.threshold is not None and (reason := explain_unreachable(metric)):
                found.append(UnusableThreshold(key=metric.key, threshold=metric.threshold, reason=reason))
            own = declared.get(metric.key)
            if metric.threshold is None and own is not None and own.threshold is not None and spec and spec.model:
                reason = "it was chosen for the document's model, and another model gave the scores"
                found.append(UnusableThreshold(key=metric.key, threshold=own.threshold, reason=reason))
    return found


def explain_unreachable(metric: Metric) -> str:
    """Return why no score can be on the better side of the threshold, or ""."""
    low, high = metric.range or (-inf, inf)
    threshold = metric.threshold
    if threshold is None:
        return ""
    if metric.higher_is_better and threshold > high:
        return f"no score can reach it: the range ends at {high:g}"
    if not metric.higher_is_better and threshold < low:
        return f"no score can be as low: the range begins at {low:g}"
    return ""


def measure_severity(metric: Metric, mean: float) -> float:
    """Return the distance of a mean to the threshold, in units of the range, at most 1.

    Of an unbounded range the unit is the threshold. If that is 0, the severity is 1.
    """
    assert metric.threshold is not None
    low, high = metric.range or (-inf, inf)
    unit = high - low if isfinite(high - low) and high > low else abs(metric.threshold)
    return min(1.0, abs(mean - metric.threshold) / unit) if unit else 1.0


def _find_threshold_problems(results: ModelResults) -> Iterator[Problem]:
    for (model, key), cell in results.cells.items():
        metric = results.get_metric(key)
        if cell.mean is None or metric.threshold is None or explain_unreachable(metric) or metric.passes(cell.mean):
            continue
        side = "below" if metric.higher_is_better else "above"
        yield Problem(
            kind="threshold",
            model=model,
            key=key,
            text=f"{key} of {model} is {cell.mean:.4g}, {side} its threshold of {metric.threshold:g} ({cell.n:,} scores)",
            severity=measure_severity(metric, cell.mean),
            certain=_is_certain(cell, metric),
            cases={id: results.first_traces[model, id] for id in results.list_failed(model, key)},
        )


def _is_certain(cell: Cell, metric: Metric) -> bool:
    """Return whether the whole interval is on the wrong side of the threshold."""
    if cell.interval is None or metric.threshold is None:
        return False
    low, high = cell.interval
    return high < metric.threshold if metric.higher_is_better else low > metric.threshold


def _find_flips(results: ModelResults) -> Iterator[Problem]:
    """Yield a problem for each perturbed case whose pass or fail differs from that of its base case, per model."""
    for model, by_kind in results.robustness.items():
        for (kind, key), robustness in by_kind.items():
            for flip in robustness.flips:
                change = "fails and its base case passes" if flip.base_passes else "passes and its base case fails"
                yield Problem(
                    kind="flip",
                    model=model,
                    key=key,
                    text=f"{key} of {model}: the perturbed case {flip.example_id[:12]} ({kind}) {change}",
                    severity=1 / len(results.scores[model][key].values),
                    certain=True,
                    cases={flip.example_id: flip.trace_id, flip.base_id: flip.base_trace_id},
                )


def find_case_problems(results: ModelResults) -> Iterator[Problem]:
    """Yield problems of answers without a sentence, of artifacts, and of agents' sessions, per model and key."""
    cases: dict[tuple[ProblemKind, str, str], dict[str, str]] = {}
    details: dict[tuple[ProblemKind, str, str], list[str]] = {}
    for model, feedback, example_id in _iterate_notable(results):
        trace_id = feedback.target.trace_id or ""
        for kind, detail in _classify(feedback):
            group = (kind, model, feedback.key)
            cases.setdefault(group, {}).setdefault(example_id, trace_id)
            details.setdefault(group, []).append(detail)
    totals = {model: len({run.example_id or run.trace_id for run in runs}) for model, runs in results.runs.items()}
    for (kind, model, key), failed in cases.items():
        texts = {
            "empty answer": "answers without a sentence, or whose embedding is empty",
            "artifacts": "answers with artifacts that failed their checks",
            "session": "answers with problems in the agent's session",
        }
        example = details[kind, model, key][0]
        share = len(failed) / max(1, totals[model])
        yield Problem(
            kind=kind,
            model=model,
            key=key,
            text=f"{key} of {model}: {len(failed):,} {texts[kind]}, for example: {example}",
            severity=min(1.0, share),
            certain=True,
            cases=dict(list(failed.items())[:MAX_CASES]),
        )


def _classify(feedback: Feedback) -> Iterator[tuple[ProblemKind, str]]:
    text = feedback.error or (feedback.comment if feedback.outcome == "skip" else None) or ""
    if any(mark in text for mark in EMPTY_ANSWER):
        yield "empty answer", text[:200]
    if feedback.evaluator == "agent_sanity":
        if problems := _as_mapping(feedback.metadata.get("problems")):
            yield "artifacts", "; ".join(f"{name}: {why}" for name, why in list(problems.items())[:3])[:200]
        session = feedback.metadata.get("session_problems")
        if isinstance(session, Sequence) and not isinstance(session, str) and session:
            yield "session", str(_as_mapping(session[0]).get("message", session[0]))[:200]


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _iterate_notable(results: ModelResults) -> Iterator[tuple[str, Feedback, str]]:
    """Yield (model, feedback, example id) of the feedback that may name a failed case."""
    owners = {
        run.trace_id: (model, run.example_id or run.trace_id) for model, runs in results.runs.items() for run in runs
    }
    for store, record in results.sides:
        reviewed = {
            str(each.get("key"))
            for each in record.evaluators
            if _as_mapping(each.get("origin")).get("type") == "agent_sanity"
        }
        for key in sorted(reviewed | {key for key in results.unscored_keys if key != TASK_OK}):
            read = partial(store.feedbacks, experiment=record.id, key=key, limit=FEEDBACK_PAGE)
            for feedback in iterate_pages(read):
                owner = owners.get(feedback.target.trace_id or "")
                if owner and (feedback.outcome != "score" or key in reviewed):
                    yield owner[0], feedback, owner[1]


# Insights: best and worst, fastest and cheapest model, and the test cases that most models failed.

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
        names = f"{', '.join(tied[:-1])} and {tied[-1]}"
        text = f"{kind} by {key}: {names} are tied at {means[first]:.4g}"
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


def _name_cases(results: ModelResults, ids: Sequence[str]) -> str:
    name = results.describe_example(ids[0])
    return name if len(ids) == 1 else f"{len(ids)} cases are tied, such as {name}"
