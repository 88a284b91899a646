"""Who may speak to the server: everybody on this machine, or whoever has a key; never another site's page."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from assay.collector import _wire
from assay.collector.records import Key
from assay.collector.stores import ControlStore

Scope = MutableMapping[str, Any]
ASGI = Callable[[Scope, Any, Any], Awaitable[None]]

OPEN = ("/healthz", "/readyz")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
READING = ("GET", "HEAD", "OPTIONS")
KEYS_AGE = 10.0  # seconds for which the store's keys are remembered


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that binds there."""
    return host in LOOPBACK or host.startswith("127.")


class Guard:
    """ASGI middleware. `api_key` and the store's keys are asked for if `locked`.

    Otherwise the server is one of this machine: then a request must name it by a loopback name, which keeps a web page
    from reaching it under a name of its own (DNS rebinding).
    """

    def __init__(self, app: ASGI, *, store: ControlStore, locked: bool, api_key: str | None = None) -> None:
        self.app, self.store, self.locked, self.api_key = app, store, locked, api_key
        self._known: tuple[float, Mapping[str, tuple[str, ...]]] = (-KEYS_AGE, {})

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 401 or 403."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is None:
            return await self.app(scope, receive, send)
        return await _refuse(send, *refusal)

    def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin", b"").decode("latin-1")
        if origin and scope["method"] not in READING and urlsplit(origin).netloc != host:
            return 403, f"a page of {origin!r} may not write here"
        if self.locked:
            return self._without_key(scope["method"], headers)
        name = urlsplit(f"//{host}").hostname or ""
        if host and not is_loopback(name):
            return 403, f"this server is called localhost or 127.0.0.1, not {name!r}: bind it to an address to open it"
        return None

    def _without_key(self, method: str, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        secret = _secret(headers)
        if secret is None:
            return 401, "an API key is needed: send it as 'Authorization: Bearer …' (ASSAY_API_KEY for our clients)"
        if self.api_key and hmac.compare_digest(secret.encode(), self.api_key.encode()):
            return None
        scopes = self._keys().get(hashlib.sha256(secret.encode()).hexdigest())
        if scopes is None:
            return 401, "the API key is unknown, expired or revoked"
        needed = "read" if method in READING else "write"
        return None if needed in scopes else (403, f"the API key may not {needed}")

    def _keys(self) -> Mapping[str, tuple[str, ...]]:
        age, known = self._known
        if time.monotonic() - age > KEYS_AGE:
            now = time.time_ns()
            # A key bound to one project opens nothing until every route can be held to a project
            keys: list[Key] = self.store.keys()
            found = (key for key in keys if key.project is None and (key.expires_ns is None or key.expires_ns > now))
            known = {key.sha256: key.scopes for key in found}
            self._known = (time.monotonic(), known)
        return known


def _secret(headers: Mapping[bytes, bytes]) -> str | None:
    """The key out of a bearer token, of `x-api-key`, or of the password that a browser asked for."""
    kind, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None
    return headers[b"x-api-key"].decode("latin-1") if b"x-api-key" in headers else None


async def _refuse(send: Any, status: int, message: str) -> None:
    body = _wire.encode({"error": "Refused", "message": message, "code": 16 if status == 401 else 7})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="assay", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
