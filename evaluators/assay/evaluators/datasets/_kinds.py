"""Kinds of datasets, as LangSmith has them, and what evaluators see of each.

kv: any inputs and outputs. llm: {"input": prompt} → {"output": response}. chat: {"input": messages} →
{"output": messages}. Of an llm or chat example evaluators get the texts: the prompt and the response, or the last
turn of the conversation, with the turns before it as `history`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from assay.collector.records import JSON, DatasetKind, Example

ROLES = {"human": "user", "ai": "assistant"}  # LangChain's words for the roles of messages


def kind_of(examples: Iterable[Example]) -> DatasetKind:
    """The kind of a list of examples, by what its first has."""
    first = next(iter(examples), None)
    if first is None or not isinstance(first.inputs, Mapping) or set(first.inputs) != {"input"}:
        return "kv"
    given = first.inputs["input"]
    if isinstance(given, str):
        return "llm"
    return "chat" if messages(given) else "kv"


def check_kind(examples: Iterable[Example], kind: DatasetKind) -> None:
    """Raise `ValueError` for the first example that is not of the kind."""
    for number, example in enumerate(examples, 1):
        if kind != "kv" and kind_of([example]) != kind:
            wanted = "a text" if kind == "llm" else "a list of messages"
            raise ValueError(
                f"example {number} ({example.id[:12]}) is not of kind {kind!r}: inputs must be "
                f"{{'input': {wanted}}}, not {example.inputs!r:.120}"
            )


def messages(value: JSON) -> list[dict[str, Any]]:
    """Messages as OpenAI writes them, out of its own or LangChain's serialised form; [] if it is something else."""
    if isinstance(value, Mapping):
        value = value.get("messages", [value])
    if not isinstance(value, list | tuple) or not value:
        return []
    read = [_message(item) for item in value]
    return [message for message in read if message] if all(read) else []


def view(example: Example, kind: str) -> dict[str, JSON]:
    """The fields of a `Case` that evaluators see of an example: `inputs`, `reference_outputs`, `history`."""
    fields = {"inputs": example.inputs, "reference_outputs": example.reference_outputs, "history": example.history}
    if kind == "kv":
        return fields
    if kind == "llm":
        return {**fields, "inputs": only(example.inputs), "reference_outputs": only(example.reference_outputs)}
    return {**fields, **_last_turn(example)}


def view_outputs(outputs: JSON, kind: str) -> JSON:
    """What evaluators see of a task's outputs."""
    if kind == "kv":
        return outputs
    turns = messages(only(outputs)) if kind == "chat" else []
    return turns[-1].get("content") if turns else only(outputs)


def only(value: JSON) -> JSON:
    """The one value of a dict with one key; anything else as it is."""
    return next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else value


def _last_turn(example: Example) -> dict[str, JSON]:
    turns = messages(only(example.inputs))
    if not turns:
        return {}
    return {
        "inputs": turns[-1].get("content"),
        "history": example.history or turns[:-1] or None,
        "reference_outputs": view_outputs(example.reference_outputs, "chat"),
    }


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
    return {"role": ROLES.get(role, role), **{key: value[key] for key in kept if value.get(key) is not None}}
