"""Documents from the forms in which people write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spanwise.collector.records import Document

CONTENT = ("content", "page_content", "text")
IDS = ("id", "doc_uri")


def documents_of(value: Iterable[Any]) -> tuple[Document, ...]:
    """Documents from strings, dicts (`content|page_content|text`, `id|doc_uri`, `score`, `metadata`) or documents.

    Raises `TypeError` for what is no list, and what `document_of` raises.
    """
    if isinstance(value, str | Mapping):
        raise TypeError(f"documents are a list, not {value!r:.200}")
    if type(value) is not tuple:
        return tuple(map(document_of, value))
    for member in value:  # what a case holds: retrieval asks this as often as it counts
        if type(member) is not Document:
            return tuple(map(document_of, value))
    return value


def document_of(value: Any) -> Document:
    """One document; unknown fields of a dict become metadata. Content that is None or "" makes an empty document.

    Raises `TypeError` for what is no document, `ValueError` for a dict with fields neither for content nor for an id.
    """
    if isinstance(value, Document):
        return value
    if isinstance(value, str):
        return Document(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    return _from_object(value)


def _from_object(value: Any) -> Document:
    """Documents of LangChain, LlamaIndex and Haystack."""
    contents = [getattr(value, name) for name in CONTENT if hasattr(value, name)]
    content = next((text for text in contents if text is not None), "" if contents else None)
    if not isinstance(content, str):
        raise TypeError(f"a document is a string, a dict with its content, or a document, not {value!r:.200}")
    metadata = getattr(value, "metadata", None) or getattr(value, "meta", None) or {}
    id = next((id for name in (*IDS, "id_", "node_id") if (id := getattr(value, name, None)) is not None), None)
    return Document(content, None if id is None else str(id), getattr(value, "score", None), dict(metadata))


def _from_mapping(value: Mapping[str, Any]) -> Document:
    content = next((value[name] for name in CONTENT if value.get(name) is not None), "")
    id = next((value[name] for name in IDS if value.get(name) is not None), None)
    if not any(name in value for name in (*CONTENT, *IDS)):
        raise ValueError(f"a document has content or an id: {dict(value)!r:.200}")
    known = {*CONTENT, *IDS, "score", "metadata"}
    rest = {name: kept for name, kept in value.items() if name not in known}
    metadata = {**rest, **(value.get("metadata") or {})}
    if value.get("doc_uri") is not None:
        metadata["doc_uri"] = value["doc_uri"]
    return Document(str(content), None if id is None else str(id), value.get("score"), metadata)
