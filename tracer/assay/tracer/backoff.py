"""How long to wait before something is tried again: the one back-off of deliveries, evaluators, tasks and stores."""

from __future__ import annotations

__all__ = ["pause"]

FIRST_PAUSE = 0.25  # seconds
_DOUBLINGS = 64  # no float overflows with them, whatever goes on failing for days


def pause(attempt: int, first: float = FIRST_PAUSE, longest: float = float("inf")) -> float:
    """Seconds to wait after a failed attempt, counted from 0: twice as long each time, never more than `longest`."""
    return min(first * 2.0 ** min(attempt, _DOUBLINGS), longest)
