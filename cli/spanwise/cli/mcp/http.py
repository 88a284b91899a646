"""The same over streamable HTTP, behind the collector's own guard: keys, scopes, `Host` and `Origin` as for its API."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.responses import Response

from spanwise.cli.mcp.places import Places
from spanwise.collector.api import Scopes
from spanwise.collector.server import Guarded

PATH = "/mcp"
LARGEST = 256 * 1024  # bytes of a request
SCOPES = Scopes([("POST", PATH, "read")])  # tools that write ask for more


def guarded(server: MCPServer, places: Places, host: str, port: int) -> Guarded:
    """The server, ready to run. Raises `Refused`: the port is taken, or it would be open to others without a key."""
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,  # no session that a second sender could take over
        json_response=True,
        max_request_body_size=LARGEST,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard's is the one
    )
    return Guarded(_Living(app), SCOPES, places, host=host, port=port)


_NO_OTHER = Response(status_code=405, headers={"allow": "POST"})


class _Living:
    """An application whose lifespan begins with the first request, on the loop that serves it, and ends with that.

    Raises, at each request, what its beginning raised.
    """

    def __init__(self, app: Starlette) -> None:
        self._app, self._begun = app, asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["method"] != "POST":  # without sessions there is nothing to listen to, and nothing to end
            return await _NO_OTHER(scope, receive, send)
        if self._life is None:
            self._life = asyncio.create_task(self._live())
        await self._begun.wait()
        if self._life.done():
            self._life.result()
        return await self._app(scope, receive, send)

    async def _live(self) -> None:
        try:
            async with self._app.router.lifespan_context(self._app):
                self._begun.set()
                await asyncio.Event().wait()  # until the loop ends
        finally:
            self._begun.set()
