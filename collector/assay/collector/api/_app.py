"""Puts the application together: OTLP routes, API, health, pages."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import Route

from assay.collector import pages
from assay.collector._metrics import Metrics
from assay.collector.api import _control, _datasets, _feedback, _health, _openapi, _traces
from assay.collector.api._http import map_errors
from assay.collector.protocols import Store
from assay.collector.receiver import Limits, Receiver


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
    receiver = Receiver(store, metrics, limits)
    # Before FastAPI's own routes: the first that matches answers, and these are asked most
    app.router.routes[:0] = [Route("/v1/traces", receiver.traces), Route("/v1/logs", receiver.logs)]
    for routes in (
        _health.router(store, metrics, ready or (lambda: True)), _traces.router(store), _feedback.router(store),
        _datasets.datasets(store), _datasets.experiments(store), _control.rules(store), _control.shared(store),
        _control.keys(store), _control.queues(store),
    ):  # fmt: skip
        app.include_router(routes)
    app.include_router(pages.router(store))
    map_errors(app)
    app.add_exception_handler(404, _nothing_here)
    _openapi.install(app)
    return app


async def _nothing_here(request: Request, error: Exception) -> Response:
    """Readers get a page, programs JSON."""
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(("/api/", "/v1/")):
        return pages.not_found(request)
    assert isinstance(error, HTTPException)
    return await http_exception_handler(request, error)
