"""Why a request, or a single item of one, was not kept. What it is called on the wire is `_answer`'s matter."""

from __future__ import annotations

from spanwise.collector.errors import Closed, Refused, SpanwiseError, Unavailable


class ItemRefused(SpanwiseError, ValueError):
    """One span or log record cannot be kept; the others of the request can. `reason` is a short word for counters.

    `item` is what its sender had no right to bring, which goes nowhere else either.
    """

    def __init__(self, reason: str, message: str, item: object = None) -> None:
        super().__init__(message)
        self.reason, self.item = reason, item


class BesideRefused(ItemRefused):
    """Something that a span says beside its run cannot be kept; the span can."""


class Permanent(Refused):
    """A request that can never be kept as it stands. `reason` is a short word for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Retryable(Unavailable):
    """A request that may be kept when it is sent again, `retry_after` seconds later."""

    def __init__(self, reason: str, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.reason = reason


class Unparsed(Exception):
    """Of a request that seemed to be one: as a whole it cannot be parsed after all."""


RequestRefused = (Permanent, Retryable)  # all that taking in a request raises


def from_store(error: Exception) -> Permanent | Retryable:
    """What a store could not do: later, never, or a fault of ours that a later try may not meet."""
    if isinstance(error, Unavailable):
        return Retryable("unavailable", str(error), error.retry_after)
    if isinstance(error, Closed):  # this server is on its way out: the next one may keep it
        return Retryable("closed", str(error))
    if isinstance(error, Refused):
        return Permanent("refused", str(error))
    return Retryable("internal", f"the collector failed: {error!r}", 5.0)


def from_item(error: Exception) -> ItemRefused:
    """Why an item was not kept, also where the reason is a fault of ours."""
    return error if isinstance(error, ItemRefused) else ItemRefused("internal", f"the collector failed: {error!r:.200}")
