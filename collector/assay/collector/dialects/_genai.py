"""OpenTelemetry's GenAI conventions, v1.41.1: `model/gen-ai/registry.yaml` of semantic-conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.collector.dialects._draft import Draft
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


def genai(draft: Draft) -> None:
    """Take what the dialects before this one have not; the operation's name stays, as it says more than the kind."""
    if "gen_ai" not in draft.namespaces:
        return
    attributes, fields = draft.attributes, draft.fields
    operation = attributes.get(names.OPERATION)
    if isinstance(operation, str) and operation in KINDS:
        fields.setdefault("kind", KINDS[operation])
    _model(draft)
    if operation not in SUMMED and not draft.sums:
        _usage(draft)
    _content(draft)
    if (session := text(attributes.get(CONVERSATION))) and fields.setdefault("session_id", session) == session:
        del attributes[CONVERSATION]


def _model(draft: Draft) -> None:
    for name in (names.RESPONSE_MODEL, names.REQUEST_MODEL):
        if (model := text(draft.attributes.get(name))) and draft.fields.setdefault("model", model) == model:
            del draft.attributes[name]


def _usage(draft: Draft) -> None:
    attributes = draft.attributes
    given, made = count(attributes.get(names.INPUT_TOKENS)), count(attributes.get(names.OUTPUT_TOKENS))
    if (given is None and made is None) or "usage" in draft.fields:
        return
    details = {name: count(attributes.pop(name)) or 0 for name in DETAILS if name in attributes}
    details = {name.removeprefix("gen_ai.usage."): tokens for name, tokens in details.items()}
    draft.fields["usage"] = Usage(given or 0, made or 0, details)
    attributes.pop(names.INPUT_TOKENS, None)
    attributes.pop(names.OUTPUT_TOKENS, None)


def _content(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    if "inputs" not in fields and (name := _first(INPUTS, attributes)):
        fields["inputs"] = from_json(attributes.pop(name))
    if "outputs" not in fields and (name := _first(OUTPUTS, attributes)):
        fields["outputs"] = from_json(attributes.pop(name))
    if not fields.get("documents") and (retrieved := documents(from_json(attributes.get(RETRIEVED)))):
        fields["documents"] = retrieved
        del attributes[RETRIEVED]


def _first(candidates: tuple[str, ...], attributes: Mapping[str, Any]) -> str | None:
    return next((name for name in candidates if name in attributes), None)
