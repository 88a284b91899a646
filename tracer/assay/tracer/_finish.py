"""What is derived of a span after it has ended, away from the caller's thread."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from assay.tracer import _attributes as names
from assay.tracer import _errors
from assay.tracer._documents import flatten
from assay.tracer._span import LiveSpan

_WITH_DOCUMENTS = ("RETRIEVER", "RERANKER")


def finish(span: ReadableSpan) -> ReadableSpan:
    """The span as it leaves: documents in OpenInference's flat form, drops of its trace counted. Never raises."""
    if isinstance(span, LiveSpan) and not span.finished:
        span.finished = True
        try:
            _derive(span, span._attributes)
        except Exception as error:
            _errors.note("finish", error)
    return span


def _derive(span: LiveSpan, attributes: dict[str, Any]) -> None:
    if span.local.dropped and names.LOCAL_ROOT in attributes:
        attributes[names.SPANS_DROPPED] = span.local.dropped
    documents = attributes.pop(names.DOCUMENTS_JSON, None)
    if documents is None and attributes.get(names.KIND) in _WITH_DOCUMENTS:
        documents = attributes.get(names.OUTPUT_VALUE)
    if isinstance(documents, str) and f"{names.DOCUMENTS}.0.document.content" not in attributes:
        attributes.update(flatten(documents))
