"""What the routes share: bodies in, records out, errors as statuses, conditions out of query strings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from assay.collector import _wire
from assay.collector.errors import NotFound, Refused, StoreError, Unavailable
from assay.collector.filters import Filter
from assay.collector.querystring import to_filter

F = TypeVar("F", bound=Callable[..., Any])
MAX_BODY = 64 * 1024 * 1024
STALL_SECONDS = 30.0  # for the next piece of a body: what is pending may hold up others
MAX_PENDING = 96 * 1024 * 1024  # of all bodies that are being read or worked on, beside those of OTLP
NOT_CONDITIONS = frozenset(("limit", "cursor", "filter", "key", "target", "bucket_ns", "group_by"))


def wire(*, takes: Any = None, returns: Any = None) -> Callable[[F], F]:
    """Say which records a route takes and returns, for OpenAPI."""

    def mark(function: F) -> F:
        function.__wire__ = (takes, returns)  # type: ignore[attr-defined]
        return function

    return mark


def reply(value: Any, status: int = 200) -> Response:
    """A record, or anything made of records, as JSON."""
    return Response(_wire.encode(value), status, media_type="application/json")


def given(change: msgspec.Struct) -> dict[str, Any]:
    """The fields that a body named, of a structure whose fields are `UNSET` where it did not."""
    return {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}


async def _body(request: Request) -> AsyncIterator[bytes]:
    pieces, size, state = [], 0, request.app.state
    stream = aiter(request.stream())
    try:
        while piece := await _piece(stream):
            size += len(piece)
            state.pending_bytes += len(piece)
            _check_size(size, state.pending_bytes)
            pieces.append(piece)
        yield b"".join(pieces)
    finally:
        state.pending_bytes -= size


async def _piece(stream: AsyncIterator[bytes]) -> bytes:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await anext(stream, b"")
    except TimeoutError:
        raise Unavailable("the rest of the body did not come") from None


def _check_size(size: int, pending: int) -> None:
    if size > MAX_BODY:
        raise Refused(f"the body is larger than {MAX_BODY:,} bytes: send fewer at once")
    if pending > MAX_PENDING:
        raise Unavailable(f"{pending:,} bytes of requests are waiting; send again in a moment")


def _conditions(request: Request) -> Filter:
    exact = request.query_params.get("filter")
    if exact is not None:
        found: Filter = _wire.decode(Filter, exact.encode())
        return found
    return to_filter(item for item in request.query_params.multi_items() if item[0] not in NOT_CONDITIONS)


Limit = Annotated[int, Query(ge=1, le=1_000_000)]
Number = Annotated[int, Query(ge=-(2**63), lt=2**63)]  # what the tables can hold
Body = Annotated[bytes, Depends(_body)]
Conditions = Annotated[Filter, Depends(_conditions)]


def _answer(status: int, kind: str, message: str) -> Response:
    return reply({"error": kind, "message": message}, status)


def _refused(request: Request, error: Exception) -> Response:
    return _answer(404 if isinstance(error, NotFound) else 400, type(error).__name__, str(error))


def _unavailable(request: Request, error: Exception) -> Response:
    seconds = error.retry_after if isinstance(error, Unavailable) else 5.0
    answer = _answer(503, "Unavailable", str(error))
    answer.headers["retry-after"] = str(max(1, math.ceil(seconds)))
    return answer


def _invalid(request: Request, error: Exception) -> Response:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    told = "; ".join(
        f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}, not {fault['input']!r}" for fault in faults
    )
    return _answer(400, "Refused", told or str(error))


def _overflow(request: Request, error: Exception) -> Response:
    return _answer(400, "Refused", f"a number is out of bounds: {error}")


def map_errors(app: FastAPI) -> None:
    """Answer what stores raise: 404 and 400 for what cannot work, 503 with Retry-After for what may work later."""
    app.state.pending_bytes = 0
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(StoreError, _unavailable)
    app.add_exception_handler(ValueError, _invalid)
    app.add_exception_handler(OverflowError, _overflow)
    app.add_exception_handler(RequestValidationError, _invalid)
