"""Which page answers which address, and what a page says when the store cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from assay.collector.errors import NotFound, Refused, StoreError, Unavailable
from assay.collector.pages import _compare, _datasets, _experiments, _render, _sessions, _trace, _traces
from assay.collector.stores import Store

View = Callable[[Store, Request], Response]
VIEWS: tuple[tuple[str, View], ...] = (
    ("/", _traces.traces),
    ("/charts", _traces.charts),
    ("/traces/{trace_id}", _trace.trace),
    ("/traces/{trace_id}/runs/{span_id}/{part}", _trace.payload),
    ("/sessions", _sessions.sessions),
    ("/sessions/{session_id:path}", _sessions.session),
    ("/datasets", _datasets.datasets),
    ("/datasets/{name:path}", _datasets.dataset),
    ("/experiments", _experiments.experiments),
    ("/experiments/{experiment_id:path}", _experiments.experiment),
    ("/compare", _compare.compare),
    ("/static/{name}", _render.static),
)


def router(store: Store) -> APIRouter:
    """The pages over a store, to be included in the server's application."""
    pages = APIRouter()
    for path, view in VIEWS:
        pages.add_route(path, _get(store, view), methods=["GET"], include_in_schema=False)
    pages.add_route("/traces/{trace_id}/feedback", _post(store), methods=["POST"], include_in_schema=False)
    return pages


def _get(store: Store, view: View) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        try:
            return view(store, request)
        except StoreError as error:
            return failure(request, error)

    return page


def _post(store: Store) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        try:
            form = await _trace.read_form(request)
            return await run_in_threadpool(_trace.add_feedback, store, request, form)
        except StoreError as error:
            return failure(request, error)

    return page


_STATUSES = (
    (NotFound, 404, "Not found"),
    (Refused, 400, "That cannot work"),
    (Unavailable, 503, "Not now"),
    (StoreError, 500, "Something went wrong"),
)


def failure(request: Request, error: StoreError) -> Response:
    """The page that says what the store could not do."""
    status, title = next((code, words) for kind, code, words in _STATUSES if isinstance(error, kind))
    response = _render.html(request, "error.html", status=status, title=title, message=str(error))
    if isinstance(error, Unavailable):
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


def not_found(request: Request) -> Response:
    """The page for an address that nothing answers."""
    return failure(request, NotFound(f"there is no page {request.url.path!r}"))
