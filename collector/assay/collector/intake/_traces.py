"""`/v1/traces`: requests of spans become runs."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from assay.collector.clocks import bounded_span
from assay.collector.dialects import Fault, RawSpan, read
from assay.collector.intake import _json, _protobuf
from assay.collector.intake._decode import Codec, Group
from assay.collector.intake._signal import Signal
from assay.collector.intake._texts import bounded_texts
from assay.collector.records import Run


def read_item(span: RawSpan, fault: Fault) -> Run:
    """A span as a run, begun and ended when it can have been."""
    if found := bounded_span(span.start_ns, span.end_ns):
        span.start_ns, span.end_ns = found.start_ns, found.end_ns
        span.attributes = {**span.attributes, **found.sent}
    return bounded_texts(read(span, fault))


def _parse(body: bytes) -> Iterable[Group]:
    return _protobuf.groups(ExportTraceServiceRequest.FromString(body).resource_spans, "scope_spans", "spans")


PROTOBUF: Codec[Run] = Codec(
    errors=_protobuf.ERRORS,
    parse=_parse,
    split=_protobuf.split,
    parse_item=_protobuf.parser(Span, "span"),
    resource=_protobuf.resource,
    raw=_protobuf.raw_span,
    read=read_item,
)
JSON_: Codec[Run] = _json.codec("Spans", "spans", _json.JSONSpan, _json.raw_span, read_item)

TRACES = Signal("traces", PROTOBUF, JSON_, ExportTraceServiceResponse, "rejected_spans")
