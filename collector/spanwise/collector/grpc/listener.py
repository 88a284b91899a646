"""gRPC listener: server options, port and life cycle."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from spanwise.collector import store_connection
from spanwise.collector.api import Authenticator
from spanwise.collector.errors import Refused, require_extra
from spanwise.collector.ingest import Receiver
from spanwise.collector.prometheus_metrics import Metrics

if TYPE_CHECKING:
    import grpc.aio


DEFAULT_PORT = 4317  # OpenTelemetry's default port for gRPC
MIB = 1024 * 1024
MAX_MESSAGE_BYTES = 16 * MIB  # limit of the compressed size; the OpenTelemetry Collector accepts 4 MiB by default
MAX_CONNECTIONS = 128
MAX_STREAMS = 100  # per connection
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # otherwise a second server would share the port and get half of the requests
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.per_message_decompression", 0),  # gRPC decompresses to any size, so `export_services` does it within limits
    ("grpc.http2.bdp_probe", 0),  # keeps gRPC from buffering more than 64 KiB of a message that is not read yet
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.absolute_max_metadata_size", 64 * 1024),
    ("grpc.server_handshake_timeout_ms", 15_000),
    ("grpc.max_connection_idle_ms", 60_000),  # a sender that returns later reconnects
    ("grpc.keepalive_time_ms", 60_000),  # detects clients that vanished without closing the connection
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients that ping more often are disconnected
    ("grpc.http2.max_ping_strikes", 2),
)


class GrpcListener:
    """gRPC server for the OTLP services of a receiver. `port` 0 selects a free port.

    If it cannot start, it raises `Refused`; if it is not `required`, it sets `why` to the reason instead.
    """

    def __init__(
        self,
        host: str,
        port: int,
        receiver: Receiver,
        authenticator: Authenticator,
        metrics: Metrics,
        *,
        required: bool = True,
    ) -> None:
        self.host, self.port, self.why = host or "0.0.0.0", port, ""
        self._receiver, self._authenticator, self._metrics, self._required = receiver, authenticator, metrics, required
        self._server: grpc.aio.Server | None = None
        try:
            _check_available(self.host, port)
        except Refused as error:
            self._give_up(error)

    @property
    def address(self) -> str | None:
        """Return the URL for exporters; None while the server does not run."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return None if self._server is None else f"http://{_format_authority(host, self.port)}"

    async def start(self) -> None:
        """Start to accept calls."""
        if self.why:
            return
        import grpc.aio

        from spanwise.collector.grpc.export_services import ExportServices

        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((ExportServices(self._receiver, self._authenticator, self._metrics),))
        try:
            self.port = server.add_insecure_port(_format_authority(self.host, self.port))
        except RuntimeError:  # another process took the port in the meantime
            await server.stop(None)
            self._give_up(Refused(f"gRPC cannot bind to {self.host!r} port {self.port}"))
            return
        await server.start()
        self._server = server

    async def stop(self, grace: float) -> None:
        """Refuse new calls, and complete those in progress within `grace` seconds."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)

    def _give_up(self, error: Refused) -> None:
        if self._required:
            raise error
        self.why = str(error)


def _check_available(host: str, port: int) -> None:
    """Raise `Refused` if grpcio is missing or the port is in use. Without this check, gRPC would log pages of output."""
    # In a process with a gRPC server, gRPC's fork handlers do not work, and report that on stderr at each fork.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        with require_extra("server", "OTLP over gRPC"):
            import grpc.aio  # noqa: F401
    except ModuleNotFoundError as error:
        raise Refused(str(error)) from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                holder = store_connection.describe_port_holder(host, port)
                message = f"gRPC port {port} is in use by {holder}: stop it, or choose another port with --grpc-port"
                raise Refused(message) from error
            raise Refused(f"gRPC cannot bind to {host!r} port {port}: {error.strerror or error}") from error


def _format_authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
