"""`/sign-in` and `/sign-out`: a key for a session, so that a browser keeps no key and sends none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector import pages
from spanwise.collector._access import Access
from spanwise.collector._sign_ins import Cookie, SignIns, bond_of, cookie_of, signed
from spanwise.collector.api._door import Door, Refusal, enough, hashed
from spanwise.collector.errors import Refused

ROUTES = (("GET", "/sign-in"), ("POST", "/sign-in"), ("POST", "/sign-out"))
LONGEST = 2048  # characters of an address to go on to


async def sign_in_page(request: Request) -> Response:
    """The form; the first page where no key is needed."""
    door: Door = request.app.state.door
    if not door.locked:
        return _to("/")
    return pages.sign_in(request, onward(request.query_params.get("next", "")))


async def sign_in(request: Request) -> Response:
    """A session for a key that reads, and on to where the reader was going."""
    fields = await pages.read_form(request, ("key", "next"), bond=b"")
    address = onward(fields.get("next", ""))
    door: Door = request.app.state.door
    if not door.locked:
        return _to(address)
    key = hashed(fields.get("key", "").strip())
    access = await door.tried(key, request.client.host if request.client else "")
    access = access if isinstance(access, Refusal) else _reads(access)
    if isinstance(access, Refusal):
        return pages.sign_in(request, address, refused=access.message, status=access.status, after=access.retry_after)
    _end(request)
    cookie = _cookie(request)
    sign_ins: SignIns = request.app.state.sign_ins
    return _to(address, cookie.given(sign_ins.begin(key, secure=cookie.secure)))


async def sign_out(request: Request) -> Response:
    """End the session, and take the cookie back."""
    await pages.read_form(request, (), bond=bond_of(_session(request)))
    _end(request)
    return _to("/sign-in", _cookie(request).taken_back())


def _reads(access: Access) -> Access | Refusal:
    """The access, unless it opens no page at all."""
    able = enough(access, "read")
    return Refusal(403, "the API key may not read, so that no page would open") if isinstance(able, Refusal) else able


def onward(address: str) -> str:
    """The address if it is one of this server, else "/": nobody is sent on to another site."""
    ours = address.startswith("/") and not address.startswith(("//", "/sign-")) and len(address) <= LONGEST
    # Browsers take a backslash for a slash, and leave out tabs and line breaks
    return address if ours and "\\" not in address and address.isprintable() else "/"


def _session(request: Request) -> str:
    sent = signed(request.scope["headers"], request.headers.get("host", ""))
    return sent[0] if sent else ""


def _end(request: Request) -> None:
    sign_ins: SignIns = request.app.state.sign_ins
    sign_ins.end(_session(request))


def _cookie(request: Request) -> Cookie:
    """The one to set. A browser says by its `Origin` whether TLS is spoken with it, a proxy by `X-Forwarded-Proto`."""
    origin, proxy = request.headers.get("origin", ""), request.headers.get("x-forwarded-proto", "")
    secure = origin.startswith("https://") or proxy.strip().lower() == "https"
    return cookie_of(request.headers.get("host", ""), secure=secure)


def _to(address: str, cookie: str | None = None) -> Response:
    response = RedirectResponse(address, 303, headers={"cache-control": "no-store"})
    if cookie is not None:
        response.headers["set-cookie"] = cookie
    return response


def install(app: FastAPI) -> None:
    """Have an application answer these."""
    for (method, path), answer in zip(ROUTES, (sign_in_page, sign_in, sign_out), strict=True):
        app.add_route(path, _told(answer), methods=[method], include_in_schema=False)


def _told(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def told(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as error:
            return pages.refusal(request, 400, str(error))

    return told
