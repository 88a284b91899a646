"""The OTLP routes as bare ASGI: at five spans a request a framework's request object costs more than the spans."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from assay.collector._metrics import Metrics
from assay.collector.intake import _answer, _body, _logs, _traces
from assay.collector.intake._decode import Codec, decode
from assay.collector.intake._decoded import Decoded
from assay.collector.intake._errors import RequestRefused, from_store
from assay.collector.intake._limits import Limits
from assay.collector.records import Feedback, Run
from assay.collector.stores import Store

R = TypeVar("R")
T = TypeVar("T")
# From here on bodies are decoded and runs encoded beside the event loop, so that others are answered meanwhile; one at
# a time, as each takes several times its size in memory
LARGE, MANY = 512 * 1024, 500
HUGE = 4 * 1024 * 1024  # after a body of this size the memory that it took is given back to the system


@dataclass(frozen=True, slots=True)
class Signal(Generic[T]):
    """One route: how its requests are decoded, kept and answered."""

    name: str
    codecs: Mapping[bytes, Codec[T]]  # by content type
    keep: Callable[[Sequence[T]], Awaitable[None]]
    response: type[Message]
    refused_field: str


class Receiver:
    """ASGI applications for `/v1/traces` and `/v1/logs`; they answer 200 only when the store has kept everything."""

    def __init__(self, store: Store, metrics: Metrics | None = None, limits: Limits | None = None) -> None:
        self.store, self.metrics, self.limits = store, metrics or Metrics(), limits or Limits()
        self.pending = 0  # bytes
        self._beside = ThreadPoolExecutor(1, "assay-large")
        self.metrics.gauge("assay_pending_bytes", lambda: self.pending)
        self.traces = Route(
            self,
            Signal(
                "traces",
                {_answer.PROTOBUF: _traces.PROTOBUF, _answer.JSON: _traces.JSON_},
                self._keep_runs,
                ExportTraceServiceResponse,
                "rejected_spans",
            ),
        )
        self.logs = Route(
            self,
            Signal(
                "logs",
                {_answer.PROTOBUF: _logs.PROTOBUF, _answer.JSON: _logs.JSON_},
                self._keep_feedback,
                ExportLogsServiceResponse,
                "rejected_log_records",
            ),
        )

    async def _keep_runs(self, runs: Sequence[Run]) -> None:
        append = getattr(self.store, "append_async", None)
        if append is None:
            await asyncio.to_thread(self.store.append, runs)
        else:
            await asyncio.wrap_future(append(runs) if len(runs) < MANY else await self.beside(append, runs))

    async def beside(self, work: Callable[..., R], *args: Any) -> R:
        """Do something large on the one thread for it."""
        return await asyncio.get_running_loop().run_in_executor(self._beside, work, *args)

    def release(self, size: int) -> None:
        """Count a body of so many bytes as answered."""
        self.pending -= size
        if size >= HUGE:
            asyncio.get_running_loop().call_later(1.0, self._beside.submit, _give_back)

    async def _keep_feedback(self, feedback: Sequence[Feedback]) -> None:
        await asyncio.to_thread(self.store.add_feedback, feedback)


class Route(Generic[T]):
    """The ASGI application of one signal."""

    def __init__(self, receiver: Receiver, signal: Signal[T]) -> None:
        self.receiver, self.signal = receiver, signal

    async def __call__(self, scope: MutableMapping[str, Any], receive: _body.Receive, send: _answer.Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        try:
            decoded = await self._accepted(scope["method"], content_type, headers, receive)
        except RequestRefused as refused:
            self._count_refused(refused)
            await _answer.send(
                send,
                refused.status,
                content_type if content_type == _answer.PROTOBUF else _answer.JSON,
                _answer.error(content_type, refused),
                refused.retry_after_seconds,
            )
        except _body.Disconnected:
            self._count("assay_requests_refused_total", 1, reason="disconnected")
        else:
            body = _answer.success(
                content_type, self.signal.response, self.signal.refused_field, decoded.refused_count, decoded.reason
            )
            await _answer.send(send, 200, content_type, body)

    async def _accepted(
        self, method: str, content_type: bytes, headers: Mapping[bytes, bytes], receive: _body.Receive
    ) -> Decoded[T]:
        if method != "POST":
            raise RequestRefused(405, "method", f"{method} is not answered here: send OTLP with POST")
        codec = self.signal.codecs.get(content_type)
        if codec is None:
            given, known = content_type.decode("latin-1"), "application/x-protobuf nor application/json"
            raise RequestRefused(415, "content_type", f"content-type {given!r} is neither {known}")
        receiver, body = self.receiver, _Reserved(self.receiver)
        try:
            return await self._kept(codec, await body.read(headers, receive))
        finally:
            receiver.release(body.size)

    async def _kept(self, codec: Codec[T], body: bytes) -> Decoded[T]:
        start = time.perf_counter()
        if len(body) < LARGE:
            decoded = decode(codec, body, self.receiver.limits)
        else:
            decoded = await self.receiver.beside(decode, codec, body, self.receiver.limits)
        self._count("assay_received_total", len(decoded.items) + decoded.refused_count)
        if decoded.refused:
            for reason, count in decoded.refused_by_reason.items():
                self._count("assay_refused_total", count, reason=reason)
        if decoded.items:
            await self._stored(decoded.items)
        self.receiver.metrics.observe("assay_acknowledgement_seconds", time.perf_counter() - start)
        return decoded

    async def _stored(self, items: Sequence[T]) -> None:
        start = time.perf_counter()
        try:
            await self.signal.keep(items)
        except Exception as error:
            raise from_store(error) from error
        self.receiver.metrics.observe("assay_commit_seconds", time.perf_counter() - start)
        self._count("assay_stored_total", len(items))

    def _count_refused(self, refused: RequestRefused) -> None:
        self._count("assay_requests_refused_total", 1, reason=refused.reason)

    def _count(self, name: str, amount: float, **labels: str) -> None:
        self.receiver.metrics.add(name, amount, signal=self.signal.name, **labels)


class _Reserved:
    """The bytes of one body, counted among the pending ones until its request is answered."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver, self.size = receiver, 0

    async def read(self, headers: Mapping[bytes, bytes], receive: _body.Receive) -> bytes:
        """The whole body. Raises `RequestRefused`: 429 when all bodies together are too many, 503 if it stalls."""
        sink = _body.sink(headers, self.receiver.limits.request_bytes)
        more = await self._piece(receive, sink)
        try:
            while more:
                async with asyncio.timeout(self.receiver.limits.stall_seconds):
                    more = await self._piece(receive, sink)
        except TimeoutError:
            raise RequestRefused(503, "stalled", "the rest of the body did not come", 1.0) from None
        return sink.finish()

    async def _piece(self, receive: _body.Receive, sink: _body.Sink) -> bool:
        more = await _body.feed(receive, sink)
        self.receiver.pending += sink.size - self.size
        self.size = sink.size
        if self.receiver.pending > self.receiver.limits.pending_bytes:
            raise RequestRefused(429, "overload", f"{self.receiver.pending:,} bytes of requests are waiting", 1.0)
        return more


def _give_back() -> None:
    """The C library keeps what was freed for the next such request, which may never come."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # elsewhere than with glibc
        ctypes.CDLL(None).malloc_trim(0)
