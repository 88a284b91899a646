"""HTTP server process: uvicorn with limits on connections, headers, bodies and idle time.

Plain uvicorn waits for headers without a time limit, and accepts them at any size. This server closes connections
that keep it waiting. At the connection limit, a new connection replaces the one that has kept the server waiting
longest.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spanwise.collector import store_connection
from spanwise.collector.address_parsing import build_server_url, is_loopback, strip_brackets
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.api import (
    ASGI,
    Authenticator,
    CorsMiddleware,
    KeyCache,
    KeyStore,
    RoutePermissions,
    SecurityMiddleware,
    bypass_framework,
    create_app,
)
from spanwise.collector.errors import Refused
from spanwise.collector.forward import FeedbackForwarder, Forwarder
from spanwise.collector.grpc import GrpcListener
from spanwise.collector.ingest import Limits, Receiver
from spanwise.collector.notifications import Notifier
from spanwise.collector.pages import AnalysisRenderer
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.query_scheduler import QUERY_TIMEOUT_S
from spanwise.collector.stores import FeedbackSource, LocalStore, Store
from spanwise.tracer.export.disk_spool import is_same_address

MAX_HEADER_BYTES = 64 * 1024  # maximum size of request line and headers; enough for 1,500 ids in the URL
HEADER_TIMEOUT_S = 15.0  # time within which the client must send the complete headers
# time limit of a body: the base, and the number of bytes that add another second
BODY_TIMEOUT_S, MIN_BODY_RATE = 60.0, 16 * 1024
UNREAD_RESPONSE_TIMEOUT_S = 60.0  # time without progress after which a connection with an unread response is closed
MAX_PIPELINED_REQUESTS = 16  # pipelined requests that may wait on one connection
SPARE_DESCRIPTOR_DIVISOR = 4  # one in this many file descriptors is reserved for the store and other files
MAX_CONNECTIONS = 1000
TOO_LARGE_RESPONSE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def _connection_limit() -> int:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        max(8, min(MAX_CONNECTIONS, descriptors - descriptors // SPARE_DESCRIPTOR_DIVISOR))
        if descriptors > 0
        else MAX_CONNECTIONS
    )


CONNECTION_LIMIT = _connection_limit()  # stays below the process's limit of file descriptors


class _RequestTooLarge(Exception):
    """Internal signal: a connection sent too many header bytes or pipelined requests."""


class LimitedConnection(HttpToolsProtocol):
    """HTTP connection with limits on head, body, pipelined requests and unread responses.

    The attribute `waits` is "head" or "body" while the server waits for the client, otherwise None.
    """

    waits: str | None = "head"
    since = 0.0  # loop time at which the server began to wait for the client
    taken = 0  # bytes received of the current request
    excessive = False
    unread, unread_since = 0, 0.0  # response bytes that the client has not read

    def connection_made(self, transport: Any) -> None:
        """Accept the connection; at the connection limit, close the one that has kept the server waiting longest."""
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > CONNECTION_LIMIT:
            others: list[Any] = [connection for connection in self.connections if connection is not self]
            oldest: LimitedConnection = min(
                [connection for connection in others if connection.waits] or [self],
                key=lambda connection: connection.since,
            )
            oldest.abort()

    def abort(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Count received bytes, and refuse a head that is too large."""
        if not self.taken:
            self.since = self.loop.time()
        self.taken += len(data)
        super().data_received(data)
        if self.waits == "head" and self.taken > MAX_HEADER_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.waits = "head"

    def on_headers_complete(self) -> None:
        """Check the limits of a complete head. Raises `_RequestTooLarge`, which closes the connection."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEADER_BYTES or len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self.excessive = True
            raise _RequestTooLarge
        super().on_headers_complete()
        self.waits = "body"

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.waits, self.taken = None, 0

    def on_response_complete(self) -> None:
        """Start to wait for the next request head after a response is complete."""
        super().on_response_complete()
        if self.waits is None:
            self.waits, self.since = "head", self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Send 431 for a head that is too large, 400 for other invalid input."""
        if self.excessive:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TOO_LARGE_RESPONSE)
            self.transport.close()

    def is_overdue(self, now: float) -> bool:
        """Return whether the client has kept the server waiting too long. Idle connections are not overdue: uvicorn
        closes them.
        """
        if self.waits == "body":
            return now - self.since > BODY_TIMEOUT_S + self.taken / MIN_BODY_RATE
        if self.waits == "head" and (self.taken or self.cycle is None):
            return now - self.since > HEADER_TIMEOUT_S
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread != self.unread:
            self.unread, self.unread_since = unread, now
            return False
        return now - self.unread_since > UNREAD_RESPONSE_TIMEOUT_S


def close_overdue_connections(connections: Any, now: float) -> None:
    """Close connections that have kept the server waiting too long."""
    for connection in [connection for connection in connections if connection.is_overdue(now)]:
        connection.abort()


DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 4318
TICK_S = 0.1  # the same interval as uvicorn's
# longer than tracers' export intervals: a request fails if the server closes its connection meanwhile
KEEP_ALIVE_S = 75
SHUTDOWN_GRACE_S = 30  # time that requests in progress get at shutdown


class Server:
    """HTTP server of a store, which the caller closes: `with Server(store) as server: server.url`.

    Port 0 selects a free one. With `grpc_port` the server also accepts OTLP over gRPC. With
    `grpc_required=False` it starts without gRPC if that port is in use. The option `forward` passes received
    requests on, `feedback_to` all feedback of the store, and `notifier` delivers notifications of alerts. Pages of the
    origins in `cors` may send telemetry and feedback.

    Every request needs a key if the server binds beyond loopback, with `require_key`, or with `api_key` (a key with
    full access, like SPANWISE_API_KEY). Otherwise a key is only checked when it is sent. The time limit of one query
    is `query_seconds`. Under load, up to `decoders` processes help to decode, and one more decodes large bodies.
    With `render_analysis` (`spanwise.evaluators.analysis.render_page`), it has the page `/analysis`.
    Raises `Refused` if a port is in use, or if no key exists although one is required.
    """

    def __init__(
        self,
        store: Store,
        *,
        host: str = DEFAULT_HOST,
        port: int = 0,
        api_key: str | None = None,
        require_key: bool = False,
        limits: Limits | None = None,
        cors: Iterable[str] = (),
        grpc_port: int | None = None,
        grpc_required: bool = True,
        forward: Forwarder | None = None,
        feedback_to: FeedbackForwarder | None = None,
        notifier: Notifier | None = None,
        query_seconds: float | None = QUERY_TIMEOUT_S,
        decoders: int = 0,
        render_analysis: AnalysisRenderer | None = None,
    ) -> None:
        self.store, self.host = store, strip_brackets(host)
        self.authenticator = _make_authenticator(store, self.host, api_key, required=require_key)
        self._socket = _bind_socket(self.host, port)
        self.port: int = self._socket.getsockname()[1]
        self._metrics = Metrics()
        self._forward = forward if forward and forward.targets else None
        self._feedback_to = feedback_to if feedback_to and feedback_to.targets else None
        self._notifier = notifier
        sinks = [self._forward] if self._forward else []
        app = create_app(
            store,
            limits=limits,
            metrics=self._metrics,
            ready=lambda: self._server.started and not self._server.should_exit,
            authenticator=self.authenticator,
            sinks=sinks,
            query_seconds=query_seconds,
            decoders=decoders,
            render_analysis=render_analysis,
        )
        guard = SecurityMiddleware(
            bypass_framework(app), app.state.scopes, self.authenticator, app.state.browser_sessions
        )
        self._server = _UvicornServer(
            _uvicorn_config(CorsMiddleware(guard, cors, app.state.scopes.rows) if cors else guard)
        )
        self._receiver: Receiver = app.state.receiver
        self._thread: threading.Thread | None = None
        try:
            for option, sender in (("--forward", self._forward), ("--feedback-to", self._feedback_to)):
                for target in sender.targets if sender else ():
                    if is_same_address(target.url, self.url):
                        raise Refused(
                            f"{option} {target.url!r} is the address of this server; it cannot forward to itself"
                        )
            if self._feedback_to and not isinstance(self.store, FeedbackSource):
                raise Refused(f"--feedback-to needs a database file as the store, got {self.store.where}")
            if grpc_port is not None:
                args = self.host, grpc_port, self._receiver, self.authenticator, self._metrics
                self._server.grpc = GrpcListener(*args, required=grpc_required)
        except Refused:
            self._socket.close()
            raise

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return build_server_url(self.host, self.port)

    @property
    def failure(self) -> Refused | None:
        """Return the error that prevented the server from starting."""
        return self._server.failure

    @property
    def grpc_url(self) -> str | None:
        """Return the URL for OTLP over gRPC; None without gRPC."""
        return self._server.grpc.address if self._server.grpc else None

    @property
    def without_grpc(self) -> str:
        """Return the reason why gRPC is off although it was requested; "" otherwise."""
        return self._server.grpc.why if self._server.grpc else ""

    def __enter__(self) -> Server:
        started = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(started.set,), name="spanwise-server", daemon=True)
        self._thread.start()
        started.wait()
        if not self._server.started:
            raise self._server.failure or Refused(f"the server on port {self.port} did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.stop()
        if self._thread is not None:
            self._thread.join()

    def run(self, started: Callable[[], Any] | None = None) -> None:
        """Serve until `stop`, or until a signal if this is the main thread; requests in progress are completed.

        The server calls `started` once: after it has started, or after `failure` says why it cannot.
        """
        self._server.on_start = started
        alert_runner = AlertRunner(self.store)
        try:
            if self._forward is not None:
                self._forward.begin(self._metrics)
            if self._feedback_to is not None and isinstance(self.store, FeedbackSource):
                self._feedback_to.begin(self.store, self._metrics)
            if self._notifier is not None:
                self._notifier.begin(self.store, self._metrics, self.url)
            alert_runner.begin()
            self._announce(self.url)
            self._server.run(sockets=[self._socket])
        finally:
            self._server.report_start()
            self._announce(None)
            alert_runner.close()
            if self._forward is not None:
                self._forward.close()
            if self._feedback_to is not None:
                self._feedback_to.close()
            if self._notifier is not None:
                self._notifier.close()
            self._receiver.close()
            self._socket.close()
            if self.authenticator.keys:
                self.authenticator.keys.close()

    def _announce(self, url: str | None) -> None:
        if isinstance(self.store, LocalStore):
            self.store.announce(url)


class GuardedServer:
    """HTTP server of another ASGI application, with the same key checks as `Server`.

    `scopes` maps requests to the permissions that they need. Raises `Refused` if the port is in use, or if the
    server would be open to others without a key.
    """

    def __init__(self, app: ASGI, scopes: RoutePermissions, keys: KeyStore, *, host: str, port: int) -> None:
        self.host = strip_brackets(host)
        self._authenticator = _make_authenticator(keys, self.host)
        self._socket = _bind_socket(self.host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _UvicornServer(_uvicorn_config(SecurityMiddleware(app, scopes, self._authenticator)))

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return build_server_url(self.host, self.port)

    def run(self, ready: Callable[[], Any] | None = None) -> None:
        """Serve until `stop`, or until a signal if this is the main thread; requests in progress are completed."""
        self._server.on_start = ready
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            if self._authenticator.keys:
                self._authenticator.keys.close()

    def stop(self) -> None:
        """Stop the server, from any thread."""
        self._server.stop()


def _make_authenticator(
    store: KeyStore, host: str, api_key: str | None = None, *, required: bool = False
) -> Authenticator:
    """Return the authenticator of a server that binds to `host`.

    Raises `Refused` if a key is required and none exists.
    """
    master = api_key or os.environ.get("SPANWISE_API_KEY")
    required = required or api_key is not None or not is_loopback(host)
    if required and not master and not store.keys():
        reason = (
            "--require-key is set" if is_loopback(host) else f"the server listens on {host!r}, not only on loopback"
        )
        remedy = "set SPANWISE_API_KEY, or create a key with `spanwise keys create NAME --store FILE`"
        raise Refused(f"an API key is required because {reason}; {remedy}")
    return Authenticator(KeyCache(store), master, required=required)


class _UvicornServer(uvicorn.Server):
    """Variant of `uvicorn.Server` that reports its start once, stops without delay, and survives signals.

    Plain uvicorn reacts to a stop up to 0.1 s late. After it has stopped because of a signal, it raises the signal
    again, which would end the process before the store is closed.
    """

    grpc: GrpcListener | None = None
    failure: Refused | None = None  # error that prevented the server from starting
    on_start: Callable[[], Any] | None = None
    _wake: Callable[[], Any] | None = None

    def stop(self) -> None:
        """Stop the server, from any thread; requests in progress are completed."""
        self.should_exit = True
        if self._wake is not None:
            with suppress(RuntimeError):  # the event loop has already ended
                self._wake()

    async def main_loop(self) -> None:
        """Run uvicorn's tick ten times a second until the server is stopped."""
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, stopped.set)
        ticks = 0
        while not await self.on_tick(ticks):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await stopped.wait()
            ticks = (ticks + 1) % 10
            if ticks == 0:
                close_overdue_connections(self.server_state.connections, loop.time())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests, then report the start."""
        try:
            if self.grpc is not None:
                await self.grpc.start()
        except Refused as error:
            self.failure, self.should_exit = error, True
            return
        await super().startup(sockets=sockets)
        self.report_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, and complete those in progress over HTTP and gRPC."""
        ending = [super().shutdown(sockets=sockets)]
        if self.grpc is not None:
            ending.append(self.grpc.stop(SHUTDOWN_GRACE_S))
        await asyncio.gather(*ending)

    def report_start(self) -> None:
        """Call the callback that reports the start, unless it was called already."""
        on_start, self.on_start = self.on_start, None
        if on_start is not None:
            on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    store: Store,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    cors: Iterable[str] = (),
    ready: Callable[[str], Any] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then complete requests in progress. `ready` is called with the server's URL."""
    server = Server(store, host=host, port=port, cors=cors)
    server.run(None if ready is None else lambda: ready(server.url))


def _uvicorn_config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(  # uvicorn's log_config would close every log handler of the process
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http=LimitedConnection,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
    )


def _bind_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)  # without `listen`, Linux lets a second server bind to the same port
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise Refused(f"cannot bind to {host!r} port {port}: {error.strerror or error}") from error
        holder = store_connection.describe_port_holder(host, port)
        raise Refused(f"port {port} is in use by {holder}; stop it, or choose another port with --port") from error
    return listening
