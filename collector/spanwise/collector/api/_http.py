"""What the routes share: bodies in, records out, conditions out of query strings, errors as statuses."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from spanwise.collector import _wire
from spanwise.collector.errors import Closed, Forbidden, NotFound, Refused, StoreError, TooLarge, TooSlow, Unavailable
from spanwise.collector.filters import Filter, both, combined
from spanwise.collector.intake import Body as Incoming
from spanwise.collector.intake import Disconnected, Permanent, Receiver, check_json
from spanwise.collector.querystring import to_filter

TOO_LARGE = ("too_large", "too_many")
CHECKED = 64 * 1024  # bytes, from which on what stands in a body is counted before it is parsed
AT_ONCE = 500  # records that are written as JSON in one go: a millisecond or two
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (Forbidden, 403),
    (TooLarge, 413),
    (TooSlow, 422),
)


def reply(value: Any, status: int = 200) -> Response:
    """A record, or anything made of records, as JSON."""
    return Response(_encoded(value), status, media_type="application/json")


def _encoded(value: Any) -> bytes:
    """As `_wire.encode`; a long list some at a time, since nobody else has the interpreter meanwhile."""
    if not isinstance(value, list) or len(value) <= AT_ONCE:
        return _wire.encode(value)
    some = (value[start : start + AT_ONCE] for start in range(0, len(value), AT_ONCE))
    return b"[" + b",".join(_wire.encode(one)[1:-1] for one in some) + b"]"


async def _body(request: Request) -> AsyncIterator[bytes]:
    """The body, counted among OTLP's; a large one has its turn among theirs, until it has been answered."""
    receiver: Receiver = request.app.state.receiver
    body, beside = Incoming(receiver.pending, receiver.limits), receiver.beside
    try:
        whole = await body.read(dict(request.scope["headers"]), request.receive)
        async with beside.turn(len(whole)):
            if len(whole) > CHECKED:
                await beside(check_json, whole)
            yield whole
    except Permanent as refused:
        raise (TooLarge(str(refused)) if refused.reason in TOO_LARGE else refused) from None
    except Disconnected:
        raise ClientDisconnect from None
    finally:
        body.release()


def conditions(request: Request, others: Collection[str] = ()) -> Filter:
    """The filter that a query string says by its conditions, and as the JSON under `filter`.

    `others` are the names that are no conditions. Raises `ValueError` for any other name.
    """
    items = [item for item in request.query_params.multi_items() if item[0] not in others]
    exact = combined(None, _mapping(request.query_params.get("filter", "{}")))
    said = to_filter(item for item in items if item[0] != "filter")
    whole = both(exact, said)
    return replace(whole, trace_ids=tuple(map(str.lower, whole.trace_ids))) if whole.trace_ids else whole


def _mapping(text: str) -> dict[str, Any]:
    return _wire.decode(dict[str, Any], text.encode())


Limit = Annotated[int, Query(ge=1, lt=2**63)]
Number = Annotated[int, Query(ge=-(2**63), lt=2**63)]  # what the tables can hold
Body = Annotated[bytes, Depends(_body)]


def _answer(status: int, kind: str, message: str) -> Response:
    return reply({"error": kind, "message": message}, status)


def _refused(request: Request, error: Exception) -> Response:
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 400)
    return _answer(status, type(error).__name__, str(error))


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
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(Closed, _unavailable)  # this server is on its way out: the next one may do it
    app.add_exception_handler(StoreError, _unavailable)
    app.add_exception_handler(ValueError, _invalid)
    app.add_exception_handler(OverflowError, _overflow)
    app.add_exception_handler(RequestValidationError, _invalid)
