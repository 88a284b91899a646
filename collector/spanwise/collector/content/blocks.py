"""Records: blocks, messages, and the content of a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from spanwise.collector.records import JSON

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
