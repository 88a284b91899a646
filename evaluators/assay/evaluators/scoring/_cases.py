"""Cases from stored traces, and documents from the forms in which people write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from assay.collector.records import Case, Document, Example, Trace

CONTENT = ("content", "page_content", "text")
IDS = ("id", "doc_uri")
_FIELDS = {field.name for field in fields(Case)}


def case_of(trace: Trace, example: Example | None = None, **fields: Any) -> Case:
    """What evaluators see of a finished trace; `fields` take precedence over what the trace and the example hold."""
    root = trace.root
    known: dict[str, Any] = {
        "inputs": root.inputs,
        "outputs": root.outputs,
        "documents": trace.documents or None,
        "metadata": root.metadata,
    }
    return Case(trace=trace, example=example, **{**known, **_given(fields)})


def case_from(example: Example | None = None, **fields: Any) -> Case:
    """A case by hand: any field of `Case`; documents may be strings or dicts."""
    return Case(example=example, **_given(fields))


def documents_of(value: Iterable[Any]) -> tuple[Document, ...]:
    """Documents from strings, dicts (`content|page_content|text`, `id|doc_uri`, `score`, `metadata`) or documents."""
    if isinstance(value, str | Mapping):
        raise TypeError(f"documents are a list, not {value!r:.200}")
    if type(value) is not tuple:
        return tuple(map(document_of, value))
    for one in value:  # what a case holds: retrieval asks this as often as it counts
        if type(one) is not Document:
            return tuple(map(document_of, value))
    return value


def document_of(value: Any) -> Document:
    """One document; unknown fields of a dict become metadata."""
    if isinstance(value, Document):
        return value
    if isinstance(value, str):
        return Document(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    content = next((found for name in CONTENT if (found := getattr(value, name, None)) is not None), None)
    if not isinstance(content, str):
        raise TypeError(f"a document is a string, a dict with its content, or a document, not {value!r:.200}")
    metadata = getattr(value, "metadata", None) or getattr(value, "meta", None) or {}
    id = getattr(value, "id", None)
    return Document(content, None if id is None else str(id), getattr(value, "score", None), dict(metadata))


def _from_mapping(value: Mapping[str, Any]) -> Document:
    content = next((value[name] for name in CONTENT if value.get(name) is not None), "")
    id = next((value[name] for name in IDS if value.get(name) is not None), None)
    if not content and id is None:
        raise ValueError(f"a document has content or an id: {dict(value)!r:.200}")
    known = {*CONTENT, *IDS, "score", "metadata"}
    rest = {name: kept for name, kept in value.items() if name not in known}
    metadata = {**rest, **(value.get("metadata") or {})}
    if value.get("doc_uri") is not None:
        metadata["doc_uri"] = value["doc_uri"]
    return Document(str(content), None if id is None else str(id), value.get("score"), metadata)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    if unknown := sorted(set(given) - _FIELDS):
        raise TypeError(f"a case has no field {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
    for name in ("documents", "expected_documents"):
        if name in given:
            given[name] = documents_of(given[name])
    return given
