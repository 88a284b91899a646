"""JSON Schemas in the form in which endpoints take them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import orjson

from spanwise.collector.records import JSON

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def response_format(name: str, schema: Mapping[str, JSON] | None, level: str) -> dict[str, Any] | None:
    """The parameter `response_format`; None where the form of the reply is told in words alone."""
    if schema is None or level == "words":
        return None
    if level == "json_object":
        return {"type": "json_object"}
    told = typed(schema)
    named = _NOT_A_NAME.sub("_", name)[:64] or "reply"
    return {"type": "json_schema", "json_schema": {"name": named, "schema": told, "strict": is_strict(told)}}


def typed(schema: Any) -> Any:
    """A schema in which each enum has a type, as OpenAI wants it."""
    if isinstance(schema, list | tuple):
        return [typed(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    told = {name: value if name == "enum" else typed(value) for name, value in schema.items()}
    labels = told["enum"] if isinstance(told.get("enum"), list | tuple) else ()
    kinds = sorted({_TYPES.get(type(label), "object") for label in labels})
    if "type" not in told and kinds:
        told = {"type": kinds[0] if len(kinds) == 1 else kinds, **told}
    return told


def is_strict(schema: Any) -> bool:
    """Whether all objects have exactly the properties that they must have, which strict decoding asks for."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    closed = schema.get("additionalProperties") is False
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        names = set(properties) if isinstance(properties, Mapping) else set()
        if not closed or names != set(schema.get("required") or ()):
            return False
    return all(is_strict(value) for name, value in schema.items() if name != "enum")


def digest(schema: Mapping[str, JSON]) -> str:
    """12 hex digits by which a schema is known."""
    return hashlib.sha256(orjson.dumps(schema)).hexdigest()[:12]
