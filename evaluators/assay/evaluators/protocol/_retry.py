"""How long to wait before something is tried again: the one back-off of evaluators, tasks and stores."""

from __future__ import annotations

FIRST_PAUSE = 0.25  # seconds


def pause(attempt: int, first: float = FIRST_PAUSE, longest: float = float("inf")) -> float:
    """Seconds to wait after a failed attempt, counted from 0: twice as long each time, never more than `longest`."""
    return min(first * 2.0**attempt, longest)
