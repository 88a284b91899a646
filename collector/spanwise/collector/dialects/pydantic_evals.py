"""pydantic-evals: scores of an experiment's cases, and evaluators that failed.

Source: `pydantic_evals/dataset.py` and `evaluators/_run_evaluator.py` of pydantic-evals 2.62. Its online evaluations
arrive as events; see `evaluation_events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.dialects.attribute_parsing import parse_json, parse_number, text_or_none, to_text
from spanwise.collector.dialects.draft import Draft, SideResult, applies_to, make_side_record
from spanwise.collector.dialects.evaluation_events import JUDGE_EVALUATORS
from spanwise.collector.records import JSON, Feedback, Target

SCOPES = frozenset(("pydantic-evals", "pydantic_evals", "logfire.pydantic-evals"))
# each of the form {name: {name, value, reason, source, evaluator_version}}
RESULTS = ("assertions", "scores", "labels")
EVALUATOR_NAME = "evaluator_name"  # attribute that only evaluators' spans have


@applies_to(scope=tuple(SCOPES))
def pydantic_evals(draft: Draft) -> None:
    """Add the scores of a case, and errors of evaluators on it, to the draft. The attributes stay with the case."""
    if draft.span.scope not in SCOPES:
        return
    target = Target(trace_id=draft.span.trace_id, span_id=draft.span.span_id)
    records: list[SideResult] = []
    for kind in RESULTS:
        results = parse_json(draft.attributes.get(kind))
        for name, result in results.items() if isinstance(results, dict) else ():
            if isinstance(result, dict) and "value" in result:
                records.append(make_side_record(_result, draft, target, name, result))
    draft.also += tuple(records)
    if EVALUATOR_NAME in draft.attributes and draft.span.status == 2 and draft.span.parent_id:
        draft.also += (make_side_record(_failure, draft),)


def _result(draft: Draft, target: Target, name: str, result: Mapping[str, JSON]) -> Feedback:
    """Return the feedback of one result. Raise `ValueError` for a value that is not a score or label."""
    source = result.get("source")
    reason = result.get("reason")
    return Feedback(
        target=target,
        key=name,
        **_read_value(name, result["value"]),
        **_read_evaluator(source if isinstance(source, dict) else {}),
        comment=None if reason is None else to_text(reason),
        version=text_or_none(result.get("evaluator_version")),
        created_ns=draft.span.end_ns,
        metadata={"source": source} if source else {},
    )


def _read_value(name: str, value: JSON) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"score": value}
    if isinstance(value, str):
        return {"label": value}
    score = parse_number(value)
    if score is None:
        raise ValueError(f"feedback {name!r}: {value!r:.200} is neither a finite number nor a string")
    return {"score": score}


def _read_evaluator(source: Mapping[str, JSON]) -> dict[str, Any]:
    name = text_or_none(source.get("name"))
    return {"evaluator": name, "source": "model" if name in JUDGE_EVALUATORS else "code"}


def _failure(draft: Draft) -> Feedback:
    """Return the failure of an evaluator as feedback on the case. The case is the parent of the evaluator's span."""
    span = draft.span
    name = to_text(draft.attributes[EVALUATOR_NAME])
    exception = next((event.attributes for event in reversed(span.events) if event.name == "exception"), {})
    error = [to_text(exception[part]) for part in ("exception.type", "exception.message") if exception.get(part)]
    return Feedback(
        target=Target(trace_id=span.trace_id, span_id=span.parent_id),
        key=name,
        outcome="error",
        error=": ".join(error) or span.message or "error",
        **_read_evaluator({"name": name}),
        created_ns=span.end_ns,
    )
