"""Protected parts of a text: code, URLs, e-mail addresses, numbers, JSON and placeholders.

Perturbations leave these parts unchanged. Every pattern takes time proportional to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TypeAlias

import orjson

Span: TypeAlias = tuple[int, int]

_JOINTS = ".,:/'’+*^×÷=−-"  # characters inside of dates, times, amounts and calculations
_PATTERNS = {
    "code": (
        r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n`]*(?:\n(?s:.*?)(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)|\Z)"  # to the end if open
        r"|(?<!`)(?P<ticks>`+)(?!`)[^\n]{1,2000}?(?<!`)(?P=ticks)(?!`)"
        r"|</?[a-z][^<>\n]{0,200}>"
    ),
    "emails": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    "urls": (
        r"(?<![a-z0-9+.-])(?:[a-z][a-z0-9+.-]{0,20}://|www\.|mailto:|data:)[^\s<>\"]+"
        r"|(?<![\w.-])(?:[^\W_][\w-]{0,62}\.)+[a-z]{2,24}(?![\w@])(?:[/?\#:][^\s<>\"]*)?"  # also names of files
    ),
    "placeholders": r"\{\{[^{}\n]{1,100}\}\}|\$?\{[^{}\n]{0,100}\}|%\([^()\n]{1,100}\)[a-z]|%[sdifr]\b",
    # also 3rd, B2B and 2+2, but not the words around a number in Chinese
    "numbers": rf"(?<![a-z_\d])(?=[a-z_]*\d)[a-z_\d]+(?:[{_JOINTS}](?=[a-z_]*\d)[a-z_\d]+)*",
}
PROTECTED = ("code", "emails", "urls", "placeholders", "numbers", "json")
_MAX_DEPTH = 4  # a JSON value inside more unmatched or other brackets is not found

_BRACKET = re.compile(r"[\[{]")
_TOKEN = re.compile(r'[\[\]{}]|"(?:[^"\\\n]|\\.)*"')
_CLOSING = {"[": "]", "{": "}"}


def find_protected(text: str, kinds: Collection[str]) -> list[Span]:
    """Return the protected spans of a text in order, without overlaps. `kinds` are names of `PROTECTED`."""
    pattern = "|".join(pattern for kind, pattern in _PATTERNS.items() if kind in kinds)
    # `re` keeps compiled patterns
    spans = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE)] if pattern else []
    if "json" in kinds and ("{" in text or "[" in text):
        spans = sorted([*spans, *_find_json(text)])
    merged: list[Span] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _find_json(text: str) -> Iterator[Span]:
    """Yield the outermost JSON objects and arrays in a text."""
    by_depth: dict[int, list[Span]] = {}
    for start, end, depth in _match_brackets(text):
        if depth < _MAX_DEPTH:
            by_depth.setdefault(depth, []).append((start, end))
    found: list[Span] = []
    for depth in sorted(by_depth):
        outer = iter(sorted(found))
        span = next(outer, None)
        for start, end in sorted(by_depth[depth]):
            while span is not None and span[1] <= start:
                span = next(outer, None)
            if span is None or start < span[0]:
                with suppress(ValueError):
                    orjson.loads(text[start:end])
                    found.append((start, end))
    yield from found


def _match_brackets(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and depth of each pair of square or curly brackets. Quoted texts inside of brackets are skipped."""
    opened: list[int] = []
    position = 0
    while match := (_TOKEN if opened else _BRACKET).search(text, position):
        token, position = match.group(), match.end()
        if token in _CLOSING:
            opened.append(match.start())
        elif opened and token == _CLOSING[text[opened[-1]]]:
            yield opened.pop(), position, len(opened)
