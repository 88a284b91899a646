"""Records as JSON and back: one encoder and one decoder for the server and the client."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


def decode(kind: type[T] | Any, body: bytes) -> T:
    """What a body holds. Raises `ValueError`, saying where in the body the fault is."""
    try:
        found: T = _decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the JSON is not what is asked for: {error}") from error
    return found


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
