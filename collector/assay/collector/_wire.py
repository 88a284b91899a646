"""Records as JSON and back: one encoder and one decoder for the server and the client."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


@overload
def decode(kind: type[T], body: bytes) -> T: ...
@overload
def decode(kind: Any, body: bytes) -> Any: ...
def decode(kind: Any, body: bytes) -> Any:
    """What a body holds. Raises `ValueError`, saying where in the body the fault is."""
    try:
        return _decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the JSON is not what is asked for: {error}") from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
