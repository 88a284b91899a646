"""Why a request, or a single item of one, was not kept; mapped to status codes here and nowhere else."""

from __future__ import annotations

import math

from assay.collector.errors import AssayError, Refused, Unavailable

# HTTP status → google.rpc.Code, as OTLP's error bodies carry it
CODES = {400: 3, 401: 16, 403: 7, 405: 12, 413: 8, 415: 3, 429: 8, 500: 13, 503: 14}
RETRYABLE = (429, 503)


class ItemRefused(AssayError, ValueError):
    """One span or log record cannot be kept; the others of the request can. `reason` is a short word for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RequestRefused(AssayError):
    """The request as a whole is answered with an error: `reason` is a short word for counters."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after = status, reason, retry_after

    @property
    def code(self) -> int:
        """The error's google.rpc.Code."""
        return CODES[self.status]

    @property
    def retry_after_seconds(self) -> int | None:
        """Whole seconds for the Retry-After header; None for an error that sending again does not mend."""
        return max(1, math.ceil(self.retry_after or 1)) if self.status in RETRYABLE else None


def from_store(error: Exception) -> RequestRefused:
    """The answer to what the store could not do: later, never, or a fault of ours that a later try may not meet."""
    if isinstance(error, Unavailable):
        return RequestRefused(503, "unavailable", str(error), error.retry_after)
    if isinstance(error, Refused):
        return RequestRefused(400, "refused", str(error))
    return RequestRefused(503, "internal", f"the collector failed: {error!r}", 5.0)
