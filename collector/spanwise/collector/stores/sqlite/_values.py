"""JSON as the tables hold it, and what becomes of values that neither JSON nor SQLite can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

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
        return _shown(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):  # in another order in every process
        return sorted((clean(item, depth + 1) for item in value), key=repr)
    if callable(getattr(type(value), "tolist", None)):  # numpy's numbers and arrays, pandas' columns
        return _listed(value, depth)
    return _shown(value)


def _listed(value: Any, depth: int) -> Any:
    try:
        return clean(value.tolist(), depth + 1)
    except Exception:  # somebody else's method of that name
        return _shown(value)


def _shown(value: Any) -> str:
    """A foreign object as text, even if its `__repr__` raises."""
    try:
        return repr(value)[:1000].encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__name__}>"
