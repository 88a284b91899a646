"""What is forgiven in a reply, and what is wrong with it, in words that its author can act on.

Forgiven are the case of a label, and spaces, quotes and punctuation around it; a number or a truth in quotes; the case
of a property's name; properties that nobody asked for, unless they are numbers. Another word of the same
meaning is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from spanwise.collector.records import JSON

DEEPEST = 32
_AROUND = " \t\r\n\"'“”„‘’«»`*_.,;:!()[]{}<>"
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_NO_DOUBT = object()


def tidied(value: Any, schema: Any, notes: list[str], deep: int = 0) -> Any:
    """A value with what is forgiven put right; `notes` gets what that was."""
    if not isinstance(schema, Mapping) or deep > DEEPEST:
        return value
    if isinstance(schema.get("enum"), list | tuple):
        return _label(value, schema["enum"], notes)
    if isinstance(value, Mapping) and isinstance(schema.get("properties"), Mapping):
        return _object(value, schema, notes, deep)
    if isinstance(value, list) and "items" in schema:
        return [tidied(member, schema["items"], notes, deep + 1) for member in value]
    return _plain(value, schema.get("type"), notes)


def wrong(value: Any, schema: Mapping[str, JSON]) -> str | None:
    """What the schema has against a value."""
    from jsonschema.exceptions import best_match

    if _is_endless(value):
        return "a number in the reply is too large to be one"
    error = best_match(_validator(orjson.dumps(schema)).iter_errors(value))
    return None if error is None else _words(error)


def _is_endless(value: Any) -> bool:
    """Whether there is an infinite number in it, as 1e999 is read."""
    if isinstance(value, Mapping):
        return any(map(_is_endless, value.values()))
    if isinstance(value, list):
        return any(map(_is_endless, value))
    return isinstance(value, float) and not math.isfinite(value)


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], notes: list[str], deep: int) -> dict[str, Any]:
    """An object in the order of the schema; two names that differ by case alone stay as they are, which is wrong."""
    properties = schema["properties"]
    known = {name.casefold(): name for name in properties}
    named: dict[str, Any] = {}
    for name, member in value.items():
        meant = name if name in properties else known.get(str(name).strip().casefold(), name)
        if meant in named and named[meant] != member:
            return dict(value)
        named[meant] = member
    if named.keys() != value.keys():
        notes.append("forgave the case of a property's name")
    closed = schema.get("additionalProperties") is False
    unknown = [name for name in named if name not in properties and not _is_one_too_many(name, properties)]
    extra = sorted(map(str, unknown)) if closed else []
    if extra:
        notes.append(f"left out what nobody asked for: {', '.join(extra[:5])}")
    ordered = [name for name in properties if name in named]
    others = [name for name in named if name not in properties and not (closed and name in unknown)]
    return {name: tidied(named[name], properties.get(name), notes, deep + 1) for name in (*ordered, *others)}


def _is_one_too_many(name: Any, properties: Mapping[str, Any]) -> bool:
    """Whether it is a number among numbered properties: who says more than was asked for may have counted otherwise."""
    return str(name).isdigit() and all(known.isdigit() for known in properties)


def _label(value: Any, labels: Sequence[Any], notes: list[str]) -> Any:
    """The label that was meant, or the value as it is."""
    if any(type(label) is type(value) and label == value for label in labels):
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not _bare(value):
        return value
    meant = [label for label in labels if _bare(label) == _bare(value)]
    if len(meant) != 1:
        return value
    notes.append(f"took {value!r:.60} for {meant[0]!r}")
    return meant[0]


def _bare(label: Any) -> str:
    """A label without what is forgiven; a minus belongs to a number."""
    text = f"{label:g}" if isinstance(label, float) else str(label)
    return text.strip(_AROUND).casefold()


def _plain(value: Any, kind: Any, notes: list[str]) -> Any:
    """A number or a truth that stands in quotes."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    read: Any = _NO_DOUBT
    if kind in ("number", "integer") and _NUMBER.fullmatch(text):
        read = float(text) if kind == "number" or "." in text else int(text)
    if kind == "boolean" and text.casefold() in ("true", "false"):
        read = text.casefold() == "true"
    if read is _NO_DOUBT:
        return value
    notes.append(f"took {value!r:.60} for {read!r}")
    return read


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(orjson.loads(schema))


def _words(error: Any) -> str:
    where = ".".join(map(str, error.absolute_path))
    subject = repr(where) if where else "the reply"
    if labels := error.schema.get("enum"):  # says more than its type
        return f"{subject} is {_shown(error.instance)}, which is none of {', '.join(map(_shown, labels))}"
    if error.validator == "required":
        lacking = [name for name in error.validator_value if name not in error.instance]
        return f"{subject} lacks {', '.join(map(repr, lacking))}"
    if error.validator == "type":
        return f"{subject} is {_shown(error.instance)}, which is no {_kinds(error.validator_value)}"
    return f"{subject}: {error.message:.300}"


def _kinds(kinds: Any) -> str:
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _shown(value: Any) -> str:
    told = orjson.dumps(value, default=str).decode()
    return told if len(told) <= 120 else told[:120] + "…"
