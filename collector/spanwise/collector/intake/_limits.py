"""What one request, and all requests together, may cost."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.collector.intake._errors import Permanent

MIB = 1024 * 1024
MOST_TOKENS, MOST_MONEY = 2**53, 1e12  # beyond which sums are no longer exact, and nobody's bill is
GROUPS = 10_000  # by resource, and by scope, of one request: each costs about as much as a span


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what is taken in. Beyond `attributes`, `depth` or `value_bytes` a single span is refused, else all."""

    request_bytes: int = 32 * MIB  # of a body, as sent and as inflated
    pending_bytes: int = 48 * MIB  # of all bodies, OTLP's and the API's, that are read, decoded or written
    stall_seconds: float = 30.0  # for the next piece of a body that has begun: what is pending may hold up others
    decode_seconds: float = 15.0  # of CPU for one body in a process of its own, which then ends
    spans: int = 50_000  # or log records, per request
    values: int = 500_000  # attributes, elements of lists and maps, events, links: of all spans of a request together
    attributes: int = 10_000  # per span, event, link or resource
    depth: int = 32  # of lists and objects within an attribute
    value_bytes: int = 8 * MIB  # of one text or bytes within an attribute


class Allowance:
    """The limits of one request, and what it has used of them: two bytes on the wire can become a hundred here."""

    __slots__ = ("attributes", "depth", "limits", "used", "value_bytes", "values")

    def __init__(self, limits: Limits) -> None:
        self.limits, self.used, self.values = limits, 0, limits.values
        self.attributes, self.depth, self.value_bytes = limits.attributes, limits.depth, limits.value_bytes

    def use(self, values: int) -> None:
        """Count values. Raises `Permanent` beyond what a request may hold."""
        self.used += values
        if self.used > self.values:
            raise Permanent("too_many", f"more than {self.values:,} values in one request: send less")
