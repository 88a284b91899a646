"""OTLP responses: success, partial success and errors, with HTTP status and gRPC code."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from spanwise.collector.ingest.ingest_errors import PermanentError, RetryableError
from spanwise.collector.ingest.otlp_signals import Signal
from spanwise.collector.ingest.request_decoder import DecodedRequest

PROTOBUF_TYPE, JSON_TYPE = b"application/x-protobuf", b"application/json"
# reason → (HTTP status, google.rpc.Code), where it differs from the default of the error class
ERROR_STATUSES = {
    "method": (405, 12),
    "too_large": (413, 8),
    "too_many": (413, 8),
    "content_type": (415, 3),
    "encoding": (415, 3),
    "overload": (429, 8),
    "decoding": (500, 13),
}
PERMANENT_STATUS, RETRYABLE_STATUS = (400, 3), (503, 14)


def error_status(refused: PermanentError | RetryableError) -> tuple[int, int]:
    """Return the HTTP status and the google.rpc.Code of an error."""
    return ERROR_STATUSES.get(
        refused.reason, RETRYABLE_STATUS if isinstance(refused, RetryableError) else PERMANENT_STATUS
    )


def retry_after_seconds(refused: PermanentError | RetryableError) -> int | None:
    """Return the whole seconds after which to retry; None if a retry cannot help."""
    return max(1, math.ceil(refused.retry_after)) if isinstance(refused, RetryableError) else None


def make_export_response(signal: Signal[Any], decoded: DecodedRequest[Any]) -> Message:
    """Return an export response; a partial success if items or side records were refused."""
    reason = decoded.reason
    partial = {signal.refused_field: decoded.refused_count, "error_message": reason} if reason else None
    return signal.response(partial_success=partial)


def make_error_response(refused: PermanentError | RetryableError) -> Message:
    """Return the error as a google.rpc.Status."""
    return Status(code=error_status(refused)[1], message=str(refused))


def encode_error(code: int, message: str) -> bytes:
    """Return a protobuf error by its google.rpc.Code, for requests that were refused before ingest."""
    body: bytes = Status(code=code, message=message).SerializeToString()
    return body


def encode_response(message: Message, content_type: bytes) -> bytes:
    """Return the response encoded as protobuf, or as JSON for every other content type."""
    body: bytes = message.SerializeToString()
    if content_type == PROTOBUF_TYPE or not body:
        return body if content_type == PROTOBUF_TYPE else b"{}"
    from google.protobuf.json_format import MessageToJson  # its import takes 12 ms, which would delay every start

    return str(MessageToJson(message, indent=None, ensure_ascii=False)).encode()
