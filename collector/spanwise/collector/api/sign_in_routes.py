"""Sign-in and sign-out routes of the browser session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector import pages
from spanwise.collector.address_parsing import safe_redirect_path
from spanwise.collector.errors import Refused
from spanwise.collector.security.authentication import Authenticator, Refusal, hash_key
from spanwise.collector.security.browser_sessions import (
    BrowserSessions,
    SessionCookie,
    build_session_cookie,
    hash_session_id,
    read_session_cookie,
)

SIGN_IN_ROUTES = (("GET", "/sign-in"), ("POST", "/sign-in"), ("POST", "/sign-out"))


async def sign_in_page(request: Request) -> Response:
    """Render the sign-in form; redirect to the first page if no key is needed."""
    authenticator: Authenticator = request.app.state.authenticator
    if not authenticator.locked:
        return _redirect("/")
    return pages.render_sign_in(request, safe_redirect_path(request.query_params.get("next", "")))


async def sign_in(request: Request) -> Response:
    """Start a session for a key with read permission, and redirect to the requested page."""
    fields = await pages.read_form(request, ("key", "next"), bond=b"")
    address = safe_redirect_path(fields.get("next", ""))
    authenticator: Authenticator = request.app.state.authenticator
    if not authenticator.locked:
        return _redirect(address)
    key = hash_key(fields.get("key", "").strip())
    access = await authenticator.authenticate(key, request.client.host if request.client else "")
    if not isinstance(access, Refusal) and not access.may("read"):
        access = Refusal(403, "the API key lacks the scope 'read', which all pages need")
    if isinstance(access, Refusal):
        return pages.render_sign_in(
            request, address, refused=access.message, status=access.status, after=access.retry_after
        )
    _end_session(request)
    cookie = _request_cookie(request)
    browser_sessions: BrowserSessions = request.app.state.browser_sessions
    return _redirect(address, cookie.format_set_cookie(browser_sessions.begin(key, secure=cookie.secure)))


async def sign_out(request: Request) -> Response:
    """End the session and delete the cookie."""
    await pages.read_form(request, (), bond=hash_session_id(_session_id(request)))
    _end_session(request)
    return _redirect("/sign-in", _request_cookie(request).format_delete_cookie())


def _session_id(request: Request) -> str:
    sent = read_session_cookie(request.scope["headers"], request.headers.get("host", ""))
    return sent[0] if sent else ""


def _end_session(request: Request) -> None:
    browser_sessions: BrowserSessions = request.app.state.browser_sessions
    browser_sessions.end(_session_id(request))


def _request_cookie(request: Request) -> SessionCookie:
    """Return the session cookie for a request. The cookie is marked secure if the browser uses TLS.

    The `Origin` header shows whether the browser uses TLS without a proxy, `X-Forwarded-Proto` whether it does behind
    one.
    """
    origin, proxy = request.headers.get("origin", ""), request.headers.get("x-forwarded-proto", "")
    secure = origin.startswith("https://") or proxy.strip().lower() == "https"
    return build_session_cookie(request.headers.get("host", ""), secure=secure)


def _redirect(address: str, cookie: str | None = None) -> Response:
    response = RedirectResponse(address, 303, headers={"cache-control": "no-store"})
    if cookie is not None:
        response.headers["set-cookie"] = cookie
    return response


def install_sign_in(app: FastAPI) -> None:
    """Add the sign-in routes to an application."""
    for (method, path), answer in zip(SIGN_IN_ROUTES, (sign_in_page, sign_in, sign_out), strict=True):
        app.add_route(path, _with_error_page(answer), methods=[method], include_in_schema=False)


def _with_error_page(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def call(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as error:
            return pages.render_refusal(request, 400, str(error))

    return call
