"""What one request, and all requests together, may cost."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what is taken in. Beyond `attributes`, `depth` or `value_bytes` a single span is refused, else all."""

    request_bytes: int = 32 * MIB  # of a body, as sent and as inflated
    pending_bytes: int = 96 * MIB  # of all bodies that are being read, decoded or written
    stall_seconds: float = 30.0  # for the next piece of a body that has begun: what is pending may hold up others
    spans: int = 50_000  # or log records, per request
    attributes: int = 10_000  # per span, event, link or resource
    depth: int = 32  # of lists and objects within an attribute
    value_bytes: int = 8 * MIB  # of one text or bytes within an attribute
