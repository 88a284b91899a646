"""Texts that hold a structure: JSON, and Python's representations of messages (LlamaIndex and Haystack send these)."""

from __future__ import annotations

import ast
import re

import orjson

from spanwise.collector.records import JSON

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
