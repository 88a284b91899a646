"""HTTP transport of the MCP server, behind the authentication of the collector."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.responses import Response

from spanwise.cli.mcp.tool_results import StoreAccess
from spanwise.collector.api import RoutePermissions
from spanwise.collector.server import GuardedServer

MCP_PATH = "/mcp"
MAX_REQUEST_BYTES = 256 * 1024  # maximum size of a request
MCP_SCOPES = RoutePermissions([("POST", MCP_PATH, "read")])  # tools that write check for a further scope themselves


def make_guarded(server: MCPServer, store_access: StoreAccess, host: str, port: int) -> GuardedServer:
    """Return the HTTP server, ready to run. Raises `Refused` if the port is taken, or the server would be open without a
    key.
    """
    app = server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        stateless_http=True,  # without MCP sessions, no other sender can take over a session
        json_response=True,
        max_request_body_size=MAX_REQUEST_BYTES,
        # `GuardedServer` already checks the host
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return GuardedServer(_LifespanApp(app), MCP_SCOPES, store_access, host=host, port=port)


_METHOD_NOT_ALLOWED = Response(status_code=405, headers={"allow": "POST"})


class _LifespanApp:
    """ASGI application that starts the lifespan of another one with the first request, on the event loop that serves it.

    The lifespan ends with that loop. If the start fails, each request raises its exception.
    """

    def __init__(self, app: Starlette) -> None:
        self._app, self._started = app, asyncio.Event()
        self._lifespan: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["method"] != "POST":  # without MCP sessions, there is no stream to GET and no session to DELETE
            return await _METHOD_NOT_ALLOWED(scope, receive, send)
        if self._lifespan is None:
            self._lifespan = asyncio.create_task(self._run_lifespan())
        await self._started.wait()
        if self._lifespan.done():
            self._lifespan.result()
        return await self._app(scope, receive, send)

    async def _run_lifespan(self) -> None:
        try:
            async with self._app.router.lifespan_context(self._app):
                self._started.set()
                await asyncio.Event().wait()  # waits until the loop ends and cancels it
        finally:
            self._started.set()
