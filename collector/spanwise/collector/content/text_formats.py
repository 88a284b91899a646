"""Format of a text: plain, Markdown, code or JSON."""

from __future__ import annotations

import re

from spanwise.collector.content.blocks import Block
from spanwise.collector.content.structured_text import parse_structure

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
