"""Exponential backoff and the `Retry-After` header."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

__all__ = ["compute_backoff", "parse_retry_after"]

FIRST_BACKOFF = 0.25  # seconds
_DOUBLINGS = 64  # limit of the exponent, so that no float overflows after days of failures


def compute_backoff(attempt: int, first: float = FIRST_BACKOFF, longest: float = float("inf")) -> float:
    """Return the seconds to wait after a failed attempt. Attempts are counted from 0.

    The time doubles with each attempt, up to `longest`.
    """
    return min(first * 2.0 ** min(attempt, _DOUBLINGS), longest)


def parse_retry_after(retry_after: str | None) -> float | None:
    """Parse a `Retry-After` header: a number of seconds or an HTTP date.

    Return the seconds to wait, or None for an invalid value.
    """
    try:
        seconds = float(retry_after or "")
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(str(retry_after)).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None
