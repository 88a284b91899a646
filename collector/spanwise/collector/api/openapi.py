"""OpenAPI description of the API, and its HTML reference page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.api.routes import RouteSpec
from spanwise.collector.pages.components import rendering

_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
    "required": ["error", "message"],
}
_ERRORS = {
    status: {"description": description, "content": {"application/json": {"schema": _ERROR}}}
    for status, description in (
        ("400", "Refused: an argument or the body is invalid; the message names it"),
        ("422", "Too slow: the query exceeds the server's time limit; narrow it"),
    )
}
SCHEMA_REFERENCE = "#/components/schemas/{name}"


def install_openapi(app: FastAPI, rows: Sequence[RouteSpec]) -> None:
    """Make `app.openapi()` include request and response bodies of these routes."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe_api(app, rows)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_api(app: FastAPI, rows: Sequence[RouteSpec]) -> dict[str, Any]:
    description = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    kinds = [kind for row in rows for kind in (row.body, row.response) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=SCHEMA_REFERENCE)
    description.setdefault("components", {}).setdefault("schemas", {}).update(components)
    by_kind = iter(schemas)
    for row in rows:
        operation = description["paths"][row.path.replace(":path", "")][row.method.lower()]
        if row.body is not None:
            operation["requestBody"] = {"required": True, "content": _json_content(next(by_kind))}
        if row.response is not None:
            operation["responses"]["200"] = {"description": "Done", "content": _json_content(next(by_kind))}
        if row.media:
            operation["responses"]["200"] = {"description": "Done", "content": {row.media: {"schema": _TEXT}}}
        if row.permission != "open":
            operation["responses"] |= _ERRORS
    return description


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


@dataclass(frozen=True, slots=True)
class OperationDoc:
    """One operation of the API for the reference page."""

    method: str
    path: str
    tag: str
    says: str
    parameters: tuple[tuple[str, str, str], ...]  # name, location, type
    takes: str  # JSON Schema; "" without a body
    answers: str


def reference_page(request: Request) -> Response:
    """Render the API reference: all operations by tag, and the schemas of their records."""
    description = request.app.openapi()
    by_tag: dict[str, list[OperationDoc]] = {}
    for operation in _list_operation_docs(description):
        by_tag.setdefault(operation.tag, []).append(operation)
    schemas = {name: _schema_text(schema) for name, schema in sorted(description["components"]["schemas"].items())}
    return rendering.render_page(
        request, "docs.html", switcher=False, tags=by_tag, schemas=schemas, version=description["info"]["version"]
    )


def _list_operation_docs(description: dict[str, Any]) -> Iterator[OperationDoc]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield OperationDoc(
                method=method.upper(),
                path=path,
                tag=(operation.get("tags") or ["others"])[0],
                says=operation.get("description") or operation.get("summary") or "",
                parameters=tuple(
                    (parameter["name"], parameter["in"], _type_name(parameter.get("schema", {})))
                    for parameter in operation.get("parameters", ())
                ),
                takes=_body_schema(operation.get("requestBody")),
                answers=_body_schema(operation["responses"].get("200")),
            )


def _body_schema(content: dict[str, Any] | None) -> str:
    schema = ((content or {}).get("content") or {}).get("application/json", {}).get("schema")
    return _schema_text(schema) if schema else ""


def _type_name(schema: dict[str, Any]) -> str:
    kinds = [_type_name(one) for one in schema.get("anyOf", ())]
    return " or ".join(kinds) if kinds else str(schema.get("type", "any"))


def _schema_text(schema: Any) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False).replace("#/components/schemas/", "")
