"""What the routes share: bodies in, records out, conditions out of query strings, errors as statuses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from assay.collector import _wire
from assay.collector.errors import Closed, NotFound, Refused, StoreError, Unavailable
from assay.collector.filters import Filter, both, combined
from assay.collector.querystring import to_filter

MAX_BODY = 64 * 1024 * 1024
STALL_SECONDS = 30.0  # for the next piece of a body: what is pending may hold up others
MAX_PENDING = 96 * 1024 * 1024  # of all bodies that are being read or worked on, beside those of OTLP


def reply(value: Any, status: int = 200) -> Response:
    """A record, or anything made of records, as JSON."""
    return Response(_wire.encode(value), status, media_type="application/json")


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


def conditions(request: Request, others: Collection[str] = ()) -> Filter:
    """The filter that a query string says by its conditions, and as the JSON under `filter`.

    `others` are the names that are no conditions. Raises `ValueError` for any other name.
    """
    items = [item for item in request.query_params.multi_items() if item[0] not in others]
    exact = combined(None, _mapping(request.query_params.get("filter", "{}")))
    said = to_filter(item for item in items if item[0] != "filter")
    return both(exact, said)


def _mapping(text: str) -> dict[str, Any]:
    return _wire.decode(dict[str, Any], text.encode())


Limit = Annotated[int, Query(ge=1, le=1_000_000)]
Number = Annotated[int, Query(ge=-(2**63), lt=2**63)]  # what the tables can hold
Body = Annotated[bytes, Depends(_body)]


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
    app.add_exception_handler(Closed, _unavailable)  # this server is on its way out: the next one may do it
    app.add_exception_handler(StoreError, _unavailable)
    app.add_exception_handler(ValueError, _invalid)
    app.add_exception_handler(OverflowError, _overflow)
    app.add_exception_handler(RequestValidationError, _invalid)
