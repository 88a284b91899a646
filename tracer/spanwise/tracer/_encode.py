"""Feedback, and what a process says of itself, as OTLP log events. Protobuf is imported by the delivery thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spanwise.tracer import attributes as names
from spanwise.tracer._json import to_json

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

TRACES, LOGS = "/v1/traces", "/v1/logs"


@dataclass(frozen=True, slots=True)
class FeedbackEvent:
    """An event on its way out: what `current_run().feedback(…)` was given, mostly."""

    trace_id: int
    span_id: int
    time_ns: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any] = field(default_factory=dict)
    event: str = names.EVALUATION_EVENT  # or one of those that a process sends of itself


def feedback_body(events: Iterable[FeedbackEvent]) -> bytes:
    """The body of a request to `/v1/logs`. All events are of one process, so of one resource."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    listed = list(events)
    records = [_record(event) for event in listed]
    scope = ScopeLogs(scope=InstrumentationScope(name="spanwise"), log_records=records)
    resource = Resource(attributes=_pairs(listed[0].resource)) if listed else Resource()
    body: bytes = ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=resource, scope_logs=[scope])]
    ).SerializeToString()
    return body


def _record(event: FeedbackEvent) -> LogRecord:
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

    return LogRecord(
        time_unix_nano=event.time_ns,
        observed_time_unix_nano=event.time_ns,
        event_name=event.event,
        trace_id=event.trace_id.to_bytes(16, "big") if event.trace_id else b"",
        span_id=event.span_id.to_bytes(8, "big") if event.span_id else b"",  # of the trace as a whole
        attributes=_pairs(event.attributes),
    )


def _pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    return [KeyValue(key=k, value=_value(v)) for k, v in attributes.items() if v is not None]


def _value(value: Any) -> AnyValue:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue

    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    text = value if isinstance(value, str) else to_json(value, 1 << 20)
    return AnyValue(string_value=text.encode("utf-8", "replace").decode())


def rejected(path: str, body: bytes) -> tuple[int, str]:
    """Return how many items a successful answer rejects, and the reason that the server gives (may be empty)."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        if path == TRACES:
            spans = ExportTraceServiceResponse.FromString(body).partial_success
            return spans.rejected_spans, spans.error_message
        logs = ExportLogsServiceResponse.FromString(body).partial_success
        return logs.rejected_log_records, logs.error_message
    except Exception:  # not every server answers in protobuf
        return 0, ""
