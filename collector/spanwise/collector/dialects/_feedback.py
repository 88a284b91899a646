"""Feedback as the event `gen_ai.evaluation.result` carries it: a log record, or an event of a span.

Sources: OpenTelemetry GenAI semantic conventions v1.41.1, `model/gen-ai/events.yaml`; `pydantic_evals/_otel_emit.py`
2.62 for the evaluator's name, its version and what it was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from spanwise.collector.dialects._also import said
from spanwise.collector.dialects._draft import Draft
from spanwise.collector.dialects._raw import RawLog
from spanwise.collector.dialects._values import as_text, from_json, number, text
from spanwise.collector.former_names import METADATA, present_names
from spanwise.collector.records import JSON, Event, Feedback, Target
from spanwise.tracer import attributes as names

SOURCES = ("code", "model", "human")
TEXTS = {
    "label": names.EVALUATION_LABEL,
    "comment": names.EVALUATION_EXPLANATION,
    "author": names.FEEDBACK_AUTHOR,
    "evaluator": names.FEEDBACK_EVALUATOR,
    "version": names.FEEDBACK_VERSION,
    "rule": names.FEEDBACK_RULE,
}
EVENT = names.EVALUATION_EVENT
SPECIFIED = "gen_ai.evaluation.evaluator.source"  # an evaluator as JSON: its name, and what it was made with
VERSION = "gen_ai.evaluation.evaluator.version"
JUDGES = frozenset(("LLMJudge", "GEval"))  # pydantic-evals' evaluators that ask a model
PASSED = {"pass": True, "fail": False}  # what pydantic-evals calls a bool beside its 1.0 or 0.0
VIA = "spanwise.via"  # in the metadata of feedback: the collectors through which it came
MOST_VIA, LONGEST_VIA = 16, 64  # of them, and characters of each
DEEPEST = 4  # mappings in which names are looked for: `{"gen_ai": {"evaluation": {"score": {"value": 1}}}}`


def evaluations(draft: Draft) -> None:
    """Say the feedback that a span's events carry. They stay with the run, too."""
    span = draft.span
    if span.events and (events := [event for event in span.events if event.name == EVENT]):
        draft.also += tuple([said(_of_event, draft, event) for event in events])


def _of_event(draft: Draft, event: Event) -> Feedback:
    span = draft.span
    time_ns = event.time_ns or span.end_ns
    return read_feedback(
        RawLog(span.trace_id, span.span_id, time_ns, present_names(event.attributes), event.name, scope=span.scope)
    )


def evaluation(log: RawLog) -> Feedback | None:
    """Feedback, if the record is the event that carries it. Raises `ValueError` if it says no score, error or skip."""
    return read_feedback(log) if log.event == names.EVALUATION_EVENT else None


def read_feedback(log: RawLog) -> Feedback:
    """The feedback that an event is; attributes of no field become metadata. Raises `ValueError` if it is none."""
    attributes = _flat(log)
    if not log.event_name:
        attributes.pop("event.name", None)
    fields: dict[str, Any] = {key: as_text(attributes.pop(name)) for key, name in TEXTS.items() if name in attributes}
    fields |= _outcome(attributes)
    if SPECIFIED in attributes:
        fields = {**_specified(attributes), **fields}
        if fields.get("label") in PASSED and fields.get("score") == PASSED[fields["label"]]:
            fields["score"] = PASSED[fields["label"]]
    if (source := attributes.pop(names.FEEDBACK_SOURCE, None)) in SOURCES:
        fields["source"] = source
    return Feedback(
        target=_target(log, attributes),
        key=as_text(attributes.pop(names.EVALUATION_NAME, "")),
        created_ns=log.time_ns,
        id=text(attributes.pop(names.FEEDBACK_ID, None)) or "",
        metadata=_metadata(attributes),
        **fields,
    )


def _flat(log: RawLog) -> dict[str, JSON]:
    """The attributes of an event; where names stand within each other, or in its body, as they are written out."""
    attributes = dict(log.attributes)
    for outer in ("gen_ai", "gen_ai.evaluation"):
        if isinstance(nested := attributes.get(outer), dict):
            del attributes[outer]
            attributes = {**_written_out(nested, outer), **attributes}
    if names.EVALUATION_NAME not in attributes and isinstance(log.body, dict):
        attributes = {**_written_out(log.body), **attributes}
    return attributes


def _written_out(nested: Mapping[str, JSON], prefix: str = "", depth: int = DEEPEST) -> dict[str, JSON]:
    flat: dict[str, JSON] = {}
    for name, value in nested.items():
        whole = f"{prefix}.{name}" if prefix else name
        within = isinstance(value, dict) and depth and whole.startswith("gen_ai")
        flat |= _written_out(value, whole, depth - 1) if within else {whole: value}
    return flat


def _specified(attributes: dict[str, JSON]) -> dict[str, Any]:
    """Who evaluated, as pydantic-evals says it; its arguments stay in the metadata."""
    found: dict[str, Any] = {}
    spec = from_json(attributes[SPECIFIED])
    if isinstance(spec, dict) and (name := text(spec.get("name"))):
        found["evaluator"] = name
        found["source"] = "model" if name in JUDGES else "code"
    if version := text(attributes.get(VERSION)):
        found["version"] = version
        del attributes[VERSION]
    return found


def _target(log: RawLog, attributes: dict[str, JSON]) -> Target:
    document = attributes.pop(names.FEEDBACK_DOCUMENT, None)
    scope = attributes.pop(names.FEEDBACK_SCOPE, "span")
    if scope == "session" or (not log.trace_id and names.SESSION in attributes):
        return Target(session_id=_whole(attributes, names.SESSION))
    if scope == "experiment":
        return Target(experiment_id=_whole(attributes, names.EXPERIMENT))
    if scope == "trace" or log.span_id is None:
        return Target(trace_id=log.trace_id)
    return Target(trace_id=log.trace_id, span_id=log.span_id, document=document if isinstance(document, int) else None)


def _whole(attributes: dict[str, JSON], name: str) -> str:
    id = text(attributes.pop(name, None))
    if id is None:
        raise ValueError(f"feedback on a session or an experiment names it in {name!r}")
    return id


def _outcome(attributes: dict[str, JSON]) -> dict[str, Any]:
    """An error is no score: what an event says besides its error is not kept as a value."""
    error = attributes.pop(names.FEEDBACK_ERROR, None)
    if error and attributes.get(names.ERROR_TYPE) == _class(as_text(error)):
        del attributes[names.ERROR_TYPE]  # as `written` has it
    error = error or attributes.get(names.ERROR_TYPE)
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
    via = _via(attributes.pop(names.FEEDBACK_VIA, None))
    metadata = {**attributes, **present_names(given, METADATA)} if isinstance(given, dict) else attributes
    return {**metadata, VIA: via} if via else metadata


def _via(given: JSON) -> list[JSON]:
    """Collectors, each by its identity; of what is no such list nothing."""
    listed = given if isinstance(given, list) else []
    return [one for one in listed if isinstance(one, str) and len(one) <= LONGEST_VIA][:MOST_VIA]


def via_of(feedback: Feedback) -> list[str]:
    """The collectors through which a feedback came, the first one first."""
    return [one for one in _via(feedback.metadata.get(VIA)) if isinstance(one, str)]


def written(feedback: Feedback, via: Sequence[str] = ()) -> dict[str, JSON]:
    """The attributes of the event that carries a feedback, which `read_feedback` reads again as an equal one; but for
    its claim and judgement, which are its own store's. Trace, span and time stand beside them.
    """
    target, score = feedback.target, feedback.score
    metadata = {name: value for name, value in feedback.metadata.items() if name != VIA}
    said: dict[str, JSON] = {
        names.EVALUATION_NAME: feedback.key,
        names.EVALUATION_SCORE: None if score is None else float(score),
        names.FEEDBACK_BOOLEAN: True if isinstance(score, bool) else None,
        names.EVALUATION_LABEL: feedback.label,
        names.EVALUATION_EXPLANATION: feedback.comment,
        names.ERROR_TYPE: None if feedback.error is None else _class(feedback.error),
        names.FEEDBACK_SCOPE: _scope(target),
        names.SESSION: target.session_id,
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
    return {name: value for name, value in said.items() if value is not None}


def _scope(target: Target) -> str | None:
    if target.trace_id is not None:
        return None if target.span_id else "trace"
    return "session" if target.session_id is not None else "experiment"


def _class(error: str) -> str:
    """What OpenTelemetry calls an error's type: its class, where the text begins with one."""
    name = error.partition(":")[0]
    return name if name.replace(".", "_").isidentifier() else "_OTHER"
