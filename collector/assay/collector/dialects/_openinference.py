"""OpenInference: `spec/semantic_conventions.md` of Arize's openinference."""

from __future__ import annotations

from typing import Any

from assay.collector.dialects._draft import Draft
from assay.collector.dialects._keys import namespace
from assay.collector.dialects._values import count, document, from_json, number, take_list, text
from assay.collector.records import JSON, Document, Usage
from assay.tracer import attributes as names

# "prompt" is a template being filled in, "decision" a branch being chosen: steps of a chain both
KINDS = {kind.upper(): kind for kind in names.KINDS} | {"PROMPT": "chain", "DECISION": "chain"}
MODELS = (
    "llm.response.model_name",
    "llm.model_name",
    "llm.request.model_name",
    "embedding.model_name",
    "reranker.model_name",
)
DOCUMENTS = (names.DOCUMENTS, "reranker.output_documents")
WHOSE = frozenset(map(namespace, (names.SESSION, names.USER, names.METADATA, names.TAGS)))
RARE = frozenset(("retrieval", "reranker", "llm", "embedding"))  # namespaces that plain spans do not have
DETAILS = {
    "llm.token_count.prompt_details.cache_read": "cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_write": "cache_creation.input_tokens",
    "llm.token_count.prompt_details.audio": "audio.input_tokens",
    "llm.token_count.completion_details.reasoning": "reasoning.output_tokens",
    "llm.token_count.completion_details.audio": "audio.output_tokens",
}


def openinference(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, model, tokens, cost, session, user, tags and metadata."""
    attributes, fields, namespaces = draft.attributes, draft.fields, draft.namespaces
    if "openinference" in namespaces:
        _kind(draft)
    if "input" in namespaces and names.INPUT_VALUE in attributes:
        fields["inputs"] = _value(attributes.pop(names.INPUT_VALUE), attributes.pop(names.INPUT_MIME, None))
    if "output" in namespaces and names.OUTPUT_VALUE in attributes:
        _outputs(draft)
    if not namespaces.isdisjoint(WHOSE):
        _whose(draft)
    if not namespaces.isdisjoint(RARE):
        _rare(draft)


def _kind(draft: Draft) -> None:
    value = draft.attributes.get(names.KIND)
    if isinstance(value, str) and (kind := KINDS.get(value.upper())):
        draft.fields["kind"] = kind
        del draft.attributes[names.KIND]


def _outputs(draft: Draft) -> None:
    """Take outputs; null stays where it was: there it tells a call that returned None from one that says nothing."""
    attributes = draft.attributes
    outputs = _value(attributes[names.OUTPUT_VALUE], attributes.get(names.OUTPUT_MIME))
    if outputs is not None:
        draft.fields["outputs"] = outputs
        del attributes[names.OUTPUT_VALUE]
        attributes.pop(names.OUTPUT_MIME, None)


def _value(value: JSON, mime: JSON) -> JSON:
    return from_json(value) if mime == "application/json" else value


def _whose(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    if session := text(attributes.get(names.SESSION)):
        fields["session_id"] = session
        del attributes[names.SESSION]
    if user := text(attributes.get(names.USER)):
        fields["user_id"] = user
        del attributes[names.USER]
    if names.METADATA in attributes and isinstance(metadata := from_json(attributes[names.METADATA]), dict):
        fields["metadata"] = metadata
        del attributes[names.METADATA]
    if isinstance(tags := attributes.get(names.TAGS), list):
        fields["tags"] = tuple(str(tag) for tag in tags)
        del attributes[names.TAGS]


def _rare(draft: Draft) -> None:
    if "retrieval" in draft.namespaces or "reranker" in draft.namespaces:
        retrieved = _documents(draft.attributes)
        draft.fields.setdefault("documents", retrieved)
    _model(draft)
    if "llm" in draft.namespaces:
        _tokens(draft)
        _messages(draft)


def _documents(attributes: dict[str, Any]) -> tuple[Document, ...]:
    for prefix in DOCUMENTS:
        if listed := take_list(attributes, prefix, "document"):
            return tuple(retrieved for retrieved in map(document, listed) if retrieved)
    return ()


def _model(draft: Draft) -> None:
    for name in MODELS:
        if (model := text(draft.attributes.get(name))) and draft.fields.setdefault("model", model) == model:
            del draft.attributes[name]


def _tokens(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    given = count(attributes.get("llm.token_count.prompt"))
    made = count(attributes.get("llm.token_count.completion"))
    if given is not None or made is not None:
        fields["usage"] = Usage(given or 0, made or 0, _details(attributes))
        for name in ("llm.token_count.prompt", "llm.token_count.completion"):
            attributes.pop(name, None)
        if attributes.get("llm.token_count.total") == (given or 0) + (made or 0):
            del attributes["llm.token_count.total"]
    if (cost := number(attributes.get("llm.cost.total"))) is not None:
        fields.setdefault("cost", cost)
        del attributes["llm.cost.total"]


def _details(attributes: dict[str, Any]) -> dict[str, int]:
    counts = {name: count(attributes.pop(key)) for key, name in DETAILS.items() if key in attributes}
    return {name: tokens for name, tokens in counts.items() if tokens is not None}


def _messages(draft: Draft) -> None:
    """Messages stand in for inputs and outputs that were not given; otherwise they stay attributes."""
    attributes, fields = draft.attributes, draft.fields
    if "inputs" not in fields and (messages := take_list(attributes, "llm.input_messages", "message")):
        fields["inputs"] = messages
    if "outputs" not in fields and (messages := take_list(attributes, "llm.output_messages", "message")):
        fields["outputs"] = messages
