"""Blocks of content: records, formats of texts, texts that hold a structure, embedded media."""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import orjson

from spanwise.collector.records import JSON

# Records: blocks, messages, and the content of a value.

BlockKind: TypeAlias = Literal[
    "text", "markdown", "code", "image", "audio", "tool_call", "tool_result", "reasoning", "file", "json"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One piece of content with its kind. Which fields are set depends on the kind.

    - text, markdown, code, reasoning: `text`; code also has a `language`, "" if unknown.
    - tool_call: `name`, `call_id`, arguments in `value`; `result` after `join_tool_results`.
    - tool_result: `call_id`, `name`, result in `value`, `failed`.
    - image, audio, file: `name`, `media_type` as declared, and `data` (base64) or `url`; audio may have a transcript
      in `text`.
    - json: `value`.
    """

    kind: BlockKind
    text: str = ""
    language: str = ""
    name: str = ""
    call_id: str | None = None
    value: JSON = None
    failed: bool = False
    media_type: str = ""
    data: str = field(default="", repr=False)
    url: str = ""
    result: Block | None = None


class Message:
    """One message of a chat. Roles of all conventions are named as OpenAI names them, such as "user"; others stay.

    `name` is the name of the speaker, if the message has one. The blocks are read on first use, because a page shows
    few messages of a long chat.
    """

    __slots__ = ("_blocks", "_read", "name", "role")

    def __init__(
        self,
        role: str,
        blocks: tuple[Block, ...] | None = None,
        name: str = "",
        read: Callable[[], Iterable[Block]] = tuple,
    ) -> None:
        self.role, self.name = role, name
        self._blocks, self._read = blocks, read

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return the blocks of the message: reasoning, content, tool calls, audio."""
        if self._blocks is None:
            self._blocks = tuple(self._read())
        return self._blocks

    @property
    def text(self) -> str:
        """Return the text of the message without reasoning, tool calls and media."""
        return "\n".join(block.text for block in self.blocks if block.kind in ("text", "markdown", "code"))


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a value: chat messages, named fields, or blocks. All are empty for an empty value.

    Of a chat with parameters, such as a request to a model, `fields` are the parameters.
    """

    messages: tuple[Message, ...] = ()
    fields: tuple[tuple[str, JSON], ...] = ()
    blocks: tuple[Block, ...] = ()


# Texts that hold a structure: JSON, and Python's representations of messages (LlamaIndex and Haystack send these).

MAX_JSON = 2_000_000  # characters of a text that is parsed as JSON
MAX_REPRESENTATION = 30_000  # characters of a text that is parsed as a representation
_REPRESENTATION_START = re.compile(r"[A-Z]\w{1,60}\(\w{1,40}=|\{'\w{1,40}':")
_ENUM = re.compile(r"<\w{1,60}\.\w{1,60}: ('[^'\n]{0,60}'|\d{1,9})>")
_OBJECT = re.compile(r"<[A-Za-z][\w.<> ]{1,200} at 0x[0-9a-f]{1,16}>")


def is_representation(text: str) -> bool:
    """Return whether a text begins like the representation of a Python object."""
    return _REPRESENTATION_START.match(text) is not None


def parse_structure(value: JSON) -> JSON:
    """Return the value that a text holds; return a text without structure, and any other value, unchanged.

    Of an object in a Python representation, a mapping of its fields is returned, without leading underscores. Its
    class is the `type`, in lower case, unless it has a field of this name.
    """
    if not isinstance(value, str):
        return value
    if value[:1] in ("{", "[") and len(value) <= MAX_JSON:
        try:
            return orjson.loads(value)
        except ValueError:
            pass
    if len(value) > MAX_REPRESENTATION or not is_representation(value):
        return value
    try:
        return _convert(ast.parse(_OBJECT.sub("None", _ENUM.sub(r"\1", value)), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return value


def _convert(node: ast.expr) -> JSON:
    """Return the value of a literal or of a call with named arguments; other expressions as their source."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        fields = {(item.arg or "").lstrip("_"): _convert(item.value) for item in node.keywords}
        return fields if "block_type" in fields else {"type": node.func.id.lower(), **fields}
    if isinstance(node, ast.Dict):
        return {
            str(ast.literal_eval(key)): _convert(item) for key, item in zip(node.keys, node.values, strict=True) if key
        }
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_convert(item) for item in node.elts]
    try:
        literal = ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
    return literal if literal is None or isinstance(literal, str | int | float) else str(literal)


# Format of a text: plain, Markdown, code or JSON.

MAX_EXAMINED = 20_000  # characters of a text that are searched for its format

# Every repetition is bounded, so that a text of 20,000 brackets or asterisks takes linear time.
_MARKDOWN = re.compile(
    r"""
    ^\#{1,6}[ ]\S                              # heading
    | ^[ ]{0,8}[-*+][ ]\S                      # list
    | ^[ ]{0,8}\d{1,3}[.)][ ]\S
    | ^[ ]{0,3}(?:```|~~~)                     # code
    | ^[ ]{0,3}>[ ]\S                          # quotation
    | ^[ ]{0,3}\|?[ ]{0,3}:?-{3,40}:?[ ]{0,3}\|  # table
    | \*\*[^*\s][^*\n]{0,200}\*\*
    | `[^`\n]{1,200}`
    | \[[^\]\n]{1,200}\]\([^)\s]{1,500}\)
    """,
    re.MULTILINE | re.VERBOSE,
)
_MARKUP_START = re.compile(r"\s*<(?:\?xml|!doctype html|html|svg)[\s>]", re.IGNORECASE)
_TRACEBACK_START = re.compile(r"\s*Traceback \(most recent call last\):")
_SQL = re.compile(r"\s*(?:SELECT\s.{1,2000}?\sFROM|INSERT INTO|CREATE TABLE|UPDATE\s\S{1,100}\sSET)\s", re.DOTALL)
_CODE = ((_MARKUP_START, "html"), (_TRACEBACK_START, "pytb"), (_SQL, "sql"))


def read_text(text: str) -> Block:
    """Return the block of a text. A text that is a JSON object or list becomes a block of that value."""
    structure = parse_structure(text)
    if not isinstance(structure, str):
        return Block(kind="json", value=structure)
    head = text[:MAX_EXAMINED]
    if language := next((name for pattern, name in _CODE if pattern.match(head)), ""):
        return Block(kind="code", text=text, language=language)
    return Block(kind="markdown" if _MARKDOWN.search(head) else "text", text=text)


# Embedded images and audio: decoding, fixed types, size limit.
#
# The type is found in the first bytes of the data, never taken from the sender. SVG is not an image here, because it
# can contain scripts.

MAX_MEDIA_BYTES = 10 * 1024 * 1024  # of one decoded image or recording
_HEAD_CHARACTERS = 64  # of base64; enough for every signature
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "audio/webm"),
)


@dataclass(frozen=True, slots=True)
class Media:
    """Decoded image or recording, with the type of its bytes."""

    content: bytes
    media_type: str


def find_media_type(block: Block) -> str | None:
    """Return the type of embedded data that a browser may show, None for other types and oversized data."""
    if not block.data or len(block.data) > MAX_MEDIA_BYTES * 4 // 3 + 4:
        return None
    try:
        head = base64.b64decode(_normalize(block.data[:_HEAD_CHARACTERS]))
    except (binascii.Error, ValueError):
        return None
    found = next((name for signature, name in _SIGNATURES if head.startswith(signature)), None)
    if head[:4] == b"RIFF":
        found = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12])
    elif head[4:8] == b"ftyp":
        found = {b"avif": "image/avif", b"M4A ": "audio/mp4"}.get(head[8:12])
    return found if found and found.startswith(block.kind) else None


def decode_media(block: Block) -> Media | None:
    """Decode an embedded image or recording. Return None for types that `find_media_type` does not accept."""
    media_type = find_media_type(block)
    if media_type is None:
        return None
    try:
        return Media(base64.b64decode(_normalize(block.data)), media_type)
    except (binascii.Error, ValueError):
        return None


def _normalize(data: str) -> bytes:
    """Return base64 in the standard alphabet, without line breaks, with padding."""
    text = data.encode("ascii", "replace").translate(bytes.maketrans(b"-_", b"+/"), b"\r\n \t=")
    return text + b"=" * (-len(text) % 4)
