"""OTLP in protobuf. The hot path: the usual case of each step is read before it is asked which case it is."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from assay.collector.dialects import RawSpan
from assay.collector.intake._decoded import check_ids, check_time
from assay.collector.intake._errors import ItemRefused
from assay.collector.intake._limits import Limits
from assay.collector.records import JSON, Event, Link


def resource(found: Resource, limits: Limits) -> dict[str, JSON]:
    """Attributes of a resource. Raises `ItemRefused`."""
    return attributes(found.attributes, limits)


def raw_span(span: Span, resource: dict[str, JSON], scope: InstrumentationScope, limits: Limits) -> RawSpan:
    """One span. Raises `ItemRefused`."""
    trace_id, span_id = span.trace_id.hex(), span.span_id.hex()
    return RawSpan(
        trace_id=trace_id,
        span_id=span_id,
        name=span.name,
        parent_id=check_ids(trace_id, span_id, span.parent_span_id.hex()),
        kind=span.kind,
        start_ns=check_time(span.start_time_unix_nano),
        end_ns=check_time(span.end_time_unix_nano),
        status=span.status.code,
        message=span.status.message,
        attributes=attributes(span.attributes, limits),
        events=_events(span, limits) if span.events else (),
        links=_links(span, limits) if span.links else (),
        resource=resource,
        scope=scope.name,
        scope_version=scope.version,
        trace_state=span.trace_state,
    )


def _events(span: Span, limits: Limits) -> tuple[Event, ...]:
    return tuple(
        Event(event.name, check_time(event.time_unix_nano), attributes(event.attributes, limits))
        for event in span.events
    )


def _links(span: Span, limits: Limits) -> tuple[Link, ...]:
    return tuple(
        Link(link.trace_id.hex(), link.span_id.hex(), attributes(link.attributes, limits)) for link in span.links
    )


def attributes(pairs: Iterable[KeyValue], limits: Limits) -> dict[str, JSON]:
    """Attributes as a dict of plain values; of a key given twice the last holds. Raises `ItemRefused`."""
    found: dict[str, JSON] = {}
    for pair in pairs:
        value = pair.value
        # Reading the text first costs a third of asking which of the seven it is
        text = value.string_value
        if text:
            if len(text) > limits.value_bytes:
                raise _too_long(len(text), limits)
            found[pair.key] = text
        else:
            found[pair.key] = plain(value, limits, 1)
    if len(found) > limits.attributes:
        raise ItemRefused("too_many", f"{len(found):,} attributes, at most {limits.attributes:,}")
    return found


def plain(value: AnyValue, limits: Limits, depth: int) -> JSON:
    """One value as JSON knows it. Raises `ItemRefused` if it is nested too deep or too long."""
    which: str | None = value.WhichOneof("value")
    if which is None:
        return None
    if which in ("array_value", "kvlist_value"):
        return _nested(value, which, limits, depth)
    found: Any = getattr(value, which)
    if which == "double_value":
        return finite(found)
    if which in ("string_value", "bytes_value") and len(found) > limits.value_bytes:
        raise _too_long(len(found), limits)
    return base64.b64encode(found).decode() if which == "bytes_value" else found


def _nested(value: AnyValue, which: str, limits: Limits, depth: int) -> JSON:
    if depth > limits.depth:
        raise ItemRefused("too_deep", f"an attribute is nested deeper than {limits.depth} levels")
    if which == "array_value":
        return [plain(one, limits, depth + 1) for one in value.array_value.values]
    return {pair.key: plain(pair.value, limits, depth + 1) for pair in value.kvlist_value.values}


def finite(value: float) -> float | str:
    """A number, or the name that protobuf's JSON gives to those that JSON has no number for."""
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _too_long(length: int, limits: Limits) -> ItemRefused:
    return ItemRefused("too_long", f"a value of {length:,} bytes in an attribute, at most {limits.value_bytes:,}")
