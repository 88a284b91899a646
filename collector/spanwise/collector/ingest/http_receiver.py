"""OTLP/HTTP receiver: ASGI applications for /v1/traces, /v1/logs and /v1/metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

from spanwise.collector.ingest import responses
from spanwise.collector.ingest.decode_pool import DecodePool
from spanwise.collector.ingest.ingest_errors import PermanentError, RequestRefused, RetryableError
from spanwise.collector.ingest.ingest_pipeline import IngestPipeline
from spanwise.collector.ingest.limits import Limits
from spanwise.collector.ingest.offload import Offloader
from spanwise.collector.ingest.otlp_signals import HOPS_HEADER, LOGS, METRICS, TRACES, Request, Signal, parse_hops
from spanwise.collector.ingest.request_body import ClientDisconnected, PendingBytes, Receive, RequestBody
from spanwise.collector.ingest.request_decoder import Codec
from spanwise.collector.ingest.store_sink import Sink, StoreSink
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import ProcessReport
from spanwise.collector.security.authorization import get_access
from spanwise.collector.stores import DestinationStore, Store
from spanwise.tracer import attribute_names as names

T = TypeVar("T")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SIGNALS: tuple[Signal[Any], ...] = (TRACES, LOGS, METRICS)
# paths of the OTLP specification, and of Langfuse, whose SDKs hard-code them
PATH_PREFIXES = ("/v1/", "/api/public/otel/v1/")
PATHS = {
    f"{prefix}{signal.name}{slash}": signal for prefix in PATH_PREFIXES for signal in SIGNALS for slash in ("", "/")
}
DESTINATIONS_HEADER, MAX_HEADER_BYTES = names.DESTINATIONS_HEADER.lower().encode(), 8_000
# tells Spanwise's tracer that the server accepts side records
COLLECTOR_HEADER = (names.COLLECTOR_HEADER.lower().encode(), b"1")


class Receiver:
    """OTLP/HTTP receiver with one ASGI application per path. They answer 200 only after the store has committed all
    items.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics | None = None,
        limits: Limits | None = None,
        sinks: Sequence[Sink] = (),
        decoders: int = 0,
    ) -> None:
        """Create the receiver. It passes items to the store first, and then to the `sinks`.

        At most `decoders` worker processes help to decode.
        """
        metrics, self.limits = metrics or Metrics(), limits or Limits()
        self.store = store
        self.offloader, self.pending = Offloader(), PendingBytes(self.limits.pending_bytes)
        metrics.gauge("spanwise_pending_bytes", lambda: self.pending.size)
        self._decoders = DecodePool(decoders, store, self.offloader, metrics, self.limits)
        self.pipeline = IngestPipeline(
            [StoreSink(store, self.offloader), *sinks], self._decoders, self.offloader, metrics
        )
        self.routes: dict[str, SignalRoute[Any]] = {path: SignalRoute(self, signal) for path, signal in PATHS.items()}

    def close(self) -> None:
        """Stop the threads for large bodies and the worker processes. Call it when no more requests arrive."""
        self._decoders.close()
        self.offloader.close()


class SignalRoute(Generic[T]):
    """ASGI application of one signal."""

    def __init__(self, receiver: Receiver, signal: Signal[T]) -> None:
        self._receiver, self._signal = receiver, signal
        self._codecs = {responses.PROTOBUF_TYPE: signal.protobuf, responses.JSON_TYPE: signal.json}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        try:
            if scope["method"] != "POST":
                raise PermanentError("method", f"method {scope['method']} is not supported: send OTLP with POST")
            codec = self._codecs.get(content_type)
            if codec is None:
                given, known = content_type.decode("latin-1"), "application/x-protobuf nor application/json"
                raise PermanentError("content_type", f"content-type {given!r} is neither {known}")
            project = get_access(scope).project
            body, extra = await self._read_and_process(codec, content_type, headers, project, receive)
        except RequestRefused as refused:
            await self._send_error(send, content_type, refused)
        except asyncio.CancelledError:  # the shutdown timed out: answer with an error on which senders retry
            error = RetryableError("ending", "the server is shutting down: send the request again")
            await self._send_error(send, content_type, error)
            raise
        except ClientDisconnected:
            self._receiver.pipeline.count_refused_request(self._signal, "disconnected")
        else:
            await _send(send, 200, content_type, body, extra)

    async def _send_error(self, send: Send, content_type: bytes, refused: PermanentError | RetryableError) -> None:
        self._receiver.pipeline.count_refused_request(self._signal, refused.reason)
        # send a google.rpc.Status, in JSON unless the request was protobuf
        kind = content_type if content_type == responses.PROTOBUF_TYPE else responses.JSON_TYPE
        status, retry_after = responses.error_status(refused)[0], responses.retry_after_seconds(refused)
        extra = [] if retry_after is None else [(b"retry-after", b"%d" % retry_after)]
        if status == 405:
            extra.append((b"allow", b"POST"))
        await _send(send, status, kind, responses.encode_response(responses.make_error_response(refused), kind), extra)

    async def _read_and_process(
        self,
        codec: Codec[T],
        content_type: bytes,
        headers: Mapping[bytes, bytes],
        project: str | None,
        receive: Receive,
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Decode and store a request; return the encoded response and additional headers."""
        receiver = self._receiver
        hops = parse_hops(headers.get(HOPS_HEADER, b"").decode("latin-1"))
        body = RequestBody(receiver.pending, receiver.limits)
        try:
            content = await body.read(headers, receive)
            request = Request(self._signal, codec, content, project, hops, admit=body.grow)
            del content  # drop this reference, so that the memory is freed when the request drops its own
            decoded = await receiver.pipeline.process(request)
        finally:
            body.release()
        response = responses.encode_response(responses.make_export_response(self._signal, decoded), content_type)
        extra = []
        report = next((item for item in decoded.items if isinstance(item, ProcessReport)), None)
        if report is not None and isinstance(receiver.store, DestinationStore):
            # tell the tracer the destinations of calls that take part in tracing in its project
            value = ",".join(receiver.store.traced_destinations(project or report.project))
            if len(value) > MAX_HEADER_BYTES:
                value = value[:MAX_HEADER_BYTES].rpartition(",")[0]
            extra.append((DESTINATIONS_HEADER, value.encode()))
        return response, extra


async def _send(
    send: Send, status: int, content_type: bytes, body: bytes, extra: Sequence[tuple[bytes, bytes]]
) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), COLLECTOR_HEADER, *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
