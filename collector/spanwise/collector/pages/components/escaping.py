"""Escaping of untrusted text for HTML: visible marks for invisible characters, JSON with highlighted tokens."""

from __future__ import annotations

import json
import re

from markupsafe import Markup, escape

from spanwise.collector.records import JSON

# Control characters, lone surrogates, and characters that reorder or hide text (bidirectional controls, zero-width).
_INVISIBLE_PATTERN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def make_visible_mark(match: re.Match[str]) -> str:
    """Return the visible mark of an invisible character."""
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"


def mark_invisible(value: object) -> object:
    """Return a value for printing: "" for None, visible marks for invisible characters, trusted markup unchanged.

    Jinja calls this on every expression of a template before it escapes the result.
    """
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _INVISIBLE_PATTERN.sub(make_visible_mark, value)
    return value


def allow_line_breaks(text: str) -> Markup:
    """Return a name with optional line breaks after underscores, dots and dashes."""
    return Markup(re.sub(r"([_.-]+)", r"\1<wbr>", str(escape(mark_invisible(text)))))


_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null|NaN|-?Infinity)\b')


def format_json(value: JSON) -> str:
    """Return indented JSON; unsupported values are shown as text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def highlight_token(match: re.Match[str]) -> str:
    """Return a token of JSON in an element with the class of its kind."""
    string, colon, figure, word = match.groups()
    if string is not None:
        return f'<span class="{"k" if colon else "s"}">{escape(mark_invisible(string))}</span>{colon or ""}'
    return f'<span class="n">{escape(figure or word)}</span>'


def highlight_json(text: str) -> Markup:
    """Return JSON text with keys, strings and numbers in `<span>` elements. All text is escaped."""
    parts, position = [], 0
    for match in _TOKEN.finditer(text):
        parts += [str(escape(mark_invisible(text[position : match.start()]))), highlight_token(match)]
        position = match.end()
    return Markup("".join([*parts, str(escape(mark_invisible(text[position:])))]))
