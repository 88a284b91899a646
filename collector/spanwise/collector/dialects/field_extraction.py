"""Extraction of run fields from attributes, and labels of a run under the names of all conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import orjson

from spanwise.collector.dialects.draft import (
    CONTENT_FIELDS,
    MAX_INDEX,
    Draft,
    NameTuple,
    RawSpan,
    SuffixMemo,
    applies_to,
    find_count,
    memoize_names,
    parse_count,
    parse_json,
    parse_number,
    read_documents,
    text_or_none,
)
from spanwise.collector.dialects.token_costs import normalize_usage, parse_dollars
from spanwise.collector.records import JSON, Usage
from spanwise.tracer import attribute_names as names

# Extraction of run fields from attributes, shared by the dialects of vendors.

# Names for a field, in order of precedence
IDENTITY_NAMES = {
    "session_id": ("session_id", "thread_id", "conversation_id"),
    "user_id": ("user_id",),
}
# Prefixes of metadata keys that LangChain and LangSmith set themselves; such keys are not user metadata
SDK_PREFIXES: tuple[str, ...] = ("ls_", "LANGSMITH_", "LANGCHAIN_", "langgraph_", "lc_versions", "checkpoint_ns")
SDK_PREFIXES += ("revision_id", "usage_metadata")
INPUT_TOKEN_NAMES = ("input_tokens", "prompt_tokens", "input")
OUTPUT_TOKEN_NAMES = ("output_tokens", "completion_tokens", "output")
INPUT_DETAILS = {
    "cache_read": "cache_read.input_tokens",
    "cached_tokens": "cache_read.input_tokens",
    "cache_creation": "cache_creation.input_tokens",
    "cache_creation_tokens": "cache_creation.input_tokens",
    "cache_write": "cache_creation.input_tokens",
    "cache_write_tokens": "cache_creation.input_tokens",
    "audio": "audio.input_tokens",
    "audio_tokens": "audio.input_tokens",
}
OUTPUT_DETAILS = {
    "reasoning": "reasoning.output_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
    "audio": "audio.output_tokens",
    "audio_tokens": "audio.output_tokens",
}
TOTAL_COST_FIELDS = ("total", "total_cost")
NESTED_DETAILS = {
    **dict.fromkeys(("input_tokens_details", "prompt_tokens_details", "input_token_details"), INPUT_DETAILS),
    **dict.fromkeys(("output_tokens_details", "completion_tokens_details", "output_token_details"), OUTPUT_DETAILS),
}
ANTHROPIC_CACHE_FIELDS = frozenset(("cache_read_input_tokens", "cache_creation_input_tokens"))
FLAT_DETAILS = {
    "cache_read_input_tokens": "cache_read.input_tokens",
    "cache_creation_input_tokens": "cache_creation.input_tokens",
    "cache_write_input_tokens": "cache_creation.input_tokens",
    "reasoning_tokens": "reasoning.output_tokens",
    **{f"input_{name}": detail for name, detail in INPUT_DETAILS.items()},
    **{f"output_{name}": detail for name, detail in OUTPUT_DETAILS.items()},
}


def fill_field(draft: Draft, field: str, value: Any) -> bool:
    """Set a field if it is empty and the value is not None.

    Return whether the field now equals the value, so that the caller can remove the attribute.
    """
    fields: dict[str, Any] = draft.fields  # type: ignore[assignment]
    if value is None:
        return False
    current = fields.setdefault(field, value)
    return current is value or (type(current) is type(value) and bool(current == value))


def take_attribute(draft: Draft, field: str, name: str, read: Callable[[Any], Any] = lambda value: value) -> None:
    """Move an attribute into a field if the field is empty and `read` returns a value."""
    if name in draft.attributes and fill_field(draft, field, read(draft.attributes[name])):
        del draft.attributes[name]


def parse_result(value: JSON) -> JSON:
    """Parse a string as JSON, except for numbers that would not be encoded to the same text again.

    `1.50` and an integer of 24 digits stay strings.
    """
    if not isinstance(value, str):
        return value
    parsed = parse_json(value)
    if isinstance(parsed, int | float) and orjson.dumps(parsed).decode() != value:
        return value
    return parsed


def parse_container(value: JSON) -> JSON:
    """Parse a string that holds a JSON object or list. Return any other value unchanged, such as a number in a string."""
    return parse_json(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def unwrap_arguments(value: JSON) -> JSON:
    """Return the arguments in `{"args": […], "kwargs": {…}}`: the keyword arguments, or the only positional argument.

    Return the value unchanged if it has another form, or arguments of both types.
    """
    if not isinstance(value, dict) or value.keys() != {"args", "kwargs"}:
        return value
    args, kwargs = value["args"], value["kwargs"]
    if args == [] and isinstance(kwargs, dict):
        return kwargs
    return args[0] if kwargs == {} and isinstance(args, list) and len(args) == 1 else value


def take_result_documents(draft: Draft) -> None:
    """Take the documents of outputs that look like a list of documents, for senders that do not mark retriever spans.

    Each element must have content, and a score, an id or metadata. An element with a role is a message.
    """
    fields = draft.fields
    outputs = fields.get("outputs")
    if not fields.get("documents") and outputs and isinstance(outputs, list) and all(map(_is_document, outputs)):
        fields["documents"] = read_documents(outputs)


def _is_document(value: JSON) -> bool:
    if not isinstance(value, dict) or "role" in value:
        return False
    return any(name in value for name in CONTENT_FIELDS) and any(name in value for name in ("id", "score", "metadata"))


def make_suffix_memo(prefix: str) -> SuffixMemo:
    """Return a cache of the metadata keys after a prefix (which ends in a dot), without keys that SDKs set
    themselves.
    """
    return SuffixMemo(prefix, SDK_PREFIXES)


def take_identity(draft: Draft, prefix: str) -> None:
    """Take session, user and tags from the attributes below a prefix."""
    for field, candidates in IDENTITY_NAMES.items():
        for name in candidates:
            take_attribute(draft, field, prefix + name, text_or_none)
    take_attribute(draft, "tags", prefix + "tags", lambda value: read_strings(value) or None)


def take_metadata(draft: Draft, *memos: SuffixMemo, read: Callable[[JSON], JSON] = parse_container) -> None:
    """Fill in metadata from the attributes below prefixes. If two attributes have the same key, only the first is
    taken.
    """
    if "metadata" in draft.fields:
        return
    attributes = draft.attributes
    metadata: dict[str, JSON] = {}
    for memo in memos:
        for name in [name for name in attributes if memo[name]]:
            if (key := memo[name]) not in metadata:
                metadata[key] = read(attributes.pop(name))
    if metadata:
        draft.fields["metadata"] = metadata


def read_strings(value: JSON) -> tuple[str, ...]:
    """Return a list of strings, also parsed from JSON, as a tuple. Return () for any other value."""
    value = parse_container(value)
    return tuple(value) if isinstance(value, list) and all(isinstance(element, str) for element in value) else ()


def read_usage(value: JSON, *, cache_apart: bool = False, reasoning_apart: bool = False) -> Usage | None:
    """Return token counts from an object with the names of OpenAI, Anthropic or LangChain.

    `cache_apart` and `reasoning_apart`: the sender is known to exclude cached or reasoning tokens from its totals, see
    `normalize_usage`.
    """
    if not isinstance(value, dict):
        return None
    input_tokens, output_tokens = find_count(value, INPUT_TOKEN_NAMES), find_count(value, OUTPUT_TOKEN_NAMES)
    if input_tokens is None and output_tokens is None:
        return None
    total = parse_count(value.get("total_tokens", value.get("total")))
    # Anthropic's API excludes cached tokens from `input_tokens`. It is the only one that reports no total
    is_anthropic = (
        total is None
        and parse_count(value.get("input_tokens")) is not None
        and not ANTHROPIC_CACHE_FIELDS.isdisjoint(value)
    )
    return normalize_usage(
        input_tokens or 0,
        output_tokens or 0,
        read_token_details(value),
        total=total,
        cache_apart=is_anthropic or cache_apart,
        reasoning_apart=reasoning_apart,
    )


def read_token_details(value: Mapping[str, JSON]) -> dict[str, int]:
    """Return detailed token counts of an object, nested or flat, under OpenTelemetry's names."""
    parts = [(value, FLAT_DETAILS)]
    parts += [(inner, table) for name, table in NESTED_DETAILS.items() if isinstance(inner := value.get(name), dict)]
    found: dict[str, int] = {}
    for part, table in parts:
        for name in () if part.keys().isdisjoint(table) else table:
            if name in part and (tokens := parse_count(part[name])) is not None:
                found[table[name]] = tokens
    return found


def take_cost(draft: Draft, name: str) -> None:
    """Fill in a cost from an object in an attribute. Remove the attribute if it holds nothing but the total."""
    amounts = parse_json(draft.attributes.get(name))
    if not isinstance(amounts, dict) or not fill_field(draft, "cost", read_cost(amounts)):
        return
    if amounts.keys() <= {*TOTAL_COST_FIELDS}:
        del draft.attributes[name]


def read_cost(value: JSON) -> float | None:
    """Return the cost in US dollars from an object: its total, or else the sum of all its amounts."""
    if not isinstance(value, dict):
        return None
    for name in TOTAL_COST_FIELDS:
        if (total := parse_dollars(value.get(name))) is not None:
            return total
    parts = [part for part in map(parse_dollars, value.values()) if part is not None]
    return sum(parts) if parts else None


# Labels of a run under the names of all conventions: prompt, agent, finish reasons, time to the first token, tools.
#
# `LABELS` is the table of names. Of several attributes for one field the first one in the table wins: OpenInference,
# then the sender's own names, then GenAI, as in all other fields. An attribute whose value is not in the field,
# because it has a wrong type or another one wins, stays with the run.

MAX_MS = 1e12  # a longer time to the first token is an error of the sender
# events that a sender adds when the first token arrives, or for each part of an answer
FIRST_TOKEN_EVENTS = frozenset(
    ("First Token Stream Event", "llm.content.completion.chunk", "gen_ai.content.completion.chunk")
)
# Content that the sender has stored elsewhere: the attributes are addresses. The collector does not fetch them
CONTENT_REFERENCES = {
    "gen_ai.input.messages.ref": "inputs",
    "gen_ai.input.messages_ref": "inputs",
    "gen_ai.output.messages.ref": "outputs",
    "gen_ai.output.messages_ref": "outputs",
    "gen_ai.system_instructions.ref": "system instructions",
    "gen_ai.system_instructions_ref": "system instructions",
}
TOOL_PREFIXES = ("llm.tools.", "llm.request.functions.")  # lists of tools over several attributes, in this order
Reader: TypeAlias = Callable[[JSON, RawSpan], Any]


def _read_text(value: JSON, span: RawSpan) -> str | None:
    """Return a text or an integer, such as a version, as text."""
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value else None


def _read_json_text(value: JSON, span: RawSpan) -> str | None:
    return _read_text(parse_json(value), span)


def _read_reasons(value: JSON, span: RawSpan) -> tuple[str, ...] | None:
    """Return a text, or a list of texts (also as JSON), without repetitions."""
    if isinstance(value, str) and value.startswith("["):
        value = parse_json(value)
    reasons = value if isinstance(value, list) else [value]
    if not reasons or not all(isinstance(reason, str) and reason for reason in reasons):
        return None
    return tuple(dict.fromkeys(map(str, reasons)))


def _read_ms(value: JSON, span: RawSpan) -> float | None:
    number = parse_number(value)
    return number if number is not None and 0 <= number <= MAX_MS else None


def _read_seconds(value: JSON, span: RawSpan) -> float | None:
    number = parse_number(value)
    return None if number is None else _read_ms(round(number * 1000, 6), span)  # to the nanosecond


def _read_moment(value: JSON, span: RawSpan) -> float | None:
    """Return the milliseconds from the start of the span to a time in ISO 8601, in JSON or not."""
    text = parse_json(value)
    if not isinstance(text, str):
        return None
    try:
        moment_ms = datetime.fromisoformat(text).timestamp() * 1000
    except (ValueError, OverflowError, OSError):
        return None
    return _read_ms(round(moment_ms - span.start_ns / 1e6, 3), span)


def _read_linked(key: str) -> Reader:
    """Return a reader of a field of the first of the prompts that MLflow links to a trace."""

    def read(value: JSON, span: RawSpan) -> str | None:
        linked = parse_json(value)
        first = linked[0] if isinstance(linked, list) and linked else None
        return _read_text(first.get(key), span) if isinstance(first, dict) else None

    return read


def _read_tools(value: JSON, span: RawSpan) -> tuple[JSON, ...] | None:
    """Return definitions of tools: a list of objects, each or all of them possibly as JSON."""
    listed = parse_json(value)
    tools = [parse_json(tool) for tool in listed] if isinstance(listed, list) else []
    return tuple(tools) if tools and all(isinstance(tool, dict) and tool for tool in tools) else None


class Label(NamedTuple):
    """Attribute that is read into a field of the run.

    `scopes`: prefixes of the instrumentation scopes that use this name; "" is any. `takes`: the field holds all of
    the attribute, which therefore does not stay with the run.
    """

    field: str
    name: str
    read: Reader
    scopes: tuple[str, ...] = ("",)
    takes: bool = True


LABELS: tuple[Label, ...] = (
    Label("prompt_name", "langfuse.observation.prompt.name", _read_text),
    Label("prompt_name", "traceloop.prompt.key", _read_text),
    Label("prompt_name", "mlflow.prompt.name", _read_json_text),
    Label("prompt_name", "mlflow.linkedPrompts", _read_linked("name"), takes=False),
    Label("prompt_name", "mlflow.traceTag.mlflow.linkedPrompts", _read_linked("name"), takes=False),
    Label("prompt_name", "langsmith.metadata.lc_hub_repo", _read_text, takes=False),
    Label("prompt_name", names.PROMPT_NAME, _read_text),
    Label("prompt_name", "prompt.id", _read_text),
    Label("prompt_version", names.PROMPT_TEMPLATE_VERSION, _read_text),
    Label("prompt_version", "langfuse.observation.prompt.version", _read_text),
    Label("prompt_version", "traceloop.prompt.version", _read_text),
    Label("prompt_version", "mlflow.prompt.version", _read_json_text),
    Label("prompt_version", "mlflow.linkedPrompts", _read_linked("version"), takes=False),
    Label("prompt_version", "mlflow.traceTag.mlflow.linkedPrompts", _read_linked("version"), takes=False),
    Label("prompt_version", "langsmith.metadata.lc_hub_commit_hash", _read_text, takes=False),
    Label("prompt_version", names.PROMPT_VERSION, _read_text),
    Label("agent_name", "agent.name", _read_text),
    Label("agent_name", "agent_name", _read_text, ("pydantic-ai", "logfire")),
    Label("agent_name", names.AGENT_NAME, _read_text),
    Label("finish_reasons", "llm.finish_reason", _read_reasons),
    Label("finish_reasons", "ai.response.finishReason", _read_reasons),
    Label("finish_reasons", names.FINISH_REASONS, _read_reasons),
    Label("time_to_first_token_ms", "langfuse.observation.completion_start_time", _read_moment, takes=False),
    Label("time_to_first_token_ms", "ai.response.msToFirstChunk", _read_ms),
    Label("time_to_first_token_ms", "ai.stream.msToFirstChunk", _read_ms),
    Label("time_to_first_token_ms", names.TIME_TO_FIRST_CHUNK, _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.client.operation.time_to_first_chunk", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.response.time_to_first_token", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.server.time_to_first_token", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.server.ttft", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.latency.time_to_first_token", _read_seconds),
    Label("tools", "ai.prompt.tools", _read_tools),
    Label("tools", "mlflow.chat.tools", _read_tools),
    Label("tools", names.TOOL_DEFINITIONS, _read_tools),
)


@applies_to(*("agent", "agent_name", "ai", "gen_ai", "langfuse", "langsmith", "llm", "mlflow", "prompt", "traceloop"))
def labels(draft: Draft) -> None:
    """Take prompt, agent, finish reasons, time to the first token and offered tools."""
    span, fields = draft.span, draft.fields
    plan = _plan_labels(tuple(span.attributes))
    if plan.tools:
        _take_listed_tools(draft, plan.tools)
    for field, name, read, scopes, takes in plan.labels:
        if not span.scope.startswith(scopes):
            continue
        if fill_field(draft, field, read(span.attributes[name], span)) and takes:
            draft.attributes.pop(name, None)
    if fields.get("kind") == "llm":
        if "finish_reasons" not in fields and isinstance(answers := fields.get("outputs"), list):
            given = [answer.get("finish_reason") for answer in answers if isinstance(answer, dict)]
            if reasons := tuple(dict.fromkeys(reason for reason in given if isinstance(reason, str) and reason)):
                fields["finish_reasons"] = reasons
        if span.events and "time_to_first_token_ms" not in fields:
            times = [event.time_ns for event in span.events if event.name in FIRST_TOKEN_EVENTS]
            if times and (first_ms := _read_ms((min(times) - span.start_ns) / 1e6, span)) is not None:
                fields["time_to_first_token_ms"] = first_ms


class LabelPlan(NamedTuple):
    """Labels among a span's attributes, and for each list of tools its elements in order: (name in it, attribute)."""

    labels: tuple[Label, ...]
    tools: tuple[tuple[tuple[tuple[str, str], ...], ...], ...]


@memoize_names
def _plan_labels(names: NameTuple) -> LabelPlan:
    present = frozenset(names)
    lists = []
    for prefix in TOOL_PREFIXES:
        elements: dict[int, list[tuple[str, str]]] = {}
        for name in names:
            if name.startswith(prefix):
                index, _, rest = name.removeprefix(prefix).partition(".")
                if rest and index.isascii() and index.isdigit() and len(index) < 6 and int(index) < MAX_INDEX:
                    elements.setdefault(int(index), []).append((rest.removeprefix("tool."), name))
        if elements:
            lists.append(tuple(tuple(elements[index]) for index in sorted(elements)))
    return LabelPlan(tuple(label for label in LABELS if label.name in present), tuple(lists))


def _take_listed_tools(draft: Draft, lists: Sequence[Sequence[Sequence[tuple[str, str]]]]) -> None:
    """Take tools that are spread over attributes: each with a JSON schema, or with name, description and parameters."""
    attributes = draft.span.attributes
    for elements in lists:
        tools = [_build_tool({rest: attributes[name] for rest, name in element}) for element in elements]
        if all(tools) and fill_field(draft, "tools", tuple(tools)):
            for element in elements:
                for _, name in element:
                    draft.attributes.pop(name, None)


def _build_tool(flat: Mapping[str, JSON]) -> dict[str, JSON] | None:
    if flat.keys() == {"json_schema"}:
        schema = parse_json(flat["json_schema"])
        return schema if isinstance(schema, dict) else None
    if "name" not in flat:
        return None
    parsed = {key: parse_json(value) if key == "parameters" else value for key, value in flat.items()}
    return {"type": "function", "function": parsed}
