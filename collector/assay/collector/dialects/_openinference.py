"""OpenInference: `spec/semantic_conventions.md` of Arize's openinference."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

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
RARE = frozenset(("retrieval", "reranker", "llm", "embedding"))  # namespaces that plain spans do not have
DETAILS = {
    "llm.token_count.prompt_details.cache_read": "cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_write": "cache_creation.input_tokens",
    "llm.token_count.prompt_details.audio": "audio.input_tokens",
    "llm.token_count.completion_details.reasoning": "reasoning.output_tokens",
    "llm.token_count.completion_details.audio": "audio.output_tokens",
}


def read(attributes: dict[str, Any], draft: dict[str, Any], namespaces: Set[str]) -> None:
    """Take kind, inputs, outputs, documents, model, tokens, cost, session, user, tags and metadata."""
    if "openinference" in namespaces:
        _kind(attributes, draft)
    if "input" in namespaces and names.INPUT_VALUE in attributes:
        draft["inputs"] = _value(attributes.pop(names.INPUT_VALUE), attributes.pop(names.INPUT_MIME, None))
    if "output" in namespaces and names.OUTPUT_VALUE in attributes:
        draft["outputs"] = _value(attributes.pop(names.OUTPUT_VALUE), attributes.pop(names.OUTPUT_MIME, None))
    _whose(attributes, draft)
    if not namespaces.isdisjoint(RARE):
        _rare(attributes, draft, namespaces)


def _kind(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    kind = attributes.get(names.KIND)
    if isinstance(kind, str) and (found := KINDS.get(kind.upper())):
        draft["kind"] = found
        del attributes[names.KIND]


def _value(value: JSON, mime: JSON) -> JSON:
    return from_json(value) if mime == "application/json" else value


def _whose(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    if found := text(attributes.get(names.SESSION)):
        draft["session_id"] = found
        del attributes[names.SESSION]
    if found := text(attributes.get(names.USER)):
        draft["user_id"] = found
        del attributes[names.USER]
    if names.METADATA in attributes and isinstance(data := from_json(attributes[names.METADATA]), dict):
        draft["metadata"] = data
        del attributes[names.METADATA]
    if isinstance(tags := attributes.get(names.TAGS), list):
        draft["tags"] = tuple(str(tag) for tag in tags)
        del attributes[names.TAGS]


def _rare(attributes: dict[str, Any], draft: dict[str, Any], namespaces: Set[str]) -> None:
    if "retrieval" in namespaces or "reranker" in namespaces:
        found = _documents(attributes)
        draft.setdefault("documents", found)
    _model(attributes, draft)
    if "llm" in namespaces:
        _tokens(attributes, draft)
        _messages(attributes, draft)


def _documents(attributes: dict[str, Any]) -> tuple[Document, ...]:
    for prefix in DOCUMENTS:
        if found := take_list(attributes, prefix, "document"):
            return tuple(one for one in map(document, found) if one)
    return ()


def _model(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    for name in MODELS:
        if (found := text(attributes.get(name))) and draft.setdefault("model", found) == found:
            del attributes[name]


def _tokens(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    given = count(attributes.get("llm.token_count.prompt"))
    made = count(attributes.get("llm.token_count.completion"))
    if given is not None or made is not None:
        draft["usage"] = Usage(given or 0, made or 0, _details(attributes))
        for name in ("llm.token_count.prompt", "llm.token_count.completion"):
            attributes.pop(name, None)
        if attributes.get("llm.token_count.total") == (given or 0) + (made or 0):
            del attributes["llm.token_count.total"]
    if (cost := number(attributes.get("llm.cost.total"))) is not None:
        draft.setdefault("cost", cost)
        del attributes["llm.cost.total"]


def _details(attributes: dict[str, Any]) -> dict[str, int]:
    found = {name: count(attributes.pop(key)) for key, name in DETAILS.items() if key in attributes}
    return {name: value for name, value in found.items() if value is not None}


def _messages(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    """Messages stand in for inputs and outputs that were not given; otherwise they stay attributes."""
    if "inputs" not in draft and (messages := take_list(attributes, "llm.input_messages", "message")):
        draft["inputs"] = messages
    if "outputs" not in draft and (messages := take_list(attributes, "llm.output_messages", "message")):
        draft["outputs"] = messages
