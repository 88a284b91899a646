"""Reading of a whole value: chat messages, named fields, or blocks."""

from __future__ import annotations

from collections.abc import Mapping

from spanwise.collector.content.blocks import Block, Content
from spanwise.collector.content.messages import find_messages
from spanwise.collector.content.parts import get_type, read_part, read_parts
from spanwise.collector.content.structured_text import parse_structure
from spanwise.collector.content.text_formats import read_text
from spanwise.collector.records import JSON

MAX_FIELDS = 24  # objects with more fields are read as JSON
_PART_TYPES = frozenset(("text", "image", "image_url", "input_image", "audio", "input_audio", "tool_call", "tool_use"))
_PART_TYPES |= {"tool_result", "toolcall", "toolcallresult", "thinking"}
_MEDIA_KINDS = ("image", "audio", "file")


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


def list_media(value: JSON) -> list[Block]:
    """Return the images, recordings and files of a value in the order in which `read_content` reads them."""
    content = read_content(value)
    blocks = [block for message in content.messages for block in message.blocks]
    blocks += [block for _, item in content.fields if (block := read_field(item))]
    return [block for block in (*blocks, *content.blocks) if block.kind in _MEDIA_KINDS]
