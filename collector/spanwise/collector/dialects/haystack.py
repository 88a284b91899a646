"""Haystack's tracing: pipelines, components, agents.

If HAYSTACK_CONTENT_TRACING_ENABLED is set, spans have inputs and outputs as JSON. Otherwise they have only names and
durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.draft import DOCUMENT_KINDS, Draft, parse_json, parse_number, text_or_none, to_text
from spanwise.collector.records import JSON, Document

PIPELINE, COMPONENT, AGENT, STEP = "haystack.pipeline", "haystack.component", "haystack.agent", "haystack.agent.step"
# Attributes with inputs and outputs, in order of precedence
CONTENT = (
    (f"{STEP}.llm.input", f"{STEP}.llm.output"),
    (f"{STEP}.tool.input", f"{STEP}.tool.output"),
    (f"{AGENT}.input", f"{AGENT}.output"),
    (f"{COMPONENT}.input", f"{COMPONENT}.output"),
    (f"{PIPELINE}.input_data", f"{PIPELINE}.output_data"),
)
HAYSTACK_OPERATIONS = {
    f"{STEP}.llm": "llm",
    f"{STEP}.tool": "tool",
    f"{AGENT}.run": "agent",
    STEP: "chain",
    f"{PIPELINE}.run": "chain",
    f"{PIPELINE}.async_run": "chain",
}
# Suffixes of the class names of Haystack's components
CLASS_SUFFIXES = {
    "Retriever": "retriever",
    "Ranker": "reranker",
    "Generator": "llm",
    "Embedder": "embedding",
    "ToolInvoker": "tool",
    "Agent": "agent",
    "Evaluator": "evaluator",
}
CALL_KINDS = ("llm", "embedding")
EMPTY_FIELDS = ("blob", "embedding", "sparse_embedding")  # fields of a document that are left out if they are None
DOCUMENT_FIELDS = frozenset(("id", "content", "score", "meta"))


# names given by the program; they replace the span's name
NAME_ATTRIBUTES = (f"{COMPONENT}.name", "haystack.tool.name")


def haystack(draft: Draft) -> None:
    """Take a component's or tool's name, kind, inputs, outputs, documents, model, tokens and a pipeline's metadata."""
    if "haystack" not in draft.namespaces and draft.span.name not in HAYSTACK_OPERATIONS:
        return
    fields = draft.fields
    if name := next(filter(None, (text_or_none(draft.attributes.get(name)) for name in NAME_ATTRIBUTES)), None):
        fields.setdefault("name", name)
    component = text_or_none(draft.attributes.get(f"{COMPONENT}.type"))
    if component is None:
        kind = HAYSTACK_OPERATIONS.get(draft.span.name, "chain")
    else:
        kind = next((kind for ending, kind in CLASS_SUFFIXES.items() if component.endswith(ending)), "chain")
    kind = fields.setdefault("kind", kind)
    for input_name, output_name in CONTENT:
        if input_name in draft.attributes and "inputs" not in fields:
            fields["inputs"] = parse_json(draft.attributes.pop(input_name))
        if output_name in draft.attributes and "outputs" not in fields:
            fields["outputs"] = parse_json(draft.attributes.pop(output_name))
    outputs = fields.get("outputs")
    if isinstance(outputs, dict):
        if kind in DOCUMENT_KINDS and not fields.get("documents"):
            documents: JSON = outputs.get("documents")
            is_list = isinstance(documents, list) and all(isinstance(d, dict) and "content" in d for d in documents)
            fields["documents"] = tuple(map(_document, documents)) if is_list else ()
        if kind in CALL_KINDS:
            _take_reply_usage(draft, outputs)
    metadata_name = f"{PIPELINE}.metadata"
    metadata = parse_json(draft.attributes.get(metadata_name))
    if isinstance(metadata, dict) and fields.setdefault("metadata", metadata) is metadata:
        del draft.attributes[metadata_name]


def _document(document: Mapping[str, Any]) -> Document:
    """Read a document. Haystack puts metadata next to the document's fields, and keys that equal a field's name in
    `meta`.
    """
    metadata = {k: v for k, v in document.items() if k not in DOCUMENT_FIELDS and not (k in EMPTY_FIELDS and v is None)}
    content, id, meta = document["content"], document.get("id"), document.get("meta")
    if isinstance(meta, dict):
        metadata |= meta
    score = parse_number(document.get("score"))
    return Document("" if content is None else to_text(content), None if id is None else to_text(id), score, metadata)


def _take_reply_usage(draft: Draft, outputs: Mapping[str, JSON]) -> None:
    """Take model and tokens from the `meta` of each reply, or from the `meta` of the result."""
    replies, shared = outputs.get("replies"), outputs.get("meta")
    found: list[JSON] = (
        [reply.get("meta") for reply in replies if isinstance(reply, dict)] if isinstance(replies, list) else []
    )
    found += shared if isinstance(shared, list) else [shared]
    metas = [meta for meta in found if isinstance(meta, dict)]
    named = (text_or_none(meta.get("model")) for meta in metas)
    if model := next(filter(None, named), None):
        draft.fields.setdefault("model", model)
    usage_of_reply = next((usage for meta in metas if (usage := field_extraction.read_usage(meta.get("usage")))), None)
    if usage_of_reply:  # all replies belong to one request, and each repeats its tokens
        draft.fields.setdefault("usage", usage_of_reply)
