"""OTLP requests for tests, and what answers them without a server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanwise.collector.ingest.otlp_signals import Signal

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_numbers = itertools.count(1)


def span(name: str = "s", **fields: Any) -> Span:
    """A good span with ids of its own."""
    number = next(_numbers)
    given = {"trace_id": number.to_bytes(16, "big"), "span_id": number.to_bytes(8, "big"), "name": name}
    return Span(**{**given, "start_time_unix_nano": 10**18, "end_time_unix_nano": 10**18 + 5, **fields})


def attribute(key: str, value: AnyValue | str) -> KeyValue:
    return KeyValue(key=key, value=value if isinstance(value, AnyValue) else AnyValue(string_value=value))


def nested(depth: int) -> AnyValue:
    """A value within so many lists."""
    value = AnyValue(int_value=1)
    for _ in range(depth):
        outer = AnyValue()
        outer.array_value.values.append(value)
        value = outer
    return value


def field(number: int, content: bytes) -> bytes:
    """A field of bytes on the wire, for messages that protobuf itself would not make."""
    size, length = len(content), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def request_nested(depth: int) -> bytes:
    """A request whose one span has an attribute within so many lists."""
    value = b"\x18\x01"
    for _ in range(depth):
        value = field(5, field(1, value))
    attributes = field(9, field(1, b"a") + field(2, value))
    return field(1, field(2, field(2, span().SerializeToString() + attributes)))


def request(*spans: Span) -> bytes:
    whole = ExportTraceServiceRequest()
    whole.resource_spans.add().scope_spans.add().spans.extend(spans)
    return whole.SerializeToString()


def log_record(trace_id: str, span_id: str, **fields: Any) -> LogRecord:
    return LogRecord(trace_id=bytes.fromhex(trace_id), span_id=bytes.fromhex(span_id), time_unix_nano=5, **fields)


def logs_request(*records: LogRecord) -> bytes:
    whole = ExportLogsServiceRequest()
    whole.resource_logs.add().scope_logs.add().log_records.extend(records)
    return whole.SerializeToString()


def rejected_logs(body: bytes) -> tuple[int, str]:
    """How many log records a protobuf answer says were refused, and why."""
    partial = ExportLogsServiceResponse.FromString(body).partial_success
    return partial.rejected_log_records, partial.error_message


def json_span(name: str = "s", **fields: Any) -> dict[str, Any]:
    number = next(_numbers)
    given = {"traceId": f"{number:032X}", "spanId": f"{number:016x}", "name": name}
    return {**given, "startTimeUnixNano": "1000000000000000000", "endTimeUnixNano": 10**18 + 5, **fields}


def json_request(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def rejected(body: bytes) -> tuple[int, str]:
    """How many spans a protobuf answer says were refused, and why."""
    partial = ExportTraceServiceResponse.FromString(body).partial_success
    return partial.rejected_spans, partial.error_message


def altered(signal: Signal[Any], **functions: Callable[..., Any]) -> Signal[Any]:
    """The same signal with other functions for its protobuf requests."""
    return replace(signal, protobuf=replace(signal.protobuf, **functions))


def post(app: Any, body: bytes) -> httpx.Response:
    """What an ASGI application answers to a protobuf request."""

    async def answer() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://spanwise") as client:
            return await client.post("/", content=body, headers={"content-type": PROTOBUF})

    return asyncio.run(answer())
