"""Small records as JSON text and back: what the control tables keep in their `data` columns.

A row may be older or newer than this program: a field that it does not know is left out, one that is missing has its
default.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

import orjson

from spanwise.collector import _wire
from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite._values import dumps

T = TypeVar("T")


def to_text(record: Any) -> str:
    """A record as JSON; the same record always as the same text. Raises `Refused` for one that could not be read."""
    try:
        text = _text_of(record)
        from_text(type(record), text)
    except (ValueError, RecursionError) as error:  # RecursionError: a value that holds itself
        raise Refused(f"{record!r:.200} cannot be kept: {error}") from error
    return text


def _text_of(record: Any) -> str:
    try:
        return orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return dumps(asdict(record))


def from_text(kind: type[T], text: str) -> T:
    """A record from its JSON."""
    return _wire.decode(kind, text)
