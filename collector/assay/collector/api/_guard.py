"""Who may speak to the server: everybody on this machine, or whoever has a key; never another site's page."""

from __future__ import annotations

import base64
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from assay.collector import _wire
from assay.collector._access import ACCESS, Access
from assay.collector.api._keys import Keys
from assay.collector.api._scopes import READING, Scopes, may
from assay.collector.api._tries import Tries
from assay.collector.errors import Unavailable
from assay.collector.hosts import authority, is_loopback, named
from assay.collector.intake import PROTOBUF, ROOTS, otlp_error

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Any, Any], Awaitable[None]]

CODES = {401: 16, 403: 7, 429: 8, 503: 14}  # google.rpc.Code, as OTLP's error bodies carry it
MAY = {"admin": "administer"}  # other needs are verbs
ALL = Access()
STRANGER = Access(known=False)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a request is not passed on. `retry_after` is in seconds, for one that may be sent again."""

    status: int
    message: str
    retry_after: float | None = None


class Guard:
    """ASGI middleware. A key that allows what the request needs is asked for if `keys` are given (or `api_key`).

    Otherwise the server is one of this machine: then a request must name it by a loopback name, which keeps a web page
    from reaching it under a name of its own (DNS rebinding), and no proxy may say that it came from elsewhere.
    """

    def __init__(self, app: ASGI, scopes: Scopes, keys: Keys | None = None, api_key: str | None = None) -> None:
        self.app, self.scopes, self.keys = app, scopes, keys
        self._api_key = sha256(api_key.encode()).digest() if api_key else None
        self._tries = Tries()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on with what its sender may have, or answer 401, 403, 429 or 503."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        if scope["path"] in self.scopes.open:
            access: Access | _Refusal = self._known(headers)
        else:
            access = _elsewhere(scope["method"], headers) or await self._access(scope, headers)
        if isinstance(access, _Refusal):
            return await _refuse(send, access, _wants_protobuf(scope, headers))
        scope[ACCESS] = access
        return await self.app(scope, receive, send)

    def _known(self, headers: Mapping[bytes, bytes]) -> Access:
        """Whose request it is that needs no key, as far as can be told without waiting."""
        if self.keys is None:
            return STRANGER if _misnamed(headers) else ALL
        secret = _secret(headers)
        hashed = sha256((secret or "").encode())
        known = secret and (self._is_ours(hashed.digest()) or self.keys.peek(hashed.hexdigest()))
        return ALL if known else STRANGER

    def _is_ours(self, hashed: bytes) -> bool:
        return self._api_key is not None and hmac.compare_digest(hashed, self._api_key)

    async def _access(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Access | _Refusal:
        if self.keys is None:
            return _misnamed(headers) or ALL
        secret = _secret(headers)
        if secret is None:
            told = "an API key is needed: send it as 'Authorization: Bearer …' (ASSAY_API_KEY for our clients)"
            return _Refusal(401, told)
        hashed, address = sha256(secret.encode()).digest(), (scope.get("client") or ("",))[0]
        if wait := self._tries.wait(address, hashed):
            return _Refusal(429, "too many wrong API keys came from this address: try again later", wait)
        if self._is_ours(hashed):
            self._tries.right(address, hashed)
            return ALL
        return await self._stored(self.keys, hashed, address, scope)

    async def _stored(self, keys: Keys, hashed: bytes, address: str, scope: Scope) -> Access | _Refusal:
        """What a key out of the store opens."""
        try:
            key = await keys.find(hashed.hex())
        except Unavailable as error:
            return _Refusal(503, str(error), error.retry_after)
        if key is None:
            self._tries.wrong(address)
            return _Refusal(401, "the API key is unknown, expired or revoked")
        self._tries.right(address, hashed)
        needed = self.scopes.needed(scope["method"], scope["path"])  # which remembers paths: not those of strangers
        if not may(key.scopes, needed):
            return _Refusal(403, f"the API key may not {MAY.get(needed, needed)}")
        return ALL if key.project is None else Access(key.project)


def _wants_protobuf(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    return scope["path"].startswith(ROOTS) and headers.get(b"content-type", b"").startswith(PROTOBUF)


def _elsewhere(method: str, headers: Mapping[bytes, bytes]) -> _Refusal | None:
    """The refusal of what another site's page would write."""
    host, origin = _text(headers, b"host"), _text(headers, b"origin")
    if origin and method not in READING and authority(origin) != host:
        return _Refusal(403, f"a page of {origin!r} may not write here")
    return None


def _misnamed(headers: Mapping[bytes, bytes]) -> _Refusal | None:
    """The refusal of a name that is not this machine's own."""
    host = _text(headers, b"host")
    name = named(host)
    if host and not is_loopback(name):
        told = f"this server is called localhost or 127.0.0.1, not {name or host!r}: bind it to an address to open it"
        return _Refusal(403, told)
    return _forwarded(headers)


def _forwarded(headers: Mapping[bytes, bytes]) -> _Refusal | None:
    """The refusal of what a proxy on this machine passes on for somebody elsewhere, whatever name it calls us by."""
    senders = f"{_text(headers, b'x-forwarded-for')},{_text(headers, b'x-real-ip')}".split(",")
    elsewhere = next((sender.strip() for sender in senders if sender.strip() and not is_loopback(sender.strip())), None)
    if elsewhere is None:
        return None
    told = "it answers this machine alone: behind a proxy, bind it to an address, so that it asks for keys"
    return _Refusal(403, f"this server has no keys, and a proxy passes on what {elsewhere!r} sends; {told}")


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
        except ValueError:  # not base64, or not UTF-8 within, or not even ASCII
            return None
    return headers[b"x-api-key"].decode("latin-1") if b"x-api-key" in headers else None


async def _refuse(send: Any, refusal: _Refusal, protobuf: bool) -> None:
    content_type, body = PROTOBUF if protobuf else b"application/json", _told(refusal, protobuf)
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="assay", charset="UTF-8"'))
    if refusal.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(refusal.retry_after))))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _told(refusal: _Refusal, protobuf: bool) -> bytes:
    code = CODES[refusal.status]
    if protobuf:
        return otlp_error(code, refusal.message)
    kind = "Refused" if refusal.retry_after is None else "Unavailable"
    return _wire.encode({"error": kind, "message": refusal.message, "code": code})
