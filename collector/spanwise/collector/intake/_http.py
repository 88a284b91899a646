"""The OTLP routes as bare ASGI: at five spans a request a framework's request object costs more than the spans."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

from spanwise.collector._access import access_of
from spanwise.collector._metrics import Metrics
from spanwise.collector.intake import answers
from spanwise.collector.intake._beside import Beside
from spanwise.collector.intake._body import Body, Disconnected, Pending, Receive
from spanwise.collector.intake._decode import Codec
from spanwise.collector.intake._decoders import Decoders
from spanwise.collector.intake._errors import Permanent, RequestRefused, Retryable
from spanwise.collector.intake._intake import Intake
from spanwise.collector.intake._keep import Keeper, StoreKeeper
from spanwise.collector.intake._limits import Limits
from spanwise.collector.intake._logs import LOGS
from spanwise.collector.intake._metrics_signal import METRICS
from spanwise.collector.intake._signal import HOPS, Request, Signal, hops
from spanwise.collector.intake._traces import TRACES
from spanwise.collector.records import ProcessReport
from spanwise.collector.stores import NamesDestinations, Store
from spanwise.tracer import attributes as names

T = TypeVar("T")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SIGNALS: tuple[Signal[Any], ...] = (TRACES, LOGS, METRICS)
ROOTS = ("/v1/", "/api/public/otel/v1/")  # the specification's, and Langfuse's, which its SDKs fix
PATHS = {f"{root}{signal.name}{slash}": signal for root in ROOTS for signal in SIGNALS for slash in ("", "/")}
DESTINATIONS, MOST_HEADER = names.DESTINATIONS_HEADER.lower().encode(), 8_000  # bytes
OURS = (names.COLLECTOR_HEADER.lower().encode(), b"1")  # to our tracer: what it says beside its spans is kept here


class Receiver:
    """ASGI applications by path, one for each signal; they answer 200 only when the store has kept everything."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics | None = None,
        limits: Limits | None = None,
        keepers: Sequence[Keeper] = (),
        decoders: int = 0,
    ) -> None:
        """`keepers` get what the store has, afterwards. So many `decoders` at most help to decode."""
        metrics, self.limits = metrics or Metrics(), limits or Limits()
        self.store = store
        self.beside, self.pending = Beside(), Pending(self.limits.pending_bytes)
        metrics.gauge("spanwise_pending_bytes", lambda: self.pending.size)
        self.decoders = Decoders(decoders, store, self.beside, metrics, self.limits)
        kept = [StoreKeeper(store, self.beside), *keepers]
        self.intake = Intake(kept, self.beside, metrics, self.limits, self.decoders)
        self.routes: dict[str, Route[Any]] = {path: Route(self, signal) for path, signal in PATHS.items()}

    def close(self) -> None:
        """End the threads for large bodies, and the processes. Call it when no more requests come."""
        self.decoders.close()
        self.beside.close()


class Route(Generic[T]):
    """The ASGI application of one signal."""

    def __init__(self, receiver: Receiver, signal: Signal[T]) -> None:
        self._receiver, self._signal = receiver, signal
        self._codecs = {answers.PROTOBUF: signal.protobuf, answers.JSON: signal.json}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        try:
            codec = self._codec(scope["method"], content_type)
            answer, extra = await self._taken(codec, content_type, headers, access_of(scope).project, receive)
        except RequestRefused as refused:
            await self._refuse(send, content_type, refused)
        except asyncio.CancelledError:  # the server ends, and waits no longer: other errors nobody would send again
            await self._refuse(send, content_type, Retryable("ending", "the server ends: send it again"))
            raise
        except Disconnected:
            self._receiver.intake.refused(self._signal, "disconnected")
        else:
            await _send(send, 200, content_type, answer, extra)

    async def _refuse(self, send: Send, content_type: bytes, refused: Permanent | Retryable) -> None:
        self._receiver.intake.refused(self._signal, refused.reason)
        await _send_error(send, content_type, refused)

    def _codec(self, method: str, content_type: bytes) -> Codec[T]:
        if method != "POST":
            raise Permanent("method", f"{method} is not answered here: send OTLP with POST")
        codec = self._codecs.get(content_type)
        if codec is None:
            given, known = content_type.decode("latin-1"), "application/x-protobuf nor application/json"
            raise Permanent("content_type", f"content-type {given!r} is neither {known}")
        return codec

    async def _taken(
        self,
        codec: Codec[T],
        content_type: bytes,
        headers: Mapping[bytes, bytes],
        project: str | None,
        receive: Receive,
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """The answer to a request that has been kept, encoded, and headers that go with it."""
        receiver = self._receiver
        body = Body(receiver.pending, receiver.limits)
        try:
            marks = hops(headers.get(HOPS, b"").decode("latin-1"))
            read = await body.read(headers, receive)
            request = Request(self._signal, codec, read, project, marks, admit=body.grow)
            del read  # the request lets go of it
            decoded = await receiver.intake.take(request)
        finally:
            body.release()
        answer = answers.encoded(answers.success(self._signal, decoded), content_type)
        return answer, list(self._destinations(decoded.items, project))

    def _destinations(self, items: Sequence[Any], project: str | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield a header for a tracer that has reported: the destinations that take part in tracing in its project."""
        store = self._receiver.store
        report = next((item for item in items if isinstance(item, ProcessReport)), None)
        if report is not None and isinstance(store, NamesDestinations):
            named = ",".join(store.traced_destinations(project or report.project))
            if len(named) > MOST_HEADER:
                named = named[:MOST_HEADER].rpartition(",")[0]
            yield DESTINATIONS, named.encode()


async def _send_error(send: Send, content_type: bytes, refused: Permanent | Retryable) -> None:
    """Answer with a google.rpc.Status, in JSON if what was sent was neither."""
    kind = content_type if content_type == answers.PROTOBUF else answers.JSON
    status, retry_after = answers.status(refused)[0], answers.retry_after(refused)
    extra = [] if retry_after is None else [(b"retry-after", b"%d" % retry_after)]
    if status == 405:
        extra.append((b"allow", b"POST"))
    await _send(send, status, kind, answers.encoded(answers.error(refused), kind), extra)


async def _send(
    send: Send, status: int, content_type: bytes, body: bytes, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), OURS, *(extra or ())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
