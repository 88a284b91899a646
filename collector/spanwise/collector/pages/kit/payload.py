"""How inputs, outputs and other JSON values are laid out: text, chat messages, named fields, or coloured JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from spanwise.collector.pages.kit.text import visible
from spanwise.collector.records import JSON

SHOWN = 100_000  # characters of one value on a page; the whole value is a link away
_LARGE_CHARACTERS, _LARGE_LINES = 2_400, 30
_MOST_FIELDS, _MOST_MESSAGES = 24, 200
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null|NaN|-?Infinity)\b')


@dataclass(frozen=True, slots=True)
class Block:
    """One value ready for the page. `length` counts all its characters, of which `html` shows at most `SHOWN`."""

    html: Markup
    language: Literal["text", "json"]
    length: int
    lines: int

    @property
    def large(self) -> bool:
        """Whether it starts folded."""
        return self.length > _LARGE_CHARACTERS or self.lines > _LARGE_LINES

    @property
    def short(self) -> bool:
        """Whether it needs no frame."""
        return self.lines == 1 and self.length <= 90

    @property
    def cut(self) -> bool:
        """Whether `html` is only the beginning."""
        return self.length > SHOWN


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation with a model."""

    role: str
    content: Block | None
    calls: Block | None


@dataclass(frozen=True, slots=True)
class Layout:
    """A value's form: exactly one of the fields is set, none of them for an empty value."""

    block: Block | None = None
    fields: tuple[tuple[str, Block], ...] = ()
    messages: tuple[Message, ...] = ()
    rest: tuple[tuple[str, Block], ...] = ()  # fields beside `messages`


def as_json(value: JSON) -> str:
    """Indented JSON; what JSON has no form for is shown as text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _coloured(match: re.Match[str]) -> str:
    string, colon, figure, word = match.groups()
    if string is not None:
        return f'<span class="{"k" if colon else "s"}">{escape(visible(string))}</span>{colon or ""}'
    return f'<span class="n">{escape(figure or word)}</span>'


def highlight(text: str) -> Markup:
    """JSON text with its keys, strings and numbers in spans. Everything between tokens is escaped as well."""
    parts, position = [], 0
    for match in _TOKEN.finditer(text):
        parts += [str(escape(visible(text[position : match.start()]))), _coloured(match)]
        position = match.end()
    return Markup("".join([*parts, str(escape(visible(text[position:])))]))


def block(value: JSON) -> Block:
    """One value: a string as it is, anything else as JSON."""
    plain = isinstance(value, str)
    text = value if plain else as_json(value)
    html = escape(visible(text[:SHOWN])) if plain else highlight(text[:SHOWN])
    return Block(html, "text" if plain else "json", len(text), text.count("\n") + 1)


def _message(value: JSON) -> Message:
    content = value.get("content", value.get("parts"))
    calls = value.get("tool_calls")
    shown = None if content in (None, "", []) else block(_spoken(content))
    return Message(str(value["role"]), shown, block(calls) if calls else None)


def _spoken(content: JSON) -> JSON:
    """Text parts joined, if a message's content is a list of nothing but text parts."""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text", part.get("content")) for part in content]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    return content


def messages(value: JSON) -> list[Mapping[str, JSON]] | None:
    """The chat messages of a value (a list of them, or a field `messages`), None if it has none."""
    talk = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(talk, list) or not 0 < len(talk) <= _MOST_MESSAGES:
        return None
    spoken = all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in talk)
    return talk if spoken else None


def layout(value: JSON) -> Layout:
    """Choose the form in which a value reads best."""
    if value is None or value == {} or value == []:
        return Layout()
    if talk := messages(value):
        others = {key: item for key, item in value.items() if key != "messages"} if isinstance(value, dict) else {}
        return Layout(messages=tuple(map(_message, talk)), rest=_fields(others))
    if isinstance(value, dict) and len(value) <= _MOST_FIELDS:
        return Layout(fields=_fields(value))
    return Layout(block=block(value))


def _fields(value: Mapping[str, JSON]) -> tuple[tuple[str, Block], ...]:
    return tuple((str(key), block(item)) for key, item in value.items())


def gist(value: JSON) -> str:
    """What a value says at a glance: a text, the last message's text, a lone field's value, else compact JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if talk := messages(value):
        return gist(_spoken(talk[-1].get("content", talk[-1].get("parts"))))
    if isinstance(value, dict) and len(value) == 1:
        return gist(next(iter(value.values())))
    return json.dumps(value, ensure_ascii=False, default=str)


def glimpse(text: str, limit: int = 240) -> str:
    """The same from the beginning of a value's JSON, as lists of traces carry it, even when it is cut off."""
    try:
        return _shortened(gist(json.loads(text)), limit)
    except ValueError:
        return _shortened(text, limit)


def _shortened(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
