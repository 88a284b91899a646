"""Vercel's AI SDK, versions 3.4 to 6, with `experimental_telemetry`: the attributes `ai.*`.

A call of the SDK is a span (`ai.generateText`) around spans of the model's calls (`….doGenerate`, `….doStream`) and of
tools. Both levels say inputs, outputs and tokens; tokens are the model's, so that they are counted once.
"""

from __future__ import annotations

from typing import Any

from spanwise.collector.dialects._calls import take
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._values import as_text, count, document, from_json, number, text
from spanwise.collector.dialects.token_counts import token_usage
from spanwise.collector.records import JSON, Document

OPERATION = "ai.operationId"
CALLS = {"doGenerate": "llm", "doStream": "llm", "doEmbed": "embedding", "doRerank": "reranker"}
KINDS = {"ai.toolCall": "tool"}  # all others, around these, are steps of a chain
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
GIVEN = ("ai.usage.inputTokens", "ai.usage.promptTokens", "ai.usage.tokens")
MADE = ("ai.usage.outputTokens", "ai.usage.completionTokens")
DETAILS = {
    "cache_read.input_tokens": ("ai.usage.inputTokenDetails.cacheReadTokens", "ai.usage.cachedInputTokens"),
    "cache_creation.input_tokens": ("ai.usage.inputTokenDetails.cacheWriteTokens",),
    "reasoning.output_tokens": ("ai.usage.outputTokenDetails.reasoningTokens", "ai.usage.reasoningTokens"),
}
# Up to version 5 the input tokens of these providers leave out those from the cache; version 6 says what it includes
APART, INCLUDED = ("anthropic", "bedrock"), "ai.usage.inputTokenDetails.cacheReadTokens"
TOLD = "ai.telemetry.metadata."
SESSIONS, USERS = ("sessionId", "session_id", "session.id"), ("userId", "user_id", "user.id")


@found_in("ai")
def vercel(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents of a reranker, model, tokens, session, user, tags and metadata."""
    operation = draft.attributes.get(OPERATION)
    if not isinstance(operation, str) or not operation.startswith("ai."):
        return
    call = CALLS.get(operation.rpartition(".")[2])
    draft.fields.setdefault("kind", call or KINDS.get(operation, "chain"))
    _content(draft)
    if call == "reranker" and not draft.fields.get("documents"):
        draft.fields["documents"] = _ranked(draft.fields.get("inputs"), draft.fields.get("outputs"))
    for name in MODELS:
        take(draft, "model", name, text)
    if call:
        _usage(draft)
    else:
        draft.sums = True
    _told(draft)


def _content(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    if "inputs" not in fields and (name := _first(attributes, INPUTS)):
        fields["inputs"] = _parsed(attributes.pop(name))
    if "outputs" in fields:
        return
    if name := _first(attributes, OUTPUTS):
        fields["outputs"] = _parsed(attributes.pop(name))
    elif calls := _calls(attributes):
        said = text(attributes.get(_first(attributes, TEXTS) or ""))
        fields["outputs"] = [{"role": "assistant", "content": said, "tool_calls": calls}]
    elif name := _first(attributes, TEXTS):
        fields["outputs"] = attributes.pop(name)


def _parsed(value: JSON) -> JSON:
    """JSON out of a text, or out of each text of a list."""
    return [from_json(each) for each in value] if isinstance(value, list) else from_json(value)


def _calls(attributes: dict[str, Any]) -> list[JSON]:
    """Calls of tools as OpenAI writes them. The SDK's own stay attributes."""
    given = from_json(attributes.get(_first(attributes, TOOL_CALLS) or ""))
    if not isinstance(given, list) or not all(isinstance(call, dict) for call in given):
        return []
    return [_call(call) for call in given]


def _call(given: dict[str, Any]) -> JSON:
    arguments = given.get("input", given.get("args"))
    function = {"name": given.get("toolName"), "arguments": arguments}
    return {"id": given.get("toolCallId"), "type": "function", "function": function}


def _ranked(given: JSON, ranking: JSON) -> tuple[Document, ...]:
    """The documents that were given, in the order and with the scores of a ranking; none if it names others."""
    if not isinstance(given, list) or not isinstance(ranking, list):
        return ()
    ranked = [_placed(given, place) for place in ranking]
    return tuple(one for one in ranked if one) if all(ranked) else ()


def _placed(given: list[JSON], place: JSON) -> Document | None:
    index = place.get("index") if isinstance(place, dict) else None
    if type(index) is not int or not 0 <= index < len(given):
        return None
    read = document(given[index]) or Document(as_text(given[index]))
    return Document(read.content, read.id, number(place.get("relevanceScore")), read.metadata)


def _usage(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    given, made = _counted(attributes, GIVEN), _counted(attributes, MADE)
    if (given is None and made is None) or "usage" in fields:
        return
    details = {name: counted for name, keys in DETAILS.items() if (counted := _counted(attributes, keys))}
    provider = attributes.get("ai.model.provider")
    fields["usage"] = token_usage(
        given or 0,
        made or 0,
        details,
        total=count(attributes.get("ai.usage.totalTokens")),
        cache_apart=INCLUDED not in attributes and isinstance(provider, str) and any(p in provider for p in APART),
    )


def _counted(attributes: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """The first that is a number of tokens; where a provider does not count, it is NaN."""
    return next((counted for name in names if (counted := count(attributes.get(name))) is not None), None)


def _told(draft: Draft) -> None:
    """`metadata` of a call's telemetry: the words that others read in it, too, and the rest."""
    attributes, fields = draft.attributes, draft.fields
    told = {name.removeprefix(TOLD): attributes[name] for name in attributes if name.startswith(TOLD)}
    taken = _whose(draft, told)
    if rest := {name: value for name, value in told.items() if name not in taken}:
        if fields.setdefault("metadata", rest) is not rest:
            return
        taken |= rest.keys()
    for name in taken:
        del attributes[TOLD + name]


def _whose(draft: Draft, told: dict[str, JSON]) -> set[str]:
    fields, taken = draft.fields, set()
    for name in SESSIONS:
        if (session := text(told.get(name))) and fields.setdefault("session_id", session) == session:
            taken.add(name)
    for name in USERS:
        if (user := text(told.get(name))) and fields.setdefault("user_id", user) == user:
            taken.add(name)
    tags = told.get("tags")
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) and "tags" not in fields:
        fields["tags"] = tuple(map(str, tags))
        taken.add("tags")
    return taken


def _first(attributes: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in attributes), None)
