"""ASGI application: routes, pages, error handlers, and the checks of host, origin, proxy and access before them."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Route

from spanwise.collector import pages, record_encoding
from spanwise.collector.address_parsing import is_loopback, parse_host, parse_origin
from spanwise.collector.api import routes
from spanwise.collector.api.http_conversion import install_error_handlers, json_response
from spanwise.collector.api.routes import ROUTES, install_routes
from spanwise.collector.errors import Refused
from spanwise.collector.ingest import PATH_PREFIXES, PATHS, PROTOBUF_TYPE, SIGNALS, Limits, Receiver, Sink, encode_error
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.query_scheduler import QUERY_TIMEOUT_S, QueryScheduler
from spanwise.collector.request_context import CURRENT_ACTOR
from spanwise.collector.security import (
    ACCESS_SCOPE_KEY,
    CREDENTIAL_HEADERS,
    FORM_SECRET_KEY,
    READ_METHODS,
    Access,
    Authenticator,
    BrowserSessions,
    Refusal,
    RoutePermissions,
    SignedSessions,
    check_permission,
    hash_session_id,
    read_session_cookie,
)
from spanwise.collector.stores import ClusterStore, Store

# ASGI security middleware: host, origin and proxy checks, access control, CORS.

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Any, Any], Awaitable[None]]

CORS_ALLOWED_KEY = "spanwise.origin"  # key in an ASGI scope: CORS permits the page that sends the request
UNKNOWN_CALLER = Access(known=False)
PROXY_HEADERS = frozenset(("x-forwarded-for", "x-real-ip", "forwarded", b"x-forwarded-for", b"x-real-ip", b"forwarded"))
# `for=` of a `Forwarded` header (RFC 7239, section 6), without the port
FORWARDED_FOR_PATTERN = re.compile(r'for="?(\[[^\]]*\]|[^\s;,:"]+)', re.IGNORECASE)
OWN_FETCH_SITES = (
    "same-origin",
    "none",
    "",
)  # values of Sec-Fetch-Site for requests from Spanwise's own pages; "" if the browser sends none


class SecurityMiddleware:
    """ASGI middleware that checks the caller of every request.

    If keys are required, each request needs a key with the right permission. On pages, a browser session suffices.

    If keys are not required, only this machine may send requests. Each must use a loopback host name, which keeps a
    web page from access under its own domain (DNS rebinding). No proxy header may name a remote sender. A key that is
    sent must still be valid.
    """

    def __init__(
        self,
        app: ASGI,
        scopes: RoutePermissions,
        authenticator: Authenticator | None = None,
        browser_sessions: BrowserSessions | None = None,
    ) -> None:
        self.app, self.scopes = app, scopes
        self.authenticator, self.browser_sessions = (
            authenticator or Authenticator(),
            browser_sessions or BrowserSessions(),
        )

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Forward a request with its access in the scope, or answer 401, 403, 429 or 503."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope[FORM_SECRET_KEY] = self.browser_sessions.form_secret
        headers = dict(scope["headers"])
        if self.scopes.is_open(scope["path"]):
            access: Access | Refusal = self._identify_caller(scope, headers)
        else:
            refusal = _check_single_host(scope, headers) or _check_origin(scope, headers)
            access = refusal or await self._authorize(scope, headers)
        if isinstance(access, Refusal):
            if self.scopes.has_pages and (
                "text/html" in _header_text(headers, b"accept") and not scope["path"].startswith(("/api/", "/v1/"))
            ):
                return await _refusal_page(scope, access)(scope, receive, send)
            return await _send_refusal(scope, send, access, headers)
        scope[ACCESS_SCOPE_KEY] = access
        CURRENT_ACTOR.set(access.actor)
        return await self.app(scope, receive, send)

    def _identify_caller(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Access:
        """Return the caller of a request that needs no key; only the key cache is used, without waiting for the
        store.
        """
        if self.authenticator.locked:
            return Access() if self.authenticator.is_known(scope["headers"]) else UNKNOWN_CALLER
        return UNKNOWN_CALLER if _check_local_name(scope, headers) else Access()

    async def _authorize(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Access | Refusal:
        address = (scope.get("client") or ("",))[0]
        if not self.authenticator.locked:
            refusal = _check_local_name(scope, headers) or _check_cross_site(scope, headers)
            if refusal is not None:
                return refusal
            if CREDENTIAL_HEADERS.isdisjoint(headers):
                return _anonymous_access(address)
        elif (session := await self._session(scope, headers, address)) is not None:
            return session
        return await self.authenticator.admit(scope["headers"], address, lambda: self._needed(scope))

    async def _session(self, scope: Scope, headers: Mapping[bytes, bytes], address: str) -> Access | Refusal | None:
        """Return the access of a signed-in browser; None if the session does not apply."""
        sent = (
            None if b"cookie" not in headers else read_session_cookie(scope["headers"], _header_text(headers, b"host"))
        )
        if sent is None or b"authorization" in headers or not _is_from_own_page(scope, headers):
            return None
        id, secure = sent
        key = self.browser_sessions.key_of(id, secure=secure)
        if key is None or not self.scopes.is_page(scope["path"]):
            return None
        access = await self.authenticator.find_access(key, address)
        if isinstance(access, Refusal):
            if access.status == 401:
                self.browser_sessions.end(id)
            return access
        scope[ACCESS_SCOPE_KEY] = access = replace(
            access, bond=hash_session_id(id), session=id
        )  # set before the permission check, because a page that shows a refusal needs it too
        return check_permission(access, self._needed(scope))

    def _needed(self, scope: Scope) -> str:
        return self.scopes.needed(scope["method"], scope["path"])


def _check_origin(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return a refusal if a page of another site sends a write, unless CORS permits that site."""
    if not (origin := _header_text(headers, b"origin")):
        return None
    if (
        scope["method"] not in READ_METHODS
        and parse_origin(origin) != _header_text(headers, b"host")
        and not scope.get(CORS_ALLOWED_KEY)
    ):
        return Refusal(403, f"pages of {origin!r} may not send writes to this server; `--cors` permits origins")
    return None


def _check_single_host(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return a refusal unless there is exactly one `Host` header.

    If there were two, a proxy and this server might use different ones.
    """
    if len(headers) == len(scope["headers"]) and b"host" in headers:
        return None
    count = sum(name == b"host" for name, _ in scope["headers"])
    return None if count == 1 else Refusal(400, f"a request must have exactly one Host header, got {count}")


def _check_cross_site(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return a refusal if the browser sends the request on behalf of another site's page.

    The check is needed only where keys are not required: another site's page has no key.
    """
    if headers.get(b"sec-fetch-site") != b"cross-site" or scope.get(CORS_ALLOWED_KEY):
        return None
    return Refusal(403, "a page of another site sent this request; open the address directly")


def _check_local_name(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return a refusal if the host is not a loopback name, or if a proxy forwards the request of a remote sender."""
    refusal = _check_host_name(headers.get(b"host", b""))
    return check_forwarded(scope["headers"]) if refusal is None and not PROXY_HEADERS.isdisjoint(headers) else refusal


@lru_cache(16)
def _check_host_name(netloc: bytes) -> Refusal | None:
    host = netloc.decode("latin-1")
    name = parse_host(host)
    if not host or is_loopback(name):
        return None
    message = (
        f"without API keys, the host must be localhost or 127.0.0.1, got {name or host!r};"
        " to serve other hosts, start the server with --host and create a key"
    )
    return Refusal(403, message)


@lru_cache(64)
def _anonymous_access(address: str) -> Access:
    """Return the access of a request without a key where none is required."""
    return Access(address=address)


def check_forwarded(headers: Iterable[tuple[str | bytes, str | bytes]]) -> Refusal | None:
    """Return a refusal if a proxy on this machine forwards the request of a remote sender.

    Each proxy of a chain may have added its own header.
    """
    senders = [
        sender for name, value in headers if name in PROXY_HEADERS for sender in _forwarded_addresses(name, value)
    ]
    elsewhere = next((sender for sender in senders if not is_loopback(sender)), None)
    if elsewhere is None:
        return None
    message = (
        "without API keys, only this machine may send requests; behind a proxy, start the server with --require-key"
    )
    return Refusal(403, f"a proxy forwarded a request of {elsewhere!r}: {message}")


def _forwarded_addresses(name: str | bytes, value: str | bytes) -> list[str]:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if name in ("forwarded", b"forwarded"):
        return FORWARDED_FOR_PATTERN.findall(text)
    return [sender.strip() for sender in text.split(",") if sender.strip()]


def _header_text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _is_from_own_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a Spanwise page sent the request, or a reader followed a link or opened the URL.

    Old browsers do not send the header that tells; their requests pass.
    """
    if _header_text(headers, b"sec-fetch-site") in OWN_FETCH_SITES:
        return True
    return scope["method"] in READ_METHODS and headers.get(b"sec-fetch-mode") == b"navigate"


async def _send_refusal(scope: Scope, send: Any, refusal: Refusal, headers: Mapping[bytes, bytes]) -> None:
    protobuf = scope["path"].startswith(PATH_PREFIXES) and headers.get(b"content-type", b"").startswith(PROTOBUF_TYPE)
    if protobuf:
        content_type, body = PROTOBUF_TYPE, encode_error(refusal.code, refusal.message)
    else:
        error = "Refused" if refusal.retry_after is None else "Unavailable"
        content = {"error": error, "message": refusal.message, "code": refusal.code}
        content_type, body = b"application/json", record_encoding.encode(content)
    response_headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if refusal.status == 401:
        # A `Basic` challenge would make the browser prompt for a password and then send it with every request.
        # Readers sign in instead.
        browser = any(name in headers for name in (b"sec-fetch-mode", b"referer", b"origin"))
        scheme = b"Bearer" if browser else b"Basic"
        response_headers.append((b"www-authenticate", b'%s realm="spanwise", charset="UTF-8"' % scheme))
    if refusal.retry_after is not None:
        response_headers.append((b"retry-after", _retry_after_value(refusal.retry_after).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": response_headers})
    await send({"type": "http.response.body", "body": body})


def _retry_after_value(retry_after: float) -> str:
    return str(max(1, math.ceil(retry_after)))


def _refusal_page(scope: Scope, refusal: Refusal) -> Response:
    """Return the response for a browser: a redirect to the sign-in page, or the reason of the refusal."""
    request = Request(scope)
    if refusal.status == 401 and scope["method"] in READ_METHODS:
        onward = scope["path"] + (f"?{text}" if (text := scope["query_string"].decode("latin-1")) else "")
        return RedirectResponse(f"/sign-in?next={quote(onward, safe='')}", 303, headers={"cache-control": "no-store"})
    page = pages.render_refusal(request, refusal.status, refusal.message)
    if refusal.retry_after is not None:
        page.headers["retry-after"] = _retry_after_value(refusal.retry_after)
    return page


CORS_REQUEST_HEADERS = (
    "authorization, x-api-key, api_key, content-type, content-encoding"  # headers that pages of other origins may send
)
ORIGIN_PATTERN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
DEFAULT_PORT_PATTERN = re.compile(r"http://.*:80|https://.*:443")
PREFLIGHT_MAX_AGE_S = 600  # lifetime of a preflight response in the browser


class CorsMiddleware:
    """ASGI middleware for CORS in front of `SecurityMiddleware`. `rows` are (method, path, permission)."""

    def __init__(self, app: ASGI, origins: Iterable[str], rows: Iterable[tuple[str, str, str]]) -> None:
        self.app, self.origins = app, frozenset(validate_origin(text).encode() for text in origins)
        self.paths = frozenset(
            path for method, path, needs in rows if method == "POST" and needs in ("ingest", "feedback")
        )

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer preflight requests, and add CORS headers to responses for permitted origins."""
        if scope["type"] != "http" or scope["path"] not in self.paths:
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin not in self.origins:
            return await self.app(scope, receive, send)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return await _send_preflight(origin, send)
        scope[CORS_ALLOWED_KEY] = True

        async def send_with_cors(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [
                    *message.get("headers", ()),
                    (b"access-control-allow-origin", origin),
                    (b"access-control-expose-headers", b"retry-after"),
                    (b"vary", b"origin"),
                ]
                message = {**message, "headers": headers}
            await send(message)

        return await self.app(scope, receive, send_with_cors)


def validate_origin(text: str) -> str:
    """Return the origin in the form that browsers send. Raises `Refused` for an invalid one, and for "*"."""
    if not ORIGIN_PATTERN.fullmatch(text):
        raise Refused(
            f"invalid origin {text!r}; write it as browsers send it, without a path or a wildcard, such as"
            " https://app.example.com or http://localhost:3000"
        )
    if DEFAULT_PORT_PATTERN.fullmatch(text):
        raise Refused(f"the origin {text!r} contains the default port, which browsers leave out; leave it out, too")
    return text


async def _send_preflight(origin: bytes, send: Any) -> None:
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", CORS_REQUEST_HEADERS.encode()),
        (b"access-control-max-age", b"%d" % PREFLIGHT_MAX_AGE_S),
        (b"vary", b"origin"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


# FastAPI application factory: routes, pages, error handlers, OTLP bypass of the framework.

DESCRIPTION_PATHS = ("/openapi.json", "/docs")
# permissions of all routes: API, OTLP, pages, and the OpenAPI description that FastAPI serves
ROUTE_PERMISSIONS = RoutePermissions(
    (
        *((row.method, row.path, row.permission) for row in ROUTES),
        *(("POST", path, "ingest") for path in PATHS),
        *((method, path, permission) for path, permission, methods in pages.PAGE_ROUTES for method in methods),
        *(("GET", path, "read") for path in DESCRIPTION_PATHS),
        *((method, path, "open") for method, path in routes.SIGN_IN_ROUTES),
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
    # collectors that share a store accept each other's browser sessions and forms
    secret = store.shared_secret() if isinstance(store, ClusterStore) else None
    app.state.browser_sessions = SignedSessions(secret) if secret else BrowserSessions()
    app.state.authenticator = authenticator or Authenticator()
    app.router.routes += [Route(path, route) for path, route in app.state.otlp.items()]
    install_routes(app, ROUTES)
    app.include_router(pages.create_router())
    routes.install_sign_in(app)
    routes.install_health(app, metrics, ready or (lambda: True))
    routes.install_openapi(app, ROUTES)
    app.add_route("/docs", routes.reference_page, methods=["GET"], include_in_schema=False)
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
