"""`assay serve`: the collector as a process of its own."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from assay.cli._common import notes
from assay.cli._options import FileStoreOption, HostOption
from assay.cli._pick_up import PickUp
from assay.collector.errors import Refused

Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one. 4318 is where OpenTelemetry sends.")
]
# Seconds after which a thread that decodes lets the one that writes go on. Python's own 5 ms are a tenth of an
# acknowledgement; measured with 100 spans a request: 1 ms gives 2 to 7 % more spans a second, 0.3 ms none.
SWITCH = 0.001
YOUNG = 10_000  # objects made since, before Python looks for cycles among them; its own 700 come every few spans


def serve(host: HostOption = "127.0.0.1", port: Port = 4318, path: FileStoreOption = "assay.db") -> None:
    """Receive traces, serve the API and the pages, until Ctrl-C.

    Example: `assay serve --port 4318 --store assay.db`
    """
    from assay.collector.server import serve as run
    from assay.collector.stores.sqlite import SQLiteStore

    if "://" in path:
        raise Refused(f"--store {path!r}: a server keeps a SQLite file of its own; name its path")
    sys.setswitchinterval(SWITCH)
    with SQLiteStore(path) as store:
        pick_up = PickUp()

        def ready(url: str) -> None:
            _settle()
            notes.print(f"[bold]{url}[/]  keeps {os.path.abspath(path)}", soft_wrap=True)
            pick_up.begin(url)

        try:
            run(store, host=host, port=port, ready=ready)
        finally:
            pick_up.end()
        notes.print("stopped; everything that was acknowledged is kept")


def _settle() -> None:
    """Take what is loaded by now out of the search for cycles, which stopped all for 50 to 100 ms every few seconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
