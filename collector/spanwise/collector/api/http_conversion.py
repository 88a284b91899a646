"""Conversion between HTTP and records: bodies, query filters, streamed JSON, error statuses.

While a response is streamed, it occupies no reader connection of the store. Only the stored rows are in memory.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, TypeGuard

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect

from spanwise.collector import record_encoding
from spanwise.collector.errors import Closed, Forbidden, NotFound, Refused, StoreError, TooLarge, TooSlow, Unavailable
from spanwise.collector.filters import Filter, extend_filter, filter_from_items, merge_filters
from spanwise.collector.ingest import ClientDisconnected, PermanentError, Receiver, check_json
from spanwise.collector.ingest import RequestBody as Incoming
from spanwise.collector.query_scheduler import QueryScheduler, wait_for_disconnect
from spanwise.collector.stores import LazyTrace, StreamingStore, TraceStore

TOO_LARGE_REASONS = ("too_large", "too_many")
MIN_COUNTED_BYTES = 64 * 1024  # larger bodies are checked for their number of values before parsing
ENCODE_BATCH = 500  # items encoded in one step, which takes one or two milliseconds
ERROR_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (Forbidden, 403),
    (TooLarge, 413),
    (TooSlow, 422),
)


def json_response(value: Any, status: int = 200) -> Response:
    """Return a record, or a structure of records, as a JSON response."""
    if isinstance(value, list) and len(value) > ENCODE_BATCH:  # in batches, because encoding holds the interpreter lock
        batches = (value[start : start + ENCODE_BATCH] for start in range(0, len(value), ENCODE_BATCH))
        body = b"[" + b",".join(record_encoding.encode(batch)[1:-1] for batch in batches) + b"]"
    else:
        body = record_encoding.encode(value)
    return Response(body, status, media_type="application/json")


async def _read_body(request: Request) -> AsyncIterator[bytes]:
    """Yield the body of a request. Until the response is ready, it counts against the memory limit that OTLP bodies
    share.

    A large body also waits until no other large body is being processed.
    """
    receiver: Receiver = request.app.state.receiver
    body, offloader = Incoming(receiver.pending, receiver.limits), receiver.offloader
    try:
        content = await body.read(dict(request.scope["headers"]), request.receive)
        async with offloader.turn(len(content)):
            if len(content) > MIN_COUNTED_BYTES:
                await offloader(check_json, content)
            yield content
    except PermanentError as refused:
        raise (TooLarge(str(refused)) if refused.reason in TOO_LARGE_REASONS else refused) from None
    except ClientDisconnected:
        raise ClientDisconnect from None
    finally:
        body.release()


def parse_query_filter(request: Request, others: Collection[str] = ()) -> Filter:
    """Return the filter of a query string: its conditions, and the JSON under `filter`.

    The names in `others` are not conditions. Raises `ValueError` for any other unknown name.
    """
    items = [item for item in request.query_params.multi_items() if item[0] not in others]
    exact = extend_filter(
        None, record_encoding.decode(dict[str, Any], request.query_params.get("filter", "{}").encode())
    )
    merged = merge_filters(exact, filter_from_items(item for item in items if item[0] != "filter"))
    return replace(merged, trace_ids=tuple(map(str.lower, merged.trace_ids))) if merged.trace_ids else merged


LimitParameter = Annotated[int, Query(ge=1, lt=2**63)]
IntegerParameter = Annotated[int, Query(ge=-(2**63), lt=2**63)]  # the range of SQLite integers
RequestBody = Annotated[bytes, Depends(_read_body)]


def _error_response(status: int, kind: str, message: str) -> Response:
    return json_response({"error": kind, "message": message}, status)


def _handle_unavailable(request: Request, error: Exception) -> Response:
    seconds = error.retry_after if isinstance(error, Unavailable) else 5.0
    answer = _error_response(503, "Unavailable", str(error))
    answer.headers["retry-after"] = str(max(1, math.ceil(seconds)))
    return answer


def _handle_invalid(request: Request, error: Exception) -> Response:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    message = "; ".join(
        f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}, got {fault['input']!r}" for fault in faults
    )
    return _error_response(400, "Refused", message or str(error))


def install_error_handlers(app: FastAPI) -> None:
    """Map store errors to statuses: 404 and 400 for permanent ones, 503 with Retry-After for temporary ones."""

    def handle_refused(request: Request, error: Exception) -> Response:
        status = next((status for kind, status in ERROR_STATUSES if isinstance(error, kind)), 400)
        return _error_response(status, type(error).__name__, str(error))

    def handle_overflow(request: Request, error: Exception) -> Response:
        return _error_response(400, "Refused", f"a number is out of range: {error}")

    app.add_exception_handler(Refused, handle_refused)
    # The server is shutting down. Its successor may accept the request.
    app.add_exception_handler(Closed, _handle_unavailable)
    app.add_exception_handler(StoreError, _handle_unavailable)
    app.add_exception_handler(ValueError, _handle_invalid)
    app.add_exception_handler(OverflowError, handle_overflow)
    app.add_exception_handler(RequestValidationError, _handle_invalid)


MAX_UNSTREAMED_BYTES = 512 * 1024  # smaller responses are not streamed
# time limit for a client to read a chunk: the base, and the number of bytes that add another second
SEND_TIMEOUT_S, MIN_SEND_RATE = 60.0, 16 * 1024
FEEDBACK_BATCH = 500  # rows encoded in one step


def trace_response(scheduler: QueryScheduler, store: StreamingStore, trace_id: str) -> Response:
    """Return one trace. Raises `NotFound`."""
    found = store.load_traces([trace_id])
    if not found:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    [trace] = found
    if isinstance(trace, LazyTrace):
        return stream_response(scheduler, _encode_trace(trace), trace.size)
    return json_response(trace)


def traces_response(scheduler: QueryScheduler, store: StreamingStore, trace_ids: Sequence[str]) -> Response:
    """Return traces as a list."""
    found = store.load_traces(trace_ids)
    # all of the traces are lazy, or none is
    if large := [trace for trace in found if isinstance(trace, LazyTrace)]:
        return stream_response(scheduler, _encode_list(map(_encode_trace, large)), sum(trace.size for trace in large))
    return json_response(found)


STREAMED_OPERATIONS: dict[Callable[..., Any], Callable[..., Response]] = {
    TraceStore.trace: trace_response,
    TraceStore.many: traces_response,
}


def is_streaming_store(store: object) -> TypeGuard[StreamingStore]:
    """Return whether a store can stream traces. An `isinstance` check with a protocol would take as long as a small
    query.
    """
    return hasattr(store, "load_traces")


def stream_response(scheduler: QueryScheduler, chunks: Iterator[bytes], stored_bytes: int) -> Response:
    """Return a complete response, or a streamed one if it is large. `stored_bytes` are in memory until it is sent.

    Raises the errors of the chunks that are produced before streaming starts.
    """
    first, size = list[bytes](), 0
    for chunk in chunks:
        first.append(chunk)
        size += len(chunk)
        if size > MAX_UNSTREAMED_BYTES:
            return StreamedJSON(chain(first, chunks), scheduler, stored_bytes)
    return Response(b"".join(first), media_type="application/json")


def _encode_trace(trace: LazyTrace) -> Iterator[bytes]:
    """Yield the JSON of a `Trace` in chunks; together they equal the output of `record_encoding.encode`."""
    feedback = [
        trace.feedback[start : start + FEEDBACK_BATCH] for start in range(0, len(trace.feedback), FEEDBACK_BATCH)
    ]
    yield b'{"root":' + record_encoding.encode(trace.root) + b',"runs":'
    yield from _encode_list(_strip_list_brackets(trace.batches()))
    yield b',"feedback":'
    yield from _encode_list(_strip_list_brackets(feedback))
    other_fields = {name: getattr(trace, name) for name in ("complete", "dropped", "calls_sent", "running")}
    yield b"," + record_encoding.encode(other_fields)[1:]


def _strip_list_brackets(lists: Iterable[Sequence[Any]]) -> Iterator[Iterator[bytes]]:
    """Yield the JSON of each non-empty list without its brackets."""
    return (iter((record_encoding.encode(items)[1:-1],)) for items in lists if items)


def _encode_list(items: Iterable[Iterator[bytes]]) -> Iterator[bytes]:
    yield b"["
    for place, chunks in enumerate(items):
        if place:
            yield b","
        yield from chunks
    yield b"]"


class StreamedJSON(Response):
    """Streamed JSON response.

    It is aborted if the client stops reading, and refused if too many responses wait for clients.
    """

    media_type = "application/json"

    def __init__(self, chunks: Iterator[bytes], scheduler: QueryScheduler, stored_bytes: int) -> None:
        super().__init__(None)
        del self.headers["content-length"]
        self._chunks, self._scheduler, self._stored_bytes = chunks, scheduler, stored_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the chunks until the response is complete or the client disconnects."""
        if not self._scheduler.hold(self._stored_bytes):
            error = {
                "error": "Unavailable",
                "message": "too many large responses are waiting to be read; try again later",
            }
            refusal = json_response(error, 503)
            refusal.headers["retry-after"] = "5"
            return await refusal(scope, receive, send)
        disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in iterate_in_threadpool(self._chunks):
                if disconnect.done():
                    return None
                async with asyncio.timeout(SEND_TIMEOUT_S + len(chunk) / MIN_SEND_RATE):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            disconnect.cancel()
            self._scheduler.let_go(self._stored_bytes)
