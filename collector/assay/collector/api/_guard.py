"""Who may speak to the server: everybody on this machine, or whoever has a key; never another site's page."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from assay.collector import _wire
from assay.collector.api._keys import Keys
from assay.collector.api._scopes import READING, Scopes, may
from assay.collector.errors import Unavailable

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Any, Any], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CODES = {401: 16, 403: 7, 503: 14}  # google.rpc.Code, as OTLP's error bodies carry it
MAY = {"admin": "administer"}  # other needs are verbs


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that binds there."""
    return host in LOOPBACK or host.startswith("127.")


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a request is not passed on. `retry_after` is in seconds, for one that may be sent again."""

    status: int
    message: str
    retry_after: float | None = None


class Guard:
    """ASGI middleware. A key that allows what the request needs is asked for if `keys` are given (or `api_key`).

    Otherwise the server is one of this machine: then a request must name it by a loopback name, which keeps a web page
    from reaching it under a name of its own (DNS rebinding).
    """

    def __init__(self, app: ASGI, scopes: Scopes, keys: Keys | None = None, api_key: str | None = None) -> None:
        self.app, self.scopes, self.keys = app, scopes, keys
        self._api_key = api_key.encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 401, 403 or 503."""
        if scope["type"] != "http" or scope["path"] in self.scopes.open:
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        refusal = _elsewhere(scope["method"], headers) or await self._without_right(scope, headers)
        if refusal is None:
            return await self.app(scope, receive, send)
        return await _refuse(send, refusal)

    async def _without_right(self, scope: Scope, headers: Mapping[bytes, bytes]) -> _Refusal | None:
        if self.keys is None:
            return _misnamed(headers)
        secret = _secret(headers)
        if secret is None:
            told = "an API key is needed: send it as 'Authorization: Bearer …' (ASSAY_API_KEY for our clients)"
            return _Refusal(401, told)
        if self._api_key and hmac.compare_digest(secret.encode(), self._api_key):
            return None
        return await self._too_narrow(self.keys, secret, scope)

    async def _too_narrow(self, keys: Keys, secret: str, scope: Scope) -> _Refusal | None:
        """The refusal of a key out of the store."""
        try:
            scopes = await keys.scopes(hashlib.sha256(secret.encode()).hexdigest())
        except Unavailable as error:
            return _Refusal(503, str(error), error.retry_after)
        if scopes is None:
            return _Refusal(401, "the API key is unknown, expired or revoked")
        needed = self.scopes.needed(scope["method"], scope["path"])  # which remembers paths: not those of strangers
        return None if may(scopes, needed) else _Refusal(403, f"the API key may not {MAY.get(needed, needed)}")


def _elsewhere(method: str, headers: Mapping[bytes, bytes]) -> _Refusal | None:
    """The refusal of what another site's page would write."""
    host, origin = _text(headers, b"host"), _text(headers, b"origin")
    if origin and method not in READING and urlsplit(origin).netloc != host:
        return _Refusal(403, f"a page of {origin!r} may not write here")
    return None


def _misnamed(headers: Mapping[bytes, bytes]) -> _Refusal | None:
    """The refusal of a name that is not this machine's own."""
    host = _text(headers, b"host")
    name = urlsplit(f"//{host}").hostname or ""
    if not host or is_loopback(name):
        return None
    return _Refusal(
        403, f"this server is called localhost or 127.0.0.1, not {name!r}: bind it to an address to open it"
    )


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _secret(headers: Mapping[bytes, bytes]) -> str | None:
    """The key out of a bearer token, of `x-api-key`, or of the password that a browser asked for."""
    kind, _, value = _text(headers, b"authorization").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None
    return headers[b"x-api-key"].decode("latin-1") if b"x-api-key" in headers else None


async def _refuse(send: Any, refusal: _Refusal) -> None:
    kind = "Unavailable" if refusal.status == 503 else "Refused"
    body = _wire.encode({"error": kind, "message": refusal.message, "code": CODES[refusal.status]})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="assay", charset="UTF-8"'))
    if refusal.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(refusal.retry_after))))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
