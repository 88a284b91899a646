"""Pages of other origins that may send: the ones that are named, telemetry and feedback alone, never with cookies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from spanwise.collector.api._guard import ALLOWED, ASGI, Scope
from spanwise.collector.errors import Refused

SENT = "authorization, x-api-key, api_key, content-type, content-encoding"  # headers that such a page may send
ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
USUAL = re.compile(r"http://.*:80|https://.*:443")
SECONDS = 600  # for which a browser remembers what it was told


class Cors:
    """ASGI middleware before the guard, which asks for keys as ever. `rows` are (method, path, what it needs)."""

    def __init__(self, app: ASGI, origins: Iterable[str], rows: Iterable[tuple[str, str, str]]) -> None:
        self.app, self.origins = app, frozenset(origin_of(text).encode() for text in origins)
        self.paths = frozenset(
            path for method, path, needs in rows if method == "POST" and needs in ("ingest", "feedback")
        )

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer what a browser asks beforehand; pass on all else, and let the page read what is answered."""
        if scope["type"] != "http" or scope["path"] not in self.paths:
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin not in self.origins:
            return await self.app(scope, receive, send)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return await _allow(origin, send)
        scope[ALLOWED] = True

        async def telling(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_told(origin)]}
            await send(message)

        return await self.app(scope, receive, telling)


def origin_of(text: str) -> str:
    """The origin as browsers say it. Raises `Refused` for what is none, and for all of them."""
    if not ORIGIN.fullmatch(text):
        told = "say it as a browser does, such as https://app.example.com or http://localhost:3000, without a slash"
        raise Refused(f"{text!r} is no origin: {told}; each is named, there is no pattern")
    if USUAL.fullmatch(text):
        raise Refused(f"the origin {text!r} names the port that is meant anyway, which browsers leave out: so do it")
    return text


def _told(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"retry-after"),
        (b"vary", b"origin"),
    ]


async def _allow(origin: bytes, send: Any) -> None:
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", SENT.encode()),
        (b"access-control-max-age", b"%d" % SECONDS),
        (b"vary", b"origin"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
