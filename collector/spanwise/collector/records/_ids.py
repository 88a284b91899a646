"""Ids of examples: made of what is asked, so that a corrected reference is a change of the same example."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from typing import Any

import orjson

from spanwise.collector.records._values import JSON

_STABLE = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_ODD = (b".0", b"e+1")  # in numbers that have another spelling; in texts they do no harm
_DEEPEST = 200
_CUT = "…"


def id_of_inputs(inputs: JSON, history: JSON = None) -> str:
    """32 hex digits over what is asked: the inputs, and the turns before them where there are any."""
    asked = [inputs, history] if history else [inputs]
    return hashlib.sha256(canonical(asked)).hexdigest()[:32]


def canonical(value: JSON) -> bytes:
    """One JSON text for all spellings of a value: keys sorted, 1.0 as 1, texts in NFC, NaN and infinities as null.

    Never raises: what JSON cannot hold is text, and what holds itself is cut.
    """
    try:
        text = orjson.dumps(value, option=_STABLE)
    except (TypeError, ValueError, RecursionError):  # integers beyond 64 bits, lone surrogates, foreign types, circles
        return orjson.dumps(_plain(value, ()), option=_STABLE)
    if not any(odd in text for odd in _ODD) and (text.isascii() or unicodedata.is_normalized("NFC", text.decode())):
        return text
    return orjson.dumps(_plain(orjson.loads(text), ()), option=_STABLE)


def _plain(value: Any, above: tuple[int, ...]) -> JSON:
    """The value in JSON's own types and one spelling; `above` are the ids of what it is in."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value.encode("utf-8", "replace").decode())
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else float(value)
    if len(above) > _DEEPEST or id(value) in above:
        return _CUT
    return _several(value, (*above, id(value)))


def _several(value: Any, above: tuple[int, ...]) -> JSON:
    if isinstance(value, Mapping):
        return {str(_plain(str(key), above)): _plain(item, above) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, above) for item in value]
    if isinstance(value, set | frozenset):  # in no order of their own, and in another one in every process
        return sorted((_plain(item, above) for item in value), key=repr)
    try:
        if callable(getattr(type(value), "tolist", None)):  # numpy's, as a store keeps them
            return _plain(value.tolist(), above)
        return _plain(orjson.loads(orjson.dumps(value, option=_STABLE)), above)
    except Exception:  # what has no JSON form; somebody else's `tolist`
        return _text(value)


def _text(value: object) -> str:
    """A foreign object as text, without its address in memory, even if its `__repr__` raises."""
    kind = type(value)
    if kind.__repr__ is object.__repr__:
        return f"<{kind.__module__}.{kind.__qualname__}>"
    try:
        return str(_plain(repr(value)[:1000], ()))
    except Exception:
        return f"<{kind.__qualname__}>"
