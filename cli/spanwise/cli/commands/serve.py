"""`spanwise serve`: collector server, optional monitor, pickup of spooled data."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import secrets
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from spanwise.cli.command_io import HostOption, ServerStoreOption, error_console, print_note
from spanwise.collector.address_parsing import hide_password, is_loopback, strip_brackets
from spanwise.collector.errors import Refused
from spanwise.collector.store_connection import CLUSTER_SCHEME, find_control

if TYPE_CHECKING:
    from spanwise.collector.forward import Forwarder
    from spanwise.collector.records import Experiment
    from spanwise.collector.server import Server
    from spanwise.collector.stores import Store


Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one. OpenTelemetry SDKs send to 4318 by default.")
]
Rules = Annotated[
    str | None,
    typer.Option("--monitor", metavar="RULES.PY", help="Also evaluate incoming traces with the rules of this file."),
]
RequireKey = Annotated[
    bool,
    typer.Option(
        "--require-key",
        help="Require an API key for every request, also on loopback. Setting SPANWISE_API_KEY has the same effect.",
    ),
]
Cors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Origin whose pages may send telemetry and feedback with a key, such as https://app.example.com; may be "
        "repeated.",
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Port for OTLP over gRPC; 0 selects a free one. Default: 4317, unless it is in use."
    ),
]
Grpc = Annotated[bool, typer.Option("--grpc/--no-grpc", help="Accept OTLP over gRPC.")]
Decoders = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Maximum number of processes that help to decode under load; 0 decodes in the server alone. Default: two on"
        " four cores or more, one on two.",
    ),
]
Forward = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]URL",
        help="Also forward incoming telemetry to this OTLP endpoint; may be repeated. Headers, such as its key, are read"
        " from `SPANWISE_FORWARD_HEADERS_<NAME>`.",
    ),
]
FeedbackTo = Annotated[
    list[str] | None,
    typer.Option(
        "--feedback-to",
        metavar="[NAME=]URL",
        help="Forward all feedback, including results of rules, to this OTLP endpoint as log records; may be repeated."
        " Headers as for --forward.",
    ),
]
Targets = Annotated[
    str | None,
    typer.Option(
        "--targets",
        metavar="FILE",
        envvar="SPANWISE_TARGETS",
        help="TOML file with the targets of notifications: webhooks, Slack-compatible webhooks and e-mail.",
    ),
]
QuerySeconds = Annotated[
    float,
    typer.Option(min=0.1, metavar="SECONDS", help="Time limit in seconds for a query of the API or of a page."),
]
# Seconds after which a decoding thread yields to the writer thread. Python's default of 5 ms is a tenth of the time
# until a request is acknowledged. Measured with 100 spans per request: 1 ms gives 2 to 7 % more spans per second, 0.3
# ms none.
SWITCH_INTERVAL_S = 0.001
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # parameters of mallopt(3)
# number of new objects that triggers a collection; Python's default of 700 is reached every few spans
GC_THRESHOLD = 10_000


def serve(
    host: HostOption = "127.0.0.1",
    port: Port = 4318,
    path: ServerStoreOption = "spanwise.db",
    rules: Rules = None,
    grpc_port: GrpcPort = None,
    grpc: Grpc = True,
    forward: Forward = None,
    feedback_to: FeedbackTo = None,
    targets: Targets = None,
    cors: Cors = None,
    require_key: RequireKey = False,
    query_seconds: QuerySeconds = 10.0,
    decoders: Decoders = "auto",
) -> None:
    """Receive traces and serve the API and the pages, until Ctrl-C; with `--monitor` also evaluate incoming traces.

    The monitor runs in separate processes, so that evaluators cannot stop the server from receiving traces. Several
    servers may share a clickhouse:// store.

    Example: `spanwise serve --port 4318 --store spanwise.db`
    """
    with _gc_paused():
        from spanwise.collector.forward import FeedbackForwarder, Forwarder, parse_targets
        from spanwise.collector.notifications import NotificationConfig, Notifier, load_targets

    if rules is not None and not Path(rules).is_file():
        raise Refused(f"there is no rules file {rules!r}")
    if grpc_port is not None and not grpc:
        raise Refused(f"--grpc-port {grpc_port} and --no-grpc contradict each other; remove one of them")
    if grpc_port == port != 0:
        raise Refused(f"--port and --grpc-port are both {port}; use different ports, or 0 for a free one")
    decoder_count = _parse_decoders(decoders)
    forwarder = Forwarder(parse_targets(forward or (), os.environ), _forward_folder(path))
    feedback_forwarder = FeedbackForwarder(parse_targets(feedback_to or (), os.environ, "--feedback-to"))
    notifications = load_targets(targets, os.environ) if targets else NotificationConfig()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _tune_malloc()
    _register_identity_adapters()
    _log_audit()
    with _gc_paused(), _open_own_store(path) as store:
        from spanwise.collector.grpc import DEFAULT_PORT
        from spanwise.collector.server import Server

        key = os.environ.get("SPANWISE_API_KEY") or None
        why_keys = _key_reasons(host, key, require_key)
        if key is None and rules is not None and why_keys and store.keys():
            # key for the monitor; if the store has no keys, the server refuses to start anyway
            key = secrets.token_urlsafe(32)
        server = Server(
            store,
            host=host,
            port=port,
            api_key=key,
            require_key=require_key,
            cors=cors or (),
            grpc_port=(DEFAULT_PORT if grpc_port is None else grpc_port) if grpc else None,
            grpc_required=grpc_port is not None,
            forward=forwarder,
            feedback_to=feedback_forwarder,
            notifier=Notifier(notifications),
            query_seconds=query_seconds,
            decoders=decoder_count,
            render_analysis=render_analysis,
        )
        pick_up = SpoolPickup()

        def ready() -> None:
            if server.failure is None:
                _freeze_gc()
                _print_addresses(server, path, forwarder, why_keys)
                for target in feedback_forwarder.targets:
                    print_note(f"forwards feedback to {target.name}: {target.url}")
                if notifications.targets:
                    print_note(f"sends notifications to {', '.join(notifications.targets)}")
                pick_up.begin(server.url)

        try:
            if rules is None:
                server.run(ready)
            else:
                _run_with_monitor(server, rules, key, ready)
        finally:
            pick_up.end()
        if server.failure is not None:
            raise server.failure
        error_console.print("stopped; all acknowledged data is stored")


@contextlib.contextmanager
def _open_own_store(location: str) -> Iterator[Store]:
    """Open the store of a server: a SQLite file of its own, or databases that several servers share."""
    scheme, divided, _ = location.partition("://")
    if not divided:
        from spanwise.collector.stores.sqlite import SQLiteStore
        from spanwise.collector.stores.sqlite.database.name_conversion import adopt_former_file

        adopt_former_file(location)
        with SQLiteStore(location) as store:
            yield store
        return
    if scheme != CLUSTER_SCHEME:
        raise Refused(
            f"--store {hide_password(location)!r}: a server needs a SQLite file of its own, or databases:"
            " --store clickhouse://… --control postgresql://…"
        )
    from spanwise.collector.stores import open_backends

    with contextlib.closing(open_backends(location, find_control(location, None))) as cluster:
        yield cast("Store", cluster)


def _forward_folder(location: str) -> Path:
    """Return the folder of requests that wait to be forwarded: next to the file, or for a cluster in this folder."""
    return Path("spanwise.forward" if "://" in location else f"{location}.forward")


def _parse_decoders(text: str) -> int:
    from spanwise.collector.ingest import MAX_DECODERS, default_decoder_count

    if text == "auto":
        return default_decoder_count()
    if not text.isascii() or not text.isdigit() or int(text) > MAX_DECODERS:
        raise Refused(f"--decoders must be auto or a number from 0 to {MAX_DECODERS}, got {text!r}")
    return int(text)


def render_analysis(sides: Sequence[tuple[Store, Experiment]], page: str) -> tuple[str, str]:
    """Return the page `/analysis` ("analysis") or `/analysis/flips` ("flips"). The evaluators are imported when it is first asked for, so that an idle server stays
    small.
    """
    from spanwise.evaluators.analysis import render_page

    return render_page(sides, page)


def _print_addresses(server: Server, path: str, forwarder: Forwarder, why_keys: str) -> None:
    from spanwise.collector.pages import has_scripts

    place = server.store.where if "://" in path else os.path.abspath(path)
    error_console.print(f"[bold]{server.url}[/]  keeps {place}", soft_wrap=True)
    if server.grpc_url is not None:
        error_console.print(f"[bold]{server.grpc_url}[/]  accepts OTLP over gRPC", soft_wrap=True)
    elif server.without_grpc:
        print_note(f"no OTLP over gRPC: {server.without_grpc}")
    for target in forwarder.targets:
        print_note(f"forwards to {target.name}: {target.url}")
    if left := forwarder.left():
        print_note(f"{', '.join(left)} in {_forward_folder(path)} wait for destinations that --forward no longer names")
    if "://" not in path and os.stat(path).st_mode & 0o077:  # only a warning: the permissions stay unchanged
        error_console.print(
            f"other users of this machine can read {path}; to prevent it, run `chmod 600 {path}*`", soft_wrap=True
        )
    if why_keys:
        print_note(f"API keys are required ({why_keys})")
    if not has_scripts():
        print_note(
            "the pages are served without scripts, which were not built; to build them, install Node.js 18 or newer, "
            "and install Spanwise again from its checkout, or run `npm ci && npm run build` there"
        )


def _key_reasons(host: str, key: str | None, require_key: bool) -> str:
    """Return the reasons why the server requires keys: an option, an environment variable, or its address.

    The result is "" if it requires none.
    """
    reasons = {
        "--require-key": require_key,
        "SPANWISE_API_KEY is set": key is not None,
        f"bound to {host}": not is_loopback(strip_brackets(host)),
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def _run_with_monitor(server: Server, rules: str, key: str | None, ready: Callable[[], None]) -> None:
    """Run the server in a thread, so that the monitor ends before the server and can release its leases."""
    from spanwise.cli.commands.monitor import make_plan, print_monitor_line, print_rules, stop_on_signal
    from spanwise.evaluators.monitors import Supervisor

    with server, stop_on_signal() as stop:
        ready()
        try:
            Supervisor(make_plan(rules, server.url, key=key), print_monitor_line, print_rules).run(stop, patient=True)
        except Exception as error:  # the server continues without the monitor
            print_monitor_line(f"ended by {type(error).__name__}: {error}; the server still receives traces")
        stop.wait()


def _log_audit() -> None:
    """Log deletions and key changes to stderr, one line of JSON each."""
    audit = logging.getLogger("spanwise.audit")
    audit.setLevel(logging.INFO)
    audit.propagate = False
    audit.addHandler(logging.StreamHandler())


def _register_identity_adapters() -> None:
    """Spare the writer 0.4 µs per None and bytes value on Python 3.11, more than their insertion takes.

    Before Python 3.12, sqlite3 raises and catches two exceptions per such value to look for an adapter. Adapters are
    global, so only the server's own process registers them, and not the module of the store, which applications import.
    """
    if sys.version_info < (3, 12):
        for kind in (type(None), bytes):
            sqlite3.adapters.setdefault((kind, sqlite3.PrepareProtocol), lambda value: value)


def _tune_malloc() -> None:
    """Configure the C library to release large blocks when they are freed, and to keep two heaps instead of sixteen.

    By default, glibc raises its threshold for large blocks after the first large bodies. Memory from a peak would
    then never return to the operating system.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # C libraries other than glibc may lack `mallopt`
        for parameter, value in ((M_MMAP_THRESHOLD, 4 * 1024 * 1024), (M_ARENA_MAX, 2)):
            ctypes.CDLL(None).mallopt(parameter, value)


@contextlib.contextmanager
def _gc_paused() -> Iterator[None]:
    """Disable garbage collection until the end of the block, or until `_freeze_gc`, because imports create no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _freeze_gc() -> None:
    """Exclude all objects that exist now from garbage collection, and collect less often.

    With these objects, each collection paused all threads for 50 to 100 ms every few seconds.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(GC_THRESHOLD)


PICKUP_INTERVAL_S = 30.0  # seconds between two deliveries


class SpoolPickup:
    """Thread that delivers spooled data to the server when the server starts, and every half minute.

    It sends only data addressed to this server. It uses the public ingest endpoint, so that the same checks apply. It
    takes the tracers' file locks, because tracers may deliver the same data.
    """

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, url: str) -> None:
        """Start the thread. The server must already answer at this address."""
        self._thread = threading.Thread(target=self._run, args=(url,), name="spanwise-pick-up", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the thread. Call this after the server has stopped."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, url: str) -> None:
        last_error = ""
        while not self._end.is_set():
            try:
                deliver_spooled(url)
            except Exception as error:  # tracers access the same files, so retry, and report an error only once
                if last_error != (last_error := f"could not read the spool: {error!r}"):
                    print_note(last_error)
            self._end.wait(PICKUP_INTERVAL_S)


def deliver_spooled(url: str) -> int:
    """Send spooled data for this address to the server, and return the number of accepted items."""
    from spanwise.tracer.export import disk_spool

    accepted = 0
    for folder in disk_spool.list_spool_folders():
        if disk_spool.is_same_address(folder.url, url):
            accepted += disk_spool.send_spool_folder(folder, url, with_key=True).kept
    if accepted:
        print_note(f"stored {accepted:,} spooled items")
    return accepted
