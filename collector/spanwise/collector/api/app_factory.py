"""FastAPI application factory: routes, pages, error handlers, OTLP bypass of the framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import Route

from spanwise.collector import pages
from spanwise.collector.api import health_endpoints, openapi, sign_in_routes
from spanwise.collector.api.http_conversion import install_error_handlers, json_response
from spanwise.collector.api.routes import ROUTES, install_routes
from spanwise.collector.api.security_middleware import ASGI, Scope
from spanwise.collector.ingest import PATH_PREFIXES, PATHS, PROTOBUF_TYPE, SIGNALS, Limits, Receiver, Sink, encode_error
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.query_scheduler import QUERY_TIMEOUT_S, QueryScheduler
from spanwise.collector.security.authentication import Authenticator
from spanwise.collector.security.authorization import RoutePermissions
from spanwise.collector.security.browser_sessions import BrowserSessions
from spanwise.collector.stores import Store

DESCRIPTION_PATHS = ("/openapi.json", "/docs")
# permissions of all routes: API, OTLP, pages, and the OpenAPI description that FastAPI serves
ROUTE_PERMISSIONS = RoutePermissions(
    (
        *((row.method, row.path, row.permission) for row in ROUTES),
        *(("POST", path, "ingest") for path in PATHS),
        *((method, path, permission) for path, permission, methods in pages.PAGE_ROUTES for method in methods),
        *(("GET", path, "read") for path in DESCRIPTION_PATHS),
        *((method, path, "open") for method, path in sign_in_routes.SIGN_IN_ROUTES),
    ),
    pages=(*(path for path, _, _ in pages.PAGE_ROUTES), *DESCRIPTION_PATHS),
)


def create_app(
    store: Store,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    ready: Callable[[], bool] | None = None,
    sinks: Sequence[Sink] = (),
    authenticator: Authenticator | None = None,
    query_seconds: float | None = QUERY_TIMEOUT_S,
    decoders: int = 0,
    render_analysis: pages.AnalysisRenderer | None = None,
) -> FastAPI:
    """Return the collector as an ASGI application over a store, which the caller closes.

    The `sinks` get received items once the store has committed them. The `authenticator` is also used
    by the middleware in front of the application. The time limit of one query is `query_seconds`; None means no
    limit. At most `decoders` worker processes help to decode. `render_analysis` renders the page `/analysis`, for
    which the collector has no evaluators of its own.
    """
    metrics = metrics or Metrics()
    app = FastAPI(
        title="Spanwise",
        version=metadata.version("spanwise"),
        description="Traces, feedback, datasets and experiments.",
        docs_url=None,  # FastAPI's own documentation page loads scripts from other sites
        redoc_url=None,
    )
    receiver = Receiver(store, metrics, limits, sinks, decoders)
    app.state.store, app.state.scopes = store, ROUTE_PERMISSIONS
    # the API's bodies count against the same limits; the server that runs the application closes the receiver
    app.state.receiver = receiver
    app.state.render_analysis = render_analysis
    app.state.query_scheduler = QueryScheduler(query_seconds)
    app.state.otlp = receiver.routes
    app.state.authenticator, app.state.browser_sessions = authenticator or Authenticator(), BrowserSessions()
    app.router.routes += [Route(path, route) for path, route in app.state.otlp.items()]
    install_routes(app, ROUTES)
    app.include_router(pages.create_router())
    sign_in_routes.install_sign_in(app)
    health_endpoints.install_health(app, metrics, ready or (lambda: True))
    openapi.install_openapi(app, ROUTES)
    app.add_route("/docs", openapi.reference_page, methods=["GET"], include_in_schema=False)
    install_error_handlers(app)
    app.add_exception_handler(404, _not_found)
    return app


async def _not_found(request: Request, error: Exception) -> Response:
    """Answer 404 in the client's format: a page for browsers, OTLP's error for its senders, JSON for programs."""
    if request.url.path.startswith(PATH_PREFIXES):
        known = ", ".join(f"/v1/{signal.name}" for signal in SIGNALS)
        message = f"there is no endpoint {request.url.path!r}; expected one of: {known}"
        if request.headers.get("content-type", "").startswith(PROTOBUF_TYPE.decode()):
            return Response(encode_error(5, message), 404, media_type=PROTOBUF_TYPE.decode())
        return json_response({"code": 5, "message": message}, 404)
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
        return pages.render_not_found(request)
    assert isinstance(error, HTTPException)
    return await http_exception_handler(request, error)


def bypass_framework(app: FastAPI) -> ASGI:
    """Return the application with OTLP routed around FastAPI.

    FastAPI costs more than decoding a request of five spans.
    """
    direct: dict[str, ASGI] = app.state.otlp

    async def answer(scope: Scope, receive: Any, send: Any) -> None:
        route = direct.get(scope["path"]) if scope["type"] == "http" else None
        await (route or app)(scope, receive, send)

    return answer
