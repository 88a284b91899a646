"""Escaping of control characters in untrusted text that is printed to a terminal.

The one place where that is seen to: `TerminalConsole` for all that is printed, `on_a_line` for names and cells of
tables. JSON for pipes goes past it, exactly as it is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_ALLOWED_CONTROLS = frozenset({"\n", "\t"})
MAX_NAME_LENGTH = 500  # characters of a name, or of a cell
MAX_MESSAGE_LENGTH = 10_000  # of an error


class TerminalConsole(Console):
    """A console whose texts are `harmless`, whoever made them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does it; what moves its own cursor is left alone."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else escape_text(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def escape_text(text: str) -> str:
    """The text without what would steer a terminal, or turn the order of letters round: each such character as its
    escape.
    """
    if text.isascii() and text.isprintable():
        return text
    return _escape_unprintable(text, _ALLOWED_CONTROLS)


def escape_line(text: str, most: int = MAX_NAME_LENGTH) -> str:
    """The beginning of a text, harmless, without a line's end; where it is cut, how long it is."""
    return _escape_unprintable(truncate_text(text, most))


def escape_message(text: str) -> str:
    """The beginning of a text of several lines, harmless."""
    return escape_text(truncate_text(text, MAX_MESSAGE_LENGTH))


def truncate_text(text: str, most: int) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _escape_unprintable(text: str, kept: frozenset[str] = frozenset()) -> str:
    return "".join(letter if letter in kept or letter.isprintable() else _escape_character(letter) for letter in text)


def _escape_character(letter: str) -> str:
    return letter if unicodedata.category(letter) == "Zs" else letter.encode("unicode_escape").decode()
