"""What a JSON text will cost before it is parsed: three bytes of it can become two hundred."""

from __future__ import annotations

import re

from assay.collector.intake._errors import Permanent

OBJECTS = 600_000  # objects and lists of one text
VALUES = 3_000_000  # and what stands in them, by the commas
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def check_json(body: bytes) -> bytes:
    """The same text. Raises `Permanent` if it holds too much. Brackets within strings are told apart only where they
    matter.
    """
    if _crowded(body):
        bare = _STRING.sub(b"", body)
        if _crowded(bare):
            raise Permanent("too_many", f"more than {OBJECTS:,} objects or {VALUES:,} values in one body: send less")
    return body


def _crowded(text: bytes) -> bool:
    return text.count(b"{") + text.count(b"[") > OBJECTS or text.count(b",") > VALUES
