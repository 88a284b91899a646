"""`spanwise mcp`: Model Context Protocol server, over stdio or HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spanwise.cli.command_io import HostOption, StoreOption, error_console, print_note
from spanwise.collector import default_location
from spanwise.collector.address_parsing import hide_password
from spanwise.collector.errors import Refused, require_extra

Http = Annotated[bool, typer.Option("--http", help="Serve HTTP at /mcp until Ctrl-C, instead of stdin and stdout.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port for --http; 0 selects a free port.")]
Write = Annotated[bool, typer.Option("--write", help="Allow agents to add feedback. It is stored with source 'model'.")]
Eval = Annotated[
    Path | None,
    typer.Option("--eval", metavar="FILE.PY", help="Allow agents to run this evaluation file, and no other."),
]


def mcp(
    http: Http = False,
    host: HostOption = "127.0.0.1",
    port: Port = 4320,
    write: Write = False,
    file: Eval = None,
    at: StoreOption = None,
) -> None:
    """Serve traces and scoring decisions to coding agents over the Model Context Protocol (MCP).

    On stdio, an agent starts the server, and stdout carries only the protocol. Over HTTP, the server requires the
    same keys as the collector's API.

    Example: `spanwise mcp --store spanwise.db --write --eval evals/parcels.py`
    """
    try:
        with require_extra("mcp", "spanwise mcp"):
            from spanwise.cli.mcp.server import make_server
    except ModuleNotFoundError as error:
        raise Refused(str(error)) from None
    from spanwise.cli.mcp.tool_results import StoreAccess

    store_access = StoreAccess(at, guarded=http)
    print_note(f"store: {hide_password(at or default_location())}")
    server = make_server(store_access, write=write, file=file)
    if not http:
        server.run("stdio")
        return
    from spanwise.cli.mcp.http_transport import MCP_PATH, make_guarded

    http_server = make_guarded(server, store_access, host, port)
    http_server.run(lambda: error_console.print(f"[bold]{http_server.url}{MCP_PATH}[/]", soft_wrap=True))
