"""Conversion between HTTP and records: bodies, query filters, streamed JSON, error statuses, validation of writes.

While a response is streamed, it occupies no reader connection of the store. Only the stored rows are in memory.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, TypeGuard, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect

from spanwise.collector import alerts, record_encoding
from spanwise.collector.errors import Closed, Forbidden, NotFound, Refused, StoreError, TooLarge, TooSlow, Unavailable
from spanwise.collector.filters import Filter, extend_filter, filter_from_items, merge_filters
from spanwise.collector.ingest import (
    MAX_COST,
    MAX_TOKENS,
    ClientDisconnected,
    PermanentError,
    Receiver,
    check_amendment,
    check_feedback_names,
    check_ids,
    check_json,
    truncate_fields,
)
from spanwise.collector.ingest import RequestBody as Incoming
from spanwise.collector.operations import MAX_LIST_SIZE, MAX_PAGE_SIZE
from spanwise.collector.query_scheduler import QueryScheduler, wait_for_disconnect
from spanwise.collector.record_corrections import correct_feedback_time, correct_open_run_time, correct_run_times
from spanwise.collector.records import (
    JSON,
    Alert,
    AlertCheck,
    Amendment,
    Booking,
    Dataset,
    DatasetKind,
    Feedback,
    OpenRun,
    Run,
    feedback_id,
    normalize_feedback,
)
from spanwise.collector.request_context import CURRENT_ACTOR
from spanwise.collector.stores import ControlStore, LazyTrace, Store, StreamingStore, TraceStore

# Conversion between HTTP and records: bodies, query filters, streamed JSON, error statuses.

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


# Validation of write operations: batch size, ids, amounts, clock skew; operations the API adds.


def check_limit(limit: Any, most: int) -> None:
    """Raise `Refused` for a `limit` above the maximum number of items in one response."""
    if isinstance(limit, int) and limit > most:
        remedy = "use the cursor in `next`" if most == MAX_PAGE_SIZE else "request fewer items, or add conditions"
        raise Refused(f"limit must be at most {most:,}, got {limit:,}; {remedy}")


def check_count(count: int, most: int = MAX_LIST_SIZE) -> None:
    """Raise `TooLarge` for more records than one request may hold."""
    if count > most:
        raise TooLarge(f"a request may hold at most {most:,} records, got {count:,}; send several requests")


MAX_CHECKED_DAYS = 90  # past days of one check of an alert
R = TypeVar("R", Run, OpenRun)
_HEX = re.compile(r"[0-9a-f]*")


def validate_run(run: Run) -> Run:
    """Return the run with ids in lower case. Raises `ItemRefused` or `Refused` for invalid ids or numbers."""
    lowered = _lowercase_run_ids(run)
    if run.usage is not None:
        usage = run.usage
        counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        for name, tokens in (*counts.items(), *usage.details.items()):
            if not 0 <= tokens <= MAX_TOKENS:
                raise Refused(f"{name} of run {run.span_id!r} must be between 0 and 2^53, got {tokens!r}")
    if run.cost is not None:
        validate_amount(f"the cost of run {run.span_id!r}", run.cost)
    return lowered


def validate_amendment(amendment: Amendment) -> Amendment:
    """Return the amendment with ids in lower case. Raises `ItemRefused` for invalid ids."""
    if amendment.response_id:
        return amendment
    trace_id, span_id, _ = _validate_ids(amendment.trace_id, amendment.span_id)
    return replace(amendment, trace_id=trace_id, span_id=span_id)


def _lowercase_run_ids(run: R) -> R:
    """Return the run with ids in lower case. Raises `ItemRefused` for invalid ids."""
    ids = (run.trace_id, run.span_id, run.parent_id or "")
    lower = _validate_ids(*ids)
    if lower == ids:
        return run
    return replace(run, trace_id=lower[0], span_id=lower[1], parent_id=lower[2] or None)


def _validate_ids(trace_id: str, span_id: str, parent_id: str = "") -> tuple[str, str, str]:
    ids = (trace_id, span_id, parent_id)
    lower = (trace_id.lower(), span_id.lower(), parent_id.lower())
    check_ids(*lower)
    if not all(map(_HEX.fullmatch, lower)):
        raise Refused(f"an id must be hexadecimal, got {next(id for id in ids if not _HEX.fullmatch(id.lower()))!r}")
    return lower


def validate_feedback(feedback: Feedback) -> Feedback:
    """Return the feedback with a normalized target.

    Raises `ItemRefused` for names that are too long, and `Refused` for an invalid target.
    """
    check_feedback_names(feedback)
    return normalize_feedback(feedback)


def validate_amount(what: str, amount: float) -> None:
    """Raise `Refused` for an amount out of range."""
    if not (math.isfinite(amount) and 0 <= amount <= MAX_COST):
        raise Refused(f"{what} must be between 0 and {MAX_COST:,.0f}, got {amount!r}")


class DatasetChange(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a dataset that may change."""

    kind: DatasetKind | None = None
    schema: dict[str, JSON] | None = None
    description: str | None = None
    metadata: dict[str, JSON] | None = None


def append(store: TraceStore, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> dict[str, int]:
    """Store runs and their feedback together or not at all. The response is sent once they are durable."""
    check_count(len(runs) + len(feedback))
    store.append(
        [truncate_fields(correct_run_times(validate_run(run))) for run in runs], _validate_feedback_list(feedback)
    )
    return {"runs": len(runs), "feedback": len(feedback)}


def amend(store: TraceStore, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
    """Change fields of a run that is stored or will arrive; return whether it is stored."""
    check_amendment(fields)
    return store.amend(trace_id, span_id, fields)


def add_amendments(store: TraceStore, amendments: Sequence[Amendment]) -> list[bool]:
    """Change fields of runs that are stored or will arrive; return for each whether it is stored."""
    for amendment in amendments:
        check_amendment(amendment.fields)
    return store.add_amendments(list(map(validate_amendment, amendments)))


def append_runs(store: TraceStore, runs: Sequence[Run]) -> None:
    """Store runs. The response is sent once they are durable."""
    append(store, runs)


def add_feedback(store: TraceStore, feedback: Sequence[Feedback]) -> list[str]:
    """Store feedback. The response with the ids is sent once the feedback is durable. Feedback with an existing id
    replaces the earlier one. With a key that may only give feedback, only human feedback is accepted. Its ids are
    derived from target, key and author.
    """
    rows = _validate_feedback_list(feedback)
    actor = CURRENT_ACTOR.get()
    if actor is not None and not actor.writes:
        rows = list(map(_restrict_to_human_feedback, rows))
    store.add_feedback(rows)
    return [row.id for row in rows]


def _restrict_to_human_feedback(row: Feedback) -> Feedback:
    """Return the feedback with an id derived from its author, so that it overwrites only the author's own feedback.

    Raises `Forbidden` for feedback of a judge or a rule.
    """
    if row.source != "human" or any((row.rule, row.claim, row.evaluator, row.version, row.judge_trace_id)):
        raise Forbidden(
            "the API key has only the scope 'feedback', which permits human feedback: source 'human', no rule or evaluator"
        )
    return replace(row, id=feedback_id(row))


def _validate_feedback_list(feedback: Sequence[Feedback]) -> list[Feedback]:
    return [correct_feedback_time(validate_feedback(row)) for row in feedback]


def add_running(store: TraceStore, runs: Sequence[OpenRun]) -> None:
    """Record runs that have started. A run counts as open until its span arrives or its trace reports it as dropped."""
    store.add_running([correct_open_run_time(_lowercase_run_ids(run)) for run in runs])


def book(store: ControlStore, *bookings: Booking) -> list[bool]:
    """Reserve amounts. An amount that would exceed its limit is not reserved. Returns for each amount whether it is
    reserved. Each booking id is counted only once.
    """
    for booking in bookings:
        validate_amount(f"the amount of booking {booking.id!r}", booking.amount)
    return store.book(*bookings)


def settle(store: ControlStore, actual: Mapping[str, float]) -> None:
    """Replace reserved amounts by the actual ones, given by booking id."""
    for id, amount in actual.items():
        validate_amount(f"the actual amount of booking {id!r}", amount)
    store.settle(actual)


def delete_trace(store: TraceStore, trace_id: str) -> int:
    """Remove one trace. Raises `NotFound`."""
    deleted = store.delete(Filter(trace_ids=(trace_id,)))
    if not deleted:
        raise NotFound(f"there is no trace {trace_id!r}")
    return deleted


def delete_experiment(store: ControlStore, id: str) -> bool:
    """Remove an experiment with its traces and feedback. Raises `NotFound`."""
    if not store.delete_experiment(id):
        raise NotFound(f"there is no experiment {id!r}")
    return True


def describe_dataset(store: ControlStore, name: str, change: DatasetChange) -> Dataset:
    """Change the description of a dataset; creates a new version if anything changed. Raises `NotFound`."""
    store.dataset(name)  # raises `NotFound`, so that a mistyped name creates no dataset
    return store.save_examples(name, [], **msgspec.structs.asdict(change))


def check_alert(store: Store, alert: Alert, days: float = alerts.CHECKED_DAYS) -> AlertCheck:
    """Run an alert over the last days, 90 at most: when it would have fired, and how long it had no data.

    Nothing is stored. Raises `Refused` for an invalid definition.
    """
    if not 0 < days <= MAX_CHECKED_DAYS:
        raise Refused(f"days must be above 0 and at most {MAX_CHECKED_DAYS}, got {days!r}")
    return alerts.check_alert(store, alert, until_ns=time.time_ns(), days=days)
