"""Parts of a message, read as blocks: texts, tool calls, results, reasoning, media.

Conventions mark a part by its `type`, or by the only field that it has. Each reader below takes a part and returns
its block, or None for a part of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from spanwise.collector.content.blocks import Block, BlockKind
from spanwise.collector.content.structured_text import parse_structure
from spanwise.collector.content.text_formats import read_text
from spanwise.collector.records import JSON

Part: TypeAlias = Mapping[str, JSON]

_TEXT_TYPES = frozenset(
    ("", "text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text", "text-delta")
)
_TEXT_TYPES |= {"user-prompt", "system-prompt", "retry-prompt", "textcontent", "textblock"}
_CALL_TYPES = frozenset(
    ("tool_call", "tool-call", "tool_use", "server_tool_use", "function_call", "function", "toolcall")
)
_RESULT_TYPES = frozenset(
    ("tool_call_response", "tool_response", "tool_result", "tool-result", "tool-return", "function_call_output")
)
_CALL_TYPES |= {"custom_tool_call", "mcp_call"}
_RESULT_TYPES |= {"toolcallresult", "custom_tool_call_output", "mcp_tool_result", "web_search_tool_result"}
_REASONING_TYPES = frozenset(("reasoning", "thinking", "redacted_thinking"))
_CALL_WRAPPERS = ("tool_call", "functionCall", "function_call", "toolUse")  # fields that hold a call
_RESULT_WRAPPERS = ("tool_call_result", "functionResponse", "function_response", "toolResult")
_MEDIA_WRAPPERS: tuple[str, ...] = (
    "image_url",
    "source",
    "inlineData",
    "inline_data",
    "fileData",
    "file_data",
    "input_audio",
    "audio",
)
_MEDIA_WRAPPERS += ("image", "file", "file_url", "video_url", "binary_content", "document")
_MEDIA_TYPE_NAMES = ("mime_type", "mimeType", "media_type", "mediaType", "format", "content_type")
_DATA_NAMES = ("data", "base64", "base64_image", "file_data", "content", "blob", "bytes", "b64_json")
_URL_NAMES = ("url", "uri", "fileUri", "file_uri", "file_url", "file_id")
_MEDIA_TYPES = frozenset(
    ("image", "input_image", "image_url", "image-url", "audio", "input_audio", "audio-url", "file")
)
_MEDIA_TYPES |= {"input_file", "document", "document-url", "blob", "uri", "binary", "media", "video", "video-url"}
_SHAPES: tuple[BlockKind, ...] = ("image", "audio", "file")
_MAX_CHAIN = 4  # objects inside each other around the data of a medium


def read_parts(content: JSON) -> list[Block]:
    """Return the blocks of a message's content: a text, one part, or a list of parts."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [read_text(content)]
    parts = content if isinstance(content, list) else [content]
    return [block for part in parts for block in read_part(part)]


def read_part(part: JSON) -> list[Block]:
    """Return the blocks of one part: none for an empty text, one for anything else."""
    if isinstance(part, str):
        return [read_text(part)] if part else []
    if not isinstance(part, Mapping):
        return [Block(kind="json", value=part)]
    kind = get_type(part)
    for reader in (read_reasoning, read_call, read_result, read_media):
        if block := reader(part, kind):
            return [block]
    text = part.get("text", part.get("content", part.get("refusal")))
    if isinstance(text, Mapping) and isinstance(text.get("value"), str):  # OpenAI's assistants
        text = text["value"]
    if isinstance(text, str) and kind in _TEXT_TYPES:
        return [read_text(text)] if text else []
    return [Block(kind="json", value=dict(part))]


def get_type(part: Part) -> str:
    """Return the declared type of a part or message, in lower case; "" without one."""
    kind = part.get("type") or part.get("part_kind") or part.get("block_type") or part.get("kind") or ""
    return kind.lower() if isinstance(kind, str) else ""


def read_call(part: Part, kind: str = "function") -> Block | None:
    """Return the block of a tool call, None for another part."""
    wrapped = next((part[name] for name in _CALL_WRAPPERS if isinstance(part.get(name), Mapping)), None)
    call: Any = wrapped if wrapped is not None else part
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    name = _first_text(inner, ("name", "tool_name", "toolName"))
    if not name or (wrapped is None and kind not in _CALL_TYPES and "tool_kwargs" not in part):
        return None
    arguments = _first(inner, ("arguments", "args", "input", "tool_kwargs", "parameters"))
    identity = _first_text({**part, **call}, ("call_id", "id", "tool_call_id", "toolCallId", "toolUseId", "tool_id"))
    return Block(kind="tool_call", name=name, call_id=identity or None, value=parse_structure(arguments))


def is_result(part: Part) -> bool:
    """Return whether a part is the result of a tool."""
    if get_type(part) in _RESULT_TYPES or {"tool_name", "raw_output"} <= part.keys():
        return True
    return any(isinstance(part.get(name), Mapping) for name in _RESULT_WRAPPERS)


def read_result(part: Part, kind: str) -> Block | None:
    """Return the block of a tool result, None for another part."""
    if not is_result(part):
        return None
    wrapped = next((part[name] for name in _RESULT_WRAPPERS if isinstance(part.get(name), Mapping)), None)
    result: Any = wrapped if wrapped is not None else part
    origin = result.get("origin")  # Haystack repeats the call
    about = {**origin, **result} if isinstance(origin, Mapping) else result
    identity = _first_text(
        about, ("tool_use_id", "tool_call_id", "call_id", "toolCallId", "toolUseId", "tool_id", "id")
    )
    value = _first(result, ("response", "result", "output", "raw_output", "tool_output", "content"))
    failed = bool(result.get("is_error") or result.get("isError") or result.get("error"))
    failed |= result.get("status") == "error"  # Bedrock
    return make_result(_first_text(about, ("name", "tool_name", "toolName")), identity or None, value, failed)


def make_result(name: str, call_id: str | None, value: JSON, failed: bool = False) -> Block:
    """Return the block of a tool result. A list of text parts is joined."""
    if isinstance(value, Mapping) and value.keys() == {"type", "value"}:  # Vercel
        failed |= get_type(value).startswith("error")
        value = value["value"]
    if isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
        texts = [part.get("text") for part in value if get_type(part) in _TEXT_TYPES]
        if len(texts) == len(value) and all(isinstance(text, str) for text in texts):
            value = "\n".join(texts)
    return Block(kind="tool_result", name=name, call_id=call_id, value=parse_structure(value), failed=failed)


def read_reasoning(part: Part, kind: str) -> Block | None:
    """Return the block of a model's reasoning, None for another part."""
    inner: Any = part.get("reasoning") if isinstance(part.get("reasoning"), Mapping) else part
    if kind not in _REASONING_TYPES and inner is part and part.get("thought") is not True:
        return None
    text = _first(inner, ("thinking", "reasoning_text", "reasoning", "text", "summary", "content"))
    if isinstance(text, list):
        text = "\n\n".join(str(item.get("text", "")) if isinstance(item, Mapping) else str(item) for item in text)
    shown = text if isinstance(text, str) and text else "(hidden by the provider)"
    return Block(kind="reasoning", text=shown)


def read_media(part: Part, kind: str) -> Block | None:
    """Return the block of an image, a recording or a file; None for another part."""
    chain: list[Part] = [part]  # the part, and the objects inside each other that hold its data
    hints = [kind]
    while len(chain) < _MAX_CHAIN and (name := next((name for name in _MEDIA_WRAPPERS if chain[-1].get(name)), None)):
        inner = chain[-1][name]
        if isinstance(inner, str) and (_is_address(inner) or kind in _MEDIA_TYPES):
            inner = {"url" if _is_address(inner) else "data": inner}
        if not isinstance(inner, Mapping):
            break
        chain.append(inner)
        hints.append(name)
    if len(chain) == 1 and kind not in _MEDIA_TYPES:
        return None
    url, data = _first_text(chain[-1], _URL_NAMES), _first_text(chain[-1], _DATA_NAMES)
    media_type, name, transcript = (
        next((text for holder in chain if (text := _first_text(holder, names))), "")
        for names in (_MEDIA_TYPE_NAMES, ("filename", "file_name", "name"), ("transcript",))
    )
    embedded = next((text for text in (url, data) if text.startswith("data:")), None)
    if embedded is not None:
        head, _, data = embedded.partition(",")
        media_type, url = head[5:].split(";")[0], ""
    if not (url or data or transcript):
        return None
    clues = [media_type.split("/")[0], _first_text(part, ("modality",)), *hints]
    shown: BlockKind = next((shape for clue in clues for shape in _SHAPES if shape in clue), "file")
    return Block(kind=shown, name=name or "", text=transcript, media_type=media_type, data=data, url=url)


def _is_address(text: str) -> bool:
    return text.startswith(("data:", "http://", "https://", "gs://", "s3://"))


def _first(part: Part, names: tuple[str, ...]) -> JSON:
    return next((part[name] for name in names if part.get(name) is not None), None)


def _first_text(part: Part, names: tuple[str, ...]) -> str:
    return next((text for name in names if isinstance(text := part.get(name), str) and text), "")
