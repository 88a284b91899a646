"""Text of inputs and outputs: fields of dicts, chat messages, completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANSWER_FIELDS = (
    "answer",
    "output",
    "response",
    "text",
    "content",
    "result",
    "completion",
    "expected_response",
    "expected",
)
QUESTION_FIELDS = ("question", "query", "request", "prompt", "input", "text", "content")


def extract_text(value: Any, fields: tuple[str, ...] = ANSWER_FIELDS) -> str:
    """Return the text of outputs or of a reference.

    In a dict, the text is the first field with a usual name, else the only field. In a list of chat messages, it is
    the last message. None, as returned by a task without a result, gives "". Raises `ValueError` if there is not
    exactly one text.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return _extract_from_mapping(value, fields)
    if isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        return extract_text(value[-1]["content"], fields)
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(part, Mapping) and "text" in part for part in value)
    ):
        return "".join(str(part["text"]) for part in value)  # content parts of a message
    if isinstance(value, bool | int | float):
        return str(value)
    raise ValueError(f"found no single text in {value!r:.200}: select it with map=")


def extract_all_text(value: Any) -> str:
    """Return every text and number in a value, one per line with the name of its field.

    In a list of chat messages, only the last message is used, because earlier ones are not the answer.
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


def extract_question(inputs: Any) -> str:
    """Return the text of inputs, as `extract_text` does, with the usual names of questions."""
    return extract_text(inputs, QUESTION_FIELDS)


def _extract_from_mapping(value: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    for name in fields:
        if value.get(name) is not None:
            return extract_text(value[name], fields)
    if isinstance(value.get("messages"), list):
        return extract_text(value["messages"], fields)
    if isinstance(value.get("choices"), list) and value["choices"]:  # raw chat completion
        return extract_text(value["choices"][0].get("message", {}), fields)
    if len(value) == 1:
        return extract_text(next(iter(value.values())), fields)
    known = ", ".join(map(repr, value))
    raise ValueError(
        f"cannot tell which of the fields {known} is the text: select it with map=, as in map={{'outputs': 'outputs.x'}}"
    )
