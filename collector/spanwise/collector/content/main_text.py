"""Main text of a value, for lists and headings; whether documents were cited or quoted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import orjson

from spanwise.collector.content.blocks import Message
from spanwise.collector.content.messages import find_messages
from spanwise.collector.content.structured_text import is_representation, parse_structure
from spanwise.collector.records import JSON, Document

_QUESTION_NAMES = (
    "question",
    "query",
    "prompt",
    "input",
    "user_input",
    "user_msg",
    "query_str",
    "text",
    "message",
    "q",
)
_ANSWER_NAMES = ("answer", "output", "response", "result", "completion", "reply", "text", "content", "message")
_NAMES = (*_QUESTION_NAMES[:5], *_ANSWER_NAMES, *_QUESTION_NAMES[5:], "task", "title", "name")
_MAX_DEPTH = 4
_MAX_JSON = 20_000  # characters of JSON in a summary


def summarize(value: JSON) -> str:
    """Return the main text of a value: the text of its last message, of its best-named field, or else compact JSON."""
    return _find_text(value, _NAMES) or _compact(value)


def find_question(value: JSON) -> str:
    """Return what a user asked, from the inputs of a run: the last message of a user, or a field such as `question`.

    Return "" if the inputs contain no such text, or only a Python object that the sender has cut.
    """
    text = _find_text(value, _QUESTION_NAMES, role="user")
    return "" if is_representation(text) else text


def find_answer(value: JSON) -> str:
    """Return what was answered, from the outputs of a run: the last message with text, or a field such as `answer`.

    Return "" if the outputs contain no such text, or only a Python object that the sender has cut.
    """
    text = _find_text(value, _ANSWER_NAMES)
    return "" if is_representation(text) else text


_PYTHON_OBJECT = re.compile(r"<(?:async_)?generator object|<[\w.<> ]{1,200} at 0x")


def is_opaque(value: JSON) -> bool:
    """Return whether outputs without an answer say nothing else either: nothing, or Python objects.

    LlamaIndex, for example, sends a streamed answer as `{"response_gen": "<generator object …>", …}`.
    """
    if isinstance(value, Mapping):
        return any(isinstance(item, str) and _PYTHON_OBJECT.match(item) for item in value.values())
    return value is None or isinstance(value, str)


def _find_text(value: JSON, names: Sequence[str], role: str | None = None, depth: int = _MAX_DEPTH) -> str:
    value = parse_structure(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, list | Mapping) or not value or not depth:
        return ""
    if found := find_messages(value):
        spoken = [message for message in found[0] if message.role == role] or found[0]
        return next((text for message in reversed(spoken) if (text := message.text)), "") or _describe(spoken[-1])
    if isinstance(value, list):
        return _find_text(value[0], names, role, depth - 1) if len(value) == 1 else ""
    named = [value[name] for name in names if name in value]
    inner = named or (
        list(value.values()) if len(value) == 1 or all(isinstance(v, Mapping) for v in value.values()) else []
    )
    return next((text for item in inner if (text := _find_text(item, names, role, depth - 1))), "")


def _describe(message: Message) -> str:
    """Describe a message without text: its tool calls with their arguments, the result of a tool, or its media."""
    parts = []
    for block in message.blocks:
        if block.kind == "tool_call":
            parts.append(f"{block.name}({format_arguments(block.value)})")
        elif block.kind == "tool_result":
            parts.append(block.value if isinstance(block.value, str) else _compact(block.value))
        elif block.kind in ("image", "audio", "file"):
            parts.append(f"[{block.name or block.kind}]")
        else:
            parts.append(block.text or _compact(block.value))
    return ", ".join(parts)


def format_arguments(value: JSON) -> str:
    """Format the arguments of a tool call on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item if isinstance(item, str) else _compact(item)}" for key, item in value.items())
    return value if isinstance(value, str) else _compact(value)


def _compact(value: JSON) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode("utf-8", "replace")[:_MAX_JSON]


_MAX_ANSWER = 20_000  # characters of an answer and of a document that are compared
_SHINGLE = 6  # consecutive words that count as a quotation
_WORD = re.compile(r"\w+")


def find_used_documents(answer: str, documents: Sequence[Document]) -> list[str]:
    """Return for each document how an answer uses it: "cited", "quoted" or "".

    A document is cited by its rank, as in "[2]", or by its id in brackets. It is quoted if six consecutive words of
    it, or all words of a shorter document, are in the answer.
    """
    answer = answer[:_MAX_ANSWER]
    cited = {
        int(number) for group in re.findall(r"\[([\d,; ]{1,40})\]", answer) for number in re.findall(r"\d{1,4}", group)
    }
    quoted = _list_shingles(answer, _SHINGLE)
    uses = []
    for rank, document in enumerate(documents, 1):
        named = document.id is not None and len(document.id) > 1 and f"[{document.id}]" in answer
        if rank in cited or named:
            uses.append("cited")
        elif _list_shingles(document.content[:_MAX_ANSWER], _SHINGLE) & quoted:
            uses.append("quoted")
        else:
            words = _WORD.findall(document.content[:200].lower())
            short = 3 <= len(words) < _SHINGLE
            uses.append("quoted" if short and " ".join(words) in " ".join(_WORD.findall(answer.lower())) else "")
    return uses


def _list_shingles(text: str, size: int) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return set(zip(*(words[start:] for start in range(size)), strict=False)) if len(words) >= size else set()
