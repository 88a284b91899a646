"""Retrieved documents by duck typing: strings, dicts, and the classes of LangChain, LlamaIndex and Haystack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import orjson

from spanwise.tracer import attributes as names

Fields: TypeAlias = dict[str, Any]  # content, id, score, metadata

_MOST = 1000  # documents looked at on the caller's thread, whose time is bounded
_CONTENT = ("content", "page_content", "text")
_ID = ("id", "doc_uri", "id_", "node_id")
_METADATA = ("metadata", "meta")
_REPR = "<NodeWithScore("  # LlamaIndex's nodes as its instrumentor writes them: they name texts and hold none
_LISTS = ("documents", "source_nodes", "nodes", "results")


def readable(value: Any) -> Any:
    """What a retriever returned, with document objects turned into dicts; plain values are returned as they are."""
    try:
        return _readable(value)
    except Exception:  # a class that answers every question with an exception
        return value


def _readable(value: Any) -> Any:
    if isinstance(value, Mapping):
        key = next((k for k in _LISTS if isinstance(value.get(k), (list, tuple))), None)
        return value if key is None else {**value, key: readable(value[key])}
    if not isinstance(value, (list, tuple)):
        return value
    if all(type(v) in (str, dict) for v in value[:_MOST]):
        return value
    return [*map(_guarded, value[:_MOST]), *value[_MOST:]]


def _guarded(value: Any) -> Any:
    try:
        return _as_dict(value)
    except Exception:  # a property of the document raised: keep what the general serialiser makes of it
        return value


def _as_dict(value: Any) -> Any:
    if isinstance(value, (str, Mapping)):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], (int, float)):  # (document, score)
        inner = _as_dict(value[0])
        return {**inner, "score": value[1]} if isinstance(inner, dict) else value
    return document(value) or value


def document(value: Any, nested: bool = False) -> Fields | None:
    """`{content, id, score, metadata}` of one document, None if the value is none. Absent fields are None or {}."""
    if isinstance(value, str):
        if value.startswith(_REPR):
            return None
        return {"content": value, "id": None, "score": None, "metadata": {}}
    inner = _get(value, ("node", "document"))
    if not (nested or inner is None or isinstance(inner, (str, int, float))):  # NodeWithScore: the score is outside
        fields = document(inner, nested=True)
        return fields and {**fields, "score": _score(_get(value, ("score",)), fields["score"])}
    content = _get(value, _CONTENT)
    if content is None:
        if not _is_empty(value):
            return None
        content = ""
    metadata = _get(value, _METADATA)
    return {
        "content": content if isinstance(content, str) else str(content),
        "id": _text(_get(value, _ID) or _get(metadata, ("doc_uri", "id"))),
        "score": _score(_get(value, ("score",)), None),
        "metadata": dict(metadata) if isinstance(metadata, Mapping) else {},
    }


def _is_empty(value: Any) -> bool:
    """Whether it is a document all the same: a dict with an id or content that is None, an object with such content."""
    if isinstance(value, Mapping):
        return any(key in value for key in (*_CONTENT, *_ID))
    missing = object()
    return any(getattr(value, key, missing) is None for key in _CONTENT)


def _get(value: Any, keys: Iterable[str]) -> Any:
    if isinstance(value, Mapping):
        return next((value[k] for k in keys if value.get(k) is not None), None)
    values = (getattr(value, k, None) for k in keys if value is not None)
    return next((v for v in values if v is not None and not callable(v)), None)


def _score(value: Any, otherwise: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None if otherwise is None else float(otherwise)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def flatten(text: str) -> dict[str, Any]:
    """OpenInference attributes of the documents in a JSON text; empty if it holds none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if isinstance(value, dict):
        value = next((value[k] for k in _LISTS if isinstance(value.get(k), list)), [])
    documents = [document(v) for v in value] if isinstance(value, list) else []
    flat: dict[str, Any] = {}
    for i, fields in enumerate(d for d in documents if d is not None):
        flat.update(_flat(f"{names.DOCUMENTS}.{i}.document.", fields))
    return flat


def _flat(prefix: str, document: Fields) -> dict[str, Any]:
    flat = {prefix + k: document[k] for k in ("id", "content", "score") if document[k] is not None}
    if document["metadata"]:
        flat[prefix + "metadata"] = orjson.dumps(document["metadata"]).decode()
    return flat
