"""The good spans of a protobuf request of which others cannot be parsed.

Protobuf refuses a message as a whole when one text in it is not UTF-8 or one value is nested too deep. Then its
envelope is taken apart here, down to the bytes of each item, so that each one can be parsed alone.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """These bytes are no protobuf message."""


def groups(body: bytes) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
    """The bytes of (resource, scope, its spans or log records) of an export request. Raises `Malformed`.

    Both kinds of request are laid out alike: field 1 are groups by resource, of which field 1 is the resource and
    field 2 are groups by scope, of which field 1 is the scope and field 2 are the items.
    """
    for group in _fields(body, 1):
        resource = b"".join(_fields(group, 1))  # a field sent twice is merged: so says protobuf
        for subgroup in _fields(group, 2):
            yield resource, b"".join(_fields(subgroup, 1)), list(_fields(subgroup, 2))


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag >> 3 == 0:
            raise Malformed(f"field number 0 at byte {position}")
        start, end = _extent(message, position, tag & 7)
        if tag >> 3 == wanted and tag & 7 == BYTES:
            yield message[start:end]
        position = end


def _extent(message: bytes, position: int, wire_type: int) -> tuple[int, int]:
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


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, position + index + 1
    raise Malformed(f"no number at byte {position}")
