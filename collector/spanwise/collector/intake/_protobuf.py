"""OTLP in protobuf. The hot path: the usual case of each step is read before it is asked which case it is."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanwise.collector.clocks import INT_MAX
from spanwise.collector.dialects import RawLog, RawSpan
from spanwise.collector.intake import _salvage
from spanwise.collector.intake._decode import Group, Scope
from spanwise.collector.intake._decoded import check_groups, check_ids
from spanwise.collector.intake._errors import ItemRefused
from spanwise.collector.intake._limits import Allowance
from spanwise.collector.records import JSON, Event, Link

M = TypeVar("M")
ERRORS = (DecodeError, _salvage.Malformed)


def split(body: bytes, most: int) -> Iterable[Group]:
    """The groups of any request, with items left as bytes. Raises one of `ERRORS`, or `Permanent` for too much."""
    for resource, scope, items in _salvage.groups(body, most):
        _salvage.check_messages(resource, "attributed")
        _salvage.check_messages(scope, "attributed")
        yield Resource.FromString(resource), _scope(InstrumentationScope.FromString(scope)), items


def parser(message: type[M], kind: str) -> Callable[[memoryview], M]:
    """Parses an item of a kind. Raises one of `ERRORS`, or `Permanent` for one that is more than its bytes."""
    parse: Callable[[memoryview], M] = message.FromString  # type: ignore[attr-defined]
    return lambda item: parse(_salvage.check_messages(item, kind))


def groups(wholes: Sequence[Any], parts: str, items: str) -> Iterable[Group]:
    """The groups of a request that was parsed. Raises `Permanent` for too many."""
    check_groups(len(wholes))
    for whole in wholes:
        found = getattr(whole, parts)
        check_groups(len(found))
        for part in found:
            yield whole.resource, _scope(part.scope), getattr(part, items)


def _scope(message: InstrumentationScope) -> Scope:
    return Scope(message.name, message.version)


def resource(message: Resource, limits: Allowance) -> dict[str, JSON]:
    """Attributes of a resource. Raises `ItemRefused`."""
    return attributes(message.attributes, limits)


def raw_span(span: Span, resource: dict[str, JSON], scope: Scope, limits: Allowance) -> RawSpan:
    """One span. Raises `ItemRefused`."""
    return with_attributes(span, attributes(span.attributes, limits), resource, scope, limits)


def with_attributes(
    span: Span, attributes: dict[str, JSON], resource: dict[str, JSON], scope: Scope, limits: Allowance
) -> RawSpan:
    """One span whose attributes have been read. Raises `ItemRefused`."""
    if len(attributes) > limits.attributes:
        raise _too_many(len(attributes), limits)
    trace_id, span_id, status = span.trace_id.hex(), span.span_id.hex(), span.status
    return RawSpan(
        trace_id,
        span_id,
        span.name,
        check_ids(trace_id, span_id, span.parent_span_id.hex()),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        status.code,
        status.message,
        attributes,
        _events(span, limits) if span.events else (),
        _links(span, limits) if span.links else (),
        resource,
        *scope,
        span.trace_state,
    )


def raw_log(record: LogRecord, resource: dict[str, JSON], scope: Scope, limits: Allowance) -> RawLog:
    """One log record, its ids unchecked: most records have none. Raises `ItemRefused`."""
    return RawLog(
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex() or None,
        time_ns=record.time_unix_nano or record.observed_time_unix_nano,
        attributes=attributes(record.attributes, limits),
        event_name=record.event_name,
        body=json_value(record.body, limits, 1),
        resource=resource,
        scope=scope.name,
        scope_version=scope.version,
    )


def _events(span: Span, limits: Allowance) -> tuple[Event, ...]:
    limits.use(len(span.events))
    return tuple(
        Event(event.name, min(event.time_unix_nano, INT_MAX), attributes(event.attributes, limits))
        for event in span.events
    )


def _links(span: Span, limits: Allowance) -> tuple[Link, ...]:
    limits.use(len(span.links))
    return tuple(
        Link(link.trace_id.hex(), link.span_id.hex(), attributes(link.attributes, limits)) for link in span.links
    )


def attributes(pairs: Sequence[KeyValue], limits: Allowance) -> dict[str, JSON]:
    """Attributes as a dict of plain values; of a key given twice the last holds. Raises `ItemRefused`."""
    values: dict[str, JSON] = {}
    limits.use(len(pairs))
    longest = limits.value_bytes
    for pair in pairs:
        value = pair.value
        # Reading the text first costs a third of asking which of the seven it is
        text = value.string_value
        if text:
            if len(text) > longest:
                raise _too_long(len(text), limits)
            values[pair.key] = text
        else:
            values[pair.key] = json_value(value, limits, 1)
    if len(values) > limits.attributes:
        raise _too_many(len(values), limits)
    return values


def json_value(value: AnyValue, limits: Allowance, depth: int) -> JSON:
    """One value as JSON knows it. Raises `ItemRefused` if it is nested too deep or too long."""
    which: str | None = value.WhichOneof("value")
    if which is None:
        return None
    if which in ("array_value", "kvlist_value"):
        return _nested(value, which, limits, depth)
    scalar: Any = getattr(value, which)
    if which == "double_value":
        return finite(scalar)
    if which in ("string_value", "bytes_value") and len(scalar) > limits.value_bytes:
        raise _too_long(len(scalar), limits)
    return base64.b64encode(scalar).decode() if which == "bytes_value" else scalar


def _nested(value: AnyValue, which: str, limits: Allowance, depth: int) -> JSON:
    if depth > limits.depth:
        raise ItemRefused("too_deep", f"an attribute is nested deeper than {limits.depth} levels")
    if which == "array_value":
        limits.use(len(value.array_value.values))
        return [json_value(element, limits, depth + 1) for element in value.array_value.values]
    limits.use(len(value.kvlist_value.values))
    return {pair.key: json_value(pair.value, limits, depth + 1) for pair in value.kvlist_value.values}


def finite(value: float) -> float | str:
    """A number, or the name that protobuf's JSON gives to those that JSON has no number for."""
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _too_long(length: int, limits: Allowance) -> ItemRefused:
    return ItemRefused("too_long", f"a value of {length:,} bytes in an attribute, at most {limits.value_bytes:,}")


def _too_many(count: int, limits: Allowance) -> ItemRefused:
    return ItemRefused("too_many", f"{count:,} attributes, at most {limits.attributes:,}")
