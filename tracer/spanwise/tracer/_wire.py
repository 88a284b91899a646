"""Spans as OTLP protobuf, written straight into bytes.

The standard encoder builds a message object per attribute, which costs the process four times as much CPU as the traced
call itself (`benchmarks/tracer.py`); a test holds the two to the same messages. Field numbers: opentelemetry-proto,
`trace/v1/trace.proto` and `common/v1/common.proto`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Status

from spanwise.tracer._sampling import KEY
from spanwise.tracer._span import LiveSpan

_fixed64, _fixed32, _double = Struct("<Q").pack, Struct("<I").pack, Struct("<d").pack
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200  # SpanFlags: the remote bit is known; the parent is remote


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SMALL = [_varint(i) for i in range(4096)]


def _size(length: int) -> bytes:
    return _SMALL[length] if length < 4096 else _varint(length)


def _field(tag: bytes, body: bytes) -> bytes:
    """A length-delimited field."""
    return tag + _size(len(body)) + body


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


@functools.lru_cache(maxsize=4096)
def _key(key: str) -> bytes:
    return _field(b"\x0a", _utf8(key))


def _any(value: Any) -> bytes:
    """An AnyValue."""
    if isinstance(value, str):
        return _field(b"\x0a", _utf8(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return b"\x21" + _double(value)
    if isinstance(value, bytes):
        return _field(b"\x3a", value)
    return _field(b"\x2a", b"".join([_field(b"\x0a", _any(v)) for v in value]))


def _attributes(tag: bytes, attributes: Mapping[str, Any] | None) -> list[bytes]:
    fields = []
    for key, value in (attributes or {}).items():
        pair = _key(key) + _field(b"\x12", _any(value))
        fields.append(tag + _size(len(pair)) + pair)
    return fields


def _ids(span: ReadableSpan) -> list[bytes]:
    """Trace id, span id, trace state, parent span id, flags."""
    if isinstance(span, LiveSpan):
        flags = _HAS_REMOTE | (_IS_REMOTE if span.parent_id and span.parent_remote else 0)
        parent = b"\x22\x08" + span.parent_id.to_bytes(8, "big") if span.parent_id else b""
        own = b"\x0a\x10" + span.local.trace_id.to_bytes(16, "big") + b"\x12\x08" + span.span_id.to_bytes(8, "big")
        return [own, _ot(span.ot), parent, b"\x85\x01", _fixed32(flags)]
    context, above = span.context, span.parent
    own = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    state = _field(b"\x1a", _utf8(context.trace_state.to_header())) if context.trace_state else b""
    parent = b"\x22\x08" + above.span_id.to_bytes(8, "big") if above else b""
    return [own, state, parent, b"\x85\x01", _fixed32(_HAS_REMOTE | (_IS_REMOTE if above and above.is_remote else 0))]


@functools.lru_cache(maxsize=64)
def _ot(member: str) -> bytes:
    return _field(b"\x1a", _utf8(f"{KEY}={member}")) if member else b""


def _span(span: ReadableSpan) -> bytes:
    parts = _ids(span)
    parts.append(_field(b"\x2a", _utf8(span.name)))
    parts.append(b"\x30" + _SMALL[span.kind.value + 1])
    parts.append(b"\x39" + _fixed64(span.start_time or 0) + b"\x41" + _fixed64(span.end_time or 0))
    parts += _attributes(b"\x4a", span._attributes)
    if span.dropped_attributes:
        parts.append(b"\x50" + _varint(span.dropped_attributes))
    parts += [_field(b"\x5a", _event(event)) for event in span.events]
    if span.dropped_events:
        parts.append(b"\x60" + _varint(span.dropped_events))
    parts += [_field(b"\x6a", _link(link)) for link in span.links]
    parts.append(_field(b"\x7a", _status(span.status)))
    return b"".join(parts)


def _event(event: Event) -> bytes:
    head = b"\x09" + _fixed64(event.timestamp) + _field(b"\x12", _utf8(event.name))
    return head + b"".join(_attributes(b"\x1a", event.attributes))


def _link(link: Link) -> bytes:
    context = link.context
    ids = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    flags = b"\x35" + _fixed32(_HAS_REMOTE | (_IS_REMOTE if context.is_remote else 0))
    return ids + b"".join(_attributes(b"\x22", link.attributes)) + flags


def _status(status: Status) -> bytes:
    message = _field(b"\x12", _utf8(status.description)) if status.description else b""
    return message + (b"\x18" + _SMALL[status.status_code.value] if status.status_code.value else b"")


def _resource(resource: Resource) -> bytes:
    return b"".join(_attributes(b"\x0a", resource.attributes))


def _scope(scope: InstrumentationScope | None) -> bytes:
    if scope is None:
        return b""
    names = _field(b"\x0a", _utf8(scope.name)) + (_field(b"\x12", _utf8(scope.version)) if scope.version else b"")
    return names + b"".join(_attributes(b"\x1a", scope.attributes))


def encode(spans: Iterable[ReadableSpan]) -> bytes:
    """An ExportTraceServiceRequest, grouped by resource and scope."""
    groups: dict[int, tuple[Resource, dict[int, tuple[InstrumentationScope | None, list[bytes]]]]] = {}
    for span in spans:
        _, scopes = groups.setdefault(id(span.resource), (span.resource, {}))
        scope = span.instrumentation_scope
        scopes.setdefault(id(scope), (scope, []))[1].append(_field(b"\x12", _span(span)))
    return b"".join(_field(b"\x0a", _resource_spans(*group)) for group in groups.values())


def _resource_spans(resource: Resource, scopes: dict[int, tuple[InstrumentationScope | None, list[bytes]]]) -> bytes:
    fields = [_field(b"\x0a", _resource(resource))]
    for scope, spans in scopes.values():
        schema = _field(b"\x1a", _utf8(scope.schema_url)) if scope is not None and scope.schema_url else b""
        fields.append(_field(b"\x12", _field(b"\x0a", _scope(scope)) + b"".join(spans) + schema))
    if resource.schema_url:
        fields.append(_field(b"\x1a", _utf8(resource.schema_url)))
    return b"".join(fields)
