"""Chat messages of OpenAI, Anthropic, Gemini, GenAI, LangChain, LangGraph, Haystack and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spanwise.collector.content.blocks import Block, Message
from spanwise.collector.content.message_parts import (
    Part,
    get_type,
    is_result,
    make_result,
    read_call,
    read_part,
    read_parts,
)
from spanwise.collector.content.structured_text import parse_structure
from spanwise.collector.content.text_formats import read_text
from spanwise.collector.records import JSON

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
