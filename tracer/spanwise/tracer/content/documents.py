"""Retrieved documents: conversion from LangChain, LlamaIndex and Haystack, OpenInference attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import orjson

from spanwise.tracer import attribute_names as names

DocumentFields: TypeAlias = dict[str, Any]  # content, id, score, metadata

# maximum number of documents that are converted: the conversion blocks the caller's thread
_MAX_DOCUMENTS = 1000
_CONTENT_FIELDS = ("content", "page_content", "text")
_ID_FIELDS = ("id", "doc_uri", "id_", "node_id")
_METADATA_FIELDS = ("metadata", "meta")
# LlamaIndex's instrumentor records nodes as such reprs, which contain no text of the document
_NODE_REPR_PREFIX = "<NodeWithScore("
_NONE = type(None)
_DOCUMENT_LIST_FIELDS = ("documents", "source_nodes", "nodes", "results")


def convert_documents(value: Any) -> Any:
    """Return the result of a retriever with document objects converted to dicts.

    Plain values are returned unchanged.
    """
    try:
        if isinstance(value, Mapping):
            key = next((k for k in _DOCUMENT_LIST_FIELDS if isinstance(value.get(k), (list, tuple))), None)
            return value if key is None else {**value, key: convert_documents(value[key])}
        if not isinstance(value, (list, tuple)) or all(type(v) in (str, dict) for v in value[:_MAX_DOCUMENTS]):
            return value
        return [*map(_convert_item, value[:_MAX_DOCUMENTS]), *value[_MAX_DOCUMENTS:]]
    except Exception:  # the class of the value raises on every attribute access
        return value


def _convert_item(value: Any) -> Any:
    try:
        return _document_to_dict(value)
    except Exception:  # a property of the document raised: keep the general serializer's result
        return value


def _document_to_dict(value: Any) -> Any:
    if isinstance(value, (str, Mapping)):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], (int, float)):  # (document, score)
        inner = _document_to_dict(value[0])
        return {**inner, "score": value[1]} if isinstance(inner, dict) else value
    return parse_document(value) or value


def parse_document(value: Any, nested: bool = False) -> DocumentFields | None:
    """Return `{content, id, score, metadata}` of a document, or None if the value is not a document.

    Absent fields are None or {}.
    """
    if isinstance(value, str):
        if value.startswith(_NODE_REPR_PREFIX):
            return None
        return {"content": value, "id": None, "score": None, "metadata": {}}
    inner = _find_first_value(value, ("node", "document"))
    # NodeWithScore: the outer object has the score
    if not (nested or inner is None or isinstance(inner, (str, int, float))):
        fields = parse_document(inner, nested=True)
        return fields and {**fields, "score": _to_score(_find_first_value(value, ("score",)), fields["score"])}
    content = _find_first_value(value, _CONTENT_FIELDS)
    if content is None:
        if not _is_empty(value):
            return None
        content = ""
    metadata = _find_first_value(value, _METADATA_FIELDS)
    id = _find_first_value(value, _ID_FIELDS) or _find_first_value(metadata, ("doc_uri", "id"))
    return {
        "content": content if isinstance(content, str) else str(content),
        "id": None if id is None else str(id),
        "score": _to_score(_find_first_value(value, ("score",)), None),
        "metadata": dict(metadata) if isinstance(metadata, Mapping) else {},
    }


def _is_empty(value: Any) -> bool:
    """Return whether a value without content is still a document.

    A dict is a document if it has a key for an id or content. An object is a document if its content is None.
    """
    if isinstance(value, Mapping):
        return any(key in value for key in (*_CONTENT_FIELDS, *_ID_FIELDS))
    missing = object()
    return any(getattr(value, key, missing) is None for key in _CONTENT_FIELDS)


def _find_first_value(value: Any, keys: Iterable[str]) -> Any:
    if isinstance(value, Mapping):
        return next((value[k] for k in keys if value.get(k) is not None), None)
    values = (getattr(value, k, None) for k in keys if value is not None)
    return next((v for v in values if v is not None and not callable(v)), None)


def _to_score(value: Any, otherwise: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None if otherwise is None else float(otherwise)


class DocumentList(list[DocumentFields]):
    """List of documents. `text` is the JSON text from which they were read if that has their usual fields only."""

    text: str | None = None


def read_document_list(text: str) -> DocumentList:
    """Return the documents in a JSON text, `[{content, id, score, metadata}]`. Empty if it contains no documents."""
    found = DocumentList()
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return found
    if isinstance(value, list) and all(recorded := list(map(_read_recorded, value))):
        found.text = text
        found.extend(recorded)  # type: ignore[arg-type]
        return found
    if isinstance(value, dict):
        value = next((value[k] for k in _DOCUMENT_LIST_FIELDS if isinstance(value.get(k), list)), [])
    documents = map(parse_document, value if isinstance(value, list) else ())
    found.extend(document for document in documents if document is not None)
    return found


_DOCUMENT_FIELDS = frozenset(("content", "id", "score", "metadata"))


def _read_recorded(value: Any) -> DocumentFields | None:
    """Return a document that already has the usual fields, which is the usual case; None for any other value."""
    if type(value) is not dict or not value.keys() <= _DOCUMENT_FIELDS or type(value.get("content")) is not str:
        return None
    get = value.get
    id, score, metadata = get("id"), get("score"), get("metadata")
    if type(id) is str and type(score) in (float, _NONE) and type(metadata) in (dict, _NONE):
        return {"content": value["content"], "id": id, "score": score, "metadata": metadata or {}}
    return None


def normalize_documents(text: str) -> str | None:
    """Return the documents in a JSON text as `[{content, id, score, metadata}]`, a JSON text.

    Return None if the text contains no documents, or is already a list of texts and of objects with known names, from
    which a collector reads the same documents.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, list) and all(map(_is_plain_document, value)):
        return None
    documents = read_document_list(text)
    return orjson.dumps(documents).decode() if documents else None


def _is_plain_document(value: Any) -> bool:
    if isinstance(value, str):
        return not value.startswith(_NODE_REPR_PREFIX)
    return (
        isinstance(value, dict)
        and any(type(value.get(key)) is str for key in _CONTENT_FIELDS)
        and "node" not in value
        and "document" not in value
    )


def flatten_documents(documents: Iterable[DocumentFields]) -> dict[str, Any]:
    """Return the OpenInference attributes of documents."""
    flat: dict[str, Any] = {}
    for i, fields in enumerate(documents):
        prefix = f"{names.DOCUMENTS}.{i}.document."
        for key in ("id", "content", "score"):
            if fields[key] is not None:
                flat[prefix + key] = fields[key]
        if fields["metadata"]:
            flat[prefix + "metadata"] = orjson.dumps(fields["metadata"]).decode()
    return flat
