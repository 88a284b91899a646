"""The text of what a task takes or gives: strings as they are, and the one text inside dicts and messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANSWERS = ("answer", "output", "response", "text", "content", "result", "completion", "expected_response", "expected")
QUESTIONS = ("question", "query", "request", "prompt", "input", "text", "content")


def text_of(value: Any, fields: tuple[str, ...] = ANSWERS) -> str:
    """The text of outputs or of a reference.

    A dict is its only field, or its first field with a usual name; a list of chat messages is its last message; None,
    which a task has returned, says nothing: "".
    Raises `ValueError` when there is no one text.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return _of_mapping(value, fields)
    if isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        return text_of(value[-1]["content"], fields)
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(part, Mapping) and "text" in part for part in value)
    ):
        return "".join(str(part["text"]) for part in value)  # content parts of a message
    if isinstance(value, bool | int | float):
        return str(value)
    raise ValueError(f"there is no one text in {value!r:.200}: say where it is with map=")


def all_text_of(value: Any) -> str:
    """Every text and number in a value, one per line with the name of its field: for what must stand in none.

    Of a list of chat messages it is the last one alone, for those before it are no answer.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        value = value[-1]
    lines, waiting = [], [("", value)]
    while waiting:
        name, inner = waiting.pop()
        if isinstance(inner, Mapping):
            waiting += [(f"{key}: ", member) for key, member in list(inner.items())[::-1]]
        elif isinstance(inner, list | tuple):
            waiting += [(name, member) for member in reversed(inner)]
        else:
            lines.append(f"{name}{inner}")
    return "\n".join(lines)


def question_of(inputs: Any) -> str:
    """The text of inputs: as `text_of`, with the usual names of questions."""
    return text_of(inputs, QUESTIONS)


def _of_mapping(value: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    for name in fields:
        if value.get(name) is not None:
            return text_of(value[name], fields)
    if isinstance(value.get("messages"), list):
        return text_of(value["messages"], fields)
    if isinstance(value.get("choices"), list) and value["choices"]:  # a chat completion as the model gave it
        return text_of(value["choices"][0].get("message", {}), fields)
    if len(value) == 1:
        return text_of(next(iter(value.values())), fields)
    known = ", ".join(map(repr, value))
    raise ValueError(f"which of the fields {known} is the text? say so with map=, as in map={{'outputs': 'outputs.x'}}")
