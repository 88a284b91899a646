"""What OTLP answers: success, partial success, an error; in the request's own encoding."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from assay.collector.intake._errors import RequestRefused

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PROTOBUF, JSON = b"application/x-protobuf", b"application/json"


async def send(send: Send, status: int, content_type: bytes, body: bytes, retry_after: int | None = None) -> None:
    """Put an answer onto an ASGI channel."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    if status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def success(content_type: bytes, response: type[Message], field: str, refused: int, reason: str) -> bytes:
    """An export response; with partial success if single items were refused, `field` says their number."""
    if content_type == JSON:
        camel = "rejectedSpans" if field == "rejected_spans" else "rejectedLogRecords"
        # 64-bit integers are texts in protobuf's JSON
        partial = {"partialSuccess": {camel: str(refused), "errorMessage": reason}}
        return orjson.dumps(partial) if refused else b"{}"
    if not refused:
        return b""
    return bytes(response(partial_success={field: refused, "error_message": reason}).SerializeToString())


def error(content_type: bytes, refused: RequestRefused) -> bytes:
    """A google.rpc.Status."""
    if content_type == PROTOBUF:
        return bytes(Status(code=refused.code, message=str(refused)).SerializeToString())
    return orjson.dumps({"code": refused.code, "message": str(refused)})
