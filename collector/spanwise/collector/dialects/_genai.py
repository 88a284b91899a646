"""OpenTelemetry's GenAI conventions in all their generations: `model/gen-ai/registry.yaml` of semantic-conventions, as
of v1.41.1, and what earlier versions have called the same (`usage.prompt_tokens`, content in events, `gen_ai.prompt`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._keys import COSTS, Names, OfNames
from spanwise.collector.dialects._messages import EVENTS, GIVEN, INSTRUCTIONS, MADE, choices, instructions, of_event
from spanwise.collector.dialects._values import count, documents, from_json, new_usage, text
from spanwise.collector.dialects.token_counts import token_usage
from spanwise.collector.records import JSON, Usage
from spanwise.tracer import attributes as names

KINDS = {
    "chat": "llm",
    "completion": "llm",
    "generate_content": "llm",
    "text_completion": "llm",
    "responses": "llm",
    "embeddings": "embedding",
    "embedding": "embedding",
    "retrieval": "retriever",
    "rerank": "reranker",
    "execute_tool": "tool",
    "create_agent": "agent",
    "invoke_agent": "agent",
    "invoke_workflow": "chain",
    "fetch_response": "chain",  # of a call that was counted when it was made
    "agent_step": "chain",  # of Vercel's AI SDK 7: one round of an agent
}
# Spans of these operations repeat what model calls have used: counted there
SUMMED = ("create_agent", "invoke_agent", "invoke_workflow", "agent_step", "fetch_response")
QUERY = "gen_ai.retrieval.query.text"
INPUTS = ("gen_ai.tool.call.arguments", QUERY, "gen_ai.prompt")
OUTPUTS = ("gen_ai.tool.call.result", "gen_ai.completion")
PROVIDERS = ("gen_ai.provider.name", "gen_ai.system")
USAGE = "gen_ai.usage."
TOKENS = ((names.INPUT_TOKENS, f"{USAGE}prompt_tokens"), (names.OUTPUT_TOKENS, f"{USAGE}completion_tokens"))
# By what each of them is called now, other names of what tokens were of; the others keep the names that they have
DETAILS = {
    "cache_read_input_tokens": "cache_read.input_tokens",
    "cache_read_tokens": "cache_read.input_tokens",
    "cache_read_input_tokens.input_tokens": "cache_read.input_tokens",  # of our tracer, given Anthropic's names
    "prompt_tokens_details.cached_tokens": "cache_read.input_tokens",
    "cache_write_tokens": "cache_creation.input_tokens",
    "cache_write_input_tokens": "cache_creation.input_tokens",
    "cache_write.input_tokens": "cache_creation.input_tokens",
    "cache_creation_input_tokens": "cache_creation.input_tokens",
    "cache_creation_input_tokens.input_tokens": "cache_creation.input_tokens",
    "prompt_tokens_details.cache_creation_tokens": "cache_creation.input_tokens",
    "completion_tokens_details.reasoning_tokens": "reasoning.output_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
    "input_audio_tokens": "audio.input_tokens",
    "output_audio_tokens": "audio.output_tokens",
}
TOTALS = (f"{USAGE}total_tokens", "llm.usage.total_tokens")
NO_DETAILS = frozenset((*(name for pair in TOKENS for name in pair), *TOTALS, *COSTS))
# Senders whose counts leave out a part, by the beginning of their scope and the provider (any)
CACHE_APART = (("opentelemetry.instrumentation.bedrock", ""), ("openlit", "anthropic"), ("openlit", "aws"))
REASONING_APART = (
    ("opentelemetry.instrumentation.google_generativeai", ""),
    *(("openlit", provider) for provider in ("gemini", "google", "gcp", "vertex")),
)
LEAVING_OUT = tuple({named for named, _ in (*CACHE_APART, *REASONING_APART)})
CONVERSATION = "gen_ai.conversation.id"
RETRIEVED = "gen_ai.retrieval.documents"


@found_in("gen_ai")
def genai(draft: Draft) -> None:
    """Take what the dialects before this one have not; the operation's name stays, as it says more than the kind."""
    attributes, fields = draft.attributes, draft.fields
    operation = _operation(attributes.get(names.OPERATION))
    if kind := _kind(operation, attributes):
        fields.setdefault("kind", kind)
    _model(draft)
    if operation in SUMMED:
        draft.sums = True
    elif not draft.sums:
        _usage(draft)
    _content(draft)
    _retrieval(draft, operation)
    if (session := text(attributes.get(CONVERSATION))) and fields.setdefault("session_id", session) == session:
        del attributes[CONVERSATION]


def _operation(value: JSON) -> str | None:
    """As the conventions write it: some senders write it in capitals."""
    if not isinstance(value, str):
        return None
    return value if value in KINDS else value.strip().lower().replace("-", "_").replace(" ", "_")


def _kind(operation: str | None, attributes: Mapping[str, Any]) -> str | None:
    if operation is None:  # as before v1.27
        return "llm" if text(attributes.get(names.REQUEST_MODEL)) else None
    return KINDS.get(operation)


def _model(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    for name in (names.RESPONSE_MODEL, names.REQUEST_MODEL):
        if (model := text(attributes.get(name))) and fields.setdefault("model", model) == model:
            del attributes[name]


def _usage(draft: Draft) -> None:
    attributes = draft.attributes
    if "usage" in draft.fields:
        return
    (given_as, given), (made_as, made) = _counted(attributes, TOKENS[0]), _counted(attributes, TOKENS[1])
    if given_as is None and made_as is None:
        return
    details = _details(attributes)
    leaves_out = draft.span.scope.startswith(LEAVING_OUT)
    draft.fields["usage"] = (
        _with_parts(draft, given, made, details) if details or leaves_out else new_usage(given, made, details)
    )
    for name in (given_as, made_as):
        if name is not None:
            del attributes[name]


def _with_parts(draft: Draft, given: int, made: int, details: dict[str, int]) -> Usage:
    """Return the usage with the parts that its sender is known, or is seen, to leave out."""
    attributes, scope = draft.span.attributes, draft.span.scope
    provider = next((said for name in PROVIDERS if (said := text(attributes.get(name)))), "")
    return token_usage(
        given,
        made,
        details,
        total=next((tokens for name in TOTALS if (tokens := count(attributes.get(name))) is not None), None),
        cache_apart=any(scope.startswith(named) and provider.startswith(by) for named, by in CACHE_APART),
        reasoning_apart=any(scope.startswith(named) and provider.startswith(by) for named, by in REASONING_APART),
    )


def _counted(attributes: Mapping[str, Any], candidates: tuple[str, ...]) -> tuple[str | None, int]:
    """Which name counts tokens, and how many."""
    for name in candidates:
        if name in attributes and (tokens := count(attributes[name])) is not None:
            return name, tokens
    return None, 0


def _details(attributes: dict[str, Any]) -> dict[str, int]:
    """What tokens were of, whatever it is called."""
    details: dict[str, int] = {}
    for name, known in _finer(tuple(attributes)):
        if (tokens := count(attributes[name])) is not None and details.setdefault(known, tokens) == tokens:
            del attributes[name]
    return details


def _of_usage(names: Names) -> tuple[tuple[str, str], ...]:
    """Names of finer counts, and what they are called now."""
    finer = (name for name in names if name.startswith(USAGE) and name not in NO_DETAILS)
    plain = ((name, name.removeprefix(USAGE).removeprefix("details.")) for name in finer)
    return tuple((name, DETAILS.get(known, known)) for name, known in plain)


_finer = OfNames(_of_usage).__getitem__


def _content(draft: Draft) -> None:
    """Messages on the span; else, of earlier versions, in its events."""
    attributes, fields = draft.attributes, draft.fields
    if "inputs" not in fields:
        _inputs(draft)
    if "outputs" not in fields:
        _outputs(draft)
    if draft.span.events and ("inputs" not in fields or "outputs" not in fields):
        _events(draft)
    if RETRIEVED not in attributes or fields.get("documents"):
        return
    if retrieved := documents(from_json(attributes[RETRIEVED])):
        fields["documents"] = retrieved
        del attributes[RETRIEVED]


def _inputs(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    messages = from_json(attributes.get(GIVEN))
    if INSTRUCTIONS in attributes and (messages is None or isinstance(messages, list)):
        added = instructions(attributes, messages or ())
        if whole := [*added, *(messages or ())]:
            fields["inputs"] = whole
            attributes.pop(GIVEN, None)
            if added:
                del attributes[INSTRUCTIONS]
    elif messages is not None:
        fields["inputs"] = messages
        del attributes[GIVEN]
    elif name := _first(INPUTS, attributes):
        fields["inputs"] = from_json(attributes.pop(name))


def _outputs(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    if (said := from_json(attributes.get(MADE))) is not None:
        plain = choices(said) if _holds_choices(said) else None
        fields["outputs"] = plain or said
        del attributes[MADE]
    elif name := _first(OUTPUTS, attributes):
        fields["outputs"] = from_json(attributes.pop(name))


def _holds_choices(value: JSON) -> bool:
    """Whether these are OpenAI's choices in place of messages."""
    if isinstance(value, dict):
        return isinstance(value.get("choices"), list)
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "message" in one for one in value)


def _events(draft: Draft) -> None:
    """Content in the span's events, which stay there, too."""
    messages: tuple[list[JSON], list[JSON]] = ([], [])
    for event in draft.span.events:
        if event.name in EVENTS:
            for all_of_it, said in zip(messages, of_event(event.name, None, event.attributes), strict=True):
                all_of_it += said
    given, made = messages
    if given:
        draft.fields.setdefault("inputs", given)
    if made:
        draft.fields.setdefault("outputs", made)


def _retrieval(draft: Draft, operation: str | None) -> None:
    """A retrieval that calls itself an embedding, as the text that it asked with was embedded on the way."""
    fields = draft.fields
    if fields.get("kind") != "embedding" or KINDS.get(operation or "") != "embedding":
        return
    outputs = fields.get("outputs")
    told = outputs.get("documents") if isinstance(outputs, dict) else outputs
    if isinstance(told, list) and told and all(isinstance(one, dict) for one in told) and documents(told):
        fields.setdefault("documents", documents(told))
    if fields.get("documents") or QUERY in draft.span.attributes:
        fields["kind"] = "retriever"


def _first(candidates: tuple[str, ...], attributes: Mapping[str, Any]) -> str | None:
    return next((name for name in candidates if name in attributes), None)
