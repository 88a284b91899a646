"""OpenTelemetry's GenAI conventions, v1.41.1: `model/gen-ai/registry.yaml` of semantic-conventions."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from assay.collector.dialects._values import count, documents, from_json, text
from assay.collector.records import Usage
from assay.tracer import attributes as names

KINDS = {
    "chat": "llm",
    "generate_content": "llm",
    "text_completion": "llm",
    "embeddings": "embedding",
    "retrieval": "retriever",
    "execute_tool": "tool",
    "create_agent": "agent",
    "invoke_agent": "agent",
    "invoke_workflow": "chain",
}
# Spans of these operations repeat what the model calls below them have used: counted there
SUMMED = ("create_agent", "invoke_agent", "invoke_workflow")
INPUTS = ("gen_ai.input.messages", "gen_ai.tool.call.arguments", "gen_ai.retrieval.query.text")
OUTPUTS = ("gen_ai.output.messages", "gen_ai.tool.call.result")
DETAILS = tuple(
    "gen_ai.usage." + name
    for name in ("cache_read.input_tokens", "cache_creation.input_tokens", "reasoning.output_tokens")
)
CONVERSATION = "gen_ai.conversation.id"
RETRIEVED = "gen_ai.retrieval.documents"


def read(attributes: dict[str, Any], draft: dict[str, Any], namespaces: Set[str]) -> None:
    """Take what the dialects before this one have not; the operation's name stays, as it says more than the kind."""
    if "gen_ai" not in namespaces:
        return
    operation = attributes.get(names.OPERATION)
    if isinstance(operation, str) and operation in KINDS:
        draft.setdefault("kind", KINDS[operation])
    _model(attributes, draft)
    if operation not in SUMMED:
        _usage(attributes, draft)
    _content(attributes, draft)
    if (found := text(attributes.get(CONVERSATION))) and draft.setdefault("session_id", found) == found:
        del attributes[CONVERSATION]


def _model(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    for name in (names.RESPONSE_MODEL, names.REQUEST_MODEL):
        if (found := text(attributes.get(name))) and draft.setdefault("model", found) == found:
            del attributes[name]


def _usage(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    given, made = count(attributes.get(names.INPUT_TOKENS)), count(attributes.get(names.OUTPUT_TOKENS))
    if (given is None and made is None) or "usage" in draft:
        return
    details = {name: count(attributes.pop(name)) or 0 for name in DETAILS if name in attributes}
    details = {name.removeprefix("gen_ai.usage."): value for name, value in details.items()}
    draft["usage"] = Usage(given or 0, made or 0, details)
    attributes.pop(names.INPUT_TOKENS, None)
    attributes.pop(names.OUTPUT_TOKENS, None)


def _content(attributes: dict[str, Any], draft: dict[str, Any]) -> None:
    for field, candidates in (("inputs", INPUTS), ("outputs", OUTPUTS)):
        name = next((name for name in candidates if name in attributes), None)
        if name and field not in draft:
            draft[field] = from_json(attributes.pop(name))
    if not draft.get("documents") and (found := documents(from_json(attributes.get(RETRIEVED)))):
        draft["documents"] = found
        del attributes[RETRIEVED]
