"""Detection of quoted verdicts: JSON in a judge's reply that repeats what the judged text says about itself.

The comparison ignores whitespace, quotes, braces, escapes, Markdown, letter case and compatibility forms, so that a
quotation in inline code, in a fence, inside another string or in another layout is still recognised.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

_ESCAPED_CODE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPED_SPACE = re.compile(r"\\+[nrt]")
_IGNORED = re.compile(r"[^\w:]|_")


def ratings_of(value: Any, schema: Any) -> list[tuple[str, Any]]:
    """Return (name, value) of the members that rate: all but free text, nested ones included.

    A list of scalars is one member. Where all members are free text, all are returned.
    """
    members = list(_members(value, schema))
    return [(name, member) for name, member, is_free in members if not is_free] or [pair[:2] for pair in members]


def is_quoted(value: Any, schema: Any, texts: Iterable[str]) -> bool:
    """Return whether one of `texts` states every rating of `value`, a decoded JSON object or array.

    The reasons around a rating are not compared: a quotation often shortens them.
    """
    pairs = [_plain_pair(name, member) for name, member in ratings_of(value, schema)]
    return bool(pairs) and any(all(pair in text for pair in pairs) for text in map(_plain, texts))


def _members(value: Any, schema: Any, name: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, value, whether it is free text) of all members, nested ones included."""
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        for key, member in value.items():
            yield from _members(member, known.get(key), str(key))
    elif isinstance(value, list) and any(isinstance(member, Mapping | list) for member in value):
        for member in value:
            yield from _members(member, schema.get("items"), name)
    else:
        accepted = schema.get("items") if isinstance(value, list) else schema
        is_label = isinstance(accepted, Mapping) and "enum" in accepted
        scalars = value if isinstance(value, list) else [value]
        yield name, value, not is_label and all(isinstance(scalar, str) for scalar in scalars)


def _plain_pair(name: str, value: Any) -> str:
    shown = "".join(map(_shown, value)) if isinstance(value, list) else _shown(value)
    return f"{_plain(name)}:{_plain(shown)}" if name else _plain(shown)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    """Return a text without all that may change when it is quoted."""
    text = unquote(html.unescape(_ESCAPED_CODE.sub(lambda code: chr(int(code[1], 16)), text)))
    text = unicodedata.normalize("NFKC", _ESCAPED_SPACE.sub(" ", text)).casefold()
    return _IGNORED.sub("", text.replace("=", ":"))
