"""Extraction of run fields from attributes, shared by the dialects of vendors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from spanwise.collector.dialects.attribute_parsing import (
    CONTENT_FIELDS,
    SuffixMemo,
    parse_count,
    parse_json,
    read_documents,
    text_or_none,
)
from spanwise.collector.dialects.draft import Draft
from spanwise.collector.dialects.token_costs import normalize_usage, parse_dollars
from spanwise.collector.records import JSON, Document, Usage

IDENTITY_NAMES = {
    "session_id": ("session_id", "thread_id", "conversation_id"),
    "user_id": ("user_id",),
}  # in this order
# LangChain's and LangSmith's own words among them, which are no metadata of a user
SDK_PREFIXES: tuple[str, ...] = ("ls_", "LANGSMITH_", "LANGCHAIN_", "langgraph_", "lc_versions", "checkpoint_ns")
SDK_PREFIXES += ("revision_id", "usage_metadata")
INPUT_TOKEN_NAMES, OUTPUT_TOKEN_NAMES = (
    ("input_tokens", "prompt_tokens", "input"),
    ("output_tokens", "completion_tokens", "output"),
)
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
    """Whether a field now holds a value, so that the attribute that said it may go. Null fills nothing."""
    fields: dict[str, Any] = draft.fields  # type: ignore[assignment]
    if value is None:
        return False
    held = fields.setdefault(field, value)
    return held is value or (type(held) is type(value) and bool(held == value))


def take_attribute(draft: Draft, field: str, name: str, read: Callable[[Any], Any] = lambda value: value) -> None:
    """Move an attribute into a field, if the field is empty and what `read` makes of it is something."""
    if name in draft.attributes and fill_field(draft, field, read(draft.attributes[name])):
        del draft.attributes[name]


def parse_result(value: JSON) -> JSON:
    """What a text holds that is JSON as programs write it. A text that only looks like a number is left one.

    `1.50` and `340434188193733201` with 24 digits are texts: written anew they would be others.
    """
    if not isinstance(value, str):
        return value
    parsed = parse_json(value)
    if isinstance(parsed, int | float) and orjson.dumps(parsed).decode() != value:
        return value
    return parsed


def parse_container(value: JSON) -> JSON:
    """The object or list that a text holds, else the value as it is."""
    return parse_json(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def unwrap_arguments(value: JSON) -> JSON:
    """A call's arguments out of `{"args": […], "kwargs": {…}}`: by name, or the one without a name."""
    if not isinstance(value, dict) or value.keys() != {"args", "kwargs"}:
        return value
    args, kwargs = value["args"], value["kwargs"]
    if args == [] and isinstance(kwargs, dict):
        return kwargs
    return args[0] if kwargs == {} and isinstance(args, list) and len(args) == 1 else value


def read_result_documents(value: JSON) -> tuple[Document, ...]:
    """The documents that a result is, of a sender that has no word for a retriever: all of its elements bear a content
    and a score, an id or metadata, and none of them is a message.
    """
    if not isinstance(value, list) or not all(map(_is_document, value)):
        return ()
    return read_documents(value)


def _is_document(value: JSON) -> bool:
    if not isinstance(value, dict) or "role" in value:
        return False
    return any(name in value for name in CONTENT_FIELDS) and any(name in value for name in ("id", "score", "metadata"))


def make_suffix_memo(prefix: str) -> SuffixMemo:
    """The names of metadata below a prefix, with its dot: those that programs write, not SDKs."""
    return SuffixMemo(prefix, SDK_PREFIXES)


def take_identity(draft: Draft, prefix: str) -> None:
    """Take session, user and tags out of such properties."""
    for field, candidates in IDENTITY_NAMES.items():
        for name in candidates:
            take_attribute(draft, field, prefix + name, text_or_none)
    take_attribute(draft, "tags", prefix + "tags", lambda value: read_strings(value) or None)


def take_metadata(draft: Draft, *places: SuffixMemo, read: Callable[[JSON], JSON] = parse_container) -> None:
    """Fill in metadata from the properties below prefixes; of two of one name the first one counts, the other stays."""
    if "metadata" in draft.fields:
        return
    attributes = draft.attributes
    metadata: dict[str, JSON] = {}
    for place in places:
        for name in [name for name in attributes if place[name]]:
            if (key := place[name]) not in metadata:
                metadata[key] = read(attributes.pop(name))
    if metadata:
        draft.fields["metadata"] = metadata


def read_strings(value: JSON) -> tuple[str, ...]:
    """A list of texts; none at all if it is anything else."""
    value = parse_container(value)
    return tuple(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else ()


def read_usage(value: JSON, *, cache_apart: bool = False, reasoning_apart: bool = False) -> Usage | None:
    """Tokens out of an object under the names of OpenAI, Anthropic or LangChain.

    `cache_apart`, `reasoning_apart`: whether its sums are known to leave these parts out, see `token_usage`.
    """
    if not isinstance(value, dict):
        return None
    given, made = _find_count(value, INPUT_TOKEN_NAMES), _find_count(value, OUTPUT_TOKEN_NAMES)
    if given is None and made is None:
        return None
    total = parse_count(value.get("total_tokens", value.get("total")))
    # Anthropic's own: without a sum, as everybody else has one
    apart = (
        total is None
        and parse_count(value.get("input_tokens")) is not None
        and not ANTHROPIC_CACHE_FIELDS.isdisjoint(value)
    )
    return normalize_usage(
        given or 0,
        made or 0,
        read_token_details(value),
        total=total,
        cache_apart=apart or cache_apart,
        reasoning_apart=reasoning_apart,
    )


def _find_count(value: Mapping[str, JSON], names: tuple[str, ...]) -> int | None:
    return next((found for name in names if (found := parse_count(value.get(name))) is not None), None)


def read_token_details(value: Mapping[str, JSON]) -> dict[str, int]:
    """The finer counts of such an object, nested in it or beside the sums, under OpenTelemetry's names."""
    parts = [(value, FLAT_DETAILS)]
    parts += [(inner, table) for name, table in NESTED_DETAILS.items() if isinstance(inner := value.get(name), dict)]
    found: dict[str, int] = {}
    for part, table in parts:
        for name in () if part.keys().isdisjoint(table) else table:
            if name in part and (tokens := parse_count(part[name])) is not None:
                found[table[name]] = tokens
    return found


def take_cost(draft: Draft, name: str) -> None:
    """Fill in a cost out of an object in an attribute, which goes if it says nothing beside the total."""
    said = parse_json(draft.attributes.get(name))
    if isinstance(said, dict) and fill_field(draft, "cost", read_cost(said)) and said.keys() <= {*TOTAL_COST_FIELDS}:
        del draft.attributes[name]


def read_cost(value: JSON) -> float | None:
    """US dollars out of an object: its total, else the sum of its parts."""
    if not isinstance(value, dict):
        return None
    for name in TOTAL_COST_FIELDS:
        if (total := parse_dollars(value.get(name))) is not None:
            return total
    parts = [part for part in map(parse_dollars, value.values()) if part is not None]
    return sum(parts) if parts else None
