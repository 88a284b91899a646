"""The collector as a server: in a thread beside a program, or as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import uvicorn

from spanwise.collector import _ports
from spanwise.collector._connection import Connection, sweep
from spanwise.collector._lanes import SECONDS
from spanwise.collector._metrics import Metrics
from spanwise.collector.api import ASGI, Cors, Door, Guard, Keys, KeyStore, Scopes, create_app, past_framework
from spanwise.collector.errors import Refused
from spanwise.collector.forward import FeedbackOut, Forwarder
from spanwise.collector.hosts import bare, is_loopback, url_of
from spanwise.collector.intake import Limits, Receiver
from spanwise.collector.rpc import Listener
from spanwise.collector.stores import SendsOn, Serving, Store
from spanwise.tracer.spool import same_address

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 4318
TICK = 0.1  # seconds; uvicorn's own
KEEP_ALIVE = 75  # seconds; exporters send every few seconds, and one that meets a closing connection fails
GRACE = 30  # seconds for requests that are under way when the server is told to stop


class Server:
    """Serves a store, which the caller closes: `with Server(store) as server: server.url`.

    Port 0 takes a free one. With `grpc_port` OTLP is taken by gRPC, too; `grpc_required=False` goes without where that
    port is taken. `forward` passes on what comes in, `feedback_to` all feedback that the store has. `cors` are origins
    whose pages may send telemetry and feedback. Beyond loopback, and with `require_key` or `api_key` (a key that may do
    everything, as SPANWISE_API_KEY may), every request needs a key; elsewhere a key that is sent is checked.
    `query_seconds` is how long a question may run. `decoders` are processes that help to decode under load: so many at
    most, and one for large bodies. Raises `Refused`: a port is taken, or there is no key where one is required.
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
        feedback_to: FeedbackOut | None = None,
        query_seconds: float | None = SECONDS,
        decoders: int = 0,
    ) -> None:
        self.store, self.host = store, bare(host)
        self.door = _door(store, self.host, api_key, required=require_key)
        self._socket = _bound(self.host, port)
        self.port: int = self._socket.getsockname()[1]
        self._metrics = Metrics()
        self._forward = forward if forward and forward.targets else None
        self._feedback_to = feedback_to if feedback_to and feedback_to.targets else None
        keepers = [self._forward] if self._forward else []
        app = create_app(
            store,
            limits=limits,
            metrics=self._metrics,
            ready=self._is_ready,
            door=self.door,
            keepers=keepers,
            query_seconds=query_seconds,
            decoders=decoders,
        )
        guard = Guard(past_framework(app), app.state.scopes, self.door, app.state.sign_ins)
        self._server = _Uvicorn(_config(Cors(guard, cors, app.state.scopes.rows) if cors else guard))
        self._receiver: Receiver = app.state.receiver
        self._thread: threading.Thread | None = None
        try:
            self._check_targets()
            if grpc_port is not None:
                args = self.host, grpc_port, self._receiver, self.door, self._metrics
                self._server.grpc = Listener(*args, required=grpc_required)
        except Refused:
            self._socket.close()
            raise

    def _is_ready(self) -> bool:
        return self._server.started and not self._server.should_exit

    @property
    def url(self) -> str:
        """Where it answers."""
        return url_of(self.host, self.port)

    @property
    def failure(self) -> Refused | None:
        """Why it did not start."""
        return self._server.failure

    @property
    def grpc_url(self) -> str | None:
        """Where it takes OTLP by gRPC; None where it does not."""
        return self._server.grpc.address if self._server.grpc else None

    @property
    def without_grpc(self) -> str:
        """Why it takes none, although it was to."""
        return self._server.grpc.why if self._server.grpc else ""

    def _check_targets(self) -> None:
        for option, sender in (("--forward", self._forward), ("--feedback-to", self._feedback_to)):
            for target in sender.targets if sender else ():
                if same_address(target.url, self.url):
                    raise Refused(f"{option} {target.url!r} is this server's own address: it would send to itself")
        if self._feedback_to and not isinstance(self.store, SendsOn):
            raise Refused(f"--feedback-to: the store {self.store.where} does not number its feedback")

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
        """Serve until told to stop, by signal if this is the main thread; requests under way are answered first.

        `started` is called once: it has started, or `failure` says why it never will.
        """
        self._server.tell = started
        try:
            if self._forward is not None:
                self._forward.begin(self._metrics)
            if self._feedback_to is not None and isinstance(self.store, SendsOn):
                self._feedback_to.begin(self.store, self._metrics)
            self._announce(self.url)
            self._server.run(sockets=[self._socket])
        finally:
            self._server.told()
            self._announce(None)
            if self._forward is not None:
                self._forward.close()
            if self._feedback_to is not None:
                self._feedback_to.close()
            self._receiver.close()
            self._socket.close()
            if self.door.keys:
                self.door.keys.close()

    def _announce(self, url: str | None) -> None:
        if isinstance(self.store, Serving):
            self.store.announce(url)


class Guarded:
    """Another application, behind the guard of the same keys; `scopes` say what its requests need.

    Raises `Refused`: the port is taken, or the server would be open to others without a key.
    """

    def __init__(self, app: ASGI, scopes: Scopes, keys: KeyStore, *, host: str, port: int) -> None:
        self.host = bare(host)
        self._door = _door(keys, self.host)
        self._socket = _bound(self.host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Uvicorn(_config(Guard(app, scopes, self._door)))

    @property
    def url(self) -> str:
        """Where it answers."""
        return url_of(self.host, self.port)

    def run(self, ready: Callable[[], Any] | None = None) -> None:
        """Serve until told to stop, by signal if this is the main thread; requests under way are answered first."""
        self._server.tell = ready
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            if self._door.keys:
                self._door.keys.close()

    def stop(self) -> None:
        """Stop, from any thread."""
        self._server.stop()


def _door(store: KeyStore, host: str, api_key: str | None = None, *, required: bool = False) -> Door:
    """Return the check of keys of a server that binds to `host`. Raises `Refused` if no key exists that is required."""
    master = api_key or os.environ.get("SPANWISE_API_KEY")
    required = required or api_key is not None or not is_loopback(host)
    if required and not master and not store.keys():
        why = f"binding to {host!r} opens this server to others, so" if not is_loopback(host) else "with --require-key"
        way_out = "set SPANWISE_API_KEY, or make a first key with `spanwise keys create NAME --store FILE`"
        raise Refused(f"{why} it needs an API key: {way_out}")
    return Door(Keys(store), master, required=required)


class _Uvicorn(uvicorn.Server):
    """Tells once that it has started, or that it never will; stops when it is told to, not up to 0.1 s later; and
    leaves the process alive after a signal.

    uvicorn raises the signal again once it has stopped, which ends the process before the store is closed.
    """

    grpc: Listener | None = None
    failure: Refused | None = None  # why it did not start
    tell: Callable[[], Any] | None = None
    _wake: Callable[[], Any] | None = None

    def stop(self) -> None:
        """Stop, from any thread; requests under way are answered first."""
        self.should_exit = True
        if self._wake is not None:
            with suppress(RuntimeError):  # the loop has ended already
                self._wake()

    async def main_loop(self) -> None:
        """Tick as uvicorn does, ten times a second, until told to stop."""
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, told.set)
        ticks = 0
        while not await self.on_tick(ticks):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await told.wait()
            ticks = (ticks + 1) % 10
            if ticks == 0:
                sweep(self.server_state.connections, loop.time())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer, then tell."""
        try:
            if self.grpc is not None:
                await self.grpc.start()
        except Refused as error:
            self.failure, self.should_exit = error, True
            return
        await super().startup(sockets=sockets)
        self.told()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, and answer what is under way, however it came."""
        ending = [super().shutdown(sockets=sockets)]
        if self.grpc is not None:
            ending.append(self.grpc.stop(GRACE))
        await asyncio.gather(*ending)

    def told(self) -> None:
        """Tell, unless that has been done."""
        tell, self.tell = self.tell, None
        if tell is not None:
            tell()

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
    """Serve until SIGINT or SIGTERM, then answer what is under way. `ready` is called with the address."""
    server = Server(store, host=host, port=port, cors=cors)
    server.run(None if ready is None else lambda: ready(server.url))


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(  # its own log_config would close every handler of the process, the host's files too
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http=Connection,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
    )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)  # bound alone, Linux would let a second server bind here, too
    except OSError as error:
        listening.close()
        raise _cannot_bind(host, port, error) from error
    return listening


def _cannot_bind(host: str, port: int, error: OSError) -> Refused:
    if error.errno == 98:  # address in use
        return Refused(f"port {port} is held by {_ports.holder(host, port)}: stop it, or choose another with --port")
    return Refused(f"cannot bind to {host!r} port {port}: {error.strerror or error}")
