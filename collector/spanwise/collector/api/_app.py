"""Puts the application together: OTLP routes, API, health, pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import Route

from spanwise.collector import pages
from spanwise.collector._lanes import SECONDS, Lanes
from spanwise.collector._metrics import Metrics
from spanwise.collector._sign_ins import SignIns
from spanwise.collector.api import _docs, _health, _openapi, _sign_in
from spanwise.collector.api._door import Door
from spanwise.collector.api._guard import ASGI, Scope
from spanwise.collector.api._http import map_errors, reply
from spanwise.collector.api._routes import ROUTES, install
from spanwise.collector.api._scopes import Scopes
from spanwise.collector.intake import PATHS, PROTOBUF, ROOTS, SIGNALS, Keeper, Limits, Receiver, otlp_error
from spanwise.collector.stores import Store

ABOUT = ("/openapi.json", "/docs")
# What each route needs: the API's, OTLP's, the pages', and those on which FastAPI describes the API
SCOPES = Scopes(
    (
        *((row.method, row.path, row.needs) for row in ROUTES),
        *(("POST", path, "ingest") for path in PATHS),
        *((method, path, needs) for path, needs, methods in pages.ROUTES for method in methods),
        *(("GET", path, "read") for path in ABOUT),
        *((method, path, "open") for method, path in _sign_in.ROUTES),
    ),
    pages=(*(path for path, _, _ in pages.ROUTES), *ABOUT),
)


def create_app(
    store: Store,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    ready: Callable[[], bool] | None = None,
    keepers: Sequence[Keeper] = (),
    door: Door | None = None,
    query_seconds: float | None = SECONDS,
    decoders: int = 0,
) -> FastAPI:
    """The collector as an ASGI application over a store, which the caller closes. `keepers` get what OTLP brought
    once the store has it; `door` is what a guard before it lets in; `query_seconds` is how long a question may run,
    None for any time; so many `decoders` at most are processes that help to decode.
    """
    metrics = metrics or Metrics()
    app = FastAPI(
        title="Spanwise",
        version=metadata.version("spanwise"),
        description="Traces, feedback, datasets and experiments.",
        docs_url=None,  # it loads scripts of others, from elsewhere
        redoc_url=None,
    )
    receiver = Receiver(store, metrics, limits, keepers, decoders)
    app.state.store, app.state.scopes = store, SCOPES
    app.state.receiver = receiver  # has room for bodies, the API's too; to be closed by whoever serves the application
    app.state.lanes = Lanes(query_seconds)
    app.state.otlp = receiver.routes
    app.state.door, app.state.sign_ins = door or Door(), SignIns()
    app.router.routes += [Route(path, route) for path, route in app.state.otlp.items()]
    install(app, ROUTES)
    app.include_router(pages.router())
    _sign_in.install(app)
    _health.install(app, metrics, ready or (lambda: True))
    _openapi.install(app, ROUTES)
    app.add_route("/docs", _docs.docs, methods=["GET"], include_in_schema=False)
    map_errors(app)
    app.add_exception_handler(404, _nothing_here)
    return app


async def _nothing_here(request: Request, error: Exception) -> Response:
    """Readers get a page, senders of OTLP its error, programs JSON."""
    if request.url.path.startswith(ROOTS):
        return _no_signal(request)
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
        return pages.not_found(request)
    assert isinstance(error, HTTPException)
    return await http_exception_handler(request, error)


def _no_signal(request: Request) -> Response:
    known = ", ".join(f"/v1/{signal.name}" for signal in SIGNALS)
    told = f"nothing is taken at {request.url.path!r}: there are {known}"
    if request.headers.get("content-type", "").startswith(PROTOBUF.decode()):
        return Response(otlp_error(5, told), 404, media_type=PROTOBUF.decode())
    return reply({"code": 5, "message": told}, 404)


def past_framework(app: FastAPI) -> ASGI:
    """The same with OTLP answered before the framework, which at five spans a request costs more than the spans."""
    direct: dict[str, ASGI] = app.state.otlp

    async def answer(scope: Scope, receive: Any, send: Any) -> None:
        route = direct.get(scope["path"]) if scope["type"] == "http" else None
        await (route or app)(scope, receive, send)

    return answer
