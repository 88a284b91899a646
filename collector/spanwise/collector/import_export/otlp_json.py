"""OTLP JSON encoding of runs and feedback that decodes to equal records.

Decoding an ordinary OTLP span may lose or change some fields of a record. The attribute `EXACT_ATTRIBUTE` holds these
fields as JSON. Other products can ignore this attribute, and read an ordinary span.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from spanwise.collector import record_encoding
from spanwise.collector.dialects import (
    FaultHandler,
    LogItem,
    RawLog,
    RawSpan,
    TranslatedSpan,
    write_feedback_attributes,
)
from spanwise.collector.dialects.translation import SPAN_KINDS, STATUSES
from spanwise.collector.former_names import present_feedback, present_names, present_run
from spanwise.collector.ingest import json_decoder
from spanwise.collector.ingest.limits import Limits
from spanwise.collector.ingest.otlp_signals import read_log_item, read_span_item
from spanwise.collector.ingest.request_decoder import Codec, decode
from spanwise.collector.records import JSON, Feedback, Run, canonical_json
from spanwise.tracer import attribute_names as names


def encode_value(plain: JSON) -> dict[str, Any]:
    """Encode a value as `AnyValue`. Non-finite numbers, and integers beyond 64 bits, become strings."""
    match plain:
        case None:
            return {}
        case bool():
            return {"boolValue": plain}
        case int():
            return {"intValue": str(plain)} if -(2**63) <= plain < 2**63 else {"stringValue": str(plain)}
        case float():
            return {"doubleValue": plain} if math.isfinite(plain) else {"stringValue": str(plain)}
        case Mapping():
            return {"kvlistValue": {"values": encode_attributes(plain)}}
        case list() | tuple():
            return {"arrayValue": {"values": [encode_value(element) for element in plain]}}
    return {"stringValue": str(plain)}


def encode_attributes(plain: Mapping[str, JSON]) -> list[dict[str, Any]]:
    """Encode a list of `KeyValue`."""
    return [{"key": str(name), "value": encode_value(value)} for name, value in plain.items()]


SpanKey = tuple[str, str]  # trace id and span id
EXACT_ATTRIBUTE = "spanwise.exact"
# practically no limits, because users import their own files
FILE_LIMITS = Limits(spans=10**9, values=10**9, value_bytes=2**31, attributes=10**6)
_ID_FIELDS = ("trace_id", "span_id", "parent_id")


def _read_run(span: RawSpan, fault: FaultHandler) -> Run:
    span.attributes = dict(present_names(span.attributes))
    exact = span.attributes.pop(EXACT_ATTRIBUTE, None)
    translated = read_span_item(span, fault)
    run = translated.run if isinstance(translated, TranslatedSpan) else translated
    if not isinstance(exact, str):
        return run
    fields = record_encoding.decode(dict[str, Any], exact)
    return present_run(msgspec.convert({**msgspec.to_builtins(run), **fields}, Run))


SPAN_CODEC: Codec[Run] = json_decoder.make_codec(
    "Spans", "spans", json_decoder.JSONSpan, json_decoder.convert_span, _read_run
)


def encode_runs(runs: Sequence[Run]) -> tuple[bytes, list[Run]]:
    """Encode runs as an `ExportTraceServiceRequest` in JSON. Return it, and the runs whose ids OTLP does not allow."""
    spans = {_span_key(run): _encode_span(run) for run in runs}
    decoded = _decode_spans(runs, spans)
    inexact = [run for run in runs if decoded.get(_span_key(run)) != run]
    for run in inexact:
        key = _span_key(run)
        # if the decoder refuses the span, for example because a value is nested too deep, encode only the minimal
        # fields
        if key not in decoded:
            spans[key] = _encode_minimal_span(run)
        fields = {
            name: getattr(run, name)
            for name in Run.__dataclass_fields__
            if name not in _ID_FIELDS and (key not in decoded or getattr(run, name) != getattr(decoded[key], name))
        }
        spans[key]["attributes"] += encode_attributes({EXACT_ATTRIBUTE: record_encoding.encode(fields).decode()})
    lost = {_span_key(run) for run in inexact} - _decode_spans(inexact, spans).keys()
    encodable = [run for run in runs if _span_key(run) not in lost]
    return _encode_trace_request(encodable, spans), [run for run in runs if _span_key(run) in lost]


def _span_key(run: Run) -> SpanKey:
    return run.trace_id, run.span_id


def _decode_spans(runs: Iterable[Run], spans: Mapping[SpanKey, Any]) -> dict[SpanKey, Run]:
    """Return the runs that the decoder reads from these spans."""
    return {_span_key(run): run for run in decode(SPAN_CODEC, _encode_trace_request(runs, spans), FILE_LIMITS).items}


def _encode_trace_request(runs: Iterable[Run], spans: Mapping[SpanKey, Any]) -> bytes:
    groups: dict[bytes, tuple[Mapping[str, JSON], dict[tuple[str, str], list[Any]]]] = {}
    for run in runs:
        _, scopes = groups.setdefault(canonical_json(run.resource), (run.resource, {}))
        name, version = run.attributes.get("otel.scope.name"), run.attributes.get("otel.scope.version")
        scopes.setdefault((str(name or "spanwise"), str(version or "")), []).append(spans[_span_key(run)])
    resource_spans = []
    for resource, scopes in groups.values():
        parts = [{"scope": {"name": name, "version": version}, "spans": of} for (name, version), of in scopes.items()]
        resource_spans.append({"resource": {"attributes": encode_attributes(resource)}, "scopeSpans": parts})
    return record_encoding.encode({"resourceSpans": resource_spans})


def _encode_minimal_span(run: Run) -> dict[str, Any]:
    parent = {"parentSpanId": run.parent_id} if run.parent_id else {}
    times = {"startTimeUnixNano": str(run.start_ns), "endTimeUnixNano": str(run.end_ns)}
    return {"traceId": run.trace_id, "spanId": run.span_id, **parent, "name": run.name, **times, "attributes": []}


def _status_code(run: Run) -> int:
    """Return OTLP's status code.

    OTLP has no code for a cancelled run. An attribute marks it (code 0), or else an exception event does (code 2).
    """
    if run.status != "cancelled":
        return STATUSES.index(run.status)
    return 0 if names.CANCELLED in run.attributes else 2


def _encode_span(run: Run) -> dict[str, Any]:
    kind = run.attributes.get("otel.span.kind")
    message = {"message": run.error} if run.error is not None else {}
    encoded = {
        **_encode_minimal_span(run),
        "kind": SPAN_KINDS.index(kind) if kind in SPAN_KINDS[2:] else 1,
        "status": {"code": _status_code(run), **message},
        "attributes": encode_attributes({**run.attributes, **_standard_attributes(run)}),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.time_ns), "attributes": encode_attributes(event.attributes)}
            for event in run.events
        ],
        "links": [
            {"traceId": link.trace_id, "spanId": link.span_id, "attributes": encode_attributes(link.attributes)}
            for link in run.links
        ],
    }
    state = run.attributes.get("otel.trace_state")
    return {**encoded, "traceState": state} if isinstance(state, str) else encoded


def _standard_attributes(run: Run) -> dict[str, JSON]:
    """Return the fields of a run under the names of OpenInference, OpenTelemetry GenAI and Spanwise."""
    usage = run.usage
    attributes: dict[str, JSON] = {
        names.KIND: None if run.kind == "unknown" else run.kind.upper(),
        **_content_attributes(names.INPUT_VALUE, names.INPUT_MIME, run.inputs),
        **_content_attributes(names.OUTPUT_VALUE, names.OUTPUT_MIME, run.outputs),
        names.DOCUMENTS_JSON: record_encoding.encode(run.documents).decode() if run.documents else None,
        names.REQUEST_MODEL: run.model,
        names.INPUT_TOKENS: usage.input_tokens if usage else None,
        names.OUTPUT_TOKENS: usage.output_tokens if usage else None,
        **{f"gen_ai.usage.{name}": count for name, count in (usage.details.items() if usage else ())},
        names.COST: run.cost,
        names.SESSION: run.session_id,
        names.USER: run.user_id,
        names.TAGS: list(run.tags) or None,
        names.METADATA: record_encoding.encode(run.metadata).decode() if run.metadata else None,
        names.EXPERIMENT: run.experiment_id,
        names.EXAMPLE: run.example_id,
        names.REPETITION: run.repetition or None,
        names.PROMPT_NAME: run.prompt_name,
        names.PROMPT_VERSION: run.prompt_version,
        names.AGENT_NAME: run.agent_name,
        names.FINISH_REASONS: list(run.finish_reasons) or None,
        names.TIME_TO_FIRST_CHUNK: None if run.time_to_first_token_ms is None else run.time_to_first_token_ms / 1000,
        names.TOOL_DEFINITIONS: record_encoding.encode(run.tools).decode() if run.tools else None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _content_attributes(name: str, mime: str, content: JSON) -> dict[str, JSON]:
    if content is None:
        return {}
    if isinstance(content, str):
        return {name: content}
    return {name: record_encoding.encode(content).decode(), mime: "application/json"}


def _read_feedback(log: RawLog, fault: FaultHandler) -> LogItem | None:
    exact = present_names(log.attributes).get(EXACT_ATTRIBUTE)
    return (
        present_feedback(record_encoding.decode(Feedback, exact))
        if isinstance(exact, str)
        else read_log_item(log, fault)
    )


EVENT_CODEC: Codec[LogItem] = json_decoder.make_codec(
    "Logs", "logRecords", json_decoder.JSONRecord, json_decoder.convert_log_record, _read_feedback
)


def encode_feedback(feedback: Sequence[Feedback]) -> bytes:
    """Encode an `ExportLogsServiceRequest` as JSON."""
    records = [_encode_log_record(row) for row in feedback]
    for row, record in zip(feedback, records, strict=True):
        if decode(EVENT_CODEC, _encode_log_request([record]), FILE_LIMITS).items != [row]:
            record["attributes"] += encode_attributes({EXACT_ATTRIBUTE: record_encoding.encode(row).decode()})
    return _encode_log_request(records)


def _encode_log_request(records: Sequence[dict[str, Any]]) -> bytes:
    return record_encoding.encode(
        {"resourceLogs": [{"scopeLogs": [{"scope": {"name": "spanwise"}, "logRecords": records}]}]}
    )


def _encode_log_record(row: Feedback) -> dict[str, Any]:
    target = row.target
    trace = {"traceId": target.trace_id} if target.trace_id else {}
    span = {"spanId": target.span_id} if target.span_id else {}
    named = {"timeUnixNano": str(row.created_ns), "eventName": names.EVALUATION_EVENT}
    return {**named, **trace, **span, "attributes": encode_attributes(write_feedback_attributes(row))}
