"""gRPC's calls: who may make them, the one message of each, read and inflated within bounds, and what is answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from spanwise.collector._access import Access
from spanwise.collector._metrics import Metrics
from spanwise.collector.api import Door
from spanwise.collector.api._door import Refusal
from spanwise.collector.api._guard import forwarded
from spanwise.collector.hosts import bare
from spanwise.collector.intake import (
    HOPS,
    SIGNALS,
    Body,
    Permanent,
    Receiver,
    Request,
    RequestRefused,
    Retryable,
    answers,
)
from spanwise.collector.intake import hops as hops_of
from spanwise.collector.rpc._reads import Reads

Metadata = tuple[tuple[str, str | bytes], ...]
MOST_CALLS = 1000  # at the same time, whatever each is at
SERVICE = "/opentelemetry.proto.collector.{name}.v1.{title}Service/Export"
TITLES = {"traces": "Trace", "logs": "Logs", "metrics": "Metrics"}
FOLDERS = {"traces": "trace", "logs": "logs", "metrics": "metrics"}
CODES = {code.value[0]: code for code in grpc.StatusCode}
DETAILS = "grpc-status-details-bin"  # where gRPC has a google.rpc.Status
RETRY = "google.rpc.retryinfo-bin"  # and where OpenTelemetry's exporter for Python looks for when to come again


class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """OTLP's three services. Their calls are unary; as streams here, so that the message waits for the key."""

    def __init__(self, receiver: Receiver, door: Door, metrics: Metrics) -> None:
        self._receiver, self._door, self._metrics = receiver, door, metrics
        self._reads, self._under_way = Reads(), 0
        metrics.gauge("spanwise_grpc_calls", lambda: self._under_way)
        self._handlers = {
            SERVICE.format(name=FOLDERS[signal.name], title=TITLES[signal.name]): _handler(partial(self._call, signal))
            for signal in SIGNALS
        }

    def service(self, details: Any) -> Any:
        """What answers a method; None for one that is not there."""
        return self._handlers.get(details.method)

    async def _call(self, signal: Any, _: Any, context: Any) -> bytes:
        self._under_way += 1
        try:
            return await self._answered(signal, context)
        finally:
            self._under_way -= 1

    async def _answered(self, signal: Any, context: Any) -> bytes:
        metadata: Metadata = tuple(context.invocation_metadata() or ())
        try:
            if self._under_way > MOST_CALLS:
                raise Retryable("overload", f"{self._under_way:,} calls are under way")
            access = await self._access(metadata, _address(context.peer()))
            answer = await self._taken(signal, context, metadata, access)
        except _Closed as closed:
            self._count(signal, closed.refusal.code)
            await _abort(context, closed.refusal.code, closed.refusal.message, closed.refusal.retry_after)
        except _Ended:
            self._receiver.intake.refused(signal, "too_large")
            return b""
        except RequestRefused as refused:
            self._receiver.intake.refused(signal, refused.reason)
            code = answers.status(refused)[1]
            self._count(signal, code)
            await _abort(context, code, str(refused), answers.retry_after(refused))
        self._count(signal, 0)
        return answer

    async def _access(self, metadata: Metadata, address: str) -> Access:
        """What its sender may have. Raises `_Closed`."""
        if not self._door.locked and (elsewhere := forwarded(metadata)):
            raise _Closed(elsewhere)
        found = await self._door.admit(metadata, address, lambda: "ingest")
        if isinstance(found, Refusal):
            raise _Closed(found)
        return found

    async def _taken(self, signal: Any, context: Any, metadata: Metadata, access: Access) -> bytes:
        """The answer to a message that has been kept."""
        receiver = self._receiver
        body = Body(receiver.pending, receiver.limits)
        try:
            marks = hops_of(next((str(value) for name, value in metadata if name == HOPS.decode()), ""))
            content = await self._reads(partial(_content, context, body))
            request = Request(signal, signal.protobuf, content, access.project, marks, admit=body.grow)
            del content  # the request lets go of it
            decoded = await receiver.intake.take(request)
        finally:
            body.release()
        return bytes(answers.success(signal, decoded).SerializeToString())

    def _count(self, signal: Any, code: int) -> None:
        self._metrics.add("spanwise_grpc_calls_total", 1, signal=signal.name, code=CODES[code].name)


class _Ended(Exception):
    """gRPC has answered already: the message is larger than may be."""


class _Closed(Exception):
    """The door is."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def _handler(call: Callable[..., Any]) -> Any:
    return grpc.stream_unary_rpc_method_handler(call, None, None)


async def _abort(context: Any, code: int, message: str, retry_after: float | None) -> NoReturn:
    """End a call with an error, which says when to come again if that helps."""
    metadata: tuple[tuple[str, bytes], ...] = ()
    if retry_after is not None:
        delay = Duration()
        delay.FromMilliseconds(max(1, int(retry_after * 1000)))
        retry, packed = RetryInfo(retry_delay=delay), Packed()
        packed.Pack(retry)
        status = Status(code=code, message=message, details=[packed])
        metadata = (DETAILS, status.SerializeToString()), (RETRY, retry.SerializeToString())
    await context.abort(CODES[code], message[:MESSAGE], metadata)
    raise AssertionError("`abort` raises")


MESSAGE = 2000  # characters of an error's message: it travels in a header


async def _content(context: Any, body: Body) -> bytes:
    """The message, inflated and counted: before it is, no other one is read in its place."""
    message = await context.read()
    if not isinstance(message, bytes):
        raise Permanent("malformed", "the call has no message") if context.peer() else _Ended
    return await body.read(_encoding(message), _channel(message))


def _encoding(message: bytes) -> dict[bytes, bytes]:
    """How a message is compressed, by its first bytes: gRPC keeps to itself what its sender said.

    No request begins so: its fields have numbers from 1 to 3, or at least no type 7 of a field 3, and no field 15.
    """
    if message[:2] == b"\x1f\x8b":
        return {b"content-encoding": b"gzip"}
    if message[:1] == b"\x78" and len(message) > 1 and (message[0] << 8 | message[1]) % 31 == 0:
        return {b"content-encoding": b"deflate"}
    return {}


def _channel(message: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": message}

    return receive


def _address(peer: str) -> str:
    """Of `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711` the address."""
    return bare(unquote(peer.partition(":")[2]).rpartition(":")[0])
