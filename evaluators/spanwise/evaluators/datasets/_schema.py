"""JSON Schemas of a dataset: {"inputs": …, "reference_outputs": …}; inferred from examples, or given and held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Example

PARTS = ("inputs", "reference_outputs")
Schema = Mapping[str, JSON]


class SchemaError(SpanwiseError, ValueError):
    """An example that does not follow its dataset's schema, named with the field; or a schema that is none."""


def infer_schema(examples: Iterable[Example]) -> dict[str, JSON]:
    """The narrowest schema that all examples follow: the types of every field, and which of them are always there."""
    rows = list(examples)
    references = [row.reference_outputs for row in rows if row.reference_outputs is not None]
    parts = {"inputs": [row.inputs for row in rows], "reference_outputs": references}
    return {part: _tidied(_joined([_of(value) for value in values])) for part, values in parts.items() if values}


def check_schema(examples: Iterable[Example], schema: Schema) -> None:
    """Raise `SchemaError` for the first example that does not follow the schema, or for a schema that is none."""
    from jsonschema import Draft202012Validator

    _hold_itself(schema)
    checks = {part: Draft202012Validator(schema[part]) for part in PARTS if schema.get(part)}
    for number, example in enumerate(examples, 1):
        for part, check in checks.items():
            value = getattr(example, part)
            if value is not None or part == "inputs":
                _hold(check, value, part, f"example {number} ({example.id[:12]})")


def _hold_itself(schema: Schema) -> None:
    from jsonschema import Draft202012Validator

    if strange := sorted(set(schema) - set(PARTS)):
        raise SchemaError(
            f"a dataset's schema has a JSON Schema under {' and '.join(map(repr, PARTS))}, not {strange[0]!r}: "
            "put yours under one of them, as in {'inputs': {…}}"
        )
    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    for part in PARTS:
        error = next(meta.iter_errors(schema.get(part, {})), None)
        if error is not None:
            raise SchemaError(
                f"the schema is no JSON Schema at {'.'.join([part, *map(str, error.path)])}: {error.message}"
            )


def _hold(check: Any, value: JSON, part: str, where: str) -> None:
    error = next(iter(sorted(check.iter_errors(value), key=lambda error: list(map(str, error.path)))), None)
    if error is not None:
        field = ".".join([part, *map(str, error.path)])
        raise SchemaError(f"{where} does not follow the dataset's schema at {field}: {error.message}")


def _of(value: JSON) -> dict[str, Any]:
    if isinstance(value, Mapping):
        properties = {str(key): _of(inner) for key, inner in value.items()}
        return {"type": ["object"], "properties": properties, "required": sorted(properties)}
    if isinstance(value, list | tuple):
        return {"type": ["array"], **({"items": _joined([_of(inner) for inner in value])} if value else {})}
    return {"type": [_scalar(value)]}


def _scalar(value: JSON) -> str:
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (type(None), "null"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "string")


def _joined(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema for values of several: types together, a field is required when every object has it."""
    types = {name for schema in schemas for name in schema["type"]}
    joined: dict[str, Any] = {"type": sorted(types - {"integer"} if "number" in types else types)}
    objects = [schema for schema in schemas if "properties" in schema]
    if objects:
        names = sorted({name for schema in objects for name in schema["properties"]})
        having = {name: [s["properties"][name] for s in objects if name in s["properties"]] for name in names}
        joined["properties"] = {name: _joined(parts) for name, parts in having.items()}
        joined["required"] = sorted(set.intersection(*(set(schema["required"]) for schema in objects)))
    items = [schema["items"] for schema in schemas if "items" in schema]
    if items:
        joined["items"] = _joined(items)
    return joined


def _tidied(schema: dict[str, Any]) -> dict[str, Any]:
    """A single type without its list."""
    tidy = {**schema, "type": schema["type"][0] if len(schema["type"]) == 1 else schema["type"]}
    if "properties" in tidy:
        tidy["properties"] = {name: _tidied(part) for name, part in tidy["properties"].items()}
    if "items" in tidy:
        tidy["items"] = _tidied(tidy["items"])
    return tidy
