"""gRPC transport to a forward target: `grpc://host:4317` without TLS, `grpcs://host:4317` with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spanwise.collector.address_parsing import is_loopback
from spanwise.collector.forward.envelope import Envelope
from spanwise.collector.forward.forward_transport import (
    MAX_RETRY_AFTER,
    READ_TIMEOUT,
    DeliveryResult,
    ForwardTarget,
    count_rejected,
)
from spanwise.collector.ingest import HOPS_HEADER
from spanwise.tracer.http_connections import find_trusted_authorities, suppress_instrumentation

DEFAULT_PORT = 4317
METHOD_PATHS = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
# Codes that OTLP calls retryable, and others whose cause an operator can fix, such as failed authentication
RETRYABLE_CODES = frozenset(
    (
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNAVAILABLE",
        "DATA_LOSS",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "INTERNAL",
        "UNKNOWN",
    )
)
RETRY_INFO_KEY = "google.rpc.retryinfo-bin"
STATUS_DETAILS_KEY = "grpc-status-details-bin"


class GrpcTransport:
    """gRPC client of one target, with a persistent channel. For use by one thread."""

    def __init__(self, target: ForwardTarget) -> None:
        self._target = target
        self._channel: Any = None

    def send(self, envelope: Envelope) -> DeliveryResult:
        """Send a request to the export service of its signal. JSON requests are converted to protobuf."""
        import grpc  # only forwarding through gRPC needs it

        try:
            body = envelope.to_protobuf()
        except ValueError:
            return DeliveryResult("refused", "json")
        metadata = [*self._target.headers.items(), (HOPS_HEADER.decode(), ",".join(envelope.hops))]
        if self._channel is None:
            self._channel = self._open_channel()
        call = self._channel.unary_unary(METHOD_PATHS[envelope.signal])
        try:
            with suppress_instrumentation():
                answer = call(body, metadata=metadata, timeout=READ_TIMEOUT)
        except grpc.RpcError as error:
            name, reason = error.code().name, f"grpc_{error.code().name.lower()}"  # such as `grpc_unavailable`
            if name == "RESOURCE_EXHAUSTED" and "larger than max" in (error.details() or ""):
                return DeliveryResult("too_large", reason)
            if name in RETRYABLE_CODES:
                return DeliveryResult("later", reason, min(MAX_RETRY_AFTER, _read_retry_delay(error)))
            return DeliveryResult("refused", reason)
        return DeliveryResult("taken", rejected=count_rejected(envelope.signal, False, answer))

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _open_channel(self) -> Any:
        import grpc

        parts = urlsplit(self._target.url)
        host = parts.hostname or ""
        address = f"[{host}]" if ":" in host else host
        address = f"{address}:{parts.port or DEFAULT_PORT}"
        is_local = is_loopback(host)
        options = [("grpc.enable_http_proxy", 0)] if is_local else []
        compression = grpc.Compression.NoCompression if is_local else grpc.Compression.Gzip
        if parts.scheme == "grpc":
            return grpc.insecure_channel(address, options, compression)
        authorities = find_trusted_authorities()
        trusted = Path(authorities).read_bytes() if authorities and Path(authorities).is_file() else None
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted), options, compression)


def _read_retry_delay(error: Any) -> float:
    """Return the seconds after which the target asks to retry; 0 if it does not say."""
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    info = RetryInfo()
    for key, value in error.trailing_metadata() or ():
        try:
            if key == RETRY_INFO_KEY:
                info.ParseFromString(value)
            elif key == STATUS_DETAILS_KEY:
                for detail in Status.FromString(value).details:
                    detail.Unpack(info)
        except Exception:  # a target may send anything
            continue
    return float(max(0.0, info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
