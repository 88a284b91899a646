"""Reading of a whole value: messages, fields or blocks, its main text, and a model call as a request."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from spanwise.collector.content.blocks import Block, Content, Message, is_representation, parse_structure, read_text
from spanwise.collector.content.messages import find_messages, get_type, read_part, read_parts
from spanwise.collector.records import JSON, Document

# Reading of a whole value: chat messages, named fields, or blocks.

MAX_FIELDS = 24  # objects with more fields are read as JSON
_PART_TYPES = frozenset(("text", "image", "image_url", "input_image", "audio", "input_audio", "tool_call", "tool_use"))
_PART_TYPES |= {"tool_result", "toolcall", "toolcallresult", "thinking"}
MEDIA_KINDS = ("image", "audio", "file")


def read_content(value: JSON) -> Content:
    """Read a value of any convention.

    A chat has `messages`, with its other fields. A small object has `fields`, whose values `read_field` reads. Any
    other value has `blocks`.
    """
    if value is None or value == {} or value == []:
        return Content()
    value = parse_structure(value)
    if isinstance(value, str):
        return Content(blocks=(read_text(value),) if value else ())
    if found := find_messages(value):
        messages, others = found
        fields = tuple((str(key), item) for key, item in others.items() if item not in (None, {}, [], ""))
        return Content(messages=tuple(messages), fields=fields)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return Content(blocks=tuple(read_text(item) for item in value))
    if _is_part(value) or (isinstance(value, list) and all(map(_is_part, value))):
        return Content(blocks=tuple(read_parts(value)))
    if isinstance(value, Mapping) and len(value) <= MAX_FIELDS:
        return Content(fields=tuple((str(key), item) for key, item in value.items()))
    return Content(blocks=(Block(kind="json", value=value),))


def _is_part(value: JSON) -> bool:
    """Return whether a value is a part of a message without the message."""
    return isinstance(value, Mapping) and (get_type(value) in _PART_TYPES or "raw_output" in value)


def read_field(value: JSON) -> Block | None:
    """Read the value of a field as one block: a text, a medium, or JSON; None for an empty value."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if value.startswith("data:") and ";base64," in value[:100]:
            return read_part({"type": "file", "url": value})[0]
        return read_text(value)
    return read_part(value)[0] if _is_part(value) else Block(kind="json", value=value)


def find_medium(value: JSON, place: str) -> Block | None:
    """Return an image, a recording or a file of a value by its place, None if there is none.

    A place is the position of its message and its position in the message, as in "17.0", "f2" for the third field,
    or "b0" for the first block.
    """
    numbers = place.lstrip("fb").split(".")
    if not all(number.isascii() and number.isdecimal() and len(number) < 7 for number in numbers):
        return None
    content, position = read_content(value), int(numbers[0])
    found: Sequence[Block | None]
    if place.startswith("f"):
        found = [read_field(item) for _, item in content.fields[position : position + 1]]
    elif place.startswith("b"):
        found = content.blocks[position : position + 1]
    else:
        within = int(numbers[-1])
        found = [
            block
            for message in content.messages[position : position + 1]
            for block in message.blocks[within : within + 1]
        ]
    return next((block for block in found if block and block.kind in MEDIA_KINDS), None)


# Main text of a value, for lists and headings; whether documents were cited or quoted.

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


# A model call as an OpenAI-compatible request, such as a curl command.

_PARAMETERS: tuple[str, ...] = (
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "tools",
    "tool_choice",
    "response_format",
)
_PARAMETERS += ("stop", "seed", "frequency_penalty", "presence_penalty", "reasoning_effort", "parallel_tool_calls")


def format_curl(inputs: JSON, model: str | None) -> str:
    """Return a shell command that sends the inputs of a model call to an OpenAI-compatible endpoint.

    The key is read from OPENAI_API_KEY and the address from OPENAI_BASE_URL, so that the command has no secret.
    """
    content = read_content(inputs)
    parameters = dict(content.fields)
    messages = [each for message in content.messages for each in _format_message(message)]
    if not messages:
        text = inputs if isinstance(inputs, str) else json.dumps(inputs, default=str)
        messages = [{"role": "user", "content": text}]
    body: dict[str, Any] = {"model": model or parameters.get("model") or "MODEL", "messages": messages}
    body |= {name: parameters[name] for name in _PARAMETERS if name in parameters}
    return (
        'curl "${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions" \\\n'
        '  -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(json.dumps(body, default=str))}\n"
    )


def _format_message(message: Message) -> list[dict[str, Any]]:
    """Return a message as OpenAI's API takes it; each tool result becomes a message of its own."""
    results = [block for block in message.blocks if block.kind == "tool_result"]
    if results:
        return [
            {"role": "tool", "tool_call_id": block.call_id, "content": _format_value(block.value)} for block in results
        ]
    calls = [block for block in message.blocks if block.kind == "tool_call"]
    others = [block for block in message.blocks if block.kind not in ("tool_call", "reasoning")]
    formatted: dict[str, Any] = {"role": message.role, "content": _format_content(others)}
    if calls:
        formatted["tool_calls"] = [
            {
                "id": block.call_id or f"call_{place}",
                "type": "function",
                "function": {"name": block.name, "arguments": _format_value(block.value)},
            }
            for place, block in enumerate(calls, 1)
        ]
    return [formatted]


def _format_content(blocks: Sequence[Block]) -> JSON:
    if all(block.kind in ("text", "markdown", "code", "json") for block in blocks):
        return "\n".join(block.text or _format_value(block.value) for block in blocks) if blocks else None
    parts: list[JSON] = []
    for block in blocks:
        if block.kind == "image":
            url = block.url or f"data:{block.media_type};base64,{block.data}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            parts.append({"type": "text", "text": block.text or block.url or _format_value(block.value)})
    return parts


def _format_value(value: JSON) -> str:
    if value is None or value == "":
        return ""
    return (
        value
        if isinstance(value, str)
        else json.dumps(dict(value) if isinstance(value, Mapping) else value, default=str)
    )
