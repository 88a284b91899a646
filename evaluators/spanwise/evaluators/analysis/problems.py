"""Problems of models: means on the wrong side of a threshold, flips of perturbed cases, and cases that failed a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any, Literal

from spanwise.collector.records import Feedback, iterate_pages
from spanwise.collector.statistics import TASK_OK
from spanwise.evaluators.analysis.model_results import Cell, ModelResults
from spanwise.evaluators.interface import Metric, get_registration

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
