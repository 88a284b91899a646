"""Kinds of datasets, as LangSmith has them, and what evaluators see of each.

kv: any inputs and outputs. llm: {"input": prompt} → {"output": response}. chat: {"input": messages} →
{"output": messages}. Of an llm or chat example evaluators get the texts: the prompt and the response, or the last
turn of the conversation, with the turns before it as `history`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spanwise.collector.records import JSON, DatasetKind, Example
from spanwise.evaluators.protocol import messages, only


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


def _last_turn(example: Example) -> dict[str, JSON]:
    turns = messages(only(example.inputs))
    if not turns:
        return {}
    return {
        "inputs": turns[-1].get("content"),
        "history": example.history or turns[:-1] or None,
        "reference_outputs": view_outputs(example.reference_outputs, "chat"),
    }
