"""What a JSON text will cost before it is parsed: three bytes of it can become two hundred."""

from __future__ import annotations

import re

from spanwise.collector.intake._errors import Permanent

OBJECTS = 600_000  # objects and lists of one text
VALUES = 3_000_000  # and what stands in them, by the commas
TEXT = rb'"(?:[^"\\]++|\\.)*+"?'  # a string with its escapes, closed or not, so that none is looked at twice
PIECE = 256 * 1024  # bytes that are counted before another thread has its turn
_STRING = re.compile(TEXT, re.DOTALL)


def check_json(body: bytes) -> bytes:
    """The same text. Raises `Permanent` if it holds too much. Brackets within strings are told apart only where they
    matter.
    """
    objects, values = _counted(body, 0, len(body))
    if (objects > OBJECTS or values > VALUES) and _is_crowded(body):
        raise Permanent("too_many", f"more than {OBJECTS:,} objects or {VALUES:,} values in one body: send less")
    return body


def _is_crowded(body: bytes) -> bool:
    """Whether there is too much between the strings; they are not copied, as that might cost what this is to save."""
    objects = values = position = 0
    for string in _STRING.finditer(body):
        more, most = _counted(body, position, string.start())
        objects, values, position = objects + more, values + most, string.end()
        if objects > OBJECTS or values > VALUES:
            return True
    more, most = _counted(body, position, len(body))
    return objects + more > OBJECTS or values + most > VALUES


def _counted(body: bytes, start: int, end: int) -> tuple[int, int]:
    """How many objects and lists begin in a part of a text, and how many values follow another one."""
    objects = values = 0
    for begin in range(start, end, PIECE):
        until = min(begin + PIECE, end)
        objects += body.count(b"{", begin, until) + body.count(b"[", begin, until)
        values += body.count(b",", begin, until)
    return objects, values
