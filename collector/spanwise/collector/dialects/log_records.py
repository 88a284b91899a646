"""Translation of log records to feedback, amendments, open runs and process reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from typing import TypeAlias

from spanwise.collector.clock_skew import SENT_PREFIX
from spanwise.collector.dialects.attribute_parsing import parse_count, parse_json, text_or_none, to_text
from spanwise.collector.dialects.draft import RawLog
from spanwise.collector.dialects.evaluation_events import evaluation, read_feedback
from spanwise.collector.dialects.genai import MESSAGE_EVENTS, read_event_messages
from spanwise.collector.dialects.translation import (
    DEFAULT_PROJECT,
    FaultHandler,
    get_dialect_name,
    log_dialect_error,
    resolve_project,
)
from spanwise.collector.former_names import ATTRIBUTES, present_names
from spanwise.collector.records import JSON, Amendment, Feedback, OpenRun, ProcessReport
from spanwise.tracer import attribute_names as names

_SPAN_ID = re.compile("[0-9a-f]{16}")
MAX_RESPONSE_ID_CHARACTERS = 200  # stores find no longer one
_ANY_ID = "f" * 32  # stands for the trace, which is not known yet
_FEEDBACK_FIELDS = tuple(field.name for field in fields(Feedback) if field.name not in ("target", "id", "claim"))
_MAX_INSTANCE_CHARS = 200  # maximum length of an instance's name


def evaluation_of_response(log: RawLog) -> Amendment | None:
    """Return feedback on a model response as an amendment, if the record has no span context but names a response.

    It concerns the run with this response id, in the project that the resource names, or in any if it names none.
    """
    if log.event != names.EVALUATION_EVENT or log.trace_id or log.attributes.get(names.FEEDBACK_SCOPE) is not None:
        return None
    response_id = text_or_none(log.attributes.get(names.RESPONSE_ID))
    if response_id is None:
        return None
    if len(response_id) > MAX_RESPONSE_ID_CHARACTERS or not response_id.isascii():
        raise ValueError(
            f"{names.RESPONSE_ID} must have at most {MAX_RESPONSE_ID_CHARACTERS} ASCII characters, got {response_id!r:.100}"
        )
    feedback = read_feedback(replace(log, trace_id=_ANY_ID, span_id=None))
    given = {name: value for name in _FEEDBACK_FIELDS if (value := getattr(feedback, name)) is not None}
    _, project, _ = resolve_project(log.resource)
    named = None if project == DEFAULT_PROJECT else project
    return Amendment("", "", {"feedback": {feedback.id: given}}, response_id=response_id, project=named)


def started(log: RawLog) -> OpenRun | None:
    """Return an open run if the record reports a started span, else None. Raise `ValueError` if the span is missing."""
    if log.event != names.STARTED_EVENT:
        return None
    if log.span_id is None:
        raise ValueError(f"event {log.event!r} requires a span id")
    attributes, (_, project, environment) = log.attributes, resolve_project(log.resource)
    return OpenRun(
        trace_id=log.trace_id,
        span_id=log.span_id,
        name=to_text(attributes.get(names.STARTED_NAME) or ""),
        parent_id=_parse_span_id(attributes.get(names.STARTED_PARENT)),
        kind=to_text(attributes.get(names.KIND) or "unknown").lower(),
        start_ns=log.time_ns,
        local_root=_parse_span_id(attributes.get(names.LOCAL_ROOT)),
        project=project,
        environment=environment,
        instance=text_or_none(log.resource.get(names.INSTANCE)),
    )


def report(log: RawLog) -> ProcessReport | None:
    """Return a process report if the record is one, else None. Raise `ValueError` if the process is missing."""
    if log.event != names.REPORT_EVENT:
        return None
    instance, (_, project, environment) = log.resource.get(names.INSTANCE), resolve_project(log.resource)
    if not isinstance(instance, str) or not 0 < len(instance) <= _MAX_INSTANCE_CHARS:
        raise ValueError(
            f"event {log.event!r} requires the resource attribute {names.INSTANCE!r}, of at most {_MAX_INSTANCE_CHARS} characters"
        )
    attributes = log.attributes
    value = parse_json(attributes.get(names.REPORT_DROPPED))
    counts = {reason: parse_count(number) for reason, number in value.items()} if isinstance(value, Mapping) else {}
    return ProcessReport(
        instance=instance,
        reported_ns=log.time_ns,
        started=parse_count(attributes.get(names.REPORT_STARTED)) or 0,
        open=parse_count(attributes.get(names.REPORT_OPEN)) or 0,
        delivered=parse_count(attributes.get(names.REPORT_DELIVERED)) or 0,
        spilled=parse_count(attributes.get(names.REPORT_SPILLED)) or 0,
        pending=parse_count(attributes.get(names.REPORT_PENDING)) or 0,
        dropped={reason: number for reason, number in counts.items() if number},
        pid=parse_count(attributes.get(names.REPORT_PID, log.resource.get(names.REPORT_PID))),
        service=text_or_none(log.resource.get("service.name")),
        project=project,
        environment=environment,
    )


def _parse_span_id(value: JSON) -> str | None:
    return value if isinstance(value, str) and _SPAN_ID.fullmatch(value) else None


def content(log: RawLog) -> Amendment | None:
    """Return an amendment with the messages of a call; None if the record has none or does not identify the call."""
    if log.event not in MESSAGE_EVENTS:
        return None
    inputs, outputs = read_event_messages(log.event, log.body, log.attributes)
    fields = {"input_messages": inputs, "output_messages": outputs}
    key = _make_message_key(log)
    fields_by_key: dict[str, JSON] = {name: {key: messages} for name, messages in fields.items() if messages}
    if not fields_by_key:
        return None
    if log.trace_id and log.span_id:
        return Amendment(log.trace_id, log.span_id, fields_by_key)
    response = text_or_none(log.attributes.get(names.RESPONSE_ID))
    return Amendment("", "", fields_by_key, response_id=response) if response else None


def _make_message_key(log: RawLog) -> str:
    """Return a key that sorts the messages of a call by the time of sending.

    Copies of a record have the same key, and different records have different keys.
    """
    # future times may have been replaced by one value
    sent = parse_count(log.attributes.get(f"{SENT_PREFIX}created_ns")) or log.time_ns
    text = to_text([log.event, log.body, {name: log.attributes[name] for name in sorted(log.attributes)}])
    return f"{sent:020d}.{blake2b(text.encode(errors='replace'), digest_size=6).hexdigest()}"


LogItem: TypeAlias = Feedback | Amendment | OpenRun | ProcessReport
# Function that translates a log record. It returns None for a record that it does not recognize, and raises
# `ValueError` with a reason for the sender if the record is invalid
LogDialect: TypeAlias = Callable[[RawLog], LogItem | None]

LOG_DIALECTS: tuple[LogDialect, ...] = (evaluation_of_response, evaluation, started, report, content)


def read_log(
    log: RawLog, fault: FaultHandler = log_dialect_error, dialects: Sequence[LogDialect] | None = None
) -> LogItem | None:
    """Return the result of the first dialect that recognizes this record, else None.

    Raise `ValueError` for an invalid record. Any other error of a dialect is raised only if no other dialect
    recognizes the record.
    """
    log.attributes = present_names(log.attributes)
    log.event_name = ATTRIBUTES.get(log.event_name, log.event_name)
    failed: Exception | None = None
    for dialect in LOG_DIALECTS if dialects is None else dialects:
        try:
            item = dialect(log)
            if item is not None:
                return item
        except ValueError:
            raise
        except Exception as error:
            fault(get_dialect_name(dialect), error)
            failed = error
    if failed is not None:
        raise failed
    return None
