"""Column values: JSON of plain values and records, hashes of ids.

A row may be older or newer than this program: a field that it does not know is left out, one that is missing has its
default.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import orjson

from spanwise.collector import record_encoding
from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON

INT_MAX = 2**63 - 1
DEPTH_MAX = 100


def dumps(value: JSON) -> str:
    """JSON text; never raises for what a value holds."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps(clean(value), option=orjson.OPT_NON_STR_KEYS).decode()


def loads(text: str | bytes) -> Any:
    """The value of JSON text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def clean(value: Any, depth: int = 0) -> Any:
    """The nearest value that JSON and SQLite can hold: no lone surrogates, no integer beyond 64 bits, no odd types."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -INT_MAX <= value <= INT_MAX else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= DEPTH_MAX:
        return _safe_repr(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):  # in another order in every process
        return sorted((clean(item, depth + 1) for item in value), key=repr)
    if callable(getattr(type(value), "tolist", None)):  # numpy's numbers and arrays, pandas' columns
        return _convert_array(value, depth)
    return _safe_repr(value)


def _convert_array(value: Any, depth: int) -> Any:
    try:
        return clean(value.tolist(), depth + 1)
    except Exception:  # somebody else's method of that name
        return _safe_repr(value)


def _safe_repr(value: Any) -> str:
    """A foreign object as text, even if its `__repr__` raises."""
    try:
        return repr(value)[:1000].encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__name__}>"


def hash_id(text: str) -> int:
    """48 bits of its hash. Who finds something by it looks whether it is that text, as others may be made alike."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


T = TypeVar("T")


def encode_record(record: Any) -> str:
    """A record as JSON; the same record always as the same text. Raises `Refused` for one that could not be read."""
    try:
        text = _record_json(record)
        decode_record(type(record), text)
    except (ValueError, RecursionError) as error:  # RecursionError: a value that holds itself
        raise Refused(f"{record!r:.200} cannot be kept: {error}") from error
    return text


def _record_json(record: Any) -> str:
    try:
        return orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return dumps(asdict(record))


def decode_record(kind: type[T], text: str) -> T:
    """A record from its JSON."""
    return record_encoding.decode(kind, text)
