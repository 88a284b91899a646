"""`/v1/traces`: requests of spans become runs."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanwise.collector.clocks import bounded_feedback, bounded_span
from spanwise.collector.dialects import Dialect, Fault, RawSpan, Said, Whole, read_whole
from spanwise.collector.intake import _columns, _json, _protobuf
from spanwise.collector.intake._decode import Codec
from spanwise.collector.intake._decoded import check_ids
from spanwise.collector.intake._errors import BesideRefused, ItemRefused
from spanwise.collector.intake._signal import Signal
from spanwise.collector.intake._texts import bounded_texts, check_names
from spanwise.collector.records import Feedback, Run

SOME_SPAN = "1" * 16


def read_item(span: RawSpan, fault: Fault, dialects: Sequence[Dialect] | None = None) -> Run | Whole:
    """A span as a run, begun and ended when it can have been; with what it says beside, where it says something."""
    if found := bounded_span(span.start_ns, span.end_ns):
        span.start_ns, span.end_ns = found.start_ns, found.end_ns
        span.attributes = {**span.attributes, **found.sent}
    run, also = read_whole(span, fault, dialects)
    run = bounded_texts(run)
    return Whole(run, tuple(map(_checked, also))) if also else run


def _checked(said: Said) -> Said:
    """What is said beside a span as it can be kept, or why it cannot."""
    try:
        if isinstance(said, ValueError):
            raise said
        if isinstance(said, Feedback):
            check_names(said)
            _check_target(said.target.trace_id, said.target.span_id)
            return bounded_feedback(said)
        _check_target(said.trace_id, said.span_id)
        return said
    except ValueError as error:
        reason = error.reason if isinstance(error, ItemRefused) else "value"
        return BesideRefused(reason, f"beside a span: {error}")


def _check_target(trace_id: str | None, span_id: str | None) -> None:
    if trace_id is not None:
        check_ids(trace_id, span_id or SOME_SPAN, "")


PROTOBUF: Codec[Run] = Codec(
    errors=_protobuf.ERRORS,
    parse=_columns.groups,
    split=_protobuf.split,
    parse_item=_protobuf.parser(Span, "span"),
    resource=_protobuf.resource,
    raw=_columns.raw_span,
    read=read_item,
)
JSON_: Codec[Run] = _json.codec("Spans", "spans", _json.JSONSpan, _json.raw_span, read_item)

TRACES = Signal("traces", PROTOBUF, JSON_, ExportTraceServiceResponse, "rejected_spans")
