"""Exponential backoff and the `Retry-After` header."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

__all__ = ["compute_backoff", "parse_retry_after"]

FIRST_BACKOFF = 0.25  # seconds
_DOUBLINGS = 64  # no float overflows with them, whatever goes on failing for days


def compute_backoff(attempt: int, first: float = FIRST_BACKOFF, longest: float = float("inf")) -> float:
    """Seconds to wait after a failed attempt, counted from 0: twice as long each time, never more than `longest`."""
    return min(first * 2.0 ** min(attempt, _DOUBLINGS), longest)


def parse_retry_after(retry_after: str | None) -> float | None:
    """Seconds to wait by the value of a header `Retry-After`, a number or an HTTP date; None for anything else."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return _parse_http_date(str(retry_after))
    return max(0.0, seconds) if seconds == seconds else None


def _parse_http_date(date: str) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
