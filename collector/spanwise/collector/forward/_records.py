"""Feedback as OTLP log records under the names of the field: `gen_ai.evaluation.result`, on the span it speaks of.

What OpenTelemetry has no name for travels under `spanwise.feedback.*`, by which a collector of Spanwise's keeps it as
it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from spanwise.collector.dialects import via_of, written
from spanwise.collector.records import JSON
from spanwise.collector.stores import Said
from spanwise.tracer import attributes as names

SCOPE = "spanwise.feedback"


def logs_request(rows: Sequence[Said], identity: str) -> bytes:
    """An `ExportLogsServiceRequest`, by project and environment; `identity` is that of the store they come from."""
    request = ExportLogsServiceRequest()
    groups: dict[tuple[str | None, str | None], list[Said]] = {}
    for row in rows:
        groups.setdefault((row.project, row.environment), []).append(row)
    for (project, environment), some in groups.items():
        group = request.resource_logs.add()
        group.resource.attributes.extend(_pairs(_resource(project, environment)))
        scope = group.scope_logs.add()
        scope.scope.name = SCOPE
        scope.log_records.extend(_record(row, identity) for row in some)
    return bytes(request.SerializeToString())


def _resource(project: str | None, environment: str | None) -> dict[str, JSON]:
    said = {"service.name": project or "spanwise", names.PROJECT: project, names.ENVIRONMENT: environment}
    return {name: value for name, value in said.items() if value}


def _record(row: Said, identity: str) -> LogRecord:
    feedback, target = row.feedback, row.feedback.target
    via = [*via_of(feedback), identity]
    return LogRecord(
        time_unix_nano=max(0, feedback.created_ns),
        observed_time_unix_nano=max(0, feedback.created_ns),
        event_name=names.EVALUATION_EVENT,
        trace_id=_bytes(target.trace_id, 16),
        span_id=_bytes(target.span_id, 8),
        attributes=_pairs(written(feedback, via)),
    )


def _bytes(id: str | None, length: int) -> bytes:
    """An id as OTLP has it; nothing for one that it has no room for, which a receiver then refuses."""
    try:
        found = bytes.fromhex(id or "")
    except ValueError:
        return b""
    return found if len(found) == length else b""


def _pairs(attributes: Mapping[str, JSON]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_any(value)) for name, value in attributes.items()]


def _any(value: JSON) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_any(one) for one in value]))
    return AnyValue(string_value=str(value).encode("utf-8", "replace").decode())
