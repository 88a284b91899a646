"""Hostile text made visible: what travels in a trace can neither act on the page nor hide in it."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

# Control characters, lone surrogates, and the marks that reorder or hide text (bidirectional controls, zero-width).
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"


def visible(value: object) -> object:
    """The value as it may be printed: None as nothing, invisible characters as marks. Trusted markup is left alone.

    Jinja calls this on everything that a template prints, before it escapes it.
    """
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNSEEN.sub(_picture, value)
    return value


def breakable(text: str) -> Markup:
    """A name that may be broken after its underscores, dots and dashes."""
    return Markup(re.sub(r"([_.-]+)", r"\1<wbr>", str(escape(visible(text)))))
