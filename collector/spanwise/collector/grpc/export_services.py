"""OTLP export services over gRPC: authentication, bounded reading of messages, and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from spanwise.collector.address_parsing import strip_brackets
from spanwise.collector.api import Authenticator
from spanwise.collector.api.asgi_application import check_forwarded
from spanwise.collector.ingest import (
    HOPS_HEADER,
    SIGNALS,
    PermanentError,
    Receiver,
    Request,
    RequestBody,
    RequestRefused,
    RetryableError,
    otlp_receiver,
    parse_hops,
)
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.security import Access, Refusal

Metadata = tuple[tuple[str, str | bytes], ...]
MAX_CALLS = 1000  # concurrent calls, in any state
METHOD_PATHS = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
STATUS_DETAILS_KEY = "grpc-status-details-bin"  # gRPC's metadata key for a google.rpc.Status
RETRY_INFO_KEY = "google.rpc.retryinfo-bin"  # where OpenTelemetry's Python exporter looks for the retry delay


class ExportServices(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """OTLP's three export services.

    Their methods are unary. They are registered as streaming methods, so that the server checks the key before it
    reads the message.
    """

    def __init__(self, receiver: Receiver, authenticator: Authenticator, metrics: Metrics) -> None:
        self._receiver, self._authenticator, self._metrics = receiver, authenticator, metrics
        self._read_limiter, self._call_count = ReadLimiter(), 0
        metrics.gauge("spanwise_grpc_calls", lambda: self._call_count)
        self._handlers = {
            METHOD_PATHS[signal.name]: grpc.stream_unary_rpc_method_handler(partial(self._call, signal), None, None)
            for signal in SIGNALS
        }

    def service(self, details: Any) -> Any:
        """Return the handler of a method; None for an unknown method."""
        return self._handlers.get(details.method)

    async def _call(self, signal: Any, _: Any, context: Any) -> bytes:
        self._call_count += 1
        try:
            return await self._handle_call(signal, context)
        finally:
            self._call_count -= 1

    async def _handle_call(self, signal: Any, context: Any) -> bytes:
        metadata: Metadata = tuple(context.invocation_metadata() or ())
        try:
            if self._call_count > MAX_CALLS:
                raise RetryableError("overload", f"{self._call_count:,} calls are in progress: retry later")
            address = _parse_peer(context.peer())
            if not self._authenticator.locked and (refusal := check_forwarded(metadata)):
                raise _AccessDenied(refusal)
            access = await self._authenticator.admit(metadata, address, lambda: "ingest")
            if isinstance(access, Refusal):
                raise _AccessDenied(access)
            answer = await self._decode_and_store(signal, context, metadata, access)
        except _AccessDenied as denied:
            self._count(signal, denied.refusal.code)
            await _abort(context, denied.refusal.code, denied.refusal.message, denied.refusal.retry_after)
        except _AlreadyAnswered:
            self._receiver.pipeline.count_refused_request(signal, "too_large")
            return b""
        except RequestRefused as refused:
            self._receiver.pipeline.count_refused_request(signal, refused.reason)
            code = otlp_receiver.error_status(refused)[1]
            self._count(signal, code)
            await _abort(context, code, str(refused), otlp_receiver.retry_after_seconds(refused))
        self._count(signal, 0)
        return answer

    async def _decode_and_store(self, signal: Any, context: Any, metadata: Metadata, access: Access) -> bytes:
        """Decode and store a message; return the encoded response."""
        receiver = self._receiver
        body = RequestBody(receiver.pending, receiver.limits)
        try:
            hops = parse_hops(next((str(value) for name, value in metadata if name == HOPS_HEADER.decode()), ""))
            content = await self._read_limiter(partial(_read_message, context, body))
            request = Request(signal, signal.protobuf, content, access.project, hops, admit=body.grow)
            del content  # drop this reference, so that the memory is freed when the request drops its own
            decoded = await receiver.pipeline.process(request)
        finally:
            body.release()
        return bytes(otlp_receiver.make_export_response(signal, decoded).SerializeToString())

    def _count(self, signal: Any, code: int) -> None:
        self._metrics.add("spanwise_grpc_calls_total", 1, signal=signal.name, code=STATUS_CODES[code].name)


class _AlreadyAnswered(Exception):
    """Internal signal: gRPC itself has answered, because the message is too large."""


class _AccessDenied(Exception):
    """Internal signal: the authenticator refused the call."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


async def _abort(context: Any, code: int, message: str, retry_after: float | None) -> NoReturn:
    """End a call with an error. If a retry can help, the error includes the delay before it."""
    metadata: tuple[tuple[str, bytes], ...] = ()
    if retry_after is not None:
        delay = Duration()
        delay.FromMilliseconds(max(1, int(retry_after * 1000)))
        retry, packed = RetryInfo(retry_delay=delay), Packed()
        packed.Pack(retry)
        status = Status(code=code, message=message, details=[packed])
        metadata = (STATUS_DETAILS_KEY, status.SerializeToString()), (RETRY_INFO_KEY, retry.SerializeToString())
    await context.abort(STATUS_CODES[code], message[:MAX_ERROR_CHARS], metadata)
    raise AssertionError("`abort` raises")


MAX_ERROR_CHARS = 2000  # limit of the error text, because gRPC sends it in a header


async def _read_message(context: Any, body: RequestBody) -> bytes:
    """Return the decompressed message, and count its bytes in the pending memory.

    The call occupies a slot of `ReadLimiter` until this returns.
    """
    message = await context.read()
    if not isinstance(message, bytes):
        raise PermanentError("malformed", "the call contains no message") if context.peer() else _AlreadyAnswered

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": message}

    return await body.read(_detect_encoding(message), receive)


def _detect_encoding(message: bytes) -> dict[bytes, bytes]:
    """Return a content-encoding header for the compression that the first bytes of a message show.

    gRPC does not expose the sender's header. An uncompressed request never starts with these bytes: its fields have
    the numbers 1 to 3, while these bytes would mean wire type 7 or field 15.
    """
    if message[:2] == b"\x1f\x8b":
        return {b"content-encoding": b"gzip"}
    if message[:1] == b"\x78" and len(message) > 1 and (message[0] << 8 | message[1]) % 31 == 0:
        return {b"content-encoding": b"deflate"}
    return {}


T = TypeVar("T")
MAX_CONCURRENT_READS = 6
READ_TIMEOUT = 60.0  # seconds for reading one message
QUEUE_TIMEOUT = 2.0  # seconds to wait for a slot; a read that has taken longer than this may be cancelled for another


class ReadLimiter:
    """Limit on concurrent reads of messages. When no slot becomes free, a new read replaces the one that has taken
    longest.
    """

    def __init__(self, most: int = MAX_CONCURRENT_READS) -> None:
        self._free = asyncio.Semaphore(most)
        self._reads: dict[asyncio.Timeout, float] = {}

    async def __call__(self, read: Callable[[], Awaitable[T]]) -> T:
        """Run `read` and return its result. Raises `RetryableError` on a timeout, or if no slot becomes free."""
        await self._acquire_slot()
        limit = asyncio.timeout(READ_TIMEOUT)
        try:
            async with limit:
                self._reads[limit] = asyncio.get_running_loop().time()
                return await read()
        except TimeoutError:
            raise RetryableError("stalled", "timed out while reading the message") from None
        finally:
            self._reads.pop(limit, None)
            self._free.release()

    async def _acquire_slot(self) -> None:
        if not self._free.locked():
            await self._free.acquire()  # does not block
            return
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT):
                await self._free.acquire()
            return
        except TimeoutError:
            # cancel the read that has taken longest, unless it is recent
            now = asyncio.get_running_loop().time()
            oldest, since = min(self._reads.items(), key=lambda read: read[1], default=(None, now))
            if oldest is not None and now - since >= QUEUE_TIMEOUT and not oldest.expired():
                del self._reads[oldest]
                oldest.reschedule(now)
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT):
                await self._free.acquire()
        except TimeoutError:
            raise RetryableError("overload", "too many messages arrive at the same time: retry later") from None


def _parse_peer(peer: str) -> str:
    """Return the address in `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    return strip_brackets(unquote(peer.partition(":")[2]).rpartition(":")[0])
