"""OTLP protobuf encoding of spans, feedback and process events.

The standard encoder creates a message object per attribute, which costs the process four times as much CPU as the
traced call itself (`benchmarks/tracer.py`). A test compares the messages of both encoders. Field numbers:
opentelemetry-proto, `trace/v1/trace.proto` and `common/v1/common.proto`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind

from spanwise.tracer import attribute_names as names
from spanwise.tracer.content.serialization import to_json
from spanwise.tracer.otel.head_sampling import TRACESTATE_KEY
from spanwise.tracer.otel.live_span import LiveSpan

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord


TRACES_PATH, LOGS_PATH = "/v1/traces", "/v1/logs"


@dataclass(frozen=True, slots=True)
class FeedbackEvent:
    """OTLP log event to be exported, in most cases the feedback of `current_run().feedback(…)`."""

    trace_id: int
    span_id: int
    time_ns: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any] = field(default_factory=dict)
    event: str = names.EVALUATION_EVENT  # name of the log event: feedback, or a process event


class SpanWriter(Protocol):
    """Form in which spans and feedback are written; `Conventions`."""

    def attributes(self, span: ReadableSpan) -> Mapping[str, Any]:
        """Return the attributes of a span."""

    def span_kind(self, span: ReadableSpan) -> SpanKind:
        """Return the kind of a span."""

    def scope(self, scope: InstrumentationScope | None) -> InstrumentationScope | None:
        """Return the scope of spans."""


def encode_events(events: Iterable[FeedbackEvent]) -> bytes:
    """Return the body of a request to `/v1/logs`. All events come from one process and have the same resource."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    listed = list(events)
    records = [_encode_record(event) for event in listed]
    scope = ScopeLogs(scope=InstrumentationScope(name="spanwise"), log_records=records)
    resource = Resource(attributes=_encode_pairs(listed[0].resource)) if listed else Resource()
    body: bytes = ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=resource, scope_logs=[scope])]
    ).SerializeToString()
    return body


def _encode_record(event: FeedbackEvent) -> LogRecord:
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

    return LogRecord(
        time_unix_nano=event.time_ns,
        observed_time_unix_nano=event.time_ns,
        event_name=event.event,
        trace_id=event.trace_id.to_bytes(16, "big") if event.trace_id else b"",
        # empty if the feedback is on the trace as a whole
        span_id=event.span_id.to_bytes(8, "big") if event.span_id else b"",
        attributes=_encode_pairs(event.attributes),
    )


def _encode_pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    return [KeyValue(key=k, value=_encode_log_value(v)) for k, v in attributes.items() if v is not None]


def _encode_log_value(value: Any) -> AnyValue:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue

    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    text = value if isinstance(value, str) else to_json(value, 1 << 20)
    return AnyValue(string_value=text.encode("utf-8", "replace").decode())


def parse_rejections(path: str, body: bytes) -> tuple[int, str]:
    """Return the number of items that a successful response rejects, and the server's reason (may be empty)."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        if path == TRACES_PATH:
            spans = ExportTraceServiceResponse.FromString(body).partial_success
            return spans.rejected_spans, spans.error_message
        logs = ExportLogsServiceResponse.FromString(body).partial_success
        return logs.rejected_log_records, logs.error_message
    except Exception:  # some servers do not respond in protobuf
        return 0, ""


_fixed64, _fixed32, _double = Struct("<Q").pack, Struct("<I").pack, Struct("<d").pack
# bits of OTLP's SpanFlags: it is known whether the parent is remote; the parent is remote
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200


def _encode_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SMALL_VARINTS = [_encode_varint(i) for i in range(4096)]


def _encode_length(length: int) -> bytes:
    return _SMALL_VARINTS[length] if length < 4096 else _encode_varint(length)


def _encode_field(tag: bytes, body: bytes) -> bytes:
    """Return a length-delimited field."""
    return tag + _encode_length(len(body)) + body


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "replace")


@functools.lru_cache(maxsize=4096)
def _encode_key(key: str) -> bytes:
    return _encode_field(b"\x0a", _encode_text(key))


def _encode_any_value(value: Any) -> bytes:
    """Return an AnyValue."""
    if isinstance(value, str):
        return _encode_field(b"\x0a", _encode_text(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _encode_varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return b"\x21" + _double(value)
    if isinstance(value, bytes):
        return _encode_field(b"\x3a", value)
    return _encode_field(b"\x2a", b"".join([_encode_field(b"\x0a", _encode_any_value(v)) for v in value]))


def _encode_attributes(tag: bytes, attributes: Mapping[str, Any] | None) -> list[bytes]:
    """Return the parts of the attributes, to be joined. Short texts, many of which recur, are cached."""
    parts: list[bytes] = []
    for key, value in (attributes or {}).items():
        if type(value) is not str:
            pair = _encode_key(key) + _encode_field(b"\x12", _encode_any_value(value))
            parts += (tag, _encode_length(len(pair)), pair)
        elif len(value) <= _MAX_CACHED_TEXT:
            parts.append(_encode_short_attribute(tag, key, value))
        else:
            parts += _encode_text_attribute(tag, key, value)
    return parts


def _encode_text_attribute(tag: bytes, key: str, value: str) -> tuple[bytes, ...]:
    """Return the parts of an attribute with a text, without copying the text."""
    name, text = _encode_key(key), _encode_text(value)
    length = _encode_length(len(text))
    inner = 1 + len(length) + len(text)  # the AnyValue: a tag, the length and the text
    inner_length = _encode_length(inner)
    total = len(name) + 1 + len(inner_length) + inner
    return tag, _encode_length(total), name, b"\x12", inner_length, b"\x0a", length, text


_MAX_CACHED_TEXT = 24  # characters


@functools.lru_cache(maxsize=4096)
def _encode_short_attribute(tag: bytes, key: str, value: str) -> bytes:
    return b"".join(_encode_text_attribute(tag, key, value))


def _encode_ids(span: ReadableSpan) -> list[bytes]:
    """Return the fields trace id, span id, trace state, parent span id and flags."""
    if isinstance(span, LiveSpan):
        flags = _HAS_REMOTE | (_IS_REMOTE if span.parent_id and span.parent_remote else 0)
        parent = b"\x22\x08" + span.parent_id.to_bytes(8, "big") if span.parent_id else b""
        own = b"\x0a\x10" + span.local.trace_id.to_bytes(16, "big") + b"\x12\x08" + span.span_id.to_bytes(8, "big")
        return [own, _encode_sampling_member(span.ot), parent, b"\x85\x01", _fixed32(flags)]
    context, above = span.context, span.parent
    own = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    state = _encode_field(b"\x1a", _encode_text(context.trace_state.to_header())) if context.trace_state else b""
    parent = b"\x22\x08" + above.span_id.to_bytes(8, "big") if above else b""
    return [own, state, parent, b"\x85\x01", _fixed32(_HAS_REMOTE | (_IS_REMOTE if above and above.is_remote else 0))]


@functools.lru_cache(maxsize=64)
def _encode_sampling_member(member: str) -> bytes:
    return _encode_field(b"\x1a", _encode_text(f"{TRACESTATE_KEY}={member}")) if member else b""


def _encode_span(span: ReadableSpan, form: SpanWriter | None) -> bytes:
    kind, attributes = (span.kind, span._attributes) if form is None else (form.span_kind(span), form.attributes(span))
    parts = _encode_ids(span)
    parts.append(_encode_field(b"\x2a", _encode_text(span.name)))
    parts.append(b"\x30" + _SMALL_VARINTS[kind.value + 1])
    parts.append(b"\x39" + _fixed64(span.start_time or 0) + b"\x41" + _fixed64(span.end_time or 0))
    parts += _encode_attributes(b"\x4a", attributes)
    if span.dropped_attributes:
        parts.append(b"\x50" + _encode_varint(span.dropped_attributes))
    for event in span.events:
        body = b"\x09" + _fixed64(event.timestamp) + _encode_field(b"\x12", _encode_text(event.name))
        parts.append(_encode_field(b"\x5a", body + b"".join(_encode_attributes(b"\x1a", event.attributes))))
    if span.dropped_events:
        parts.append(b"\x60" + _encode_varint(span.dropped_events))
    parts += [_encode_field(b"\x6a", _encode_link(link)) for link in span.links]
    status = span.status
    body = _encode_field(b"\x12", _encode_text(status.description)) if status.description else b""
    if status.status_code.value:
        body += b"\x18" + _SMALL_VARINTS[status.status_code.value]
    parts.append(_encode_field(b"\x7a", body))
    return b"".join(parts)


def _encode_link(link: Link) -> bytes:
    context = link.context
    ids = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    flags = b"\x35" + _fixed32(_HAS_REMOTE | (_IS_REMOTE if context.is_remote else 0))
    return ids + b"".join(_encode_attributes(b"\x22", link.attributes)) + flags


def encode_spans(spans: Iterable[ReadableSpan], form: SpanWriter | None = None) -> bytes:
    """Return an ExportTraceServiceRequest, grouped by resource and scope.

    Without a `form`, the spans are written as they are.
    """
    groups: dict[int, tuple[Resource, dict[int, tuple[InstrumentationScope | None, list[bytes]]]]] = {}
    for span in spans:
        resource = span.resource
        _, scopes = groups.setdefault(id(resource), (resource, {}))
        scope = span.instrumentation_scope if form is None else form.scope(span.instrumentation_scope)
        scopes.setdefault(id(scope), (scope, []))[1].append(_encode_field(b"\x12", _encode_span(span, form)))
    return b"".join(_encode_field(b"\x0a", _encode_resource_spans(*group)) for group in groups.values())


def _encode_resource_spans(
    resource: Resource, scopes: dict[int, tuple[InstrumentationScope | None, list[bytes]]]
) -> bytes:
    fields = [_encode_field(b"\x0a", b"".join(_encode_attributes(b"\x0a", resource.attributes)))]
    for scope, spans in scopes.values():
        head = schema = b""
        if scope is not None:
            head = _encode_field(b"\x0a", _encode_text(scope.name))
            if scope.version:
                head += _encode_field(b"\x12", _encode_text(scope.version))
            head += b"".join(_encode_attributes(b"\x1a", scope.attributes))
            if scope.schema_url:
                schema = _encode_field(b"\x1a", _encode_text(scope.schema_url))
        fields.append(_encode_field(b"\x12", _encode_field(b"\x0a", head) + b"".join(spans) + schema))
    if resource.schema_url:
        fields.append(_encode_field(b"\x1a", _encode_text(resource.schema_url)))
    return b"".join(fields)
