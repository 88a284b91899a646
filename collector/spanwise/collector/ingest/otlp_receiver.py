"""OTLP receiver: HTTP endpoints, bounded request bodies, the pipeline that also serves gRPC, and responses."""

from __future__ import annotations

import asyncio
import math
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from spanwise.collector.ingest.decode_pool import DecodePool, Offloader
from spanwise.collector.ingest.otlp_signals import HOPS_HEADER, LOGS, METRICS, TRACES, Request, Signal, parse_hops
from spanwise.collector.ingest.request_decoder import (
    LARGE_BODY_BYTES,
    Codec,
    DecodedRequest,
    Limits,
    PermanentError,
    RequestRefused,
    RetryableError,
    SideRecordRefused,
    classify_store_error,
    count_by_reason,
)
from spanwise.collector.ingest.store_sink import Refusals, Sink, StoreSink
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import ProcessReport
from spanwise.collector.security import get_access
from spanwise.collector.stores import DestinationStore, Store
from spanwise.tracer import attribute_names as names

# OTLP responses: success, partial success and errors, with HTTP status and gRPC code.

PROTOBUF_TYPE, JSON_TYPE = b"application/x-protobuf", b"application/json"
# reason → (HTTP status, google.rpc.Code), where it differs from the default of the error class
ERROR_STATUSES = {
    "method": (405, 12),
    "too_large": (413, 8),
    "too_many": (413, 8),
    "content_type": (415, 3),
    "encoding": (415, 3),
    "overload": (429, 8),
    "decoding": (500, 13),
}
PERMANENT_STATUS, RETRYABLE_STATUS = (400, 3), (503, 14)


def error_status(refused: PermanentError | RetryableError) -> tuple[int, int]:
    """Return the HTTP status and the google.rpc.Code of an error."""
    return ERROR_STATUSES.get(
        refused.reason, RETRYABLE_STATUS if isinstance(refused, RetryableError) else PERMANENT_STATUS
    )


def retry_after_seconds(refused: PermanentError | RetryableError) -> int | None:
    """Return the whole seconds after which to retry; None if a retry cannot help."""
    return max(1, math.ceil(refused.retry_after)) if isinstance(refused, RetryableError) else None


def make_export_response(signal: Signal[Any], decoded: DecodedRequest[Any]) -> Message:
    """Return an export response; a partial success if items or side records were refused."""
    reason = decoded.reason
    partial = {signal.refused_field: decoded.refused_count, "error_message": reason} if reason else None
    return signal.response(partial_success=partial)


def make_error_response(refused: PermanentError | RetryableError) -> Message:
    """Return the error as a google.rpc.Status."""
    return Status(code=error_status(refused)[1], message=str(refused))


def encode_error(code: int, message: str) -> bytes:
    """Return a protobuf error by its google.rpc.Code, for requests that were refused before ingest."""
    body: bytes = Status(code=code, message=message).SerializeToString()
    return body


def encode_response(message: Message, content_type: bytes) -> bytes:
    """Return the response encoded as protobuf, or as JSON for every other content type."""
    body: bytes = message.SerializeToString()
    if content_type == PROTOBUF_TYPE or not body:
        return body if content_type == PROTOBUF_TYPE else b"{}"
    from google.protobuf.json_format import MessageToJson  # its import takes 12 ms, which would delay every start

    return str(MessageToJson(message, indent=None, ensure_ascii=False)).encode()


# Request bodies: bounded reading, gzip and deflate decompression, and the memory of pending bodies.

UNLIMITED = sys.maxsize
# bytes decompressed per step, which takes a third of a millisecond; other tasks can run between steps
INFLATE_STEP_BYTES = 128 * 1024
# maximum for one body: an empty member has only twenty bytes, but takes as much time as a full one
MAX_GZIP_MEMBERS = 1000
# content encoding → zlib's `wbits`
WINDOW_BITS = {b"": None, b"identity": None, b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyBuffer:
    """Buffer that collects the chunks of a body, decompressed no further than the limit.

    `wbits` is zlib's number for the format of the body; None for an uncompressed body.
    """

    def __init__(self, limit: int, wbits: int | None = None) -> None:
        self.limit, self.wbits = limit, wbits
        self.size = 0  # decompressed bytes so far
        self._inflater: Any = None if wbits is None else zlib.decompressobj(wbits)
        self._members = 1
        self._first = b""
        # used from the second chunk on; `getvalue` makes no copy, unlike joining chunks
        self._buffer: BytesIO | None = None

    def feed(self, chunk: bytes, step: int = UNLIMITED) -> bytes:
        """Add a chunk until the body has grown by `step` bytes. Return the rest of the chunk.

        Raises `PermanentError` beyond the limit, or if the data is not in the declared format.
        """
        if self.wbits is None:
            self._append(chunk)
            return b""
        enough = self.size + step
        try:
            while chunk and self.size < enough:
                if self._inflater.eof:  # a gzip file may have several members
                    self._members += 1
                    if self._members > MAX_GZIP_MEMBERS:
                        message = f"the body has more than {MAX_GZIP_MEMBERS:,} compressed members: compress it as one"
                        raise PermanentError("bad_compression", message)
                    self._inflater = zlib.decompressobj(self.wbits)
                self._append(self._inflater.decompress(chunk, min(enough - self.size, self.limit - self.size + 1)))
                # zlib may still hold output although all input is consumed
                while not (self._inflater.eof or self._inflater.unconsumed_tail):
                    output = self._inflater.decompress(b"", self.limit - self.size + 1)
                    if not output:
                        break
                    self._append(output)
                chunk = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        except zlib.error as error:
            raise PermanentError("bad_compression", f"the body cannot be decompressed: {error}") from error
        return chunk

    def _append(self, content: bytes) -> None:
        self.size += len(content)
        if self.size > self.limit:
            raise PermanentError("too_large", f"the body is larger than {self.limit:,} bytes: send less at once")
        if self.size == len(content):
            self._first = content
            return
        if self._buffer is None:
            self._buffer = BytesIO()
            self._buffer.write(self._first)
            self._first = b""
        self._buffer.write(content)

    def finish(self) -> bytes:
        """Return the complete body. Raises `PermanentError` if the compressed data is truncated."""
        if self._inflater is not None and not self._inflater.eof:
            raise PermanentError("bad_compression", "the compressed body is truncated")
        return self._first if self._buffer is None else self._buffer.getvalue()


def make_buffer(headers: Mapping[bytes, bytes], limit: int) -> BodyBuffer:
    """Return the buffer for a body with these headers.

    Raises `PermanentError` for an unsupported encoding, or a length beyond the limit.
    """
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise PermanentError("too_large", f"{int(length):,} bytes in one request, at most {limit:,}: send less")
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in WINDOW_BITS:
        given = encoding.decode("latin-1")
        raise PermanentError("encoding", f"content-encoding {given!r} is not one of gzip, deflate, identity")
    return BodyBuffer(limit, WINDOW_BITS[encoding])


class ClientDisconnected(Exception):
    """Internal signal: the client disconnected before its request was complete."""


class PendingBytes:
    """Memory of all bodies that are being read, decoded or written.

    The last sixth is reserved for small bodies, so that large bodies cannot block small ones.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0

    def add(self, size: int, body: int) -> None:
        """Add `size` bytes to the count. `body` is the total size of the body that they belong to.

        Raises `RetryableError` beyond the limit.
        """
        self.size += size
        if self.size > (self.limit if body < LARGE_BODY_BYTES else self.limit * 5 // 6):
            raise RetryableError("overload", f"the server is overloaded: {self.size:,} bytes of requests are pending")


class RequestBody:
    """One body, counted in the pending memory until `release`."""

    def __init__(self, pending: PendingBytes, limits: Limits) -> None:
        self._pending, self._limits = pending, limits
        self.size = 0  # bytes counted so far: of the decompressed body, later also of the decoded items

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Read the complete body from an ASGI channel.

        Raises `PermanentError` for an invalid body, `RetryableError` if the pending memory is full or the body
        stalls, and `ClientDisconnected`.
        """
        buffer = make_buffer(headers, self._limits.request_bytes)
        more = await self._read_chunk(receive, buffer)
        try:
            while more:
                async with asyncio.timeout(self._limits.stall_seconds):
                    more = await self._read_chunk(receive, buffer)
        except TimeoutError:
            raise RetryableError("stalled", "timed out while reading the body") from None
        return buffer.finish()

    async def _read_chunk(self, receive: Receive, buffer: BodyBuffer) -> bool:
        """Read one chunk. Return whether there are more."""
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnected
        unread = buffer.feed(message.get("body", b""), INFLATE_STEP_BYTES)
        self.grow(buffer.size - self.size)
        while unread:
            await asyncio.sleep(0)
            unread = buffer.feed(unread, INFLATE_STEP_BYTES)
            self.grow(buffer.size - self.size)
        return bool(message.get("more_body", False))

    def grow(self, size: int) -> None:
        """Count more bytes of the body. Raises `RetryableError` if the pending memory is full."""
        self.size += size
        self._pending.add(size, self.size)

    def release(self) -> None:
        """Remove the body from the pending memory."""
        self._pending.size -= self.size


# Ingest pipeline: decodes a request, counts its items and hands them to the sinks, for HTTP and gRPC.

T = TypeVar("T")
VALUE_OVERHEAD_BYTES = 64  # memory of a decoded attribute or list element, in addition to its text


class IngestPipeline:
    """Pipeline that decodes requests and hands their items to the sinks, for every transport of OTLP.

    It raises errors of two kinds: `PermanentError` and `RetryableError`.
    """

    def __init__(self, sinks: Sequence[Sink], decoders: DecodePool, offloader: Offloader, metrics: Metrics) -> None:
        """Create the pipeline. It passes the items to the sinks in order."""
        self._sinks, self._decoders, self._offloader, self._metrics = sinks, decoders, offloader, metrics

    async def process(self, request: Request[T]) -> DecodedRequest[T]:
        """Decode and store a request. Return the decoded request once its items are durable.

        Raises no other errors than `PermanentError` and `RetryableError`.
        """
        start = time.perf_counter()
        if len(request.body) < LARGE_BODY_BYTES:  # small requests need no lane
            decoded = await self._decode_and_store(request)
        else:
            async with self._offloader.turn(len(request.body)):
                decoded = await self._decode_and_store(request)
        self._metrics.observe("spanwise_acknowledgement_seconds", time.perf_counter() - start)
        return decoded

    async def _decode_and_store(self, request: Request[T]) -> DecodedRequest[T]:
        keep_body = len(self._sinks) > 1  # sinks other than the store may forward the body
        decoded = await self._decoders.decode(request, keep_body=keep_body)
        if not keep_body:
            request.body = b""  # free the body, because it and the decoded items may both be large
        request.admit(decoded.values * VALUE_OVERHEAD_BYTES)
        received = decoded.count + decoded.refused.total() + decoded.ignored
        self._count(request.signal, "spanwise_received_total", received)
        if decoded.ignored:
            self._count(request.signal, "spanwise_passed_over_total", decoded.ignored)
        try:
            if decoded.items or not decoded.refused:  # a request without items may still have to be forwarded
                await self._store_items(request, decoded)
        finally:
            if decoded.refused:
                for reason, count in count_by_reason(decoded.refused).items():
                    self._count(request.signal, "spanwise_refused_total", count, reason=reason)
            if decoded.refused_side_records:
                for reason, count in count_by_reason(decoded.refused_side_records).items():
                    self._count(request.signal, "spanwise_beside_refused_total", count, reason=reason)
            for dialect, count in decoded.faults.items():
                self._metrics.add("spanwise_dialect_errors_total", count, dialect=dialect)
        return decoded

    async def _store_items(self, request: Request[T], decoded: DecodedRequest[T]) -> None:
        start = time.perf_counter()
        refusals: Refusals = ()
        items = [*decoded.items, *decoded.side_records] if decoded.side_records else decoded.items
        for sink in self._sinks:
            try:
                refused = await sink.keep(request, items)
            except Exception as error:
                raise classify_store_error(error) from error
            # several sinks may refuse the same item, so use the longest list of refusals instead of all of them
            refusals = max(refusals, refused, key=len)
            if foreign := [refusal.item for refusal in refused if refusal.item is not None]:
                request = replace(request, refused=(*request.refused, *foreign))
        for refusal in refusals:
            decoded.refuse(refusal)
        self._metrics.observe("spanwise_commit_seconds", time.perf_counter() - start)
        lost = sum(not isinstance(refusal, SideRecordRefused) for refusal in refusals)
        self._count(request.signal, "spanwise_stored_total", decoded.count - lost)
        if decoded.side_records:
            stored = len(decoded.side_records) - (len(refusals) - lost)
            self._count(request.signal, "spanwise_beside_stored_total", stored)

    def count_refused_request(self, signal: Signal[Any], reason: str) -> None:
        """Count a request that is answered with an error."""
        self._count(signal, "spanwise_requests_refused_total", 1, reason=reason)

    def _count(self, signal: Signal[Any], name: str, amount: float, **labels: str) -> None:
        self._metrics.add(name, amount, signal=signal.name, **labels)


# OTLP/HTTP receiver: ASGI applications for /v1/traces, /v1/logs and /v1/metrics.

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
        self._codecs = {PROTOBUF_TYPE: signal.protobuf, JSON_TYPE: signal.json}

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
        kind = content_type if content_type == PROTOBUF_TYPE else JSON_TYPE
        status, retry_after = error_status(refused)[0], retry_after_seconds(refused)
        extra = [] if retry_after is None else [(b"retry-after", b"%d" % retry_after)]
        if status == 405:
            extra.append((b"allow", b"POST"))
        await _send(send, status, kind, encode_response(make_error_response(refused), kind), extra)

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
        response = encode_response(make_export_response(self._signal, decoded), content_type)
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
