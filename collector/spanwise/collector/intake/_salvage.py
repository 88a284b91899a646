"""A protobuf request taken apart by hand, down to the bytes of each item.

Protobuf refuses a message as a whole when one text in it is not UTF-8 or one value is nested too deep; here each item
can be parsed alone. And it makes of two bytes an object of fifty: what is large is taken apart first, so that one item
at a time is in memory, and counted, so that no item is larger than its bytes let expect. Parts are views of the body,
not bytes of their own: else a body with a single large item would be in memory four times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from spanwise.collector.intake._errors import Permanent
from spanwise.collector.intake._limits import GROUPS

View = TypeVar("View", bytes, memoryview)
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SMALL = 64 * 1024  # bytes of an item, up to which it is parsed uncounted
MESSAGES = 600_000  # within one item: some 50 bytes each once they are parsed
# Of each kind of message the fields that are messages themselves (opentelemetry-proto 1.x)
SCHEMAS: Mapping[str, Mapping[int, str]] = {
    "span": {9: "pair", 11: "event", 13: "link"},
    "log": {5: "value", 6: "pair"},
    "attributed": {1: "pair", 3: "pair"},  # a resource, or a scope
    "event": {3: "pair"},
    "link": {4: "pair"},
    "pair": {2: "value"},
    "value": {5: "list", 6: "map"},
    "list": {1: "value"},
    "map": {1: "pair"},
}


class Malformed(ValueError):
    """These bytes are no protobuf message."""


def groups(body: bytes, most: int) -> Iterator[tuple[bytes, bytes, list[memoryview]]]:
    """The bytes of (resource, scope, its spans or log records) of an export request. Raises `Malformed`, or `Permanent`
    for more items than `most`, or too many groups.

    Both kinds of request are laid out alike: field 1 are groups by resource, of which field 1 is the resource and
    field 2 are groups by scope, of which field 1 is the scope and field 2 are the items.
    """
    left = most
    for group in _some(_fields(memoryview(body), 1), GROUPS, "groups"):
        resource = b"".join(_fields(group, 1))  # a field sent twice is merged: so says protobuf
        for subgroup in _some(_fields(group, 2), GROUPS, "groups"):
            items = list(_some(_fields(subgroup, 2), left, "items", most))
            left -= len(items)
            yield resource, b"".join(_fields(subgroup, 1)), items


def _some(found: Iterator[memoryview], most: int, what: str, told: int | None = None) -> Iterator[memoryview]:
    for number, one in enumerate(found):
        if number >= most:
            raise Permanent("too_many", f"more than {told or most:,} {what} in one request: send less")
        yield one


def check_messages(message: View, kind: str) -> View:
    """The same bytes of a message of a kind in `SCHEMAS`. Raises `Permanent` if it holds too many messages, and
    `Malformed`.
    """
    if len(message) > SMALL:
        waiting, count = [(memoryview(message), SCHEMAS[kind])], 0
        while waiting:
            view, schema = waiting.pop()
            for field, start, end in _extents(view):
                inner = schema.get(field)
                if inner is not None:
                    count += 1
                    if end - start > 1:
                        waiting.append((view[start:end], SCHEMAS[inner]))
                    if count > MESSAGES:
                        raise Permanent("too_many", f"more than {MESSAGES:,} values in one item: send less")
    return message


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    return (message[start:end] for field, start, end in _extents(message) if field == wanted)


def _extents(message: memoryview) -> Iterator[tuple[int, int, int]]:
    """Of each field that holds bytes its number, and where they begin and end. Raises `Malformed`."""
    position, size = 0, len(message)
    while position < size:
        tag, position = _varint(message, position)
        if tag >> 3 == 0:
            raise Malformed(f"field number 0 at byte {position}")
        start, end = _extent(message, position, tag & 7)
        if tag & 7 == BYTES:
            yield tag >> 3, start, end
        position = end


def _extent(message: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    if wire_type == BYTES:
        length, position = _varint(message, position)
    elif wire_type == VARINT:
        length = _varint(message, position)[1] - position
    elif wire_type in (FIXED64, FIXED32):
        length = 8 if wire_type == FIXED64 else 4
    else:
        raise Malformed(f"wire type {wire_type} at byte {position}")
    if position + length > len(message):
        raise Malformed(f"a field of {length:,} bytes at byte {position} passes the end: the body is cut short")
    return position, position + length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    byte = message[position] if position < len(message) else 128
    if byte < 128:  # nearly all of them
        return byte, position + 1
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, position + index + 1
    raise Malformed(f"no number at byte {position}")
