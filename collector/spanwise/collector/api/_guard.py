"""Who may speak to the server: everybody on this machine, or whoever has a key; never another site's page."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector import _wire, pages
from spanwise.collector._access import ACCESS, Access
from spanwise.collector._acting import ACTING
from spanwise.collector._credentials import PLACES
from spanwise.collector._sign_ins import SignIns, bond_of, signed
from spanwise.collector.api._door import Door, Refusal, enough
from spanwise.collector.api._scopes import READING, Scopes
from spanwise.collector.hosts import authority, is_loopback, named
from spanwise.collector.intake import PROTOBUF, ROOTS, otlp_error

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Any, Any], Awaitable[None]]

ALLOWED = "spanwise.origin"  # in an ASGI scope: the page of another origin that sends it may
STRANGER = Access(known=False)
PROXIES = frozenset(("x-forwarded-for", "x-real-ip", "forwarded", b"x-forwarded-for", b"x-real-ip", b"forwarded"))
FOR = re.compile(r'for="?(\[[^\]]*\]|[^\s;,:"]+)', re.IGNORECASE)  # RFC 7239, 6; without the port
OURS = ("same-origin", "none", "")  # where a request comes from that a browser lets one of our own pages send


class Guard:
    """ASGI middleware. If keys are required, a request needs one that allows what it does; on pages a session suffices.

    Otherwise only this machine may send requests: each must name the server by a loopback name, which keeps a web page
    from reaching it under a name of its own (DNS rebinding), and no proxy may say that it came from elsewhere. A key
    that is sent is checked there, too.
    """

    def __init__(self, app: ASGI, scopes: Scopes, door: Door | None = None, sign_ins: SignIns | None = None) -> None:
        self.app, self.scopes = app, scopes
        self.door, self.sign_ins = door or Door(), sign_ins or SignIns()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on with what its sender may have, or answer 401, 403, 429 or 503."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        if self.scopes.is_open(scope["path"]):
            access: Access | Refusal = self._known(scope, headers)
        else:
            refusal = _without_one_host(scope, headers) or _elsewhere(scope, headers)
            access = refusal or await self._access(scope, headers)
        if isinstance(access, Refusal):
            if self.scopes.has_pages and _is_for_a_reader(scope, headers):
                return await _page(scope, access)(scope, receive, send)
            return await _refuse(scope, send, access, headers)
        scope[ACCESS] = access
        ACTING.set(access.actor)
        return await self.app(scope, receive, send)

    def _known(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Access:
        """Whose request it is that needs no key, as far as can be told without waiting."""
        if self.door.locked:
            return Access() if self.door.knows(scope["headers"]) else STRANGER
        return STRANGER if _misnamed(scope, headers) else Access()

    async def _access(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Access | Refusal:
        address = (scope.get("client") or ("",))[0]
        if not self.door.locked:
            refusal = _misnamed(scope, headers) or _from_another_site(scope, headers)
            return refusal or await self._unlocked(scope, headers, address)
        if (session := await self._session(scope, headers, address)) is not None:
            return session
        return await self.door.admit(scope["headers"], address, lambda: self._needed(scope))

    async def _unlocked(self, scope: Scope, headers: Mapping[bytes, bytes], address: str) -> Access | Refusal:
        """Return what a request may do where no key is required: everything, or what the key that it sends allows."""
        if PLACES.isdisjoint(headers):
            return _of_everybody(address)
        return await self.door.admit(scope["headers"], address, lambda: self._needed(scope))

    async def _session(self, scope: Scope, headers: Mapping[bytes, bytes], address: str) -> Access | Refusal | None:
        """What a browser may that is signed in; None where that does not count."""
        sent = None if b"cookie" not in headers else signed(scope["headers"], _text(headers, b"host"))
        if sent is None or b"authorization" in headers or not _from_a_page(scope, headers):
            return None
        id, secure = sent
        key = self.sign_ins.key_of(id, secure=secure)
        if key is None or not self.scopes.is_page(scope["path"]):
            return None
        access = await self.door.opened(key, address)
        if isinstance(access, Refusal):
            if access.status == 401:
                self.sign_ins.end(id)
            return access
        scope[ACCESS] = access = replace(access, bond=bond_of(id), session=id)  # for the page that says why not, too
        return enough(access, self._needed(scope))

    def _needed(self, scope: Scope) -> str:
        return self.scopes.needed(scope["method"], scope["path"])


def _wants_protobuf(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    return scope["path"].startswith(ROOTS) and headers.get(b"content-type", b"").startswith(PROTOBUF)


def _elsewhere(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """The refusal of what another site's page would write, unless that site may."""
    if not (origin := _text(headers, b"origin")):
        return None
    if scope["method"] not in READING and authority(origin) != _text(headers, b"host") and not scope.get(ALLOWED):
        return Refusal(403, f"a page of {origin!r} may not write here")
    return None


def _without_one_host(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return the refusal of a request with two `Host` headers, of which others may read the other one, or with none."""
    if len(headers) == len(scope["headers"]) and b"host" in headers:
        return None
    count = sum(name == b"host" for name, _ in scope["headers"])
    return None if count == 1 else Refusal(400, f"a request must have one Host header, not {count}")


def _from_another_site(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return the refusal of what a browser loads for another site's page; keys would keep it out elsewhere."""
    if headers.get(b"sec-fetch-site") != b"cross-site" or scope.get(ALLOWED):
        return None
    return Refusal(403, "a page of another site sent this request; open the address directly")


def _misnamed(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """The refusal of a name that is not this machine's own."""
    refusal = _of_name(headers.get(b"host", b""))
    return forwarded(scope["headers"]) if refusal is None and not PROXIES.isdisjoint(headers) else refusal


@lru_cache(16)
def _of_name(netloc: bytes) -> Refusal | None:
    host = netloc.decode("latin-1")
    name = named(host)
    if not host or is_loopback(name):
        return None
    told = f"this server is called localhost or 127.0.0.1, not {name or host!r}: bind it to an address to open it"
    return Refusal(403, told)


@lru_cache(64)
def _of_everybody(address: str) -> Access:
    """Return what a request without a key may do where none is required."""
    return Access(address=address)


def forwarded(headers: Iterable[tuple[str | bytes, str | bytes]]) -> Refusal | None:
    """The refusal of what a proxy on this machine passes on for somebody elsewhere, whatever name it calls us by.

    Of several proxies in a row each may have added a line of its own.
    """
    senders = [sender for name, value in headers if name in PROXIES for sender in _senders(name, value)]
    elsewhere = next((sender for sender in senders if not is_loopback(sender)), None)
    if elsewhere is None:
        return None
    told = "it answers this machine alone: behind a proxy, bind it to an address, so that it asks for keys"
    return Refusal(403, f"this server has no keys, and a proxy passes on what {elsewhere!r} sends; {told}")


def _senders(name: str | bytes, value: str | bytes) -> list[str]:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if name in ("forwarded", b"forwarded"):
        return FOR.findall(text)
    return [sender.strip() for sender in text.split(",") if sender.strip()]


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _from_a_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser says that one of our pages, or a reader who follows a link, sends it; or is too old to say."""
    if _text(headers, b"sec-fetch-site") in OURS:
        return True
    return scope["method"] in READING and headers.get(b"sec-fetch-mode") == b"navigate"


async def _refuse(scope: Scope, send: Any, refusal: Refusal, headers: Mapping[bytes, bytes]) -> None:
    protobuf = _wants_protobuf(scope, headers)
    content_type, body = PROTOBUF if protobuf else b"application/json", _told(refusal, protobuf)
    answered = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if refusal.status == 401:
        answered.append((b"www-authenticate", b'%s realm="spanwise", charset="UTF-8"' % _challenge(headers)))
    if refusal.retry_after is not None:
        answered.append((b"retry-after", _seconds(refusal.retry_after).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": answered})
    await send({"type": "http.response.body", "body": body})


def _seconds(retry_after: float) -> str:
    return str(max(1, math.ceil(retry_after)))


def _challenge(headers: Mapping[bytes, bytes]) -> bytes:
    """Programs may answer with Basic. A browser would ask its reader, and send on whatever it was told with all it
    sends: readers sign in.
    """
    browser = any(name in headers for name in (b"sec-fetch-mode", b"referer", b"origin"))
    return b"Bearer" if browser else b"Basic"


def _is_for_a_reader(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    return "text/html" in _text(headers, b"accept") and not scope["path"].startswith(("/api/", "/v1/"))


def _page(scope: Scope, refusal: Refusal) -> Response:
    """What a reader sees: where to sign in, or why not."""
    request = Request(scope)
    if refusal.status == 401 and scope["method"] in READING:
        onward = scope["path"] + (f"?{text}" if (text := scope["query_string"].decode("latin-1")) else "")
        return RedirectResponse(f"/sign-in?next={quote(onward, safe='')}", 303, headers={"cache-control": "no-store"})
    page = pages.refusal(request, refusal.status, refusal.message)
    if refusal.retry_after is not None:
        page.headers["retry-after"] = _seconds(refusal.retry_after)
    return page


def _told(refusal: Refusal, protobuf: bool) -> bytes:
    if protobuf:
        return otlp_error(refusal.code, refusal.message)
    kind = "Refused" if refusal.retry_after is None else "Unavailable"
    return _wire.encode({"error": kind, "message": refusal.message, "code": refusal.code})
