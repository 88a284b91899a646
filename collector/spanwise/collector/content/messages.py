"""Chat messages of OpenAI, Anthropic, Gemini, GenAI, LangChain, LangGraph, Haystack and others, and their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from spanwise.collector.content.blocks import Block, BlockKind, Message, parse_structure, read_text
from spanwise.collector.records import JSON

# Parts of a message, read as blocks: texts, tool calls, results, reasoning, media.
#
# Conventions mark a part by its `type`, or by the only field that it has. Each reader below takes a part and returns
# its block, or None for a part of another kind.

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


# Chat messages of OpenAI, Anthropic, Gemini, GenAI, LangChain, LangGraph, Haystack and others.

# Types of LangChain's messages, and the names that conventions other than OpenAI's have for a role
_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool", "chatbot": "assistant"}
_ROLES |= {"humanmessage": "user", "aimessage": "assistant", "systemmessage": "system", "toolmessage": "tool"}
_ROLES |= {"aimessagechunk": "assistant", "humanmessagechunk": "user", "functionmessage": "tool", "bot": "assistant"}
_LANGCHAIN_TYPES = frozenset(("human", "ai", "system", "tool", "function", "chat", "developer", "aimessagechunk"))
_LANGCHAIN_TYPES |= {name for name in _ROLES if name.endswith("message")}
_RESPONSE_CALLS = frozenset(("function_call", "custom_tool_call"))  # items of OpenAI's responses API
_RESPONSE_RESULTS = frozenset(("function_call_output", "custom_tool_call_output"))
_CONTENT_NAMES = ("content", "parts", "blocks", "_content")
_MESSAGE_NAMES = frozenset((*_CONTENT_NAMES, "tool_calls", "function_call", "audio", "refusal"))
# Fields that hold messages, in order of precedence
_LIST_NAMES = ("messages", "choices", "output", "contents", "candidates", "replies", "generations", "prompt")
_SINGLE_NAMES = ("message", "update", "input", "result", "response", "content")
_SYSTEM_NAMES = ("system", "instructions", "system_instruction", "systemInstruction")
_MAX_DEPTH = 5  # objects and lists around a chat


def find_messages(value: JSON, depth: int = _MAX_DEPTH) -> tuple[list[Message], dict[str, JSON]] | None:
    """Return the chat messages of a value, and its other fields; None if it has no messages."""
    if isinstance(value, list):
        messages = _read_list(value, depth)
        return (messages, {}) if messages else None
    if not isinstance(value, Mapping) or not depth:
        return None
    if (message := read_message(value)) is not None:
        return [message], {}
    for name in (*_LIST_NAMES, *_SINGLE_NAMES):
        inner = value.get(name)
        if isinstance(inner, list | Mapping) and inner and (found := find_messages(inner, depth - 1)):
            others = {key: item for key, item in value.items() if key != name}
            system = [
                read_system_prompt(others.pop(key)) for key in _SYSTEM_NAMES if name != "output" and others.get(key)
            ]
            return [*system, *found[0]], {**found[1], **others}
    if len(value) == 1:  # such as the output of the only component of a pipeline
        return find_messages(next(iter(value.values())), depth - 1)
    return None


def _read_list(items: Sequence[JSON], depth: int) -> list[Message] | None:
    """Return the messages of a list in which every item is a message, or holds one."""
    messages: list[Message] = []
    for sent in items:
        item = parse_structure(sent)
        message = read_message(item) if isinstance(item, dict) else None
        if message is not None:
            messages.append(message)
        elif depth and isinstance(item, list | Mapping) and (found := find_messages(item, depth - 1)):
            messages += found[0]
        else:
            return None
    return messages


def read_system_prompt(value: JSON) -> Message:
    """Return the message of a system prompt beside the messages of a chat."""
    inner = value.get("parts", value) if isinstance(value, Mapping) else value  # Gemini's has parts
    return Message("system", tuple(read_parts(inner)))


def read_message(value: Part) -> Message | None:
    """Return the message that an object of any convention is, None for another object."""
    role, kind = value.get("role"), ""
    if not isinstance(role, str):
        value = unwrap_message(value)
        role, kind = value.get("role"), get_type(value)
    if not isinstance(role, str):
        if kind in _RESPONSE_CALLS:
            call = read_call(value, kind)
            return Message("assistant", (call,)) if call else None
        if kind in _RESPONSE_RESULTS:
            return Message("tool", tuple(read_part(value)))
        if kind == "reasoning" and "summary" in value:
            return Message("assistant", tuple(read_part(value)))
        if "finish_reason" in value and isinstance(value.get("text"), str):  # completions without chat
            return Message("assistant", tuple(read_parts(value["text"])))
        if kind not in _LANGCHAIN_TYPES or not any(name in value for name in ("content", "tool_calls")):
            return None
        role = kind
    elif _MESSAGE_NAMES.isdisjoint(value):
        return None
    role = _ROLES.get(role.lower(), role)
    parts = value.get("content", value.get("parts")) if role == "user" else None
    if isinstance(parts, list) and parts and all(isinstance(part, Mapping) and is_result(part) for part in parts):
        # Anthropic, Gemini
        role = "tool"
    name = value.get("name")
    return Message(
        role, None, name if isinstance(name, str) and role != "tool" else "", partial(_read_blocks, value, role)
    )


def unwrap_message(value: Any) -> Part:
    """Return the object that has the role: LangChain serializes messages inside `data` or `kwargs`."""
    kind = get_type(value)
    if kind in _LANGCHAIN_TYPES and isinstance(value.get("data"), Mapping):
        return {"type": kind, **value["data"]}
    names = value.get("id")
    if kind == "constructor" and isinstance(value.get("kwargs"), Mapping) and isinstance(names, list) and names:
        return {**value["kwargs"], "type": str(names[-1]).lower()}
    return value  # type: ignore[no-any-return]


def _read_blocks(value: Part, role: str) -> list[Block]:
    """Return reasoning, content, tool calls and audio of a message, in this order."""
    content = next((value[name] for name in _CONTENT_NAMES if value.get(name) not in (None, "", [])), None)
    if role == "tool":
        blocks = read_parts(content)
        if any(block.kind == "tool_result" for block in blocks):
            return blocks
        identity, name = value.get("tool_call_id"), value.get("name")
        failed = value.get("status") == "error"
        return [
            make_result(
                name if isinstance(name, str) else "", identity if isinstance(identity, str) else None, content, failed
            )
        ]
    blocks = [
        Block(kind="reasoning", text=text)
        for name in ("reasoning_content", "reasoning")
        if isinstance(text := value.get(name), str) and text
    ][:1]
    blocks += read_parts(content)
    if isinstance(refusal := value.get("refusal"), str) and refusal:
        blocks.append(read_text(refusal))
    known = {block.call_id for block in blocks if block.kind == "tool_call"}
    for call in _list_calls(value):
        block = read_call(call)
        if block and (block.call_id is None or block.call_id not in known):
            blocks.append(block)
    if isinstance(audio := value.get("audio"), Mapping):
        blocks += read_part({"type": "audio", "audio": audio})
    return blocks


def _list_calls(value: Part) -> list[Part]:
    """Return the tool calls in the fields of a message; LangChain and LlamaIndex repeat them in further arguments."""
    further = value.get("additional_kwargs")
    for holder in (value, further if isinstance(further, Mapping) else {}):
        calls = holder.get("tool_calls")
        if isinstance(calls, list) and calls:
            return [call for call in calls if isinstance(call, Mapping)]
        if isinstance(call := holder.get("function_call"), Mapping):
            return [call]
    return []


def join_tool_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with every tool result inside its call. Messages of which nothing is left are dropped.

    A result belongs to the latest call with its id before it, without ids to the first open call of its name.
    """
    joined: list[Message] = []
    open_calls: list[tuple[int, int, Block]] = []  # message, block, call
    for message in messages:
        kept: list[Block] = []
        for block in message.blocks:
            found = find_open_call(open_calls, block) if block.kind == "tool_result" else None
            if found is None:
                if block.kind == "tool_call":
                    open_calls.append((len(joined), len(kept), block))
                kept.append(block)
                continue
            open_calls.remove(found)
            at, place, call = found
            answered = replace(call, result=block)
            if at == len(joined):
                kept[place] = answered
            else:
                blocks = joined[at].blocks
                joined[at] = Message(
                    joined[at].role, (*blocks[:place], answered, *blocks[place + 1 :]), joined[at].name
                )
        if kept or not message.blocks:
            joined.append(Message(message.role, tuple(kept), message.name))
    return joined


def find_open_call(open_calls: Sequence[tuple[int, int, Block]], result: Block) -> tuple[int, int, Block] | None:
    """Return the open call to which a result belongs, with its place."""
    if result.call_id is not None:
        return next((found for found in reversed(open_calls) if found[2].call_id == result.call_id), None)
    return next((found for found in open_calls if result.name in ("", found[2].name)), None)


def find_turn(messages: Sequence[Message]) -> int:
    """Return the index of the first new message of a model call: those after the model's last answer.

    A turn that begins with tool results includes the message with their calls. Without any new message, the turn
    is the last message.
    """
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), -1)
    if last == len(messages) - 1 or (last >= 0 and messages[last + 1].role == "tool"):
        return max(0, last)
    return last + 1
