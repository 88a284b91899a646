"""Reading of a whole value: chat messages, named fields, or blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spanwise.collector.content.blocks import Block, Content
from spanwise.collector.content.message_parts import get_type, read_part, read_parts
from spanwise.collector.content.messages import find_messages
from spanwise.collector.content.structured_text import parse_structure
from spanwise.collector.content.text_formats import read_text
from spanwise.collector.records import JSON

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
