"""HTTP transport of the MCP server, behind the authentication of the collector."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.responses import Response

from spanwise.cli.mcp.store_access import StoreAccess
from spanwise.collector.api import RoutePermissions
from spanwise.collector.server import GuardedServer

MCP_PATH = "/mcp"
MAX_REQUEST_BYTES = 256 * 1024  # bytes of a request
MCP_SCOPES = RoutePermissions([("POST", MCP_PATH, "read")])  # tools that write require a further scope


def make_guarded(server: MCPServer, places: StoreAccess, host: str, port: int) -> GuardedServer:
    """Return the HTTP server, ready to run. Raises `Refused` if the port is taken, or the server would be open without a
    key.
    """
    app = server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        stateless_http=True,  # without sessions, a second sender cannot take one over
        json_response=True,
        max_request_body_size=MAX_REQUEST_BYTES,
        # the guard already checks the host
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return GuardedServer(_LifespanApp(app), MCP_SCOPES, places, host=host, port=port)


_METHOD_NOT_ALLOWED = Response(status_code=405, headers={"allow": "POST"})


class _LifespanApp:
    """ASGI application whose lifespan starts with the first request, on the loop that serves it, and ends with that
    loop.

    If the start fails, each request raises its exception.
    """

    def __init__(self, app: Starlette) -> None:
        self._app, self._begun = app, asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["method"] != "POST":  # without sessions, there is no stream to read and no session to delete
            return await _METHOD_NOT_ALLOWED(scope, receive, send)
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
