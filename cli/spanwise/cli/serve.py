"""`spanwise serve`: the collector as a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.cli._common import notes
from spanwise.cli._options import FileStoreOption, HostOption
from spanwise.cli._pick_up import PickUp
from spanwise.collector.errors import Refused
from spanwise.collector.hosts import bare, is_loopback

if TYPE_CHECKING:
    from spanwise.collector.forward import FeedbackOut, Forwarder
    from spanwise.collector.server import Server
    from spanwise.collector.stores import Store

Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one. 4318 is where OpenTelemetry sends.")
]
Rules = Annotated[
    str | None,
    typer.Option("--monitor", metavar="RULES.PY", help="Evaluate what comes in by the rules of this file, too."),
]
RequireKey = Annotated[
    bool,
    typer.Option(
        "--require-key",
        help="Require an API key for every request, on loopback too; setting SPANWISE_API_KEY has the same effect.",
    ),
]
Cors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="An origin whose pages may send telemetry and feedback with a key, as https://app.example.com; any number"
        " of times.",
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port for OTLP over gRPC; else 4317, unless it is taken; 0 takes a free one."),
]
Grpc = Annotated[bool, typer.Option("--grpc/--no-grpc", help="Take OTLP over gRPC, too.")]
Decoders = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Processes that help to decode under load; 0 for none at any time. By itself two on four cores or more,"
        " one on two.",
    ),
]
Forward = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]URL",
        help="Pass what comes in on to this OTLP endpoint, too; any number of times. Headers, such as its key, come out"
        " of `SPANWISE_FORWARD_HEADERS_<NAME>`.",
    ),
]
FeedbackTo = Annotated[
    list[str] | None,
    typer.Option(
        "--feedback-to",
        metavar="[NAME=]URL",
        help="Send all feedback on to this OTLP endpoint, rules' results too, as log records; any number of times."
        " Headers as for --forward.",
    ),
]
QuerySeconds = Annotated[
    float,
    typer.Option(min=0.1, metavar="SECONDS", help="How long a question of the API or of a page may run."),
]
# Seconds after which a thread that decodes lets the one that writes go on. Python's own 5 ms are a tenth of an
# acknowledgement; measured with 100 spans a request: 1 ms gives 2 to 7 % more spans a second, 0.3 ms none.
SWITCH = 0.001
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of mallopt(3)
YOUNG = 10_000  # objects made since, before Python looks for cycles among them; its own 700 come every few spans


def serve(
    host: HostOption = "127.0.0.1",
    port: Port = 4318,
    path: FileStoreOption = "spanwise.db",
    rules: Rules = None,
    grpc_port: GrpcPort = None,
    grpc: Grpc = True,
    forward: Forward = None,
    feedback_to: FeedbackTo = None,
    cors: Cors = None,
    require_key: RequireKey = False,
    query_seconds: QuerySeconds = 10.0,
    decoders: Decoders = "auto",
) -> None:
    """Receive traces, serve the API and the pages, until Ctrl-C; with `--monitor` evaluate them as they come.

    The monitor is in processes of its own: whatever evaluators do, traces are received.

    Example: `spanwise serve --port 4318 --store spanwise.db`
    """
    with _loading():
        from spanwise.collector.forward import FeedbackOut, Forwarder, targets
        from spanwise.collector.stores.sqlite import SQLiteStore
        from spanwise.collector.stores.sqlite.name_conversion import adopt_former_file

    if rules is not None and not Path(rules).is_file():
        raise Refused(f"there is no file of rules {rules!r}")
    if "://" in path:
        raise Refused(f"--store {path!r}: a server keeps a SQLite file of its own; name its path")
    _grpc_as_asked(port, grpc_port, grpc)
    adopt_former_file(path)
    helpers = _decoders_of(decoders)
    passes_on = Forwarder(targets(forward or (), os.environ), Path(f"{path}.forward"))
    tells = FeedbackOut(targets(feedback_to or (), os.environ, "--feedback-to"))
    sys.setswitchinterval(SWITCH)
    _give_back_at_once()
    _tell_audit()
    with _loading(), SQLiteStore(path) as store:
        key = os.environ.get("SPANWISE_API_KEY") or None
        why_keys = _why_keys(host, key, require_key)
        if key is None and rules is not None and why_keys:
            key = _key_of_one_run(store)
        server = _server(
            store, host, port, key, require_key, cors or (), grpc_port, grpc, passes_on, tells, query_seconds, helpers
        )
        pick_up = PickUp()

        def ready() -> None:
            if server.failure is None:
                _settle()
                _tell(server, path, passes_on, why_keys)
                for target in tells.targets:
                    told = f"sends feedback on to {target.name}: {target.url}"
                    notes.print(told, soft_wrap=True, markup=False, highlight=False)
                pick_up.begin(server.url)

        try:
            if rules is None:
                server.run(ready)
            else:
                _with_monitor(server, rules, key, ready)
        finally:
            pick_up.end()
        if server.failure is not None:
            raise server.failure
        notes.print("stopped; everything that was acknowledged is kept")


def _server(
    store: Store,
    host: str,
    port: int,
    key: str | None,
    require_key: bool,
    cors: Sequence[str],
    grpc_port: int | None,
    grpc: bool,
    passes_on: Forwarder,
    tells: FeedbackOut,
    query_seconds: float,
    decoders: int,
) -> Server:
    from spanwise.collector.rpc import DEFAULT_PORT
    from spanwise.collector.server import Server

    usual = DEFAULT_PORT if grpc else None
    return Server(
        store,
        host=host,
        port=port,
        api_key=key,
        require_key=require_key,
        cors=cors,
        grpc_port=usual if grpc_port is None or not grpc else grpc_port,
        grpc_required=grpc_port is not None,
        forward=passes_on,
        feedback_to=tells,
        query_seconds=query_seconds,
        decoders=decoders,
    )


def _decoders_of(asked: str) -> int:
    from spanwise.collector.intake import MOST_DECODERS, automatic_decoders

    if asked == "auto":
        return automatic_decoders()
    if not asked.isascii() or not asked.isdigit() or int(asked) > MOST_DECODERS:
        raise Refused(f"--decoders {asked!r} is neither auto nor a number from 0 to {MOST_DECODERS}")
    return int(asked)


def _tell(server: Server, path: str, passes_on: Forwarder, why_keys: str) -> None:
    notes.print(f"[bold]{server.url}[/]  keeps {os.path.abspath(path)}", soft_wrap=True)
    if server.grpc_url is not None:
        notes.print(f"[bold]{server.grpc_url}[/]  takes OTLP over gRPC", soft_wrap=True)
    elif server.without_grpc:
        notes.print(f"no OTLP over gRPC: {server.without_grpc}", soft_wrap=True, markup=False, highlight=False)
    for target in passes_on.targets:
        notes.print(f"passes on to {target.name}: {target.url}", soft_wrap=True, markup=False, highlight=False)
    if left := passes_on.left():
        told = f"{', '.join(left)} in {path}.forward wait for targets that --forward does not name now"
        notes.print(told, soft_wrap=True, markup=False, highlight=False)
    _tell_who_else_reads(path)
    if why_keys:
        notes.print(f"API keys are required ({why_keys})", soft_wrap=True, markup=False, highlight=False)


def _why_keys(host: str, key: str | None, require_key: bool) -> str:
    """Return what makes the server require keys: an option, a variable or its address; "" if it requires none."""
    reasons = {
        "--require-key": require_key,
        "SPANWISE_API_KEY is set": key is not None,
        f"bound to {host}": not is_loopback(bare(host)),
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def _tell_who_else_reads(path: str) -> None:
    """A file from before, or one that was opened to others, stays as it is."""
    if os.stat(path).st_mode & 0o077:
        notes.print(f"other users of this machine may open {path}; `chmod 600 {path}*` ends that", soft_wrap=True)


def _with_monitor(server: Server, rules: str, key: str | None, ready: Callable[[], None]) -> None:
    """The server in a thread, so that the monitor ends first and can give back what it holds."""
    from spanwise.cli._monitor_run import planned, say, show, until_told
    from spanwise.evaluators.monitors import Supervisor

    with server, until_told() as stop:
        ready()
        try:
            Supervisor(planned(rules, server.url, key=key), say, show).run(stop, patient=True)
        except Exception as error:  # the server's work goes on
            say(f"ended by {type(error).__name__}: {error}; traces are received as before")
        stop.wait()


def _grpc_as_asked(port: int, grpc_port: int | None, grpc: bool) -> None:
    """Raises `Refused` for options that contradict each other."""
    if grpc_port is not None and not grpc:
        raise Refused(f"--grpc-port {grpc_port} asks for gRPC and --no-grpc for none: leave one of them out")
    if grpc_port == port != 0:
        raise Refused(f"--port and --grpc-port are both {port}: HTTP and gRPC need a port each; 0 takes a free one")


def _key_of_one_run(store: Store) -> str | None:
    """A key for the monitor alone, where others have keys; without any, a server that is open is refused anyway."""
    return secrets.token_urlsafe(32) if store.keys() else None


def _tell_audit() -> None:
    """Who deletes and who changes keys, a line of JSON each, beside the server's own words."""
    audit = logging.getLogger("spanwise.audit")
    audit.setLevel(logging.INFO)
    audit.propagate = False
    audit.addHandler(logging.StreamHandler())


def _give_back_at_once() -> None:
    """Have the C library give large blocks back as they are freed, and keep two heaps, not sixteen.

    It would learn from the first large bodies that such blocks are worth keeping; a peak then stays for good.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # elsewhere than with glibc
        for parameter, value in ((M_MMAP_THRESHOLD, 4 * 1024 * 1024), (M_ARENA_MAX, 2)):
            ctypes.CDLL(None).mallopt(parameter, value)


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Search for no cycles while modules are loaded, which have none; until its end, or `_settle`."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _settle() -> None:
    """Take what is loaded by now out of the search for cycles, which stopped all for 50 to 100 ms every few seconds."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(YOUNG)
