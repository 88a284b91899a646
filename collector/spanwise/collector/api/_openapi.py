"""OpenAPI for routes that take and answer records: their schemas come from the records themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from spanwise.collector.api._routes import Row

_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
    "required": ["error", "message"],
}
_ERRORS = {
    status: {"description": description, "content": {"application/json": {"schema": _ERROR}}}
    for status, description in (
        ("400", "Refused: an argument or the body cannot be used; the message names it"),
        ("422", "Too slow: the question takes longer than a server allows; narrow it"),
    )
}
REFERENCE = "#/components/schemas/{name}"


def install(app: FastAPI, rows: Sequence[Row]) -> None:
    """Have `app.openapi()` describe bodies and answers of these routes, too."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, rows)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI, rows: Sequence[Row]) -> dict[str, Any]:
    description = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    kinds = [kind for row in rows for kind in (row.takes, row.answers) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    description.setdefault("components", {}).setdefault("schemas", {}).update(components)
    by_kind = iter(schemas)
    for row in rows:
        operation = description["paths"][row.path.replace(":path", "")][row.method.lower()]
        if row.takes is not None:
            operation["requestBody"] = {"required": True, "content": _json(next(by_kind))}
        if row.answers is not None:
            operation["responses"]["200"] = {"description": "Done", "content": _json(next(by_kind))}
        if row.media:
            operation["responses"]["200"] = {"description": "Done", "content": {row.media: {"schema": _TEXT}}}
        if row.needs != "open":
            operation["responses"] |= _ERRORS
    return description


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
