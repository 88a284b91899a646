"""Puts the application together: OTLP routes, API, health, pages."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import Route

from assay.collector import pages
from assay.collector._metrics import Metrics
from assay.collector.api import _control, _datasets, _feedback, _health, _keeping, _openapi, _traces
from assay.collector.api._guard import ASGI, Scope
from assay.collector.api._http import map_errors
from assay.collector.intake import Limits, Receiver
from assay.collector.stores import Store


def create_app(
    store: Store,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    ready: Callable[[], bool] | None = None,
) -> FastAPI:
    """The collector as an ASGI application over a store, which the caller closes."""
    metrics = metrics or Metrics()
    app = FastAPI(
        title="Assay", version=metadata.version("assay"), description="Traces, feedback, datasets and experiments."
    )
    app.state.store = store
    receiver = Receiver(store, metrics, limits)
    app.state.receiver = receiver  # to be closed by whoever serves the application
    app.state.otlp = {"/v1/traces": receiver.traces, "/v1/logs": receiver.logs}
    app.router.routes += [Route(path, route) for path, route in app.state.otlp.items()]
    routers = (
        _health.router(store, metrics, ready or (lambda: True)),
        _traces.router(store),
        _feedback.router(store),
        _keeping.router(store),
        _datasets.datasets(store),
        _datasets.experiments(store),
        _control.rules(store),
        _control.shared(store),
        _control.keys(store),
        _control.queues(store),
    )
    for routes in routers:
        app.include_router(routes)
    app.include_router(pages.router(store))
    map_errors(app)
    app.add_exception_handler(404, _nothing_here)
    _openapi.install(app, routers)
    return app


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
