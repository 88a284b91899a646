"""Protobuf decoder of OTLP: columnar fast path, generic path, and splitting a damaged request by item.

Splitting: protobuf rejects a whole message if one text is not UTF-8 or one value is nested too deep. This module can
parse each item alone. Two bytes of protobuf can also become an object of fifty bytes. Therefore a large request is
split before it is parsed, so that only one item at a time is in memory. The nested messages of an item are counted
before it is parsed. Parts are views of the body: copies would hold a body with one large item in memory four times.

Fast path: protobuf parsers merge repeated occurrences of a field that is not declared as repeated. A schema with a
single `attributes` message per span, with repeated key and value, therefore reads the same bytes as one list of all
names and one list of all values. This avoids an object for each pair and each value. The values stay bytes: the first
byte and the length determine the type of nearly all of them.

Generic path: OTLP's own classes read values other than texts and common numbers, and spans whose lists of names and
values differ in length. They also read requests in which an attribute has no name. If such a span also has an
attribute without a value, both lists have the same length but the pairs are wrong. To detect this, two more schemas
count the attributes and the names of all spans of a request.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from math import isfinite
from typing import Any, TypeAlias, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanwise.collector.dialects import RawLog, RawSpan
from spanwise.collector.ingest.request_decoder import (
    Allowance,
    Group,
    ItemRefused,
    PermanentError,
    Scope,
    UnparsableRequest,
    check_groups,
    check_ids,
)
from spanwise.collector.record_corrections import INT_MAX
from spanwise.collector.records import JSON, Event, Link

View = TypeVar("View", bytes, memoryview)
WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 0, 1, 2, 5
UNCHECKED_BYTES = 64 * 1024  # items up to this size are parsed without counting
MAX_MESSAGES = 600_000  # maximum number of nested messages of one item; each takes about 50 bytes once parsed
# kind of message → its fields that are messages themselves (opentelemetry-proto 1.x)
MESSAGE_FIELDS: Mapping[str, Mapping[int, str]] = {
    "span": {9: "pair", 11: "event", 13: "link"},
    "log": {5: "value", 6: "pair"},
    "attributed": {1: "pair", 3: "pair"},  # a resource or a scope
    "event": {3: "pair"},
    "link": {4: "pair"},
    "pair": {2: "value"},
    "value": {5: "list", 6: "map"},
    "list": {1: "value"},
    "map": {1: "pair"},
}


class MalformedMessage(ValueError):
    """Error for bytes that are not a protobuf message."""


def split_groups(body: bytes, max_items: int) -> Iterator[tuple[bytes, bytes, list[memoryview]]]:
    """Yield (resource, scope, items) of an export request, each as bytes.

    Raises `MalformedMessage`, or `PermanentError` for more than `max_items` items or too many groups. All signals have the
    same layout: field 1 of a request holds groups by resource. In such a group, field 1 is the resource and field 2
    holds groups by scope. In these, field 1 is the scope and field 2 holds the items.
    """
    scopes = count = 0
    for resources, group in enumerate(_select_fields(memoryview(body), 1), 1):
        check_groups(resources, scopes)
        resource = b"".join(_select_fields(group, 1))  # protobuf merges a field that occurs twice
        for subgroup in _select_fields(group, 2):
            scopes += 1
            check_groups(resources, scopes)
            items = []
            for item in _select_fields(subgroup, 2):
                count += 1
                if count > max_items:
                    raise PermanentError("too_many", f"more than {max_items:,} items in one request: send less")
                items.append(item)
            yield resource, b"".join(_select_fields(subgroup, 1)), items


def check_messages(message: View, kind: str) -> View:
    """Count the nested messages of a large message of a kind in `MESSAGE_FIELDS`, and return its bytes unchanged.

    Raises `PermanentError` if there are too many, and `MalformedMessage`.
    """
    if len(message) > UNCHECKED_BYTES:
        waiting, count = [(memoryview(message), MESSAGE_FIELDS[kind])], 0
        while waiting:
            view, schema = waiting.pop()
            for field, start, end in _iterate_fields(view):
                inner_kind = schema.get(field)
                if inner_kind is not None:
                    count += 1
                    if end - start > 1:
                        waiting.append((view[start:end], MESSAGE_FIELDS[inner_kind]))
                    if count > MAX_MESSAGES:
                        raise PermanentError("too_many", f"more than {MAX_MESSAGES:,} values in one item: send less")
    return message


def _select_fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    return (message[start:end] for field, start, end in _iterate_fields(message) if field == wanted)


def _iterate_fields(message: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each length-delimited field. Raises `MalformedMessage`."""
    position, size = 0, len(message)
    while position < size:
        tag, position = _read_varint(message, position)
        if tag >> 3 == 0:
            raise MalformedMessage(f"field number 0 at byte {position}")
        start, end = _find_extent(message, position, tag & 7)
        if tag & 7 == WIRE_BYTES:
            yield tag >> 3, start, end
        position = end


def _find_extent(message: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    if wire_type == WIRE_BYTES:
        length, position = _read_varint(message, position)
    elif wire_type == WIRE_VARINT:
        length = _read_varint(message, position)[1] - position
    elif wire_type in (WIRE_FIXED64, WIRE_FIXED32):
        length = 8 if wire_type == WIRE_FIXED64 else 4
    else:
        raise MalformedMessage(f"unsupported wire type {wire_type} at byte {position}")
    if position + length > len(message):
        raise MalformedMessage(
            f"a field of {length:,} bytes at byte {position} exceeds the message: the body is truncated"
        )
    return position, position + length


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    byte = message[position] if position < len(message) else 128
    if byte < 128:  # the common case
        return byte, position + 1
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, position + index + 1
    raise MalformedMessage(f"invalid varint at byte {position}")


M = TypeVar("M")
ERRORS = (DecodeError, MalformedMessage)


def split_request(body: bytes, max_items: int) -> Iterable[Group]:
    """Yield the groups of any request, with items left as bytes. Raises one of `ERRORS`, or `PermanentError`."""
    for resource, scope, items in split_groups(body, max_items):
        check_messages(resource, "attributed")
        check_messages(scope, "attributed")
        yield Resource.FromString(resource), _read_scope(InstrumentationScope.FromString(scope)), items


def make_item_parser(message: type[M], kind: str) -> Callable[[memoryview], M]:
    """Return a parser of one item of a kind. It raises one of `ERRORS`, or `PermanentError` for too many messages."""
    parse: Callable[[memoryview], M] = message.FromString  # type: ignore[attr-defined]
    return lambda item: parse(check_messages(item, kind))


def iterate_log_groups(body: bytes) -> Iterable[Group]:
    """Yield the groups of a request with log records.

    Raises `DecodeError`, and `PermanentError` for too many groups.
    """
    resources = ExportLogsServiceRequest.FromString(body).resource_logs
    check_groups(len(resources), sum(len(group.scope_logs) for group in resources))
    for group in resources:
        for subgroup in group.scope_logs:
            yield group.resource, _read_scope(subgroup.scope), subgroup.log_records


def _read_scope(message: InstrumentationScope) -> Scope:
    return Scope(message.name, message.version)


def read_resource(message: Resource, limits: Allowance) -> dict[str, JSON]:
    """Return the attributes of a resource. Raises `ItemRefused`."""
    return read_attributes(message.attributes, limits)


def convert_span(
    span: Span,
    resource: dict[str, JSON],
    scope: Scope,
    limits: Allowance,
    attributes: dict[str, JSON] | None = None,
) -> RawSpan:
    """Convert one span to a `RawSpan`, with the given attributes if they were read separately. Raises `ItemRefused`."""
    if attributes is None:
        attributes = read_attributes(span.attributes, limits)
    elif len(attributes) > limits.attributes:
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


def convert_log_record(record: LogRecord, resource: dict[str, JSON], scope: Scope, limits: Allowance) -> RawLog:
    """Convert one log record, without a check of its ids, because most records have none. Raises `ItemRefused`."""
    return RawLog(
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex() or None,
        time_ns=record.time_unix_nano or record.observed_time_unix_nano,
        attributes=read_attributes(record.attributes, limits),
        event_name=record.event_name,
        body=read_value(record.body, limits, 1),
        resource=resource,
        scope=scope.name,
        scope_version=scope.version,
    )


def _events(span: Span, limits: Allowance) -> tuple[Event, ...]:
    limits.use(len(span.events))
    return tuple(
        Event(event.name, min(event.time_unix_nano, INT_MAX), read_attributes(event.attributes, limits))
        for event in span.events
    )


def _links(span: Span, limits: Allowance) -> tuple[Link, ...]:
    limits.use(len(span.links))
    return tuple(
        Link(link.trace_id.hex(), link.span_id.hex(), read_attributes(link.attributes, limits)) for link in span.links
    )


def read_attributes(pairs: Sequence[KeyValue], limits: Allowance) -> dict[str, JSON]:
    """Return attributes as a dict of plain values; the last of duplicate keys wins. Raises `ItemRefused`."""
    values: dict[str, JSON] = {}
    limits.use(len(pairs))
    longest = limits.value_bytes
    for pair in pairs:
        value = pair.value
        # reading `string_value` takes a third of the time of `WhichOneof`
        text = value.string_value
        if text:
            if len(text) > longest:
                raise _too_long(len(text), limits)
            values[pair.key] = text
        else:
            values[pair.key] = read_value(value, limits, 1)
    if len(values) > limits.attributes:
        raise _too_many(len(values), limits)
    return values


def read_value(value: AnyValue, limits: Allowance, depth: int) -> JSON:
    """Convert one value to plain JSON. Raises `ItemRefused` if it is nested too deep or too long."""
    kind: str | None = value.WhichOneof("value")
    if kind is None:
        return None
    if kind in ("array_value", "kvlist_value"):
        if depth > limits.depth:
            raise ItemRefused("too_deep", f"an attribute is nested deeper than {limits.depth} levels")
        if kind == "array_value":
            limits.use(len(value.array_value.values))
            return [read_value(element, limits, depth + 1) for element in value.array_value.values]
        limits.use(len(value.kvlist_value.values))
        return {pair.key: read_value(pair.value, limits, depth + 1) for pair in value.kvlist_value.values}
    scalar: Any = getattr(value, kind)
    if kind == "double_value":
        return finite_or_name(scalar)
    if kind in ("string_value", "bytes_value") and len(scalar) > limits.value_bytes:
        raise _too_long(len(scalar), limits)
    return base64.b64encode(scalar).decode() if kind == "bytes_value" else scalar


def finite_or_name(value: float) -> float | str:
    """Return a finite number, otherwise its name in protobuf's JSON mapping, such as "NaN"."""
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _too_long(length: int, limits: Allowance) -> ItemRefused:
    return ItemRefused("too_long", f"a value of {length:,} bytes in an attribute, at most {limits.value_bytes:,}")


def _too_many(count: int, limits: Allowance) -> ItemRefused:
    return ItemRefused("too_many", f"{count:,} attributes, at most {limits.attributes:,}")


# types and labels of `FieldDescriptorProto`
TYPE_FIXED64, TYPE_FIXED32, TYPE_INT32, TYPE_STRING, TYPE_BYTES, TYPE_MESSAGE = 6, 7, 5, 9, 12, 11
LABEL_OPTIONAL, LABEL_REPEATED = 1, 3
OTLP_PACKAGE, COLUMN_PACKAGE = ".opentelemetry.proto", ".spanwise.columns"
COLUMN_SCHEMA: dict[str, tuple[tuple[Any, ...], ...]] = {
    "Pairs": (("key", 1, LABEL_REPEATED, TYPE_STRING), ("value", 2, LABEL_REPEATED, TYPE_BYTES)),
    "Span": (
        ("trace_id", 1, LABEL_OPTIONAL, TYPE_BYTES),
        ("span_id", 2, LABEL_OPTIONAL, TYPE_BYTES),
        ("trace_state", 3, LABEL_OPTIONAL, TYPE_STRING),
        ("parent_span_id", 4, LABEL_OPTIONAL, TYPE_BYTES),
        ("name", 5, LABEL_OPTIONAL, TYPE_STRING),
        ("kind", 6, LABEL_OPTIONAL, TYPE_INT32),
        ("start_time_unix_nano", 7, LABEL_OPTIONAL, TYPE_FIXED64),
        ("end_time_unix_nano", 8, LABEL_OPTIONAL, TYPE_FIXED64),
        ("attributes", 9, LABEL_OPTIONAL, TYPE_MESSAGE, f"{COLUMN_PACKAGE}.Pairs"),
        ("events", 11, LABEL_REPEATED, TYPE_MESSAGE, f"{OTLP_PACKAGE}.trace.v1.Span.Event"),
        ("links", 13, LABEL_REPEATED, TYPE_MESSAGE, f"{OTLP_PACKAGE}.trace.v1.Span.Link"),
        ("status", 15, LABEL_OPTIONAL, TYPE_MESSAGE, f"{OTLP_PACKAGE}.trace.v1.Status"),
        ("flags", 16, LABEL_OPTIONAL, TYPE_FIXED32),
    ),
    "ScopeSpans": (
        ("scope", 1, LABEL_OPTIONAL, TYPE_MESSAGE, f"{OTLP_PACKAGE}.common.v1.InstrumentationScope"),
        ("spans", 2, LABEL_REPEATED, TYPE_MESSAGE, f"{COLUMN_PACKAGE}.Span"),
    ),
    "ResourceSpans": (
        ("resource", 1, LABEL_OPTIONAL, TYPE_MESSAGE, f"{OTLP_PACKAGE}.resource.v1.Resource"),
        ("scope_spans", 2, LABEL_REPEATED, TYPE_MESSAGE, f"{COLUMN_PACKAGE}.ScopeSpans"),
    ),
    "Request": (("resource_spans", 1, LABEL_REPEATED, TYPE_MESSAGE, f"{COLUMN_PACKAGE}.ResourceSpans"),),
    # these messages read the attributes of all spans as one list, and the names of all attributes as another
    "Attributes": (("all", 9, LABEL_REPEATED, TYPE_BYTES),),
    "Names": (("key", 1, LABEL_REPEATED, TYPE_BYTES),),
    "NamesOfSpans": (("all", 9, LABEL_OPTIONAL, TYPE_MESSAGE, f"{COLUMN_PACKAGE}.Names"),),
    **{
        f"{outer}Of{spans}": (("merged", number, LABEL_OPTIONAL, TYPE_MESSAGE, f"{COLUMN_PACKAGE}.{inner}{spans}"),)
        for spans in ("Attributes", "NamesOfSpans")
        for outer, number, inner in (("Scopes", 2, ""), ("Resources", 2, "ScopesOf"), ("Request", 1, "ResourcesOf"))
    },
}
# field tags of `AnyValue`: the byte before the value
IS_TEXT, IS_INT, IS_DOUBLE = b"\x0a", b"\x18", b"\x21"
NO_VALUE = b"\xff"  # no value starts with this byte
UNPACK_DOUBLE = struct.Struct("<xd").unpack
SHORT_VALUE_BYTES = 4096  # a table of prefixes identifies texts among shorter values


def _text_prefix(size: int) -> bytes:
    """Return the first bytes of each `AnyValue` of this size that holds a text; `NO_VALUE` if a text cannot have this
    size.
    """
    if 2 <= size < 130:
        return IS_TEXT + bytes((size - 2,))
    return IS_TEXT + bytes(((size - 3) & 127 | 128, (size - 3) >> 7)) if size > 130 else NO_VALUE


TEXT_PREFIXES = tuple(map(_text_prefix, range(SHORT_VALUE_BYTES)))


def _build_parsers(*names: str) -> list[Callable[[bytes], Any]]:
    """Return a parser for each of the named messages in `COLUMN_SCHEMA`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="spanwise/columns.proto", package=COLUMN_PACKAGE[1:], syntax="proto3"
    )
    for part in ("trace", "common", "resource"):
        file.dependency.append(f"opentelemetry/proto/{part}/v1/{part}.proto")
    for name, fields in COLUMN_SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind, *of in fields:
            message.field.add(name=field, number=number, label=label, type=kind, type_name=of[0] if of else None)
    pool = descriptor_pool.Default()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{COLUMN_PACKAGE[1:]}.{name}") for name in names)
    return [message_factory.GetMessageClass(message).FromString for message in found]


_parse_columns, _parse_attribute_lists, _parse_name_lists = _build_parsers(
    "Request", "RequestOfAttributes", "RequestOfNamesOfSpans"
)


class OriginalRequest:
    """Request parsed with OTLP's own classes, on first access."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._parsed: Any = None

    def make_loader(self, group: int, subgroup: int) -> SpanLoader:
        """Return a function that returns the spans of a group. It raises `UnparsableRequest`."""

        def load() -> Sequence[Span]:
            if self._parsed is None:
                try:
                    self._parsed = ExportTraceServiceRequest.FromString(self._body)
                except DecodeError as error:
                    raise UnparsableRequest from error
            spans: Sequence[Span] = self._parsed.resource_spans[group].scope_spans[subgroup].spans
            return spans

        return load


SpanLoader: TypeAlias = Callable[[], Sequence[Span]]
# (span in `COLUMN_SCHEMA`, its index in its group, function that loads the group's spans in OTLP's classes)
ColumnarSpan: TypeAlias = tuple[Any, int, SpanLoader]


def iterate_columnar_groups(body: bytes) -> Iterable[Group]:
    """Yield the groups of a request, with a `ColumnarSpan` for each span.

    Raises `DecodeError`, and `PermanentError` for too many groups.
    """
    resources, original = _parse_columns(body).resource_spans, OriginalRequest(body)
    check_groups(len(resources), sum(len(group.scope_spans) for group in resources))
    # use no local variables, which would keep the parsed lists in memory while the groups are decoded
    attribute_count = len(_parse_attribute_lists(body).merged.merged.merged.all)
    is_named = attribute_count == len(_parse_name_lists(body).merged.merged.merged.all.key)
    for group_index, group in enumerate(resources):
        for subgroup_index, subgroup in enumerate(group.scope_spans):
            load = original.make_loader(group_index, subgroup_index)
            items = list(zip(subgroup.spans, count(), repeat(load))) if is_named else load()
            yield group.resource, _read_scope(subgroup.scope), items


def convert_columnar_span(
    item: ColumnarSpan | Span, resource: dict[str, JSON], scope: Scope, limits: Allowance
) -> RawSpan:
    """Convert one span. Raises `ItemRefused`; `UnparsableRequest` if OTLP's classes cannot parse the request."""
    if not isinstance(item, tuple):
        return convert_span(item, resource, scope, limits)
    span, index, load = item
    pairs = span.attributes
    names, values = pairs.key[:], pairs.value[:]
    used = limits.used
    try:
        if len(names) == len(values) and limits.value_bytes >= SHORT_VALUE_BYTES:
            limits.use(len(names))
            attributes = dict(zip(names, _read_values(values, limits), strict=True))
            return convert_span(span, resource, scope, limits, attributes)
    # OTLP's classes cannot parse the request either, so `load` raises `UnparsableRequest`
    except (UnicodeDecodeError, DecodeError):
        pass
    limits.used = used
    return convert_span(load()[index], resource, scope, limits)


def _read_values(values: Sequence[bytes], limits: Allowance) -> list[JSON]:
    """Return the values of attributes. Raises `ItemRefused`."""
    prefixes, used = TEXT_PREFIXES, limits.used
    try:
        return [
            text.decode()
            if (text := value.removeprefix(prefixes[len(value)])) is not value
            else _read_other_value(value, limits)
            for value in values
        ]
    except IndexError:  # a value longer than the prefix table
        limits.used = used  # undo the count of the values before it
        return [_read_other_value(value, limits) for value in values]


def _read_other_value(value: bytes, limits: Allowance) -> JSON:
    """Return a value that may be of any type."""
    kind, size = value[:1], len(value)
    if kind == IS_DOUBLE and size == 9:
        number: float = UNPACK_DOUBLE(value)[0]
        if isfinite(number):
            return number
    elif kind == IS_INT and size == 2 and value[1] < 128:
        return value[1]
    elif kind == IS_INT and size == 3 and value[1] > 127 and value[2] < 128:
        return value[1] - 128 + (value[2] << 7)
    return read_value(AnyValue.FromString(value), limits, 1)
