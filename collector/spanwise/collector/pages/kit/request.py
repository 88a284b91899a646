"""What pages read of a request beside the filter."""

from __future__ import annotations

from starlette.requests import Request

from spanwise.collector.errors import Refused


def whole(request: Request, name: str) -> int | None:
    """A whole number from the query string, None if it is not there. Raises `Refused`."""
    text = request.query_params.get(name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 12:
        raise Refused(f"{name} {text!r} is no whole number")
    return int(text)
