"""JSON decoder of OTLP: typed messages, repair of invalid JSON, and conversion to raw spans and log records.

Typed decoding builds only the fields that are used, in one pass. It ignores unknown fields, as the OTLP specification
requires.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from spanwise.collector.dialects import FaultHandler, RawLog, RawSpan, TranslatedSpan
from spanwise.collector.ingest.protobuf_decoder import finite_or_name
from spanwise.collector.ingest.request_decoder import (
    JSON_STRING,
    Allowance,
    Codec,
    Group,
    ItemRefused,
    Scope,
    check_groups,
    check_ids,
    check_item_count,
    check_json,
)
from spanwise.collector.record_corrections import INT_MAX
from spanwise.collector.records import JSON, Event, Link

Integer = int | str
ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
KIND_NUMBERS = {
    "SPAN_KIND_UNSPECIFIED": 0,
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
}
STATUS_NUMBERS = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}


class CamelStruct(msgspec.Struct, rename="camel", gc=False):
    """Base class of OTLP messages with camelCase field names."""


class AnyValue(CamelStruct):
    """OTLP `AnyValue`: one of its fields is set."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Integer | None = None
    double_value: float | str | None = None
    array_value: Values | None = None
    kvlist_value: Pairs | None = None
    bytes_value: str | None = None


class Values(CamelStruct):
    """OTLP `ArrayValue`."""

    values: list[AnyValue] | None = None


class KeyValue(CamelStruct):
    """OTLP `KeyValue`: one attribute."""

    key: str = ""
    value: AnyValue | None = None


class Pairs(CamelStruct):
    """OTLP `KeyValueList`."""

    values: list[KeyValue] | None = None


class JSONEvent(CamelStruct):
    """OTLP `Span.Event`."""

    name: str | None = None
    time_unix_nano: Integer | None = None
    attributes: list[KeyValue] | None = None


class JSONLink(CamelStruct):
    """OTLP `Span.Link`."""

    trace_id: str | None = None
    span_id: str | None = None
    attributes: list[KeyValue] | None = None


class JSONStatus(CamelStruct):
    """OTLP `Status` of a span."""

    code: Integer | None = None
    message: str | None = None


class JSONSpan(CamelStruct):
    """OTLP `Span`."""

    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    trace_state: str | None = None
    name: str | None = None
    kind: Integer | None = None
    start_time_unix_nano: Integer | None = None
    end_time_unix_nano: Integer | None = None
    attributes: list[KeyValue] | None = None
    events: list[JSONEvent] | None = None
    links: list[JSONLink] | None = None
    status: JSONStatus | None = None


class JSONRecord(CamelStruct):
    """OTLP `LogRecord`."""

    time_unix_nano: Integer | None = None
    observed_time_unix_nano: Integer | None = None
    event_name: str | None = None
    body: Any = None  # an `AnyValue`; decoded separately, because some senders of named events write another value
    trace_id: str | None = None
    span_id: str | None = None
    attributes: list[KeyValue] | None = None


class JSONScope(CamelStruct):
    """OTLP `InstrumentationScope`."""

    name: str | None = None
    version: str | None = None


class JSONResource(CamelStruct):
    """OTLP `Resource`."""

    attributes: list[KeyValue] | None = None


NO_SCOPE = Scope("", "")
NO_STATUS = JSONStatus()


_TOKEN = re.compile(JSON_STRING + rb"|NaN|-?Infinity", re.DOTALL)  # a string, or a number that JSON does not support
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_SURROGATE_LENGTH = 6  # length of one escaped surrogate, such as \ud83d


def repair_json(body: bytes) -> bytes:
    """Replace invalid tokens that programs write: unpaired surrogates become U+FFFD; NaN and Infinity become strings.

    Unpaired surrogates come from texts that were cut within an emoji. Writing NaN and Infinity as strings is what
    protobuf's JSON mapping requires.
    """
    return _TOKEN.sub(_repair_token, body)


def _repair_token(token: re.Match[bytes]) -> bytes:
    text = token.group()
    if not text.startswith(b'"'):
        return b'"%s"' % text
    if b"\\u" not in text:
        return text
    return _ESCAPE.sub(lambda escape: b"\\ufffd" if len(escape[0]) == _SURROGATE_LENGTH else escape[0], text)


def read_resource(message: JSONResource | None, limits: Allowance) -> dict[str, JSON]:
    """Return the attributes of a resource. Raises `ItemRefused`."""
    return read_attributes(message.attributes if message else None, limits)


def convert_span(span: JSONSpan, resource: dict[str, JSON], scope: Scope, limits: Allowance) -> RawSpan:
    """Convert one span to a `RawSpan`. Raises `ItemRefused`."""
    trace_id, span_id = parse_hex_id(span.trace_id), parse_hex_id(span.span_id)
    status = span.status or NO_STATUS
    return RawSpan(
        trace_id,
        span_id,
        span.name or "",
        check_ids(trace_id, span_id, parse_hex_id(span.parent_span_id)),
        _enum(span.kind, KIND_NUMBERS),
        parse_integer(span.start_time_unix_nano),
        parse_integer(span.end_time_unix_nano),
        _enum(status.code, STATUS_NUMBERS),
        status.message or "",
        read_attributes(span.attributes, limits),
        _events(span.events, limits) if span.events else (),
        _links(span.links, limits) if span.links else (),
        resource,
        *scope,
        span.trace_state or "",
    )


def convert_log_record(record: JSONRecord, resource: dict[str, JSON], scope: Scope, limits: Allowance) -> RawLog:
    """Convert one log record, without a check of its ids, because most records have none. Raises `ItemRefused`."""
    return RawLog(
        trace_id=parse_hex_id(record.trace_id),
        span_id=parse_hex_id(record.span_id) or None,
        time_ns=parse_integer(record.time_unix_nano) or parse_integer(record.observed_time_unix_nano),
        attributes=read_attributes(record.attributes, limits),
        event_name=record.event_name or "",
        body=_read_body(record.body, limits),
        resource=resource,
        scope=scope.name,
        scope_version=scope.version,
    )


def _read_body(body: Any, limits: Allowance) -> JSON:
    """Return the body of a log record; None if it is not an OTLP value.

    The record is decoded even then, because its attributes may hold all data.
    """
    try:
        return read_value(msgspec.convert(body, AnyValue | None), limits, 1)
    except msgspec.ValidationError:
        return None


def _events(events: Sequence[JSONEvent], limits: Allowance) -> tuple[Event, ...]:
    limits.use(len(events))
    return tuple(
        Event(
            event.name or "",
            max(0, min(parse_integer(event.time_unix_nano), INT_MAX)),
            read_attributes(event.attributes, limits),
        )
        for event in events
    )


def _links(links: Sequence[JSONLink], limits: Allowance) -> tuple[Link, ...]:
    limits.use(len(links))
    return tuple(
        Link(parse_hex_id(link.trace_id), parse_hex_id(link.span_id), read_attributes(link.attributes, limits))
        for link in links
    )


def read_attributes(pairs: Sequence[KeyValue] | None, limits: Allowance) -> dict[str, JSON]:
    """Return attributes as a dict of plain values; the last of duplicate keys wins. Raises `ItemRefused`."""
    values: dict[str, JSON] = {}
    if pairs:
        limits.use(len(pairs))
    for pair in pairs or ():
        value = pair.value
        text = value.string_value if value is not None else None
        if text is None:
            values[pair.key] = read_value(value, limits, 1)
        elif len(text) > limits.value_bytes:
            raise _too_long(text, limits)
        else:
            values[pair.key] = text
    if len(values) > limits.attributes:
        raise ItemRefused("too_many", f"{len(values):,} attributes, at most {limits.attributes:,}")
    return values


def read_value(value: AnyValue | None, limits: Allowance, depth: int) -> JSON:
    """Convert one value to plain JSON. Raises `ItemRefused` if it is nested too deep, too long or invalid."""
    if value is None:
        return None
    if value.array_value is not None or value.kvlist_value is not None:
        return _nested(value, limits, depth)
    if value.int_value is not None:
        number = parse_integer(value.int_value)
        if not -(2**63) <= number < 2**63:
            raise ItemRefused("value", f"{number!r} does not fit into 64 bits")
        return number
    if value.double_value is not None:
        try:
            return finite_or_name(float(value.double_value))
        except ValueError:
            raise ItemRefused("value", f"{str(value.double_value)[:64]!r} is not a number") from None
    text = value.string_value if value.string_value is not None else value.bytes_value
    if text is not None and len(text) > limits.value_bytes:
        raise _too_long(text, limits)
    if value.string_value is None and value.bytes_value is not None:
        try:
            padded = value.bytes_value.replace("-", "+").replace("_", "/") + "=" * (-len(value.bytes_value) % 4)
            return base64.b64encode(base64.b64decode(padded, validate=True)).decode()
        except ValueError:
            raise ItemRefused("value", f"bytes value {value.bytes_value[:64]!r} is not base64") from None
    return text if text is not None else value.bool_value


def _nested(value: AnyValue, limits: Allowance, depth: int) -> JSON:
    if depth > limits.depth:
        raise ItemRefused("too_deep", f"an attribute is nested deeper than {limits.depth} levels")
    if value.array_value is not None:
        elements = value.array_value.values or ()
        limits.use(len(elements))
        return [read_value(element, limits, depth + 1) for element in elements]
    pairs = (value.kvlist_value.values if value.kvlist_value is not None else None) or ()
    limits.use(len(pairs))
    return {pair.key: read_value(pair.value, limits, depth + 1) for pair in pairs}


def parse_hex_id(value: str | None) -> str:
    """Return an id in lower-case hex, "" if there is none. Raises `ItemRefused` if it is not hexadecimal."""
    if not value:
        return ""
    try:
        return binascii.unhexlify(value).hex()
    except ValueError:
        raise ItemRefused("ids", f"id {value[:64]!r} is not hexadecimal") from None


def parse_integer(value: Integer | None) -> int:
    """Return a 64-bit integer, which JSON encodes as a string. Raises `ItemRefused` for any other text."""
    if value.__class__ is int:
        return value
    if value is None or value == "":
        return 0
    try:
        return int(value[:32] if isinstance(value, str) else value)
    except ValueError:
        raise ItemRefused("value", f"{value!r} is not an integer") from None


def _enum(value: Integer | None, numbers: Mapping[str, int]) -> int:
    return numbers.get(value, 0) if isinstance(value, str) else value or 0


def _too_long(text: str, limits: Allowance) -> ItemRefused:
    return ItemRefused("too_long", f"a value of {len(text):,} bytes in an attribute, at most {limits.value_bytes:,}")


T = TypeVar("T")
_HINT_BYTES = 16_384  # bytes to search at the start: senders with protobuf's names use them from the first span on
# Markers of such senders: searching for them is cheaper than the pattern.
_SNAKE_CASE_MARKERS = (b'_spans"', b'_logs"', b'_metrics"', b'_unix_nano"', b'span_id"', b'trace_id"', b'_value"')
_SNAKE_CASE_NAME = re.compile(
    rb'(?<!\\)"((?:resource|scope)_(?:spans|logs|metrics)|log_records|(?:start_|end_|observed_)?time_unix_nano'
    rb'|(?:parent_)?span_id|trace_id|trace_state|event_name|(?:string|int|bool|double|array|kvlist|bytes)_value)"\s*:'
)


def make_codec(
    what: str,
    items: str,
    item: type[Any],
    raw: Callable[..., Any],
    read: Callable[[Any, FaultHandler], T | TranslatedSpan | None],
) -> Codec[T]:
    """Build the codec of a signal whose lists are named `resource{what}`, `scope{what}` and `items`."""
    requests, envelopes = _make_decoder(what, items, item), _make_decoder(what, items, msgspec.Raw)
    item_decoder = msgspec.json.Decoder(item)

    def split(body: bytes, max_items: int) -> Iterable[Group]:
        groups = _groups(_decode_or_repair(envelopes.decode, check_json(body)))
        check_item_count(sum(len(items) for _, _, items in groups), max_items)
        return groups

    return Codec(
        errors=ERRORS,
        parse=lambda body: _groups(requests.decode(body)),
        split=split,
        parse_item=lambda raw: _decode_or_repair(item_decoder.decode, raw),
        resource=read_resource,
        raw=raw,
        read=read,
        hint=_snake_case_hint,
    )


def _decode_or_repair(decode: Callable[[Any], Any], text: Any) -> Any:
    """Decode a text; if that fails, repair and decode it."""
    try:
        return decode(text)
    except ERRORS:
        return decode(repair_json(bytes(text)))


def _snake_case_hint(body: bytes) -> str:
    """Return a hint if a body uses protobuf's snake_case names, which JSON decoders must ignore; "" otherwise."""
    head = body[:_HINT_BYTES]
    if not any(part in head for part in _SNAKE_CASE_MARKERS):
        return ""
    corrections = []
    for name in sorted({name.decode() for name in _SNAKE_CASE_NAME.findall(head)})[:3]:
        first, *others = name.split("_")
        camel_case_name = first + "".join(map(str.capitalize, others))
        corrections.append(f"{camel_case_name!r} instead of {name!r}")
    return f"snake_case names are ignored in OTLP/JSON: send {', '.join(corrections)}" if corrections else ""


def _make_decoder(what: str, items: str, item: type[Any]) -> msgspec.json.Decoder[Any]:
    """Build the decoder of `{"resource…": [{"resource": …, "scope…": [{"scope": …, items: [item, …]}]}]}`."""
    subgroup = _define_message({"scope": ("scope", JSONScope), "items": (items, list[item])})  # type: ignore[valid-type]
    group = _define_message({"resource": ("resource", JSONResource), "scopes": ("scope" + what, list[subgroup])})  # type: ignore[valid-type]
    return msgspec.json.Decoder(_define_message({"resources": ("resource" + what, list[group])}))  # type: ignore[valid-type]


def _define_message(fields: Mapping[str, tuple[str, Any]]) -> type[msgspec.Struct]:
    """Define a message class. `fields` maps each field's name to its name on the wire and its type."""
    optional = [(name, kind | None, None) for name, (_, kind) in fields.items()]
    return msgspec.defstruct("Message", optional, rename={name: wire for name, (wire, _) in fields.items()}, gc=False)


def _groups(request: Any) -> Iterable[Group]:
    groups = request.resources or ()
    check_groups(len(groups), sum(len(group.scopes or ()) for group in groups))
    return [
        (
            group.resource,
            Scope(subgroup.scope.name or "", subgroup.scope.version or "") if subgroup.scope else NO_SCOPE,
            subgroup.items or (),
        )
        for group in groups
        for subgroup in group.scopes or ()
    ]
