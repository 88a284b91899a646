"""Messages of a conversation, as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.records import JSON

_ROLES = {"human": "user", "ai": "assistant"}  # LangChain's words for the roles of messages


def messages(value: JSON) -> list[dict[str, Any]]:
    """Messages as OpenAI writes them, out of its own or LangChain's serialised form; [] if it is something else."""
    if isinstance(value, Mapping):
        value = value.get("messages", [value])
    if not isinstance(value, list | tuple) or not value:
        return []
    read = [_message(item) for item in value]
    return [message for message in read if message] if all(read) else []


def only(value: JSON) -> JSON:
    """The one value of a dict with one key; anything else as it is."""
    return next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else value


def _message(value: JSON) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("data"), Mapping):  # LangChain: {"type": "human", "data": {"content": …}}
        value = {"role": value.get("type"), **value["data"]}
    elif isinstance(value.get("kwargs"), Mapping):  # LangChain's constructor form
        name = str((value.get("id") or [""])[-1]).removesuffix("Message").removesuffix("MessageChunk").lower()
        value = {"role": name, **value["kwargs"]}
    role = value.get("role") or value.get("type")
    if not isinstance(role, str) or ("content" not in value and "tool_calls" not in value):
        return None
    kept = ("content", "name", "tool_calls", "tool_call_id")
    return {"role": _ROLES.get(role, role), **{key: value[key] for key in kept if value.get(key) is not None}}
