"""What OTLP answers: success, partial success, an error; in the request's own encoding, by HTTP or gRPC."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from spanwise.collector.intake._decoded import Decoded
from spanwise.collector.intake._errors import Permanent, Retryable
from spanwise.collector.intake._signal import Signal

PROTOBUF, JSON = b"application/x-protobuf", b"application/json"
# Reason → (HTTP status, google.rpc.Code), where it is not that of its kind
STATUSES = {
    "method": (405, 12),
    "too_large": (413, 8),
    "too_many": (413, 8),
    "content_type": (415, 3),
    "encoding": (415, 3),
    "overload": (429, 8),
    "decoding": (500, 13),
}
PERMANENT, RETRYABLE = (400, 3), (503, 14)


def status(refused: Permanent | Retryable) -> tuple[int, int]:
    """The HTTP status and the google.rpc.Code of an error."""
    return STATUSES.get(refused.reason, RETRYABLE if isinstance(refused, Retryable) else PERMANENT)


def retry_after(refused: Permanent | Retryable) -> int | None:
    """Whole seconds until it is worth sending again; None for an error that this does not mend."""
    return max(1, math.ceil(refused.retry_after)) if isinstance(refused, Retryable) else None


def success(signal: Signal[Any], decoded: Decoded[Any]) -> Message:
    """An export response; with partial success if single items were refused, or something of them was."""
    reason = decoded.reason
    partial = {signal.refused_field: decoded.refused_count, "error_message": reason} if reason else None
    return signal.response(partial_success=partial)


def error(refused: Permanent | Retryable) -> Message:
    """A google.rpc.Status."""
    return Status(code=status(refused)[1], message=str(refused))


def otlp_error(code: int, message: str) -> bytes:
    """An error in protobuf by its google.rpc.Code, for what never came as far as this."""
    told: bytes = Status(code=code, message=message).SerializeToString()
    return told


def encoded(message: Message, content_type: bytes) -> bytes:
    """An answer in protobuf, or in JSON for everything else."""
    body: bytes = message.SerializeToString()
    if content_type == PROTOBUF or not body:
        return body if content_type == PROTOBUF else b"{}"
    from google.protobuf.json_format import MessageToJson  # 12 ms that no start should cost

    return str(MessageToJson(message, indent=None, ensure_ascii=False)).encode()
