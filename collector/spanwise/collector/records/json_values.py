"""JSON values in records: field types and canonical JSON for content-derived ids."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import orjson

JSON: TypeAlias = Any  # None, bool, int, float, str, list or dict of these
Status = Literal["unset", "ok", "error", "cancelled"]
Outcome = Literal["score", "error", "skip"]
Source = Literal["code", "model", "human"]
DatasetKind = Literal["kv", "llm", "chat"]
Verdict = Literal[  # "filtered" and "sampled_out" are computed and never stored
    "filtered",
    "sampled_out",
    "waiting",
    "throttled",
    "over_budget",
    "running",
    "scored",
    "skipped",
    "failed",
    "superseded",
]
RuleTarget = Literal["trace", "span", "document", "session"]
Scope = Literal["live", "experiments", "both"]
BackfillState = Literal["running", "paused", "cancelled", "done"]
Period = Literal["minute", "day", "month"]
SpendGroup = Literal["project", "rule", "evaluator", "model"]
QueueStatus = Literal["waiting", "done", "skipped"]
DeliveryOutcome = Literal["delivered", "retry", "gave up"]


_CANONICAL_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
# parts of numbers that canonical JSON writes differently; a match inside a string does no harm
_NUMBER_VARIANTS = (b".0", b"e+1")
_MAX_DEPTH = 200
_ELLIPSIS = "…"


def hash_inputs(inputs: JSON, history: JSON = None) -> str:
    """Return a hash of the inputs and, if there are any, of the preceding turns, as 32 hex digits."""
    values = [inputs, history] if history else [inputs]
    return hashlib.sha256(canonical_json(values)).hexdigest()[:32]


def canonical_json(value: JSON) -> bytes:
    """Return the canonical JSON text of a value: sorted keys, 1.0 as 1, texts in NFC, NaN and infinities as null.

    Never raises: values that JSON cannot represent become texts, and cycles are cut.
    """
    try:
        text = orjson.dumps(value, option=_CANONICAL_OPTIONS)
    except (TypeError, ValueError, RecursionError):  # integers beyond 64 bits, lone surrogates, foreign types, cycles
        return orjson.dumps(_canonical_value(value, ()), option=_CANONICAL_OPTIONS)
    if not any(odd in text for odd in _NUMBER_VARIANTS) and (
        text.isascii() or unicodedata.is_normalized("NFC", text.decode())
    ):
        return text
    return orjson.dumps(_canonical_value(orjson.loads(text), ()), option=_CANONICAL_OPTIONS)


def _canonical_value(value: Any, above: tuple[int, ...]) -> JSON:
    """Return the value in JSON's own types and canonical form. `above` holds the `id()` of each enclosing container."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value.encode("utf-8", "replace").decode())
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else float(value)
    if len(above) > _MAX_DEPTH or id(value) in above:
        return _ELLIPSIS
    return _canonical_container(value, (*above, id(value)))


def _canonical_container(value: Any, above: tuple[int, ...]) -> JSON:
    if isinstance(value, Mapping):
        return {str(_canonical_value(str(key), above)): _canonical_value(item, above) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical_value(item, above) for item in value]
    if isinstance(value, set | frozenset):  # the order of a set differs between processes
        return sorted((_canonical_value(item, above) for item in value), key=repr)
    try:
        if callable(getattr(type(value), "tolist", None)):  # numpy arrays, in the form that stores use
            return _canonical_value(value.tolist(), above)
        return _canonical_value(orjson.loads(orjson.dumps(value, option=_CANONICAL_OPTIONS)), above)
    except Exception:  # the value has no JSON form, or its `tolist` raises
        return _object_text(value)


def _object_text(value: object) -> str:
    """Return an object of an unknown type as text without its memory address, even if its `__repr__` raises."""
    kind = type(value)
    if kind.__repr__ is object.__repr__:
        return f"<{kind.__module__}.{kind.__qualname__}>"
    try:
        return str(_canonical_value(repr(value)[:1000], ()))
    except Exception:
        return f"<{kind.__qualname__}>"
