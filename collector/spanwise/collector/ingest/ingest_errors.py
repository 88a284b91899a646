"""Errors that refuse a request (permanent or retryable) or a single item of one."""

from __future__ import annotations

from spanwise.collector.errors import Closed, Refused, SpanwiseError, Unavailable


class ItemRefused(SpanwiseError, ValueError):
    """One span or log record cannot be kept; the others of the request can. `reason` is a short word for counters.

    `item` is what its sender had no right to bring, which goes nowhere else either.
    """

    def __init__(self, reason: str, message: str, item: object = None) -> None:
        super().__init__(message)
        self.reason, self.item = reason, item


class SideRecordRefused(ItemRefused):
    """Something that a span says beside its run cannot be kept; the span can."""


class PermanentError(Refused):
    """A request that can never be kept as it stands. `reason` is a short word for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RetryableError(Unavailable):
    """A request that may be kept when it is sent again, `retry_after` seconds later."""

    def __init__(self, reason: str, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.reason = reason


class UnparsableRequest(Exception):
    """Of a request that seemed to be one: as a whole it cannot be parsed after all."""


RequestRefused = (PermanentError, RetryableError)  # all that taking in a request raises


def classify_store_error(error: Exception) -> PermanentError | RetryableError:
    """What a store could not do: later, never, or a fault of ours that a later try may not meet."""
    if isinstance(error, Unavailable):
        return RetryableError("unavailable", str(error), error.retry_after)
    if isinstance(error, Closed):  # this server is on its way out: the next one may keep it
        return RetryableError("closed", str(error))
    if isinstance(error, Refused):
        return PermanentError("refused", str(error))
    return RetryableError("internal", f"the collector failed: {error!r}", 5.0)


def classify_item_error(error: Exception) -> ItemRefused:
    """Why an item was not kept, also where the reason is a fault of ours."""
    return error if isinstance(error, ItemRefused) else ItemRefused("internal", f"the collector failed: {error!r:.200}")
