"""Moments and lengths of time, as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def shown(time_ns: int) -> str:
    """A moment in local time, to the second."""
    seconds = min(max(0, time_ns), 253_370_764_800 * 10**9) / 10**9  # up to the year 9999, the last one that has a date
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def length(duration_ns: int) -> str:
    """A length of time in the unit that suits it."""
    if duration_ns < 10**6:
        return f"{duration_ns / 1000:.0f} µs"
    return f"{duration_ns / 10**6:.0f} ms" if duration_ns < 10**10 else f"{duration_ns / 10**9:.1f} s"
