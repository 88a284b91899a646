"""OTLP signals (traces, logs, metrics): codecs, conversion of items to records, messages of decode workers."""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanwise.collector.dialects import (
    Dialect,
    FaultHandler,
    LogDialect,
    LogItem,
    RawLog,
    RawSpan,
    SideResult,
    TranslatedSpan,
    read_log,
    read_span,
)
from spanwise.collector.ingest import json_decoder, protobuf_decoder
from spanwise.collector.ingest.request_decoder import (
    Allowance,
    Codec,
    DecodedRequest,
    ItemRefused,
    Limits,
    SideRecordRefused,
    check_feedback_names,
    check_ids,
    truncate_fields,
)
from spanwise.collector.record_corrections import SENT_PREFIX, correct_feedback_time, correct_span_times, correct_time
from spanwise.collector.records import JSON, Amendment, Feedback, ProcessReport, Run
from spanwise.tracer import attribute_names as names

# OTLP signals (traces, logs, metrics): their codecs, and the conversion of each item to a record.

T = TypeVar("T")
# HTTP header or gRPC metadata key; its value lists the marks (random ids) of the collectors that forwarded a request
HOPS_HEADER = b"spanwise-forwarded"
MAX_HOP_MARKS = 32  # maximum number of marks that are read


@dataclass(frozen=True, slots=True)
class Signal(Generic[T]):
    """OTLP signal: how its requests are decoded and answered, for every transport."""

    name: str
    protobuf: Codec[T]
    json: Codec[T]
    response: type[Message]
    refused_field: str  # field of `partial_success` that holds the number of refused items


@dataclass(slots=True)
class Request(Generic[T]):
    """One request as received, decompressed. `hops` holds the marks of the collectors that forwarded it."""

    signal: Signal[T]
    codec: Codec[T]
    body: bytes  # empty after decoding, unless a sink needs the original bytes
    project: str | None = None  # project that the sender's key is bound to
    hops: tuple[str, ...] = ()
    refused: tuple[object, ...] = ()  # items that earlier sinks refused for lack of permission
    admit: Callable[[int], object] = int  # called with the memory of the decoded items; raises `RetryableError`


def parse_hops(marks: str) -> tuple[str, ...]:
    """Return the marks of collectors in the header, in the order of forwarding."""
    return tuple(mark.strip()[:64] for mark in marks.split(",")[:MAX_HOP_MARKS] if mark.strip()) if marks else ()


PLACEHOLDER_SPAN_ID = "1" * 16


def read_span_item(
    span: RawSpan, fault: FaultHandler, dialects: Sequence[Dialect] | None = None
) -> Run | TranslatedSpan:
    """Translate a span to a run with corrected times. Return a `TranslatedSpan` if the span has side records."""
    if corrected := correct_span_times(span.start_ns, span.end_ns):
        span.start_ns, span.end_ns = corrected.start_ns, corrected.end_ns
        span.attributes = {**span.attributes, **corrected.sent}
    run, also = read_span(span, fault, dialects)
    run = truncate_fields(run)
    return TranslatedSpan(run, tuple(map(_check_side_record, also))) if also else run


def _check_side_record(record: SideResult) -> SideResult:
    """Return the side record with a corrected time, or the reason why it is refused."""
    try:
        if isinstance(record, ValueError):
            raise record
        if isinstance(record, Feedback):
            check_feedback_names(record)
            _check_target(record.target.trace_id, record.target.span_id)
            return correct_feedback_time(record)
        _check_target(record.trace_id, record.span_id)
        return record
    except ValueError as error:
        reason = error.reason if isinstance(error, ItemRefused) else "value"
        return SideRecordRefused(reason, f"side record of a span: {error}")


def _check_target(trace_id: str | None, span_id: str | None) -> None:
    """Raise `ItemRefused` unless the trace id is valid or None, and the span id is valid or missing."""
    if trace_id is not None:
        check_ids(trace_id, span_id or PLACEHOLDER_SPAN_ID, "")


TRACES_PROTOBUF: Codec[Run] = Codec(
    errors=protobuf_decoder.ERRORS,
    parse=protobuf_decoder.iterate_columnar_groups,
    split=protobuf_decoder.split_request,
    parse_item=protobuf_decoder.make_item_parser(Span, "span"),
    resource=protobuf_decoder.read_resource,
    raw=protobuf_decoder.convert_columnar_span,
    read=read_span_item,
)
TRACES_JSON: Codec[Run] = json_decoder.make_codec(
    "Spans", "spans", json_decoder.JSONSpan, json_decoder.convert_span, read_span_item
)

TRACES = Signal("traces", TRACES_PROTOBUF, TRACES_JSON, ExportTraceServiceResponse, "rejected_spans")


def read_log_item(log: RawLog, fault: FaultHandler, dialects: Sequence[LogDialect] | None = None) -> LogItem | None:
    """Translate a log record; return None if no dialect recognizes it. Raises `ItemRefused` for an invalid one."""
    sent = log.time_ns = log.time_ns or time.time_ns()
    if (corrected := correct_time(sent)) != sent:
        log.time_ns, log.attributes = corrected, {**log.attributes, f"{SENT_PREFIX}created_ns": sent}
    try:
        item = read_log(log, fault, dialects)
    except ValueError as error:
        if log.event != names.REPORT_EVENT and (log.trace_id or names.RESPONSE_ID not in log.attributes):
            _check_target(log.trace_id, log.span_id)
        raise ItemRefused("value", str(error)) from error
    if isinstance(item, Feedback):
        check_feedback_names(item)
        needs_trace_id = item.target.trace_id is not None  # else its target is a session or an experiment
    elif isinstance(item, Amendment):
        needs_trace_id = item.response_id is None
    else:
        needs_trace_id = item is not None and not isinstance(item, ProcessReport)
    if needs_trace_id:
        _check_target(log.trace_id, log.span_id)
    return item


LOGS_PROTOBUF: Codec[LogItem] = Codec(
    errors=protobuf_decoder.ERRORS,
    parse=protobuf_decoder.iterate_log_groups,
    split=protobuf_decoder.split_request,
    parse_item=protobuf_decoder.make_item_parser(LogRecord, "log"),
    resource=protobuf_decoder.read_resource,
    raw=protobuf_decoder.convert_log_record,
    read=read_log_item,
)
LOGS_JSON: Codec[LogItem] = json_decoder.make_codec(
    "Logs", "logRecords", json_decoder.JSONRecord, json_decoder.convert_log_record, read_log_item
)

LOGS = Signal("logs", LOGS_PROTOBUF, LOGS_JSON, ExportLogsServiceResponse, "rejected_log_records")


MAX_METRICS = 50_000  # per request


def _skip_item(item: Any, resource: dict[str, JSON], scope: Any, allowance: Allowance) -> None:
    return None


def _drop_item(item: None, fault: FaultHandler) -> None:
    return None


METRICS_PROTOBUF: Codec[None] = Codec(
    errors=(protobuf_decoder.MalformedMessage,),
    parse=lambda body: protobuf_decoder.split_groups(body, MAX_METRICS),
    split=protobuf_decoder.split_groups,
    parse_item=bytes,
    resource=lambda resource, allowance: {},
    raw=_skip_item,
    read=_drop_item,
)
METRICS_JSON: Codec[None] = json_decoder.make_codec("Metrics", "metrics", msgspec.Raw, _skip_item, _drop_item)

METRICS = Signal("metrics", METRICS_PROTOBUF, METRICS_JSON, ExportMetricsServiceResponse, "rejected_data_points")


# Messages between the server and a decode worker process.

CODECS = tuple(codec for signal in (TRACES, LOGS, METRICS) for codec in (signal.protobuf, signal.json))
REQUEST_HEADER = struct.Struct("<QB?")  # size of the body that follows, index in `CODECS`, and whether to return rows
# sent instead of a codec index: the body is the row encoder for later requests, and no reply follows
ENCODER_UPDATE = 255
LENGTH_PREFIX = struct.Struct("<Q")  # size of the message that follows
READY_BYTE = b"\x01"


RowEncoder: TypeAlias = Callable[[Sequence[Any]], Any]  # encodes runs as rows of the store, which `EncodedRows` carries


class WorkerSettings(NamedTuple):
    """First message to a worker process: limits and settings."""

    limits: Limits
    encode: RowEncoder | None
    nice: int
    seconds: float  # CPU time for one request, after which the process ends itself
    patience: float  # wall time for one request, after which the server kills the process
    memory: int  # limit of the data segment in bytes
    prices: dict[Any, Any]  # prices of models that the server has cached


class WorkerReply(NamedTuple):
    """Reply to one request; its items follow in chunks of the given `sizes`."""

    decoded: DecodedRequest[Any] | None  # its list of items is empty, because the items follow
    refused: tuple[str, str] | None  # reason and message of a `PermanentError`
    sizes: list[int]
    seconds: float  # CPU time
    log_lines: list[str]  # for the server's log


@dataclass(slots=True)
class EncodedRows:
    """Runs of a request, encoded as rows of the store. The rows stay pickled until they are written."""

    pickled: bytes | bytearray

    def take(self) -> Any:
        """Return the unpickled rows. Callable once, because it frees the pickled bytes."""
        pickled, self.pickled = self.pickled, b""
        return pickle.loads(pickled)
