"""Vercel's AI SDK, versions 3.4 to 6.

A call of the SDK is a span (`ai.generateText`) around spans of the model's calls (`….doGenerate`, `….doStream`) and
of tools. Both levels report inputs, outputs and tokens. Only the tokens of the model's calls are counted.
"""

from __future__ import annotations

from typing import Any

from spanwise.collector.dialects.draft import (
    Draft,
    applies_to,
    find_count,
    find_name,
    parse_count,
    parse_json,
    parse_number,
    read_document,
    text_or_none,
    to_text,
)
from spanwise.collector.dialects.field_extraction import take_attribute
from spanwise.collector.dialects.token_costs import normalize_usage
from spanwise.collector.records import JSON, Document

OPERATION = "ai.operationId"
CALLS = {"doGenerate": "llm", "doStream": "llm", "doEmbed": "embedding", "doRerank": "reranker"}
KINDS = {"ai.toolCall": "tool"}  # all other operations contain model and tool calls, and are steps of a chain
INPUTS = ("ai.prompt.messages", "ai.prompt", "ai.toolCall.args", "ai.value", "ai.values", "ai.documents")
OUTPUTS = (
    "ai.response.object",
    "ai.result.object",
    "ai.toolCall.result",
    "ai.embedding",
    "ai.embeddings",
    "ai.ranking",
)
TEXTS = ("ai.response.text", "ai.result.text")
TOOL_CALLS = ("ai.response.toolCalls", "ai.result.toolCalls")
MODELS = ("ai.response.model", "ai.model.id")
INPUT_TOKEN_NAMES = ("ai.usage.inputTokens", "ai.usage.promptTokens", "ai.usage.tokens")
OUTPUT_TOKEN_NAMES = ("ai.usage.outputTokens", "ai.usage.completionTokens")
DETAILS = {
    "cache_read.input_tokens": ("ai.usage.inputTokenDetails.cacheReadTokens", "ai.usage.cachedInputTokens"),
    "cache_creation.input_tokens": ("ai.usage.inputTokenDetails.cacheWriteTokens",),
    "reasoning.output_tokens": ("ai.usage.outputTokenDetails.reasoningTokens", "ai.usage.reasoningTokens"),
}
# Up to version 5, the input tokens of these providers exclude cached tokens. Version 6 includes them, and is
# recognized by an attribute
PROVIDERS_EXCLUDING_CACHE = ("anthropic", "bedrock")
CACHE_INCLUDED_MARKER = "ai.usage.inputTokenDetails.cacheReadTokens"
METADATA_PREFIX = "ai.telemetry.metadata."
SESSIONS, USERS = ("sessionId", "session_id", "session.id"), ("userId", "user_id", "user.id")


@applies_to("ai")
def vercel(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents of a reranker, model, tokens, session, user, tags and metadata."""
    operation = draft.attributes.get(OPERATION)
    if not isinstance(operation, str) or not operation.startswith("ai."):
        return
    call = CALLS.get(operation.rpartition(".")[2])
    draft.fields.setdefault("kind", call or KINDS.get(operation, "chain"))
    _content(draft)
    if call == "reranker" and not draft.fields.get("documents"):
        documents, ranking = draft.fields.get("inputs"), draft.fields.get("outputs")
        ranked = []
        if isinstance(documents, list) and isinstance(ranking, list):
            ranked = [_rank_document(documents, ranked_item) for ranked_item in ranking]
        # no documents if the ranking refers to any document that is not in the inputs
        draft.fields["documents"] = tuple(document for document in ranked if document) if all(ranked) else ()
    for name in MODELS:
        take_attribute(draft, "model", name, text_or_none)
    if call:
        _usage(draft)
    else:
        draft.sums = True
    _take_metadata(draft)


def _content(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    if "inputs" not in fields and (name := find_name(attributes, INPUTS)):
        fields["inputs"] = _parse_texts(attributes.pop(name))
    if "outputs" in fields:
        return
    if name := find_name(attributes, OUTPUTS):
        fields["outputs"] = _parse_texts(attributes.pop(name))
    elif calls := _read_tool_calls(attributes):
        text = text_or_none(attributes.get(find_name(attributes, TEXTS) or ""))
        fields["outputs"] = [{"role": "assistant", "content": text, "tool_calls": calls}]
    elif name := find_name(attributes, TEXTS):
        fields["outputs"] = attributes.pop(name)


def _parse_texts(value: JSON) -> JSON:
    """Parse a JSON text, or each text of a list."""
    return [parse_json(text) for text in value] if isinstance(value, list) else parse_json(value)


def _read_tool_calls(attributes: dict[str, Any]) -> list[JSON]:
    """Return tool calls in OpenAI's format. The calls in the SDK's format stay as an attribute."""
    calls = parse_json(attributes.get(find_name(attributes, TOOL_CALLS) or ""))
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return []
    return [
        {
            "id": call.get("toolCallId"),
            "type": "function",
            "function": {"name": call.get("toolName"), "arguments": call.get("input", call.get("args"))},
        }
        for call in calls
    ]


def _rank_document(documents: list[JSON], ranked_item: JSON) -> Document | None:
    index = ranked_item.get("index") if isinstance(ranked_item, dict) else None
    if type(index) is not int or not 0 <= index < len(documents):
        return None
    document = read_document(documents[index]) or Document(to_text(documents[index]))
    return Document(document.content, document.id, parse_number(ranked_item.get("relevanceScore")), document.metadata)


def _usage(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    input_tokens, output_tokens = (
        find_count(attributes, INPUT_TOKEN_NAMES),
        find_count(attributes, OUTPUT_TOKEN_NAMES),
    )
    if (input_tokens is None and output_tokens is None) or "usage" in fields:
        return
    details = {name: count for name, keys in DETAILS.items() if (count := find_count(attributes, keys))}
    provider = attributes.get("ai.model.provider")
    fields["usage"] = normalize_usage(
        input_tokens or 0,
        output_tokens or 0,
        details,
        total=parse_count(attributes.get("ai.usage.totalTokens")),
        cache_apart=CACHE_INCLUDED_MARKER not in attributes
        and isinstance(provider, str)
        and any(p in provider for p in PROVIDERS_EXCLUDING_CACHE),
    )


def _take_metadata(draft: Draft) -> None:
    """Take the `metadata` of a call's telemetry settings.

    Session, user and tags are recognized by their usual names. The rest becomes metadata.
    """
    attributes, fields = draft.attributes, draft.fields
    telemetry = {
        name.removeprefix(METADATA_PREFIX): attributes[name] for name in attributes if name.startswith(METADATA_PREFIX)
    }
    taken = _take_identity(draft, telemetry)
    if metadata := {name: value for name, value in telemetry.items() if name not in taken}:
        if fields.setdefault("metadata", metadata) is not metadata:
            return
        taken |= metadata.keys()
    for name in taken:
        del attributes[METADATA_PREFIX + name]


def _take_identity(draft: Draft, telemetry: dict[str, JSON]) -> set[str]:
    fields, taken = draft.fields, set()
    for name in SESSIONS:
        if (session := text_or_none(telemetry.get(name))) and fields.setdefault("session_id", session) == session:
            taken.add(name)
    for name in USERS:
        if (user := text_or_none(telemetry.get(name))) and fields.setdefault("user_id", user) == user:
            taken.add(name)
    tags = telemetry.get("tags")
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) and "tags" not in fields:
        fields["tags"] = tuple(map(str, tags))
        taken.add("tags")
    return taken
