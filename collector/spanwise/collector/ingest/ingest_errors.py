"""Errors that refuse a request (permanent or retryable) or a single item of one."""

from __future__ import annotations

from spanwise.collector.errors import Closed, Refused, SpanwiseError, Unavailable


class ItemRefused(SpanwiseError, ValueError):
    """Refusal of one span or log record; the other items of the request are kept.

    The label `reason` is for metrics. If the sender had no permission for the item, `item` holds it, so that no other
    sink receives it either.
    """

    def __init__(self, reason: str, message: str, item: object = None) -> None:
        super().__init__(message)
        self.reason, self.item = reason, item


class SideRecordRefused(ItemRefused):
    """Refusal of a side record of a span; the span itself is kept."""


class PermanentError(Refused):
    """Refusal of a request that can never be accepted as it is. `reason` is a short label for metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RetryableError(Unavailable):
    """Refusal of a request that may be accepted when it is sent again after `retry_after` seconds."""

    def __init__(self, reason: str, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.reason = reason


class UnparsableRequest(Exception):
    """Internal signal: the fast path parsed a request that OTLP's own classes cannot parse as a whole."""


RequestRefused = (PermanentError, RetryableError)  # all errors that ingest raises


def classify_store_error(error: Exception) -> PermanentError | RetryableError:
    """Convert an error of the store to the error for the sender.

    An unexpected error is retryable, because it may not occur again.
    """
    if isinstance(error, Unavailable):
        return RetryableError("unavailable", str(error), error.retry_after)
    if isinstance(error, Closed):  # this server is shutting down; the next one may accept it
        return RetryableError("closed", str(error))
    if isinstance(error, Refused):
        return PermanentError("refused", str(error))
    return RetryableError("internal", f"the collector failed: {error!r}", 5.0)
