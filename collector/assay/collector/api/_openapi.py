"""OpenAPI for routes that take and return records: their schemas come from the records themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

REFERENCE = "#/components/schemas/{name}"


def install(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Have `app.openapi()` describe bodies and answers of these routers' routes, too."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, routers)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI, routers: Sequence[APIRouter]) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    marked = list(_marked(routers))
    kinds = [kind for _, wired in marked for kind in wired if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    found.setdefault("components", {}).setdefault("schemas", {}).update(components)
    by_kind = iter(schemas)
    for route, (takes, returns) in marked:
        for method in sorted(route.methods or ()):
            operation = found["paths"][route.path_format.replace(":path", "")][method.lower()]
        if takes is not None:
            operation["requestBody"] = {"required": True, "content": _json(next(by_kind))}
        if returns is not None:
            operation["responses"]["200"] = {"description": "Done", "content": _json(next(by_kind))}
    return found


def _marked(routers: Sequence[APIRouter]) -> Iterator[tuple[APIRoute, tuple[Any, Any]]]:
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute) and hasattr(route.endpoint, "__wire__"):
            yield route, route.endpoint.__wire__


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
