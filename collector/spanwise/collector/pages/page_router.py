"""Page routes: views, form submissions and their CSRF checks, error pages.

A form submission is limited in size and accepted only from Spanwise's own pages. After its action it is answered with
a redirect (303), so that a reload does not repeat it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from urllib.parse import parse_qsl

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector.address_parsing import parse_origin
from spanwise.collector.errors import Closed, Forbidden, NotFound, Refused, StoreError, TooSlow, Unavailable
from spanwise.collector.pages import (
    alert_pages,
    experiment_pages,
    live_updates,
    overview,
    rule_pages,
    session_pages,
    spend_page,
    traces,
    version_page,
)
from spanwise.collector.pages.components import filter_form, preferences, rendering
from spanwise.collector.query_scheduler import QueryScheduler
from spanwise.collector.security import get_access, get_form_secret, get_request_store, is_form_token
from spanwise.collector.stores import Store

TOKEN_FIELD = "token"  # form field of the CSRF token
MAX_FORM_BYTES = 64 * 1024  # default limit of a form in bytes
MAX_FORM_FIELDS = 48  # fields of one submission; fields that the form does not declare are dropped
# Action of a form. It returns the URL to redirect to, or a response. Raises `Refused`, whose message the page shows.
Action: TypeAlias = Callable[[Store, Request, Mapping[str, str]], str | Response]


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a page: its path, the fields that its action receives, and its maximum size."""

    path: str
    fields: tuple[str, ...]
    action: Action
    scope: str = "write"  # permission that the API key needs
    largest: int = MAX_FORM_BYTES


FORMS: tuple[Form, ...] = (
    Form("/preferences", preferences.FIELDS, preferences.save_preferences, scope="read"),
    Form("/views", filter_form.FIELDS, filter_form.change_views, scope="read"),
    Form("/alerts/{name:path}", ("project", "group", "action", "for"), alert_pages.change_alert),
    Form("/rules/{name:path}", ("project", "action", "backfill"), rule_pages.change_rule),
    Form(
        "/traces/{trace_id}/feedback", ("key", "value", "comment", "author", "span", "run", "from"), traces.add_feedback
    ),
)


async def handle_form(form: Form, request: Request, fields: dict[str, str]) -> Response:
    """Check the token of a form submission, and run its action. Raises `Refused`."""
    check_token(request, fields.get(TOKEN_FIELD, ""), get_access(request.scope).bond)
    declared = {name: text for name, text in fields.items() if name != TOKEN_FIELD}
    answer = await run_in_threadpool(form.action, get_request_store(request), request, declared)
    return RedirectResponse(answer, 303, headers=rendering.SECURITY_HEADERS) if isinstance(answer, str) else answer


async def read_declared_form(form: Form, request: Request) -> dict[str, str]:
    """Return the fields of a form that one of Spanwise's own pages submits.

    Raises `Refused` for other origins, and for a form that is too large.
    """
    return await _read_fields(request, form.fields, form.largest)


async def read_form(request: Request, names: Collection[str], *, bond: bytes) -> dict[str, str]:
    """Return the fields of a form that is not in `FORMS`.

    Raises `Refused` unless its CSRF token is from a page that was rendered for the session or key with this `bond`.
    """
    fields = await _read_fields(request, names, MAX_FORM_BYTES)
    check_token(request, fields.pop(TOKEN_FIELD, ""), bond)
    return fields


def check_token(request: Request, given: str, bond: bytes) -> None:
    """Raise `Refused` unless the CSRF token is from a page that was rendered for the sender."""
    if not is_form_token(given, bond, get_form_secret(request.scope)):
        raise Refused("the form has expired or belongs to another sign-in; reload its page and submit it again")


async def _read_fields(request: Request, names: Collection[str], largest: int) -> dict[str, str]:
    if not is_from_own_page(request):
        raise Refused("this server accepts forms only from its own pages")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            raise Refused(f"the form is larger than the limit of {largest:,} bytes")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        raise Refused(f"the form has more fields than the limit of {MAX_FORM_FIELDS}") from None
    return {name: text for name, text in pairs if name in names or name == TOKEN_FIELD}


def is_from_own_page(request: Request) -> bool:
    """Return whether a Spanwise page sent this request, as the browser reports it.

    Programs other than browsers send no such headers and pass.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin, host = request.headers.get("origin"), request.headers.get("host")
    return origin is None or (host is not None and parse_origin(origin) == host)


View: TypeAlias = Callable[[Store, Request], Response]


def settings(_store: Store, request: Request) -> Response:
    """Render the display preferences: `GET /settings`."""
    return rendering.render_page(request, "settings.html")


# path, view, permission that the API key needs; the first matching path answers
VIEWS: tuple[tuple[str, View, str], ...] = (
    ("/", overview.overview, "read"),
    ("/traces", traces.traces, "read"),
    ("/traces/suggestions", traces.suggestions, "read"),
    ("/charts", traces.charts, "read"),
    ("/traces/compare", traces.compare_traces, "read"),
    ("/traces/{trace_id}", traces.trace, "read"),
    ("/traces/{trace_id}/tree", traces.tree, "read"),
    ("/traces/{trace_id}/runs/{span_id}/{part}", traces.value_page, "read"),
    ("/traces/{trace_id}/runs/{span_id}/media/{part}", traces.media_page, "read"),
    ("/sessions", session_pages.sessions, "read"),
    ("/sessions/{session_id:path}", session_pages.session, "read"),
    ("/users/{user_id:path}", session_pages.user, "read"),
    ("/settings", settings, "read"),
    ("/datasets", experiment_pages.datasets, "read"),
    ("/datasets/{name:path}", experiment_pages.dataset, "read"),
    ("/experiments", experiment_pages.experiments, "read"),
    ("/experiments/{experiment_id:path}", experiment_pages.experiment, "read"),
    ("/compare", experiment_pages.compare, "read"),
    ("/analysis", experiment_pages.analysis, "read"),
    ("/analysis/flips", experiment_pages.flips, "read"),
    ("/alerts", alert_pages.alerts, "read"),
    ("/alerts/{name:path}", alert_pages.alert, "read"),
    ("/spend", spend_page.spend, "read"),
    ("/versions", version_page.versions, "read"),
    ("/rules", rule_pages.rules, "read"),
    ("/rules/{name:path}", rule_pages.rule, "read"),
    ("/static/{name}", rendering.serve_static, "open"),
)

SCAN_VIEWS = (
    overview.overview,
    traces.charts,
    experiment_pages.compare,
    experiment_pages.analysis,
    experiment_pages.flips,
    version_page.versions,
)  # these scan many traces even without a filter

# all routes of the pages: path, permission that the API key needs, methods
PAGE_ROUTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    *((path, scope, ("GET",)) for path, _, scope in VIEWS),
    ("/live", "read", ("GET",)),
    *((form.path, form.scope, ("POST",)) for form in FORMS),
)


def create_router() -> APIRouter:
    """Return the routes of the pages, for an application with the store as `app.state.store`."""
    routes = APIRouter()
    for path, view, _ in VIEWS:
        routes.add_route(path, _view_handler(view), methods=["GET"], include_in_schema=False)
    routes.add_route("/live", _live, methods=["GET"], include_in_schema=False)
    for form in FORMS:
        routes.add_route(form.path, _form_handler(form), methods=["POST"], include_in_schema=False)
    return routes


def _view_handler(view: View) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        scheduler: QueryScheduler = request.app.state.query_scheduler
        try:
            work = partial(view, get_request_store(request), request)
            return await scheduler.answer(
                request,
                work,
                wide=view in SCAN_VIEWS or (not request.path_params and bool(request.scope["query_string"])),
            )
        except StoreError as error:
            return render_failure(request, error)

    return page


async def _live(request: Request) -> Response:
    try:
        return await live_updates.live(request)
    except StoreError as error:
        return render_failure(request, error)


def _form_handler(form: Form) -> Callable[[Request], Awaitable[Response]]:
    async def target(request: Request) -> Response:
        fields: dict[str, str] = {}
        try:
            fields = await read_declared_form(form, request)
            return await handle_form(form, request, fields)
        except StoreError as error:
            return render_failure(request, error, typed=fields)

    return target


_STATUSES = (
    (NotFound, 404, "Not found"),
    (Forbidden, 403, "Not allowed"),
    (Closed, 503, "Unavailable"),
    (TooSlow, 422, "Query too slow"),
    (Refused, 400, "Invalid request"),
    (Unavailable, 503, "Unavailable"),
    (StoreError, 500, "Internal error"),
)


_TITLES = {400: "Invalid request", 401: "Signed out", 403: "Not allowed"}


def render_refusal(request: Request, status: int, message: str) -> Response:
    """Render the page that says why a request was refused."""
    return _render_error(request, status, _TITLES.get(status, "Unavailable"), message, sign_in=status == 401)


def render_sign_in(
    request: Request, onward: str, *, refused: str = "", status: int = 200, after: float | None = None
) -> Response:
    """Render the sign-in page, with the reason if the last key was refused."""
    response = rendering.render_page(
        request, "sign_in.html", status=status, switcher=False, onward=onward, refused=refused
    )
    if after is not None:
        response.headers["Retry-After"] = str(max(1, round(after)))
    return response


def render_failure(request: Request, error: StoreError, typed: Mapping[str, str] | None = None) -> Response:
    """Render the page for an error of the store. `typed` are the fields of a refused form, to be corrected there."""
    status, title = next((code, title) for kind, code, title in _STATUSES if isinstance(error, kind))
    response = _render_error(request, status, title, str(error), typed=typed)
    if isinstance(error, Unavailable):
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return response


# Advice by status; messages of other errors contain it
_ADVICE = {
    401: "Sign in, then go back to the form: the browser still has what you typed.",  # only for a submission
    404: "It may have been deleted, or the address may be incomplete. Search for it in the list of {list}.",
    403: "Sign in with a key that has this permission, or ask whoever administers this server.",
    422: "Choose a shorter time range or fewer conditions, and try again.",
    500: "This is an error of Spanwise. The log of the server says more; `spanwise doctor` checks the store.",
    503: "Wait a few seconds, and try again.",
}


# Beginning of a page's path → list that leads to such pages; other pages have the list of traces
_LISTS = {
    "/sessions": "sessions",
    "/datasets": "datasets",
    "/experiments": "experiments",
    "/compare": "experiments",
    "/analysis": "experiments",
    "/rules": "rules",
    "/alerts": "alerts",
    "/spend": "rules",
    "/versions": "rules",
}


def _render_error(
    request: Request,
    status: int,
    title: str,
    message: str,
    *,
    sign_in: bool = False,
    typed: Mapping[str, str] | None = None,
) -> Response:
    """Render an error page without reading the store, which may be what failed."""
    form = {name: text for name, text in (typed or {}).items() if name != TOKEN_FIELD}
    found = next((name for start, name in _LISTS.items() if request.url.path.startswith(start)), "traces")
    return rendering.render_page(
        request,
        "error.html",
        status=status,
        switcher=False,
        title=title,
        message=message,
        advice="" if status == 401 and request.method == "GET" else _ADVICE.get(status, "").format(list=found),
        list=found,
        sign_in=sign_in,
        retry=status in (422, 500, 503) and request.method == "GET",
        typed=form if any(form.values()) else None,
    )


def render_not_found(request: Request) -> Response:
    """Render the page for an unknown URL."""
    return render_failure(request, NotFound(f"there is no page {request.url.path!r}"))
