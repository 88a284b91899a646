"""JSON as files hold it: also Python's own, with NaN in it; and numbers that no store could keep are refused."""

from __future__ import annotations

import json
import re

import orjson

from spanwise.collector.records import JSON
from spanwise.evaluators.datasets._columns import BadRow

_NO_JSON = re.compile(r"NaN|Infinity")
_LONG = re.compile(r"\d{19}")  # perhaps an integer beyond 64 bits, of which orjson makes a float
_LONG_BYTES = re.compile(_LONG.pattern.encode())


class _TooLarge(ValueError):
    """An integer that 64 bits do not hold."""


def loads(text: bytes | str, where: str) -> JSON:
    """The value of a JSON text; NaN, Infinity and -Infinity, which Python writes, are null, as a store keeps them.

    Raises `BadRow` for what is no JSON, and for an integer beyond 64 bits; `UnicodeDecodeError` for what is not UTF-8.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        said = text if isinstance(text, str) else text.decode()
        if _NO_JSON.search(said) or _LONG.search(said):
            return _of_python(said, where, error)
        raise BadRow(f"{where} is not JSON: {error}") from None
    if not (_LONG.search(text) if isinstance(text, str) else _LONG_BYTES.search(text)):
        return value
    return _of_python(text if isinstance(text, str) else text.decode(), where, None)


def _of_python(text: str, where: str, error: orjson.JSONDecodeError | None) -> JSON:
    try:
        return json.loads(text, parse_constant=lambda name: None, parse_int=_whole)
    except _TooLarge as large:
        raise BadRow(f"{where} holds the integer {large}, beyond 64 bits: write it as a text, in quotes") from None
    except (ValueError, RecursionError) as another:
        raise BadRow(f"{where} is not JSON: {error or another}") from None


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**64:
        raise _TooLarge(digits if len(digits) <= 40 else f"{digits[:40]}…")
    return value
