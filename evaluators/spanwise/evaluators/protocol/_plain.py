"""What evaluators see of a value, wherever it comes from: of a task, of a file, or given by hand."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

import orjson

from spanwise.collector.records import JSON
from spanwise.tracer.spans import to_json

LARGEST = 2**26  # bytes of a value that evaluators see; what is stored of it has the tracer's limit
MEMBERS = 2**22  # values in containers, all levels together
SMALLEST = -(2**63)  # of the whole numbers that JSON keeps as such
_AS_THEY_ARE = frozenset({str, bool, type(None)})


def plain(value: Any) -> JSON:
    """A value as it is read back from a trace later, but never cut short: JSON's types and nothing else.

    numpy's scalars and arrays, tensors and pandas' columns become numbers and lists, a DataFrame a dict per row;
    models, dataclasses and named tuples dicts; enums their values; sets and tuples lists; dates and decimals texts.
    What is missing (`pandas.NA`, NaN) becomes None, a number too large for 64 bits a text. Anything else is its `repr`.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE or (kind is float and isfinite(value)) or (kind is int and SMALLEST <= value < -SMALLEST):
        return value
    if kind is not dict and hasattr(kind, "tolist"):
        value = _listed(value)
        if type(value) in _AS_THEY_ARE:
            return value
    return orjson.loads(to_json(value, LARGEST, MEMBERS, inf))


def _listed(value: Any) -> Any:
    """Arrays and numpy's scalars in Python's types, which JSON takes many times faster than item by item."""
    try:
        return value.tolist()
    except Exception:  # somebody else's method of that name; `to_json` says what happened
        return value
