"""Which page answers which address, and what a page says when the store cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector._access import store_of
from spanwise.collector._lanes import Lanes
from spanwise.collector.errors import Closed, Forbidden, NotFound, Refused, StoreError, TooSlow, Unavailable
from spanwise.collector.pages import _compare, _datasets, _experiments, _forms, _rules, _sessions, traces
from spanwise.collector.pages.kit import render
from spanwise.collector.stores import Store

View: TypeAlias = Callable[[Store, Request], Response]

# path, view, what an API key must allow; the first path that fits answers
VIEWS: tuple[tuple[str, View, str], ...] = (
    ("/", traces.traces, "read"),
    ("/charts", traces.charts, "read"),
    ("/traces/{trace_id}", traces.trace, "read"),
    ("/traces/{trace_id}/runs/{span_id}/{part}", traces.part, "read"),
    ("/sessions", _sessions.sessions, "read"),
    ("/sessions/{session_id:path}", _sessions.session, "read"),
    ("/datasets", _datasets.datasets, "read"),
    ("/datasets/{name:path}", _datasets.dataset, "read"),
    ("/experiments", _experiments.experiments, "read"),
    ("/experiments/{experiment_id:path}", _experiments.experiment, "read"),
    ("/compare", _compare.compare, "read"),
    ("/rules", _rules.rules, "read"),
    ("/rules/{name:path}", _rules.rule, "read"),
    ("/static/{name}", render.static, "open"),
)

WIDE = (traces.charts, _compare.compare)  # also without a condition

# Every address of the pages: path, what an API key must allow, methods
ROUTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    *((path, scope, ("GET",)) for path, _, scope in VIEWS),
    *((form.path, form.scope, ("POST",)) for form in _forms.FORMS),
)


def router() -> APIRouter:
    """The pages, to be included in an application that has the store as `app.state.store`."""
    routes = APIRouter()
    for path, view, _ in VIEWS:
        routes.add_route(path, _page(view), methods=["GET"], include_in_schema=False)
    for form in _forms.FORMS:
        routes.add_route(form.path, _target(form), methods=["POST"], include_in_schema=False)
    return routes


def _page(view: View) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        lanes: Lanes = request.app.state.lanes
        try:
            work = partial(view, store_of(request), request)
            return await lanes.answer(request, work, wide=_is_wide(view, request))
        except StoreError as error:
            return failure(request, error)

    return page


def _is_wide(view: View, request: Request) -> bool:
    """Whether it may look at many traces: it sums up, or looks for those that pass."""
    return view in WIDE or (not request.path_params and bool(request.scope["query_string"]))


def _target(form: _forms.Form) -> Callable[[Request], Awaitable[Response]]:
    async def target(request: Request) -> Response:
        try:
            return await _forms.answer(form, request)
        except StoreError as error:
            return failure(request, error)

    return target


_STATUSES = (
    (NotFound, 404, "Not found"),
    (Forbidden, 403, "Not with this key"),
    (Closed, 503, "Not now"),
    (TooSlow, 422, "That takes too long"),
    (Refused, 400, "That cannot work"),
    (Unavailable, 503, "Not now"),
    (StoreError, 500, "Something went wrong"),
)


_TITLES = {400: "That cannot work", 401: "Signed out", 403: "Not with this key"}


def refusal(request: Request, status: int, message: str) -> Response:
    """The page that says why a request was not let in."""
    title = _TITLES.get(status, "Not now")
    return render.html(request, "error.html", status=status, title=title, message=message, sign_in=status == 401)


def sign_in(
    request: Request, onward: str, *, refused: str = "", status: int = 200, after: float | None = None
) -> Response:
    """The page on which a reader gives a key, and why the last one was refused."""
    response = render.html(request, "sign_in.html", status=status, onward=onward, refused=refused)
    if after is not None:
        response.headers["Retry-After"] = str(max(1, round(after)))
    return response


def failure(request: Request, error: StoreError) -> Response:
    """The page that says what the store could not do."""
    status, title = next((code, words) for kind, code, words in _STATUSES if isinstance(error, kind))
    response = render.html(request, "error.html", status=status, title=title, message=str(error), sign_in=False)
    if isinstance(error, Unavailable):
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


def not_found(request: Request) -> Response:
    """The page for an address that nothing answers."""
    return failure(request, NotFound(f"there is no page {request.url.path!r}"))
