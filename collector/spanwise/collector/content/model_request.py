"""A model call as an OpenAI-compatible request, such as a curl command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from spanwise.collector.content.blocks import Block, Message
from spanwise.collector.content.reading import read_content
from spanwise.collector.records import JSON

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
