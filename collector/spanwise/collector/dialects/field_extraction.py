"""Extraction of run fields from attributes, shared by the dialects of vendors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from spanwise.collector.dialects.attribute_parsing import (
    CONTENT_FIELDS,
    SuffixMemo,
    find_count,
    parse_count,
    parse_json,
    read_documents,
    text_or_none,
)
from spanwise.collector.dialects.draft import Draft
from spanwise.collector.dialects.token_costs import normalize_usage, parse_dollars
from spanwise.collector.records import JSON, Usage

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
