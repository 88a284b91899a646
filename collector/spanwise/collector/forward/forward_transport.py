"""HTTP and gRPC transports to a forward target, and the parsing of targets and their headers."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from spanwise.collector.address_parsing import is_loopback
from spanwise.collector.errors import Refused
from spanwise.collector.forward.envelope import Envelope
from spanwise.collector.ingest import HOPS_HEADER, SIGNALS
from spanwise.tracer.http_connections import find_trusted_authorities, parse_retry_after, suppress_instrumentation

if TYPE_CHECKING:
    import httpx


# HTTP transport to a forward target, and the parsing of targets of both transports and their headers.

HEADERS_VARIABLE = "SPANWISE_FORWARD_HEADERS_"  # prefix of a variable; the target's name in capitals follows
GRPC_SCHEMES = ("grpc://", "grpcs://")  # without and with TLS
_NAMED_URL = re.compile(r"([A-Za-z][\w-]*)=(.*)", re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # header name, RFC 9110, section 5.6.2


@dataclass(frozen=True, slots=True)
class ForwardTarget:
    """OTLP endpoint: a base `url`, to which `/v1/traces` and so on are appended, or `grpc://host:port`."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def uses_grpc(self) -> bool:
        """Return whether requests are sent through gRPC."""
        return self.url.startswith(GRPC_SCHEMES)

    @property
    def folder(self) -> str:
        """Return the name of the target's spool folder.

        It contains a hash of the URL, so that a target with a changed URL does not get the requests for the previous
        one.
        """
        return f"{re.sub('[^A-Za-z0-9.-]', '_', self.name)}-{sha256(self.url.encode()).hexdigest()[:8]}"


def parse_targets(
    given: Iterable[str], environment: Mapping[str, str], option: str = "--forward"
) -> list[ForwardTarget]:
    """Parse targets from the command line, `URL` or `NAME=URL`, with their headers from the environment.

    Raises `Refused` for an invalid URL, a URL with a secret, or a duplicate name. The message names the `option`.
    """
    targets: dict[str, ForwardTarget] = {}
    for argument in given:
        match = _NAMED_URL.fullmatch(argument)
        name, url = match.groups() if match else ("", argument)
        parts = _parse_url(url, option)
        name = name or parts.hostname or ""
        variable = HEADERS_VARIABLE + re.sub("[^A-Z0-9]", "_", name.upper())
        target = ForwardTarget(name, url.rstrip("/"), _parse_headers(variable, environment.get(variable, "")))
        if target.name in targets:
            raise Refused(
                f"{option}: duplicate target name {target.name!r}: give one of them another name, such as other={target.url}"
            )
        targets[target.name] = target
    return list(targets.values())


def _parse_url(url: str, option: str) -> SplitResult:
    """Parse the base URL of a target. Raises `Refused` for an invalid one.

    The error message omits parts that may be secret: text before an @, and after ? or #.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), None
    is_grpc = url.startswith(GRPC_SCHEMES)
    is_valid = is_grpc or parts.scheme in ("http", "https")
    is_valid = bool(is_valid and parts.hostname and port != 0 and not re.search(r"[\s?#]", url))
    if "@" in (parts.netloc if is_valid else url):
        raise Refused(
            f"{option}: the URL contains credentials, which other users can see: set them in {HEADERS_VARIABLE}<NAME>"
        )
    if not is_valid:
        visible = re.split("[?#]", url)[0]
        raise Refused(
            f"{option}: {visible!r} is not the URL of an OTLP endpoint; expected https://host, grpc://host:4317 or name=https://host"
        )
    if is_grpc and parts.path.strip("/"):
        raise Refused(f"{option}: omit the path from {url!r}; a gRPC target is grpc://host:port or grpcs://host:port")
    if parts.path.rstrip("/").endswith(("/v1/traces", "/v1/logs", "/v1/metrics")):
        raise Refused(f"{option}: omit /v1/… from {url!r}; it is added for each signal")
    return parts


def _parse_headers(variable: str, text: str) -> dict[str, str]:
    """Parse headers from a variable of the form `name=value,name=value`, as in `OTEL_EXPORTER_OTLP_HEADERS`.

    Names and values are percent-encoded. Raises `Refused` for any other form. The message omits the values, which may
    be secret.
    """
    headers = {}
    for number, pair in enumerate(filter(str.strip, text.split(",")), 1):
        name, equals, value = pair.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value).strip()
        if not equals or not _TOKEN.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise Refused(
                f"{variable}: header {number} must be name=value in printable ASCII, with commas written as %2C"
            )
        headers[name] = value
    return headers


MAX_RESPONSE_BYTES = 64 * 1024  # larger response bodies are ignored
MAX_RETRY_AFTER = 300.0  # upper limit in seconds of a target's Retry-After
MIN_COMPRESS_BYTES = 1024  # smaller bodies are sent uncompressed
READ_TIMEOUT, CONNECT_TIMEOUT = 30.0, 5.0  # seconds to wait for the next chunk of a response, and for a connection
# Statuses that OTLP calls retryable, and others whose cause an operator can fix, such as failed authentication.
# Redirects (3xx) are retried, too.
RETRYABLE_STATUSES = frozenset((401, 403, 407, 408, 425, 429, 500, 502, 503, 504))
_SIGNALS_BY_NAME = {signal.name: signal for signal in SIGNALS}


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Result of a delivery. `verdict` is taken, refused (permanently), too_large, or later (retry after `after`
    seconds).

    Of a request that it has taken, the target may have permanently refused some items; `rejected` is their number.
    """

    verdict: Literal["taken", "refused", "too_large", "later"]
    reason: str = ""
    after: float = 0.0
    rejected: int = 0


class ForwardTransport:
    """HTTP client of one target, with a persistent connection. For use by one thread."""

    def __init__(self, target: ForwardTarget) -> None:
        self._target = target
        self._packs = not is_loopback(urlsplit(target.url).hostname or "")
        self._client: httpx.Client | None = None

    def send(self, envelope: Envelope) -> DeliveryResult:
        """Send a request with POST to the URL of its signal."""
        import httpx  # its import takes a tenth of a second, which only forwarding needs

        if self._client is None:
            timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
            self._client = httpx.Client(timeout=timeout, follow_redirects=False)
        kind = "application/json" if envelope.json else "application/x-protobuf"
        headers = {"user-agent": f"spanwise/{metadata.version('spanwise')}", **self._target.headers}
        headers |= {"content-type": kind, HOPS_HEADER.decode(): ",".join(envelope.hops)}
        body = envelope.body
        if self._packs and len(body) >= MIN_COMPRESS_BYTES:
            body, headers["content-encoding"] = gzip.compress(body, 1, mtime=0), "gzip"
        url = f"{self._target.url}/v1/{envelope.signal}"
        try:
            with (
                suppress_instrumentation(),
                self._client.stream("POST", url, content=body, headers=headers) as response,
            ):
                return _interpret_response(envelope, response)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return DeliveryResult("later", type(error).__name__)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _interpret_response(envelope: Envelope, response: httpx.Response) -> DeliveryResult:
    status, reason = response.status_code, f"http_{response.status_code}"
    if 200 <= status < 300:
        return DeliveryResult("taken", rejected=count_rejected(envelope.signal, envelope.json, _read_bounded(response)))
    if status == 413:
        return DeliveryResult("too_large", reason)
    if status in RETRYABLE_STATUSES or 300 <= status < 400:
        return DeliveryResult(
            "later", reason, min(MAX_RETRY_AFTER, parse_retry_after(response.headers.get("retry-after")) or 0.0)
        )
    return DeliveryResult("refused", reason)


def _read_bounded(response: httpx.Response) -> bytes:
    body = b""
    for chunk in response.iter_bytes(MAX_RESPONSE_BYTES):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            return b""
    return body


def count_rejected(signal_name: str, is_json: bool, answer: bytes) -> int:
    """Return the number of rejected items in a partial success; 0 if the response has none or is unreadable."""
    signal: Any = _SIGNALS_BY_NAME[signal_name]
    try:
        if is_json:
            first, *others = signal.refused_field.split("_")
            field = first + "".join(map(str.capitalize, others))
            return max(0, int(msgspec.json.decode(answer)["partialSuccess"][field]))
        return max(0, int(getattr(signal.response.FromString(answer).partial_success, signal.refused_field)))
    except Exception:  # for example, an HTML page of a proxy
        return 0


# gRPC transport to a forward target: `grpc://host:4317` without TLS, `grpcs://host:4317` with TLS.

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
