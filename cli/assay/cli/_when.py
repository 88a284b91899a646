"""Moments and lengths of time, as people write and read them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
AGO = re.compile(r"(\d+)([smhdw])")


def moment(text: str) -> int:
    """Nanoseconds since 1970 of "90m", "2h", "7d" (that long ago) or of an ISO date or time (local unless it says).

    Raises `ValueError`.
    """
    if ago := AGO.fullmatch(text.strip()):
        return time.time_ns() - int(ago[1]) * SECONDS[ago[2]] * 10**9
    try:
        return int(datetime.fromisoformat(text).timestamp() * 10**9)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a length of time such as 2h or 7d nor a date such as 2026-01-31"
        ) from None


def shown(time_ns: int) -> str:
    """A moment in local time, to the second."""
    seconds = min(max(0, time_ns), 253_370_764_800 * 10**9) / 10**9  # up to the year 9999, the last one that has a date
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def length(duration_ns: int) -> str:
    """A length of time in the unit that suits it."""
    if duration_ns < 10**6:
        return f"{duration_ns / 1000:.0f} µs"
    return f"{duration_ns / 10**6:.0f} ms" if duration_ns < 10**10 else f"{duration_ns / 10**9:.1f} s"
