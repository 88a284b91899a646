"""Puts the application together: OTLP routes, API, health, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from assay.collector import pages
from assay.collector._metrics import Metrics
from assay.collector._verbs import Needs
from assay.collector.api import _health, _openapi
from assay.collector.api._guard import ASGI, Scope
from assay.collector.api._http import map_errors
from assay.collector.api._routes import ROUTES, install
from assay.collector.api._scopes import Scopes
from assay.collector.intake import Limits, Receiver
from assay.collector.stores import Store

OF_PAGES: dict[str, Needs] = {"GET": "read", "HEAD": "read", "POST": "write"}


def create_app(
    store: Store,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    ready: Callable[[], bool] | None = None,
) -> FastAPI:
    """The collector as an ASGI application over a store, which the caller closes."""
    metrics, site = metrics or Metrics(), pages.router(store)
    app = FastAPI(
        title="Assay", version=metadata.version("assay"), description="Traces, feedback, datasets and experiments."
    )
    receiver = Receiver(store, metrics, limits)
    otlp: dict[str, ASGI] = {"/v1/traces": receiver.traces, "/v1/logs": receiver.logs}
    app.state.store, app.state.otlp = store, otlp
    app.state.scopes = Scopes(_needs(otlp, [*app.routes, *site.routes]))  # FastAPI's own pages describe the API
    app.router.routes += [Route(path, route) for path, route in otlp.items()]
    install(app, ROUTES)
    app.include_router(site)
    _health.install(app, metrics, ready or (lambda: True))
    _openapi.install(app, ROUTES)
    map_errors(app)
    app.add_exception_handler(404, _nothing_here)
    return app


def _needs(otlp: Iterable[str], pages: Iterable[BaseRoute]) -> Iterator[tuple[str, str, Needs]]:
    """Method, path and need of every route, in the order in which they are asked."""
    yield from (("POST", path, "ingest") for path in otlp)
    yield from ((row.method, row.path, row.needs) for row in ROUTES)
    for page in pages:
        assert isinstance(page, Route)
        yield from ((method, page.path, OF_PAGES[method]) for method in page.methods or ())


async def _nothing_here(request: Request, error: Exception) -> Response:
    """Readers get a page, programs JSON."""
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(("/api/", "/v1/")):
        return pages.not_found(request)
    assert isinstance(error, HTTPException)
    return await http_exception_handler(request, error)


def past_framework(app: FastAPI) -> ASGI:
    """The same with OTLP answered before the framework, which at five spans a request costs more than the spans."""
    direct: dict[str, ASGI] = app.state.otlp

    async def answer(scope: Scope, receive: Any, send: Any) -> None:
        route = direct.get(scope["path"]) if scope["type"] == "http" else None
        await (route or app)(scope, receive, send)

    return answer
