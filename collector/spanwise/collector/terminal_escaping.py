"""Escaping of control characters in untrusted text that is printed to a terminal.

All escaping is in this module: `TerminalConsole` escapes all printed text, `escape_line` names and table cells. JSON
for pipes is written unescaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_ALLOWED_CONTROLS = frozenset({"\n", "\t"})
MAX_NAME_LENGTH = 500  # characters of a name or table cell
MAX_MESSAGE_LENGTH = 10_000  # characters of an error message


class TerminalConsole(Console):
    """Rich console that escapes all text that it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with rich and escape the text; rich's own control segments stay unchanged."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else escape_text(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def escape_text(text: str) -> str:
    """Replace characters that control a terminal or change the direction of text by their escape sequences."""
    if text.isascii() and text.isprintable():
        return text
    return _escape_unprintable(text, _ALLOWED_CONTROLS)


def escape_line(text: str, most: int = MAX_NAME_LENGTH) -> str:
    """Return the escaped beginning of a text as one line; a truncated text is followed by its length."""
    return _escape_unprintable(truncate_text(text, most))


def escape_message(text: str) -> str:
    """Return the escaped beginning of a text of several lines."""
    return escape_text(truncate_text(text, MAX_MESSAGE_LENGTH))


def truncate_text(text: str, most: int) -> str:
    """Return the text; if it is too long, its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _escape_unprintable(text: str, allowed: frozenset[str] = frozenset()) -> str:
    return "".join(
        letter
        if letter in allowed or letter.isprintable() or unicodedata.category(letter) == "Zs"
        else letter.encode("unicode_escape").decode()
        for letter in text
    )
