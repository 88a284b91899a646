"""Feedback as `gen_ai.evaluation.result` events: reading and writing.

Sources: OpenTelemetry GenAI semantic conventions v1.41.1, `model/gen-ai/events.yaml`; `pydantic_evals/_otel_emit.py`
2.62 for the evaluator's name, its version and its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from spanwise.collector.dialects.draft import (
    Draft,
    RawLog,
    make_side_record,
    parse_json,
    parse_number,
    text_or_none,
    to_text,
)
from spanwise.collector.record_corrections import METADATA, present_names
from spanwise.collector.records import JSON, Event, Feedback, Target
from spanwise.tracer import attribute_names as names

SOURCES = ("code", "model", "human")
TEXT_FIELDS = {
    "label": names.EVALUATION_LABEL,
    "comment": names.EVALUATION_EXPLANATION,
    "author": names.FEEDBACK_AUTHOR,
    "evaluator": names.FEEDBACK_EVALUATOR,
    "version": names.FEEDBACK_VERSION,
    "rule": names.FEEDBACK_RULE,
}
EVENT = names.EVALUATION_EVENT
# attribute that describes an evaluator in JSON: its name and arguments
EVALUATOR_SPEC = "gen_ai.evaluation.evaluator.source"
EVALUATOR_VERSION = "gen_ai.evaluation.evaluator.version"
JUDGE_EVALUATORS = frozenset(("LLMJudge", "GEval"))  # pydantic-evals' evaluators that call a model
# pydantic-evals sends a bool as one of these labels, with the score 1.0 or 0.0
PASS_LABELS = {"pass": True, "fail": False}
CONVERSATION = "gen_ai.conversation.id"  # names a session if the event has no span context
VIA = "spanwise.via"  # key in feedback metadata: the collectors that forwarded the feedback
MAX_VIA, MAX_VIA_CHARS = 16, 64  # maximum number of forwarding collectors, and of characters in the identity of each
# maximum depth of nested objects, such as `{"gen_ai": {"evaluation": {"score": {"value": 1}}}}`, that are flattened
MAX_NESTING = 4


def evaluations(draft: Draft) -> None:
    """Add the feedback in a span's events to the draft. The events also stay with the run."""
    span = draft.span
    if span.events and (events := [event for event in span.events if event.name == EVENT]):
        draft.also += tuple([make_side_record(_read_event_feedback, draft, event) for event in events])


def _read_event_feedback(draft: Draft, event: Event) -> Feedback:
    span = draft.span
    time_ns = event.time_ns or span.end_ns
    return read_feedback(
        RawLog(span.trace_id, span.span_id, time_ns, present_names(event.attributes), event.name, scope=span.scope)
    )


def evaluation(log: RawLog) -> Feedback | None:
    """Return the feedback if the record is an evaluation event, else None. Raise `ValueError` for an invalid one."""
    return read_feedback(log) if log.event == names.EVALUATION_EVENT else None


def read_feedback(log: RawLog) -> Feedback:
    """Return the feedback of an event. Unknown attributes become metadata. Raise `ValueError` for an invalid event."""
    attributes = _flatten(log)
    if not log.event_name:
        attributes.pop("event.name", None)
    fields: dict[str, Any] = {
        key: to_text(attributes.pop(name)) for key, name in TEXT_FIELDS.items() if name in attributes
    }
    fields |= _outcome(attributes)
    if EVALUATOR_SPEC in attributes:
        fields = {**_read_evaluator_spec(attributes), **fields}
        if fields.get("label") in PASS_LABELS and fields.get("score") == PASS_LABELS[fields["label"]]:
            fields["score"] = PASS_LABELS[fields["label"]]
    if (source := attributes.pop(names.FEEDBACK_SOURCE, None)) in SOURCES:
        fields["source"] = source
    target = _target(log, attributes)
    key = to_text(attributes.pop(names.EVALUATION_NAME, ""))
    id = text_or_none(attributes.pop(names.FEEDBACK_ID, None)) or ""
    own_metadata = parse_json(attributes.pop(names.FEEDBACK_METADATA, None))
    via = _parse_via(attributes.pop(names.FEEDBACK_VIA, None))
    # all known attributes have been removed by now, so the remaining ones are metadata
    metadata = {**attributes, **present_names(own_metadata, METADATA)} if isinstance(own_metadata, dict) else attributes
    return Feedback(
        target=target,
        key=key,
        created_ns=log.time_ns,
        id=id,
        metadata={**metadata, VIA: via} if via else metadata,
        **fields,
    )


def _flatten(log: RawLog) -> dict[str, JSON]:
    """Return the attributes of an event under flat names, including nested objects and the body."""
    attributes = dict(log.attributes)
    for outer in ("gen_ai", "gen_ai.evaluation"):
        if isinstance(nested := attributes.get(outer), dict):
            del attributes[outer]
            attributes = {**_flatten_nested(nested, outer), **attributes}
    if names.EVALUATION_NAME not in attributes and isinstance(log.body, dict):
        attributes = {**_flatten_nested(log.body), **attributes}
    return attributes


def _flatten_nested(nested: Mapping[str, JSON], prefix: str = "", depth: int = MAX_NESTING) -> dict[str, JSON]:
    flat: dict[str, JSON] = {}
    for name, value in nested.items():
        full_name = f"{prefix}.{name}" if prefix else name
        is_nested = isinstance(value, dict) and depth and full_name.startswith("gen_ai")
        flat |= _flatten_nested(value, full_name, depth - 1) if is_nested else {full_name: value}
    return flat


def _read_evaluator_spec(attributes: dict[str, JSON]) -> dict[str, Any]:
    """Return evaluator, source and version as pydantic-evals writes them. The evaluator's arguments stay in the
    metadata.
    """
    found: dict[str, Any] = {}
    spec = parse_json(attributes[EVALUATOR_SPEC])
    if isinstance(spec, dict) and (name := text_or_none(spec.get("name"))):
        found["evaluator"] = name
        found["source"] = "model" if name in JUDGE_EVALUATORS else "code"
    if version := text_or_none(attributes.get(EVALUATOR_VERSION)):
        found["version"] = version
        del attributes[EVALUATOR_VERSION]
    return found


def _target(log: RawLog, attributes: dict[str, JSON]) -> Target:
    document = attributes.pop(names.FEEDBACK_DOCUMENT, None)
    scope = attributes.pop(names.FEEDBACK_SCOPE, "span")
    project = text_or_none(attributes.pop(names.FEEDBACK_PROJECT, None))
    if scope == "session" or (not log.trace_id and names.SESSION in attributes):
        return Target(session_id=_take_required_id(attributes, names.SESSION), project=project)
    if not log.trace_id and scope == "span" and text_or_none(attributes.get(CONVERSATION)):
        return Target(session_id=_take_required_id(attributes, CONVERSATION), project=project)
    if scope == "experiment":
        return Target(experiment_id=_take_required_id(attributes, names.EXPERIMENT))
    if scope == "trace" or log.span_id is None:
        return Target(trace_id=log.trace_id)
    return Target(trace_id=log.trace_id, span_id=log.span_id, document=document if isinstance(document, int) else None)


def _take_required_id(attributes: dict[str, JSON], name: str) -> str:
    id = text_or_none(attributes.pop(name, None))
    if id is None:
        raise ValueError(f"feedback on a session or an experiment requires the attribute {name!r}")
    return id


def _outcome(attributes: dict[str, JSON]) -> dict[str, Any]:
    """Return outcome, error and score. An error has no score, so a value next to an error is dropped."""
    error = attributes.pop(names.FEEDBACK_ERROR, None)
    if error and attributes.get(names.ERROR_TYPE) == _find_error_class(to_text(error)):
        del attributes[names.ERROR_TYPE]  # `write_feedback_attributes` derives it from the error
    error = error or attributes.get(names.ERROR_TYPE)
    outcome = attributes.pop(names.FEEDBACK_OUTCOME, "error" if error else "score")
    if outcome == "error":
        return {"outcome": "error", "error": to_text(error or "error"), "label": None}
    if outcome == "skip":
        return {"outcome": "skip", "label": None}
    value = attributes.pop(names.EVALUATION_SCORE, None)
    if isinstance(value, bool):
        return {"score": value}
    score = parse_number(value)
    if value is not None and score is None:
        raise ValueError(f"score {value!r} is not a finite number")
    is_boolean = attributes.pop(names.FEEDBACK_BOOLEAN, False) is True
    return {"score": bool(score) if is_boolean and score is not None else score}


def _parse_via(value: JSON) -> list[JSON]:
    """Return the valid collector identities in a list; [] if the value is not a list."""
    values = value if isinstance(value, list) else []
    return [identity for identity in values if isinstance(identity, str) and len(identity) <= MAX_VIA_CHARS][:MAX_VIA]


def read_via(feedback: Feedback) -> list[str]:
    """Return the identities of the collectors that forwarded the feedback, in order."""
    return [identity for identity in _parse_via(feedback.metadata.get(VIA)) if isinstance(identity, str)]


def write_feedback_attributes(feedback: Feedback, via: Sequence[str] = ()) -> dict[str, JSON]:
    """Return the attributes of an evaluation event for the feedback. `via` holds the collectors that forwarded it.

    `read_feedback` restores equal feedback from the event, except for the lease and the evaluator's trace, which belong
    to one store. The attributes do not include trace id, span id and time, for which an event has its own fields.
    """
    target, score = feedback.target, feedback.score
    metadata = {name: value for name, value in feedback.metadata.items() if name != VIA}
    scope: str | None
    if target.trace_id is not None:
        scope = None if target.span_id else "trace"
    else:
        scope = "session" if target.session_id is not None else "experiment"
    attributes: dict[str, JSON] = {
        names.EVALUATION_NAME: feedback.key,
        names.EVALUATION_SCORE: None if score is None else float(score),
        names.FEEDBACK_BOOLEAN: True if isinstance(score, bool) else None,
        names.EVALUATION_LABEL: feedback.label,
        names.EVALUATION_EXPLANATION: feedback.comment,
        names.ERROR_TYPE: None if feedback.error is None else _find_error_class(feedback.error),
        names.FEEDBACK_SCOPE: scope,
        names.SESSION: target.session_id,
        names.FEEDBACK_PROJECT: target.project,
        names.EXPERIMENT: target.experiment_id,
        names.FEEDBACK_DOCUMENT: target.document,
        names.FEEDBACK_OUTCOME: feedback.outcome,
        names.FEEDBACK_ERROR: feedback.error,
        names.FEEDBACK_SOURCE: feedback.source,
        names.FEEDBACK_AUTHOR: feedback.author,
        names.FEEDBACK_EVALUATOR: feedback.evaluator,
        names.FEEDBACK_VERSION: feedback.version,
        names.FEEDBACK_RULE: feedback.rule,
        names.FEEDBACK_METADATA: orjson.dumps(metadata, default=repr).decode() if metadata else None,
        names.FEEDBACK_ID: feedback.id,
        names.FEEDBACK_VIA: [*via] or None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _find_error_class(error: str) -> str:
    """Return the value for OpenTelemetry's `error.type`: the exception class that starts the text, else `_OTHER`."""
    name = error.partition(":")[0]
    return name if name.replace(".", "_").isidentifier() else "_OTHER"
