"""`spanwise demo`: traced and evaluated demo application with its server."""

from __future__ import annotations

import signal
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.cli.command_io import FileStoreOption, HostOption, error_console, print_note
from spanwise.cli.commands.serve import render_analysis
from spanwise.collector.errors import Refused
from spanwise.collector.stores import Store

if TYPE_CHECKING:
    from spanwise.collector.server import Server


Serve = Annotated[bool, typer.Option("--serve/--no-serve", help="Keep the server running until Ctrl-C.")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port. Default: 4318, or a free port if it is in use.")
]
Models = Annotated[
    bool, typer.Option("--models/--no-models", help="Retrieve with embeddings, if installed, or with BM25.")
]
Browse = Annotated[bool, typer.Option("--open", help="Open the pages in a browser.")]


def demo(
    serve: Serve = True,
    host: HostOption = "127.0.0.1",
    port: Port = None,
    path: FileStoreOption = "spanwise-demo.db",
    models: Models = True,
    browse: Browse = False,
) -> None:
    """Trace and evaluate a small RAG application on the Python reference. It needs no API key and no download.

    Example: `spanwise demo --port 8000 --open`
    """
    from spanwise.cli.demo.walkthrough import run_monitor, run_walkthrough
    from spanwise.collector.stores.sqlite import SQLiteStore
    from spanwise.collector.stores.sqlite.database.name_conversion import adopt_former_file

    if "://" in path:
        raise Refused(f"--store {path!r}: the demo needs a SQLite file of its own; give its path")
    adopt_former_file(path)
    with SQLiteStore(path) as store, _start_server(store, host, port) as server, run_monitor(store):
        error_console.print(f"[bold]{server.url}[/]  keeps {path}", soft_wrap=True)
        run_walkthrough(store, server.url, models=models)
        if browse:
            webbrowser.open(server.url)
        if serve:
            error_console.print("serving until Ctrl-C")
            # SIGTERM exits like Ctrl-C, so that server and store are closed
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                error_console.print("stopped")
        else:
            print_note(f"to see the pages again: spanwise serve --store {path}")


def _start_server(store: Store, host: str, port: int | None) -> Server:
    """Start the server on the given port. Without one, use OpenTelemetry's port 4318, or a free port if 4318 is
    taken.
    """
    from spanwise.collector.server import DEFAULT_PORT, Server

    try:
        return Server(store, host=host, port=DEFAULT_PORT if port is None else port, render_analysis=render_analysis)
    except Refused as error:
        if port is not None:
            raise
        free = Server(store, host=host, port=0, render_analysis=render_analysis)
        print_note(f"{str(error).partition(';')[0]}; using {free.port} instead")
        return free
