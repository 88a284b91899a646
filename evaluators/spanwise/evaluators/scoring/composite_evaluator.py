"""Composite evaluator: the weighted mean of the scores that a run has under other keys."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from spanwise.collector.formatting import first_line
from spanwise.collector.records import Case, Feedback, Trace
from spanwise.evaluators.interface import (
    Evaluator,
    InvalidResult,
    Metric,
    Skip,
    compute_version,
    make_evaluator,
    to_stored_value,
)

MissingRule: TypeAlias = Literal["skip", "renormalize", "zero"]
_MAX_REASON = 200  # maximum characters of one part's reason
_REVISION = "1"  # raised whenever the results change


@dataclass(frozen=True, slots=True)
class Composite:
    """Function of a composite evaluator. It reads the feedback of the trace."""

    weights: Mapping[str, float]
    missing: MissingRule
    invert: frozenset[str]

    def __call__(self, trace: Trace) -> dict[str, Any]:
        """Return the weighted mean, with the scores of the parts as metadata. Raises `Skip` as the rule demands."""
        parts = _select_feedback(trace)
        scores = {key: _read_score(parts.get(key)) for key in self.weights}
        values = {key: self._orient(key, score) for key, score in scores.items() if score is not None}
        problems = "; ".join(_describe_missing(key, parts.get(key)) for key in self.weights if key not in values)
        if problems and (self.missing == "skip" or (self.missing == "renormalize" and not values)):
            raise Skip(problems)
        counted = self.weights if self.missing == "zero" else values
        total = math.fsum(self.weights[key] for key in counted)
        score = math.fsum(self.weights[key] * value for key, value in values.items()) / total
        result: dict[str, Any] = {"score": score, "metadata": {"parts": scores}}
        if problems:
            prefix = "counted as 0" if self.missing == "zero" else "weights renormalized"
            result["comment"] = f"{prefix}: {problems}"
        return result

    def _orient(self, key: str, score: float) -> float:
        if key not in self.invert:
            return score
        if not 0 <= score <= 1:
            raise InvalidResult(f"the key {key!r} is inverted, so its scores must be from 0 to 1, got {score!r}")
        return 1 - score


def composite(
    name: str,
    weights: Mapping[str, float],
    *,
    missing: MissingRule = "skip",
    invert: Collection[str] = (),
    threshold: float | None = None,
    primary: bool = False,
) -> Evaluator:
    """Return an evaluator whose score is the weighted mean of other keys' scores on the same run:
    `composite("quality", {"correct": 0.7, "concise": 0.3})`.

    Weights are positive numbers; their sum may be any number. Booleans count as 0 and 1. A part is missing if its
    evaluator failed or skipped the run, gave only a label, or did not score the run at all. `missing` is the rule:

    - "skip": the composite skips the run, with the reasons.
    - "renormalize": the mean over the other parts. The run is skipped if all parts are missing.
    - "zero": a missing part counts as 0, the worst, also on a failed run.

    A key of which lower values are better must be in `invert`: it counts as 1 - score, and its scores must be from 0 to 1.
    A composite runs after all other evaluators, and may use a composite that precedes it. Raises `ValueError`.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"the key of a composite must be a non-empty string, got {name!r:.100}")
    if missing not in get_args(MissingRule):
        raise ValueError(f"missing must be one of: {', '.join(get_args(MissingRule))}, got {missing!r:.100}")
    if not isinstance(weights, Mapping) or not weights or not all(map(_is_weight, weights.items())):
        raise ValueError(f"weights must map keys to numbers > 0, such as {{'correct': 0.7}}, got {weights!r:.200}")
    if name in weights:
        raise ValueError(f"the composite {name!r} cannot use its own key")
    if unknown := [key for key in invert if key not in weights]:
        raise ValueError(f"invert: {unknown[0]!r} has no weight; keys with weights: {', '.join(weights)}")
    plain = {key: float(weight) for key, weight in sorted(weights.items())}
    parameters = {"weights": plain, "missing": missing, "invert": sorted(invert)}
    return make_evaluator(
        Composite({key: plain[key] for key in weights}, missing, frozenset(invert)),
        key=name,
        name=name,
        version=compute_version(f"composite {name}", number=_REVISION, parameters=parameters),
        parameters=parameters,
        threshold=threshold,
        primary=primary,
        origin={},
        shares=True,
    )


def get_parts(evaluator: Evaluator) -> Set[str]:
    """Return the keys that a composite uses; nothing for other evaluators."""
    return evaluator.function.weights.keys() if isinstance(evaluator.function, Composite) else frozenset()


def attach_feedback(case: Case, feedback: Iterable[Feedback]) -> Case:
    """Return the case with more feedback on its trace, for composites to read."""
    if case.trace is None:
        return case
    return replace(case, trace=replace(case.trace, feedback=(*case.trace.feedback, *feedback)))


def check_composites(evaluators: Sequence[Evaluator], recorded: Sequence[Mapping[str, Any]] = ()) -> None:
    """Raise `ValueError` if a composite comes before one that it uses, or uses a key in the wrong direction.

    `recorded` holds the evaluators that the experiment has recorded already.
    """
    stored = (Metric.from_dict(metric) for record in recorded for metric in record.get("metrics") or ())
    metrics = {metric.key: metric for metric in stored}
    metrics |= {metric.key: metric for evaluator in evaluators for metric in evaluator.metrics}
    later = {evaluator.key for evaluator in evaluators if get_parts(evaluator)}
    for evaluator in evaluators:
        for key in get_parts(evaluator):
            if key in later:
                raise ValueError(f"the composite {evaluator.key!r} uses {key!r}, which must come before it in the list")
            if key in metrics:
                _check_direction(evaluator, metrics[key])
        later.discard(evaluator.key)


def describe_parts(
    evaluator: Evaluator, described: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return a digest of each part's evaluator by key, from the evaluators of the call or the recorded ones.

    If a part changes, earlier scores of the composite are outdated.
    """
    digests: dict[str, str] = {}
    for record in (*recorded, *described):
        content = json.dumps([record.get("version"), to_stored_value(record.get("code"))], sort_keys=True, default=str)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        digests.update({metric["key"]: digest for metric in record.get("metrics") or ()})
    return {key: digests[key] for key in get_parts(evaluator) if key in digests}


def _check_direction(evaluator: Evaluator, metric: Metric) -> None:
    inverted, key = metric.key in evaluator.function.invert, metric.key  # type: ignore[attr-defined]
    if not metric.higher_is_better and not inverted:
        raise ValueError(
            f"composite {evaluator.key!r}: lower values of {key!r} are better: scores from 0 to 1 can be inverted with "
            f"invert=[{key!r}]"
        )
    if inverted and metric.arrow == "↑":
        raise ValueError(f"composite {evaluator.key!r}: higher values of {key!r} are better: remove it from invert")
    if inverted and metric.range is not None and not (metric.range[0] >= 0 and metric.range[1] <= 1):
        low, high = metric.range
        raise ValueError(
            f"composite {evaluator.key!r}: {key!r} has scores from {low:g} to {high:g}, but only scores from 0 to 1 can "
            "be inverted"
        )


def _is_weight(entry: tuple[Any, Any]) -> bool:
    key, weight = entry
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return isinstance(key, str) and is_number and math.isfinite(weight) and weight > 0


def _select_feedback(trace: Trace) -> dict[str, Feedback]:
    """Return the newest feedback on the run itself by key. A judge's score takes precedence over a person's label."""
    of_run = [
        each
        for each in trace.feedback
        if each.target.document is None and each.target.span_id in (None, trace.root.span_id)
    ]
    of_run.sort(key=lambda each: each.created_ns)
    judged = {each.key for each in of_run if each.source == "model"}
    return {each.key: each for each in of_run if each.source != "human" or each.key not in judged}


def _read_score(feedback: Feedback | None) -> float | None:
    return None if feedback is None or feedback.score is None else float(feedback.score)


def _describe_missing(key: str, feedback: Feedback | None) -> str:
    if feedback is None:
        return f"{key} has no feedback"
    if feedback.outcome == "score":
        return f"{key} has the label {feedback.label!r:.100} and no score"
    verb, reason = ("failed", feedback.error) if feedback.outcome == "error" else ("was skipped", feedback.comment)
    return f"{key} {verb}: {first_line(reason or '')[:_MAX_REASON]}"
