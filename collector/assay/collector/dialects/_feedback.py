"""Feedback as the OTLP log event `gen_ai.evaluation.result` carries it."""

from __future__ import annotations

from typing import Any

from assay.collector.dialects._raw import RawLog
from assay.collector.dialects._values import as_text, from_json, number, text
from assay.collector.records import JSON, Feedback, Target
from assay.tracer import attributes as names

SOURCES = ("code", "model", "human")
TEXTS = {
    "label": names.EVALUATION_LABEL,
    "comment": names.EVALUATION_EXPLANATION,
    "author": names.FEEDBACK_AUTHOR,
    "evaluator": names.FEEDBACK_EVALUATOR,
    "version": names.FEEDBACK_VERSION,
    "rule": names.FEEDBACK_RULE,
}


def evaluation(log: RawLog) -> Feedback | None:
    """Feedback, if the record is the event that carries it. Raises `ValueError` if it says no score, error or skip."""
    return read_feedback(log) if log.event == names.EVALUATION_EVENT else None


def read_feedback(log: RawLog) -> Feedback:
    """The feedback that an event is; attributes of no field become metadata. Raises `ValueError` if it is none."""
    attributes = dict(log.attributes)
    if not log.event_name:
        attributes.pop("event.name", None)
    fields: dict[str, Any] = {key: as_text(attributes.pop(name)) for key, name in TEXTS.items() if name in attributes}
    fields |= _outcome(attributes)
    if (source := attributes.pop(names.FEEDBACK_SOURCE, None)) in SOURCES:
        fields["source"] = source
    if type(attributes.get(names.FEEDBACK_CLAIM)) is int:
        fields["claim"] = attributes.pop(names.FEEDBACK_CLAIM)
    return Feedback(
        target=_target(log, attributes),
        key=as_text(attributes.pop(names.EVALUATION_NAME, "")),
        created_ns=log.time_ns,
        id=text(attributes.pop(names.FEEDBACK_ID, None)) or "",
        metadata=_metadata(attributes),
        **fields,
    )


def _target(log: RawLog, attributes: dict[str, JSON]) -> Target:
    document = attributes.pop(names.FEEDBACK_DOCUMENT, None)
    if attributes.pop(names.FEEDBACK_SCOPE, "span") == "trace" or log.span_id is None:
        return Target(trace_id=log.trace_id)
    return Target(trace_id=log.trace_id, span_id=log.span_id, document=document if isinstance(document, int) else None)


def _outcome(attributes: dict[str, JSON]) -> dict[str, Any]:
    """An error is no score: what an event says besides its error is not kept as a value."""
    error = attributes.pop(names.FEEDBACK_ERROR, None) or attributes.get(names.ERROR_TYPE)
    outcome = attributes.pop(names.FEEDBACK_OUTCOME, "error" if error else "score")
    if outcome == "error":
        return {"outcome": "error", "error": as_text(error or "error"), "label": None}
    if outcome == "skip":
        return {"outcome": "skip", "label": None}
    return {"score": _score(attributes)}


def _score(attributes: dict[str, JSON]) -> float | bool | None:
    value = attributes.pop(names.EVALUATION_SCORE, None)
    if isinstance(value, bool):
        return value
    score = number(value)
    if value is not None and score is None:
        raise ValueError(f"score {value!r} is not a finite number")
    return bool(score) if attributes.pop(names.FEEDBACK_BOOLEAN, False) is True and score is not None else score


def _metadata(attributes: dict[str, JSON]) -> dict[str, JSON]:
    given = from_json(attributes.pop(names.FEEDBACK_METADATA, None))
    return {**attributes, **given} if isinstance(given, dict) else attributes
