"""OpenTelemetry GenAI conventions: model calls, and messages in attributes, span events and log records.

Up to v1.36 each message was a separate event (`gen_ai.user.message`, …, `gen_ai.choice`). The content of the message
is in the event's body, in the event's attributes, or as JSON in one of these attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spanwise.collector.dialects.draft import (
    COST_NAMES,
    Draft,
    NameTuple,
    applies_to,
    find_count,
    find_name,
    memoize_names,
    new_usage,
    parse_count,
    parse_json,
    read_documents,
    text_or_none,
)
from spanwise.collector.dialects.token_costs import normalize_usage
from spanwise.collector.record_corrections import is_own_scope
from spanwise.collector.records import JSON, Usage
from spanwise.tracer import attribute_names as names

MESSAGE_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
CHOICE_EVENT = "gen_ai.choice"
# up to v1.27, all messages in one event
PROMPT_EVENT, COMPLETION_EVENT = "gen_ai.content.prompt", "gen_ai.content.completion"
# event → its attribute with the messages
EVENT_ATTRIBUTES = {PROMPT_EVENT: "gen_ai.prompt", COMPLETION_EVENT: "gen_ai.completion"}
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
MESSAGE_EVENTS = frozenset((*MESSAGE_ROLES, CHOICE_EVENT, *EVENT_ATTRIBUTES, DETAILS_EVENT))
INPUT_MESSAGES, OUTPUT_MESSAGES = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS = "gen_ai.system_instructions"
CONTENT_ATTRIBUTE = "gen_ai.event.content"  # attribute that holds the event's body as JSON
ENVELOPE_NAMES = frozenset(("gen_ai.system", "gen_ai.provider.name", "event.name", CONTENT_ATTRIBUTE))
LISTED_ENVELOPE_NAMES = ENVELOPE_NAMES | {"gen_ai.message.index"}  # of events that are listed in an attribute
# messages without any of these are ignored
MESSAGE_CONTENT_FIELDS = ("content", "tool_calls", "parts", "refusal", "reasoning_content")


def read_event_messages(name: str, body: JSON, attributes: Mapping[str, JSON]) -> tuple[list[JSON], list[JSON]]:
    """Return the input and output messages in an event of `MESSAGE_EVENTS`; both empty if no content was recorded."""
    if name == DETAILS_EVENT:
        content = {**attributes, **body} if isinstance(body, dict) else attributes
        return read_input_messages(content), read_choices(parse_json(content.get(OUTPUT_MESSAGES)))
    if name in EVENT_ATTRIBUTES:
        messages = _as_list(parse_json(attributes.get(EVENT_ATTRIBUTES[name], body)))
        return (messages, []) if name == PROMPT_EVENT else ([], messages)
    message = _read_event_body(body, attributes)
    if name == CHOICE_EVENT:
        return [], [choice for choice in read_choices([message]) if isinstance(choice, dict) and _has_content(choice)]
    return ([{"role": MESSAGE_ROLES[name], **message}], []) if _has_content(message) else ([], [])


def read_input_messages(attributes: Mapping[str, JSON]) -> list[JSON]:
    """Return the input messages, with the system instructions first unless the messages contain them."""
    messages = _as_list(parse_json(attributes.get(INPUT_MESSAGES)))
    return [*read_instructions(attributes, messages), *messages]


def read_instructions(attributes: Mapping[str, JSON], messages: Iterable[JSON] = ()) -> list[JSON]:
    """Return separate system instructions as one system message; [] if the messages already contain one."""
    parts = parse_json(attributes.get(INSTRUCTIONS))
    if not parts or any(isinstance(message, dict) and message.get("role") == "system" for message in messages):
        return []
    return [{"role": "system", "parts": parts if isinstance(parts, list) else [{"type": "text", "content": parts}]}]


def read_choices(value: JSON) -> list[JSON]:
    """Return output messages. OpenAI's choices become messages with their finish reason."""
    if isinstance(value, Mapping):
        value = value.get("choices", value)
    return list(map(_read_choice, _as_list(value)))


def _read_choice(value: JSON) -> JSON:
    if not isinstance(value, dict):
        return value
    message = parse_json(value.get("message"))
    if isinstance(message, str):
        message = {"content": message}
    if not isinstance(message, dict) or "content" in value or "parts" in value:
        return value
    other_fields = {name: content for name, content in value.items() if name != "message" and content is not None}
    if other_fields.get("index") == 0:
        del other_fields["index"]
    return {"role": "assistant", **message, **other_fields}


def _read_event_body(body: JSON, attributes: Mapping[str, JSON]) -> dict[str, Any]:
    """Return the content of an event from its body, or else from its attributes."""
    content = parse_json(body if body is not None else attributes.get(CONTENT_ATTRIBUTE))
    if content is None:
        plain = {name: value for name, value in attributes.items() if name not in ENVELOPE_NAMES}
        return {
            name: parse_json(value) if name in ("tool_calls", "content") else value for name, value in plain.items()
        }
    return content if isinstance(content, dict) else {"content": content}


def _as_list(value: JSON) -> list[JSON]:
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def _has_content(message: Mapping[str, JSON]) -> bool:
    return any(message.get(name) for name in MESSAGE_CONTENT_FIELDS)


def read_event_list(value: JSON) -> tuple[list[JSON], list[JSON]] | None:
    """Parse an attribute that holds a list of message events. Return the input and output messages; None for any other
    value.
    """
    events = parse_json(value)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return None
    if any(event.get("event.name") not in MESSAGE_EVENTS for event in events):
        return None
    inputs: list[JSON] = []
    outputs: list[JSON] = []
    for event in events:
        body = {key: value for key, value in event.items() if key not in LISTED_ENVELOPE_NAMES}
        more_inputs, more_outputs = read_event_messages(event["event.name"], body, {})
        inputs += more_inputs
        outputs += more_outputs
    return inputs, outputs


OPERATION_KINDS = {
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
    "plan": "chain",  # an agent makes a plan; the model calls for it are below
    "search_memory": "retriever",
    **dict.fromkeys(("create_memory", "update_memory", "upsert_memory", "delete_memory"), "chain"),
    **dict.fromkeys(("create_memory_store", "delete_memory_store"), "chain"),
    "fetch_response": "chain",  # fetches the response of an earlier call, whose own span has the tokens
    "agent_step": "chain",  # Vercel's AI SDK 7: one round of an agent
}
# Spans of these operations repeat the tokens of model calls. Only the spans of the model calls are counted
AGGREGATE_OPERATIONS = ("create_agent", "invoke_agent", "invoke_workflow", "agent_step", "fetch_response")
QUERY = "gen_ai.retrieval.query.text"
MEMORY_QUERY, MEMORY_RECORDS = "gen_ai.memory.query.text", "gen_ai.memory.records"
SEARCH_MEMORY = "search_memory"  # other operations on memory write the records, so that they are inputs
INPUTS = ("gen_ai.tool.call.arguments", QUERY, MEMORY_QUERY, "gen_ai.prompt")
OUTPUTS = ("gen_ai.tool.call.result", "gen_ai.completion")
PROVIDERS = ("gen_ai.provider.name", "gen_ai.system")
USAGE = "gen_ai.usage."
INPUT_TOKEN_NAMES = (names.INPUT_TOKENS, f"{USAGE}prompt_tokens")
OUTPUT_TOKEN_NAMES = (names.OUTPUT_TOKENS, f"{USAGE}completion_tokens")
# Names of token details in older conventions and of vendors → current names. Other names are kept
DETAIL_NAMES = {
    "cache_read_input_tokens": "cache_read.input_tokens",
    "cache_read_tokens": "cache_read.input_tokens",
    # written by Spanwise's tracer if a program passes Anthropic's names
    "cache_read_input_tokens.input_tokens": "cache_read.input_tokens",
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
TOTAL_TOKEN_NAMES = (f"{USAGE}total_tokens", "llm.usage.total_tokens")
BASE_USAGE_NAMES = frozenset((*INPUT_TOKEN_NAMES, *OUTPUT_TOKEN_NAMES, *TOTAL_TOKEN_NAMES, *COST_NAMES))
# Senders that exclude cached or reasoning tokens from their totals: (prefix of the scope, prefix of the provider). An
# empty prefix matches any provider
SENDERS_EXCLUDING_CACHE = (("opentelemetry.instrumentation.bedrock", ""), ("openlit", "anthropic"), ("openlit", "aws"))
SENDERS_EXCLUDING_REASONING = (
    ("opentelemetry.instrumentation.google_generativeai", ""),
    *(("openlit", provider) for provider in ("gemini", "google", "gcp", "vertex")),
)
EXCLUDING_SCOPES = tuple({named for named, _ in (*SENDERS_EXCLUDING_CACHE, *SENDERS_EXCLUDING_REASONING)})
CONVERSATION = "gen_ai.conversation.id"
RETRIEVED_DOCUMENTS = "gen_ai.retrieval.documents"


@applies_to("gen_ai")
def genai(draft: Draft) -> None:
    """Take the values that earlier dialects have left. The operation's name also stays as an attribute, because it is
    more specific than the kind.
    """
    attributes, fields = draft.attributes, draft.fields
    operation = attributes.get(names.OPERATION)
    if not isinstance(operation, str):
        operation = None
    elif operation not in OPERATION_KINDS:  # some senders use capitals, hyphens or spaces
        operation = operation.strip().lower().replace("-", "_").replace(" ", "_")
    if operation is None:  # the sender follows conventions older than v1.27
        kind = "llm" if text_or_none(attributes.get(names.REQUEST_MODEL)) else None
    else:
        kind = OPERATION_KINDS.get(operation)
    if kind:
        fields.setdefault("kind", kind)
    for name in (names.RESPONSE_MODEL, names.REQUEST_MODEL):
        if (model := text_or_none(attributes.get(name))) and fields.setdefault("model", model) == model:
            del attributes[name]
    if operation in AGGREGATE_OPERATIONS and not is_own_scope(draft.span.scope):
        draft.sums = True
    elif not draft.sums:
        _usage(draft)
    if MEMORY_RECORDS in attributes:
        _memory_records(draft, operation)
    _content(draft)
    _retrieval(draft, operation)
    if (session := text_or_none(attributes.get(CONVERSATION))) and fields.setdefault("session_id", session) == session:
        del attributes[CONVERSATION]


def _memory_records(draft: Draft, operation: str | None) -> None:
    """Take the records that a search of a memory found as documents, and those that are written as inputs."""
    attributes, fields = draft.attributes, draft.fields
    records = parse_json(attributes[MEMORY_RECORDS])
    if operation == SEARCH_MEMORY:
        found = () if fields.get("documents") else read_documents(records)
        if found:
            fields["documents"] = found
            del attributes[MEMORY_RECORDS]
    elif isinstance(records, list | dict) and records and "inputs" not in fields:
        fields["inputs"] = records
        del attributes[MEMORY_RECORDS]


def _usage(draft: Draft) -> None:
    attributes = draft.attributes
    if "usage" in draft.fields:
        return
    input_name, input_tokens = _find_count(attributes, INPUT_TOKEN_NAMES)
    output_name, output_tokens = _find_count(attributes, OUTPUT_TOKEN_NAMES)
    if input_name is None and output_name is None:
        return
    details: dict[str, int] = {}
    for detail_name, detail in _get_detail_names(tuple(attributes)):
        tokens = parse_count(attributes[detail_name])
        if tokens is not None and details.setdefault(detail, tokens) == tokens:
            del attributes[detail_name]
    if details or draft.span.scope.startswith(EXCLUDING_SCOPES):
        draft.fields["usage"] = _normalize_usage(draft, input_tokens, output_tokens, details)
    else:
        draft.fields["usage"] = new_usage(input_tokens, output_tokens, details)
    for name in (input_name, output_name):
        if name is not None:
            del attributes[name]


def _normalize_usage(draft: Draft, input_tokens: int, output_tokens: int, details: dict[str, int]) -> Usage:
    """Return the usage. Add cached or reasoning tokens to the totals if the sender is known, or appears, to exclude
    them.
    """
    attributes, scope = draft.span.attributes, draft.span.scope
    provider = next((text for name in PROVIDERS if (text := text_or_none(attributes.get(name)))), "")
    cache_apart, reasoning_apart = (
        any(scope.startswith(of_scope) and provider.startswith(of_provider) for of_scope, of_provider in senders)
        for senders in (SENDERS_EXCLUDING_CACHE, SENDERS_EXCLUDING_REASONING)
    )
    total = find_count(attributes, TOTAL_TOKEN_NAMES)
    return normalize_usage(
        input_tokens, output_tokens, details, total=total, cache_apart=cache_apart, reasoning_apart=reasoning_apart
    )


def _find_count(attributes: Mapping[str, Any], candidates: tuple[str, ...]) -> tuple[str | None, int]:
    """Return the name and the value of the first candidate that holds a token count; (None, 0) if there is none."""
    for name in candidates:
        if name in attributes and (tokens := parse_count(attributes[name])) is not None:
            return name, tokens
    return None, 0


@memoize_names
def _get_detail_names(names: NameTuple) -> tuple[tuple[str, str], ...]:
    """Return pairs of the attribute name of a detailed token count and its current name."""
    detailed = (name for name in names if name.startswith(USAGE) and name not in BASE_USAGE_NAMES)
    shortened = ((name, name.removeprefix(USAGE).removeprefix("details.")) for name in detailed)
    return tuple((name, DETAIL_NAMES.get(detail, detail)) for name, detail in shortened)


def _content(draft: Draft) -> None:
    """Take messages from the span's attributes or, for earlier versions of the conventions, from its events."""
    attributes, fields = draft.attributes, draft.fields
    if "inputs" not in fields:
        _inputs(draft)
    if "outputs" not in fields:
        if (messages := parse_json(attributes.get(OUTPUT_MESSAGES))) is not None:
            choices = read_choices(messages) if _holds_choices(messages) else None
            fields["outputs"] = choices or messages
            del attributes[OUTPUT_MESSAGES]
        elif name := find_name(attributes, OUTPUTS):
            fields["outputs"] = parse_json(attributes.pop(name))
    if draft.span.events and ("inputs" not in fields or "outputs" not in fields):
        _events(draft)
    if RETRIEVED_DOCUMENTS not in attributes or fields.get("documents"):
        return
    if retrieved := read_documents(parse_json(attributes[RETRIEVED_DOCUMENTS])):
        fields["documents"] = retrieved
        del attributes[RETRIEVED_DOCUMENTS]


def _inputs(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    messages = parse_json(attributes.get(INPUT_MESSAGES))
    if INSTRUCTIONS in attributes and (messages is None or isinstance(messages, list)):
        instructions = read_instructions(attributes, messages or ())
        if all_messages := [*instructions, *(messages or ())]:
            fields["inputs"] = all_messages
            attributes.pop(INPUT_MESSAGES, None)
            if instructions:
                del attributes[INSTRUCTIONS]
    elif messages is not None:
        fields["inputs"] = messages
        del attributes[INPUT_MESSAGES]
    elif name := find_name(attributes, INPUTS):
        fields["inputs"] = parse_json(attributes.pop(name))


def _holds_choices(value: JSON) -> bool:
    """Return whether the value holds OpenAI's choices instead of messages."""
    if isinstance(value, dict):
        return isinstance(value.get("choices"), list)
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(element, dict) and "message" in element for element in value)


def _events(draft: Draft) -> None:
    """Read content from the span's events. The events also stay with the run."""
    inputs: list[JSON] = []
    outputs: list[JSON] = []
    for event in draft.span.events:
        if event.name in MESSAGE_EVENTS:
            more_inputs, more_outputs = read_event_messages(event.name, None, event.attributes)
            inputs += more_inputs
            outputs += more_outputs
    if inputs:
        draft.fields.setdefault("inputs", inputs)
    if outputs:
        draft.fields.setdefault("outputs", outputs)


def _retrieval(draft: Draft, operation: str | None) -> None:
    """Set the kind of a retrieval whose operation is "embeddings" to "retriever". Its sender names the operation after
    the embedding of the query.
    """
    fields = draft.fields
    if fields.get("kind") != "embedding" or OPERATION_KINDS.get(operation or "") != "embedding":
        return
    outputs = fields.get("outputs")
    documents = outputs.get("documents") if isinstance(outputs, dict) else outputs
    is_list = isinstance(documents, list) and all(isinstance(document, dict) for document in documents)
    if is_list and (found := read_documents(documents)):
        fields.setdefault("documents", found)
    if fields.get("documents") or QUERY in draft.span.attributes:
        fields["kind"] = "retriever"
