"""Column values: JSON of plain values and records, hashes of ids.

Rows may be older or newer than this version of Spanwise. Unknown fields are ignored, missing fields take their
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
from spanwise.collector.records import JSON, Example

INT_MAX = 2**63 - 1
DEPTH_MAX = 100


def dumps(value: JSON) -> str:
    """Return the value as JSON text. Never raises: `clean` replaces values that JSON cannot represent."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps(clean(value), option=orjson.OPT_NON_STR_KEYS).decode()


def loads(text: str | bytes) -> Any:
    """Parse JSON text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def clean(value: Any, depth: int = 0) -> Any:
    """Convert a value to the nearest one that JSON and SQLite can store.

    Lone surrogates are replaced, integers beyond 64 bits become text, non-finite floats become None, and objects of
    other types become their `repr`.
    """
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
    if isinstance(value, (set, frozenset)):  # sorted because the order of a set differs between processes
        return sorted((clean(item, depth + 1) for item in value), key=repr)
    if callable(getattr(type(value), "tolist", None)):  # NumPy scalars and arrays, pandas columns
        try:
            return clean(value.tolist(), depth + 1)
        except Exception:  # an unrelated method named `tolist`
            return _safe_repr(value)
    return _safe_repr(value)


def _safe_repr(value: Any) -> str:
    """Return the `repr` of a foreign object, at most 1,000 characters, even if `__repr__` raises."""
    try:
        return repr(value)[:1000].encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__name__}>"


def hash_id(text: str) -> int:
    """Return 48 bits of a BLAKE2b hash of the text.

    Different texts can have the same hash, also on purpose, so callers compare the text of the rows that they find.
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


T = TypeVar("T")


def encode_record(record: Any) -> str:
    """Return a record as JSON; equal records give equal text. Raises `Refused` if the record could not be read back."""
    try:
        text = _record_json(record)
        decode_record(type(record), text)
    except (ValueError, RecursionError) as error:  # RecursionError: the value contains itself
        raise Refused(f"{record!r:.200} cannot be stored: {error}") from error
    return text


_NO_EVALUATORS = ',"evaluators":[]}'


def _record_json(record: Any) -> str:
    try:
        text = orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        fields = asdict(record)
        if isinstance(record, Example) and not record.evaluators:
            del fields["evaluators"]
        return dumps(fields)
    # an example that names no evaluators keeps the text of versions without this field, so that saving it again is
    # no change
    if isinstance(record, Example) and text.endswith(_NO_EVALUATORS):
        return text.removesuffix(_NO_EVALUATORS) + "}"
    return text


def decode_record(kind: type[T], text: str) -> T:
    """Parse a record from its JSON."""
    return record_encoding.decode(kind, text)
