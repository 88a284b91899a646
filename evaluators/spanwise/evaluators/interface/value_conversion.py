"""Conversion of values to the form that evaluators see: plain JSON, documents, chat messages, infinite numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf, isfinite
from typing import Any

import orjson

from spanwise.collector.records import JSON, Document
from spanwise.tracer.content.serialization import to_json

MAX_BYTES = 2**26  # maximum bytes of a value for evaluators; the tracer's limit for stored values is separate
MAX_MEMBERS = 2**22  # maximum number of values in containers, over all levels
MIN_INTEGER = -(2**63)  # lowest integer of 64 bits; integers outside this range become text
_JSON_SCALARS = frozenset({str, bool, type(None)})


def to_plain(value: Any) -> JSON:
    """Return a value with only the types of JSON. A trace that is read later has the same types, but may be truncated.

    - Scalars of numpy become numbers; arrays of numpy, tensors and columns of pandas become lists; a DataFrame becomes
      a list with one dict per row.
    - Models, dataclasses and named tuples become dicts. Enums become their values. Sets and tuples become lists. Dates
      and decimals become text.
    - Missing values (`pandas.NA`, NaN) become None. Integers above 64 bits become text. Anything else becomes its
      `repr`.
    """
    kind = type(value)
    if (
        kind in _JSON_SCALARS
        or (kind is float and isfinite(value))
        or (kind is int and MIN_INTEGER <= value < -MIN_INTEGER)
    ):
        return value
    if kind is not dict and hasattr(kind, "tolist"):
        # converting arrays and numpy scalars as a whole is many times faster than item by item
        with suppress(Exception):  # an unrelated method has this name; `to_json` handles the value
            value = value.tolist()
        if type(value) in _JSON_SCALARS:
            return value
    return orjson.loads(to_json(value, MAX_BYTES, MAX_MEMBERS, inf))


CONTENT_FIELDS = ("content", "page_content", "text")
ID_FIELDS = ("id", "doc_uri")


def to_documents(value: Iterable[Any]) -> tuple[Document, ...]:
    """Return documents for a list of strings, dicts or documents.

    Dicts have the fields `content|page_content|text`, `id|doc_uri`, `score` and `metadata`. Raises `TypeError` for a
    value that is not a list, and the errors of `to_document`.
    """
    if isinstance(value, str | Mapping):
        raise TypeError(f"documents must be a list, got {value!r:.200}")
    if type(value) is not tuple:
        return tuple(map(to_document, value))
    for member in value:  # fast path, because retrieval evaluators call this often with the documents of cases
        if type(member) is not Document:
            return tuple(map(to_document, value))
    return value


def to_document(value: Any) -> Document:
    """Return one document. Unknown fields of a dict become metadata.

    If the content is None or "", the document is empty.

    Raises `TypeError` for other types, `ValueError` for a dict with neither a content nor an id field.
    """
    if isinstance(value, Document):
        return value
    if isinstance(value, str):
        return Document(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    return _from_object(value)


def _from_object(value: Any) -> Document:
    """Return the document of a LangChain, LlamaIndex or Haystack object."""
    contents = [getattr(value, name) for name in CONTENT_FIELDS if hasattr(value, name)]
    content = next((text for text in contents if text is not None), "" if contents else None)
    if not isinstance(content, str):
        raise TypeError(f"a document must be a string, a dict or a Document, got {value!r:.200}")
    metadata = getattr(value, "metadata", None) or getattr(value, "meta", None) or {}
    id = next((id for name in (*ID_FIELDS, "id_", "node_id") if (id := getattr(value, name, None)) is not None), None)
    return Document(content, None if id is None else str(id), getattr(value, "score", None), dict(metadata))


def _from_mapping(value: Mapping[str, Any]) -> Document:
    content = next((value[name] for name in CONTENT_FIELDS if value.get(name) is not None), "")
    id = next((value[name] for name in ID_FIELDS if value.get(name) is not None), None)
    if not any(name in value for name in (*CONTENT_FIELDS, *ID_FIELDS)):
        raise ValueError(f"a document needs content or an id, got {dict(value)!r:.200}")
    known = {*CONTENT_FIELDS, *ID_FIELDS, "score", "metadata"}
    others = {name: member for name, member in value.items() if name not in known}
    metadata = {**others, **(value.get("metadata") or {})}
    if value.get("doc_uri") is not None:
        metadata["doc_uri"] = value["doc_uri"]
    return Document(str(content), None if id is None else str(id), value.get("score"), metadata)


_ROLES = {"human": "user", "ai": "assistant"}  # LangChain's names of message roles


def to_messages(value: JSON) -> list[dict[str, Any]]:
    """Return messages in OpenAI's format. Accepts that format and LangChain's serialized one; returns [] for other
    values.
    """
    if isinstance(value, Mapping):
        value = value.get("messages", [value])
    if not isinstance(value, list | tuple) or not value:
        return []
    read = [_to_message(item) for item in value]
    return [message for message in read if message] if all(read) else []


def unwrap_single_value(value: JSON) -> JSON:
    """Return the only value of a dict with one key; other values unchanged."""
    return next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else value


def _to_message(value: JSON) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("data"), Mapping):  # LangChain: {"type": "human", "data": {"content": …}}
        value = {"role": value.get("type"), **value["data"]}
    elif isinstance(value.get("kwargs"), Mapping):  # LangChain's constructor form
        name = str((value.get("id") or [""])[-1]).removesuffix("Message").removesuffix("MessageChunk").lower()
        value = {"role": name, **value["kwargs"]}
    role = value.get("role") or value.get("type")
    if not isinstance(role, str) or ("content" not in value and "tool_calls" not in value):
        return None
    keys = ("content", "name", "tool_calls", "tool_call_id")
    return {"role": _ROLES.get(role, role), **{key: value[key] for key in keys if value.get(key) is not None}}


_NUMBER_BY_WORD = {"Infinity": inf, "-Infinity": -inf}
_WORD_BY_NUMBER = {number: word for word, number in _NUMBER_BY_WORD.items()}


def encode_infinities(value: Any) -> Any:
    """Return the value with infinite numbers replaced by texts, in dicts and lists at any depth."""
    if isinstance(value, float):
        return _WORD_BY_NUMBER.get(value, value)
    if isinstance(value, Mapping):
        return {name: encode_infinities(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = map(encode_infinities, value)
        return tuple(inner) if isinstance(value, tuple) else list(inner)
    return value


def decode_infinity(value: Any) -> Any:
    """Convert the text "Infinity" or "-Infinity" to a number; return other values unchanged."""
    return _NUMBER_BY_WORD.get(value, value) if isinstance(value, str) else value


def to_stored_value(value: Any) -> Any:
    """Return a value in the form in which a store returns it. Values of types that JSON lacks become text."""
    return orjson.loads(orjson.dumps(value, default=_to_json_value, option=orjson.OPT_NON_STR_KEYS))


def _to_json_value(value: Any) -> Any:
    """Convert a value that JSON lacks: scalars and arrays of numpy and similar libraries to numbers and lists, others
    to text.
    """
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    return str(value)
