"""`/docs`: the API as a page of our own. Swagger UI and ReDoc come from elsewhere, and run scripts in our origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.pages.kit import render


@dataclass(frozen=True, slots=True)
class Operation:
    """One request that is answered, in words for readers."""

    method: str
    path: str
    tag: str
    says: str
    parameters: tuple[tuple[str, str, str], ...]  # name, where it stands, its type
    takes: str  # JSON Schema; "" if there is no body
    answers: str


def docs(request: Request) -> Response:
    """All requests, by subject, and the records that they speak of."""
    description = request.app.openapi()
    by_tag: dict[str, list[Operation]] = {}
    for operation in _operations(description):
        by_tag.setdefault(operation.tag, []).append(operation)
    schemas = {name: _text(schema) for name, schema in sorted(description["components"]["schemas"].items())}
    return render.html(request, "docs.html", tags=by_tag, schemas=schemas, version=description["info"]["version"])


def _operations(description: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in description["paths"].items():
        for method, told in methods.items():
            yield Operation(
                method=method.upper(),
                path=path,
                tag=(told.get("tags") or ["others"])[0],
                says=told.get("description") or told.get("summary") or "",
                parameters=tuple(
                    (one["name"], one["in"], _kind(one.get("schema", {}))) for one in told.get("parameters", ())
                ),
                takes=_body(told.get("requestBody")),
                answers=_body(told["responses"].get("200")),
            )


def _body(told: dict[str, Any] | None) -> str:
    schema = ((told or {}).get("content") or {}).get("application/json", {}).get("schema")
    return _text(schema) if schema else ""


def _kind(schema: dict[str, Any]) -> str:
    kinds = [_kind(one) for one in schema.get("anyOf", ())]
    return " or ".join(kinds) if kinds else str(schema.get("type", "any"))


def _text(schema: Any) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False).replace("#/components/schemas/", "")
