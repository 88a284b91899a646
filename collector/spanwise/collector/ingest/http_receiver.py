"""OTLP/HTTP receiver: ASGI applications for /v1/traces, /v1/logs and /v1/metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
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
PATHS = {f"{root}{signal.name}{slash}": signal for root in PATH_PREFIXES for signal in SIGNALS for slash in ("", "/")}
# maximum size of the header in bytes
DESTINATIONS_HEADER, MAX_HEADER_BYTES = names.DESTINATIONS_HEADER.lower().encode(), 8_000
COLLECTOR_HEADER = (
    names.COLLECTOR_HEADER.lower().encode(),
    b"1",
)  # tells Spanwise's tracer that the server accepts side records


class Receiver:
    """OTLP/HTTP receiver with one ASGI application per path. They answer 200 only after the store has committed all
    items.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics | None = None,
        limits: Limits | None = None,
        keepers: Sequence[Sink] = (),
        decoders: int = 0,
    ) -> None:
        """Create the receiver. It passes items to the store first, and then to the sinks in `keepers`.

        At most `decoders` worker processes help to decode.
        """
        metrics, self.limits = metrics or Metrics(), limits or Limits()
        self.store = store
        self.beside, self.pending = Offloader(), PendingBytes(self.limits.pending_bytes)
        metrics.gauge("spanwise_pending_bytes", lambda: self.pending.size)
        self.decoders = DecodePool(decoders, store, self.beside, metrics, self.limits)
        kept = [StoreSink(store, self.beside), *keepers]
        self.intake = IngestPipeline(kept, self.beside, metrics, self.limits, self.decoders)
        self.routes: dict[str, SignalRoute[Any]] = {path: SignalRoute(self, signal) for path, signal in PATHS.items()}

    def close(self) -> None:
        """Stop the threads for large bodies and the worker processes. Call it when no more requests arrive."""
        self.decoders.close()
        self.beside.close()


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
                raise PermanentError("method", f"{scope['method']} is not answered here: send OTLP with POST")
            codec = self._codecs.get(content_type)
            if codec is None:
                given, known = content_type.decode("latin-1"), "application/x-protobuf nor application/json"
                raise PermanentError("content_type", f"content-type {given!r} is neither {known}")
            answer, extra = await self._read_and_ingest(
                codec, content_type, headers, get_access(scope).project, receive
            )
        except RequestRefused as refused:
            await self._refuse(send, content_type, refused)
        except asyncio.CancelledError:  # the shutdown timed out: answer with an error on which senders retry
            await self._refuse(send, content_type, RetryableError("ending", "the server ends: send it again"))
            raise
        except ClientDisconnected:
            self._receiver.intake.refused(self._signal, "disconnected")
        else:
            await _send(send, 200, content_type, answer, extra)

    async def _refuse(self, send: Send, content_type: bytes, refused: PermanentError | RetryableError) -> None:
        self._receiver.intake.refused(self._signal, refused.reason)
        # send a google.rpc.Status, in JSON unless the request was protobuf
        kind = content_type if content_type == responses.PROTOBUF_TYPE else responses.JSON_TYPE
        status, retry_after = responses.error_status(refused)[0], responses.retry_after_seconds(refused)
        extra = [] if retry_after is None else [(b"retry-after", b"%d" % retry_after)]
        if status == 405:
            extra.append((b"allow", b"POST"))
        await _send(send, status, kind, responses.encode_response(responses.make_error_response(refused), kind), extra)

    async def _read_and_ingest(
        self,
        codec: Codec[T],
        content_type: bytes,
        headers: Mapping[bytes, bytes],
        project: str | None,
        receive: Receive,
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Decode and store a request; return the encoded response and additional headers."""
        receiver = self._receiver
        body = RequestBody(receiver.pending, receiver.limits)
        try:
            marks = parse_hops(headers.get(HOPS_HEADER, b"").decode("latin-1"))
            read = await body.read(headers, receive)
            request = Request(self._signal, codec, read, project, marks, admit=body.grow)
            del read  # drop this reference, so that the memory is freed when the request drops its own
            decoded = await receiver.intake.take(request)
        finally:
            body.release()
        answer = responses.encode_response(responses.make_export_response(self._signal, decoded), content_type)
        return answer, list(self._destinations(decoded.items, project))

    def _destinations(self, items: Sequence[Any], project: str | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield a header for the tracer if it has sent a process report.

        The header lists the destinations of calls that take part in tracing in the tracer's project.
        """
        store = self._receiver.store
        report = next((item for item in items if isinstance(item, ProcessReport)), None)
        if report is not None and isinstance(store, DestinationStore):
            named = ",".join(store.traced_destinations(project or report.project))
            if len(named) > MAX_HEADER_BYTES:
                named = named[:MAX_HEADER_BYTES].rpartition(",")[0]
            yield DESTINATIONS_HEADER, named.encode()


async def _send(
    send: Send, status: int, content_type: bytes, body: bytes, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(body)),
        COLLECTOR_HEADER,
        *(extra or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
