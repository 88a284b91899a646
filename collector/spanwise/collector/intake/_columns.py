"""Spans of a request in protobuf with their attributes as two columns, names and values, which costs half.

A reader merges what a sender wrote of a field that is not repeated. So a schema in which a span's `attributes` are one
message, whose key and value are repeated, reads the same bytes as one list of all names and one of all values, without
an object for each pair and each value. The values are left as bytes: of nearly all of them what they hold follows in
one step from their first byte and their length.

OTLP's own classes read the rest: values other than texts and usual numbers, spans with more names than values or fewer,
and requests in which an attribute has no name. Columns cannot represent the latter: in a span that also has an
attribute without a value, both columns are equally long, but the pairs are wrong. To find them, two more schemas count
the attributes and the names of all spans of a request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import count, repeat
from math import isfinite
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanwise.collector.dialects import RawSpan
from spanwise.collector.intake import _protobuf
from spanwise.collector.intake._decode import Group, Scope
from spanwise.collector.intake._decoded import check_groups
from spanwise.collector.intake._errors import Unparsed
from spanwise.collector.intake._limits import Allowance
from spanwise.collector.records import JSON

# Types and labels of `FieldDescriptorProto`
FIXED64, FIXED32, INT32, TEXT, BYTES, MESSAGE = 6, 7, 5, 9, 12, 11
ONE, MANY = 1, 3
OTLP, OURS = ".opentelemetry.proto", ".spanwise.columns"
SCHEMA: dict[str, tuple[tuple[Any, ...], ...]] = {
    "Pairs": (("key", 1, MANY, TEXT), ("value", 2, MANY, BYTES)),
    "Span": (
        ("trace_id", 1, ONE, BYTES),
        ("span_id", 2, ONE, BYTES),
        ("trace_state", 3, ONE, TEXT),
        ("parent_span_id", 4, ONE, BYTES),
        ("name", 5, ONE, TEXT),
        ("kind", 6, ONE, INT32),
        ("start_time_unix_nano", 7, ONE, FIXED64),
        ("end_time_unix_nano", 8, ONE, FIXED64),
        ("attributes", 9, ONE, MESSAGE, f"{OURS}.Pairs"),
        ("events", 11, MANY, MESSAGE, f"{OTLP}.trace.v1.Span.Event"),
        ("links", 13, MANY, MESSAGE, f"{OTLP}.trace.v1.Span.Link"),
        ("status", 15, ONE, MESSAGE, f"{OTLP}.trace.v1.Status"),
        ("flags", 16, ONE, FIXED32),
    ),
    "ScopeSpans": (
        ("scope", 1, ONE, MESSAGE, f"{OTLP}.common.v1.InstrumentationScope"),
        ("spans", 2, MANY, MESSAGE, f"{OURS}.Span"),
    ),
    "ResourceSpans": (
        ("resource", 1, ONE, MESSAGE, f"{OTLP}.resource.v1.Resource"),
        ("scope_spans", 2, MANY, MESSAGE, f"{OURS}.ScopeSpans"),
    ),
    "Request": (("resource_spans", 1, MANY, MESSAGE, f"{OURS}.ResourceSpans"),),
    # Merge the attributes of all spans into one list, and their names into another
    "Attributes": (("all", 9, MANY, BYTES),),
    "Names": (("key", 1, MANY, BYTES),),
    "NamesOfSpans": (("all", 9, ONE, MESSAGE, f"{OURS}.Names"),),
    **{
        f"{outer}Of{spans}": (("merged", number, ONE, MESSAGE, f"{OURS}.{inner}{spans}"),)
        for spans in ("Attributes", "NamesOfSpans")
        for outer, number, inner in (("Scopes", 2, ""), ("Resources", 2, "ScopesOf"), ("Request", 1, "ResourcesOf"))
    },
}
# Fields of `AnyValue`, as the byte in front of what they hold
IS_TEXT, IS_INT, IS_DOUBLE = b"\x0a", b"\x18", b"\x21"
NO_VALUE = b"\xff"  # begins none
DOUBLE = struct.Struct("<xd").unpack
SHORT = 4096  # bytes of a value, below which what stands in front of it tells whether it is a text


def _head(size: int) -> bytes:
    """With what a value of so many bytes begins if it is a text and nothing else; with which none does, if none is."""
    if 2 <= size < 130:
        return IS_TEXT + bytes((size - 2,))
    return IS_TEXT + bytes(((size - 3) & 127 | 128, (size - 3) >> 7)) if size > 130 else NO_VALUE


HEADS = tuple(map(_head, range(SHORT)))


def _parsers(*names: str) -> list[Callable[[bytes], Any]]:
    """Return for each of these messages of `SCHEMA` what parses it."""
    file = descriptor_pb2.FileDescriptorProto(name="spanwise/columns.proto", package=OURS[1:], syntax="proto3")
    for part in ("trace", "common", "resource"):
        file.dependency.append(f"opentelemetry/proto/{part}/v1/{part}.proto")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind, *of in fields:
            message.field.add(name=field, number=number, label=label, type=kind, type_name=of[0] if of else None)
    pool = descriptor_pool.Default()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{OURS[1:]}.{name}") for name in names)
    return [message_factory.GetMessageClass(message).FromString for message in found]


_parsed, _attributes, _names = _parsers("Request", "RequestOfAttributes", "RequestOfNamesOfSpans")


class Original:
    """A request as OTLP's own classes have it, parsed once it is asked for."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._parsed: Any = None

    def part(self, whole: int, part: int) -> Part:
        """A group of its spans."""
        return lambda: self._wholes()[whole].scope_spans[part].spans

    def _wholes(self) -> Any:
        if self._parsed is None:
            try:
                self._parsed = ExportTraceServiceRequest.FromString(self._body)
            except DecodeError as error:
                raise Unparsed from error
        return self._parsed.resource_spans


Part: TypeAlias = Callable[[], Sequence[Span]]
# A span by this schema, its place among the spans of its group, and these spans as OTLP has them
Item: TypeAlias = tuple[Any, int, Part]


def groups(body: bytes) -> Iterable[Group]:
    """The groups of a request, with an `Item` for each span. Raises `DecodeError`, and `Permanent` for too many."""
    wholes, original = _parsed(body).resource_spans, Original(body)
    check_groups(len(wholes))
    named = _all_named(body)
    for at, whole in enumerate(wholes):
        check_groups(len(whole.scope_spans))
        for within, part in enumerate(whole.scope_spans):
            spans = original.part(at, within)
            items = list(zip(part.spans, count(), repeat(spans))) if named else spans()
            yield whole.resource, Scope(part.scope.name, part.scope.version), items


def _all_named(body: bytes) -> bool:
    """Return whether every attribute of the spans of a request has a name."""
    attributes, names = _attributes(body).merged.merged.merged.all, _names(body).merged.merged.merged.all.key
    return len(attributes) == len(names)


def raw_span(item: Item | Span, resource: dict[str, JSON], scope: Scope, limits: Allowance) -> RawSpan:
    """One span. Raises `ItemRefused`; `Unparsed` if the request is none that OTLP's classes can parse."""
    if not isinstance(item, tuple):
        return _protobuf.raw_span(item, resource, scope, limits)
    span, place, part = item
    pairs = span.attributes
    names, given = pairs.key[:], pairs.value[:]
    used = limits.used
    try:
        if len(names) == len(given) and limits.value_bytes >= SHORT:
            limits.use(len(names))
            attributes = dict(zip(names, _values(given, limits), strict=True))
            return _protobuf.with_attributes(span, attributes, resource, scope, limits)
    except (UnicodeDecodeError, DecodeError):  # as a whole the request is malformed, then
        pass
    limits.used = used
    return _protobuf.raw_span(part()[place], resource, scope, limits)


def _values(given: Sequence[bytes], limits: Allowance) -> list[JSON]:
    """The values of attributes. Raises `ItemRefused`."""
    heads, used = HEADS, limits.used
    try:
        return [
            text.decode() if (text := value.removeprefix(heads[len(value)])) is not value else _other(value, limits)
            for value in given
        ]
    except IndexError:  # a long one
        limits.used = used  # of what was read before it
        return [_other(value, limits) for value in given]


def _other(value: bytes, limits: Allowance) -> JSON:
    """What need be no text."""
    kind, size = value[:1], len(value)
    if kind == IS_DOUBLE and size == 9:
        number: float = DOUBLE(value)[0]
        if isfinite(number):
            return number
    elif kind == IS_INT and size == 2 and value[1] < 128:
        return value[1]
    elif kind == IS_INT and size == 3 and value[1] > 127 and value[2] < 128:
        return value[1] - 128 + (value[2] << 7)
    return _protobuf.json_value(AnyValue.FromString(value), limits, 1)
