"""Counts of spans and feedback by what became of them: in this process so far, and during one flush."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from spanwise.tracer._locks import ExitLock


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What a flush achieved. True if every span and feedback handed in before it was acknowledged by the collector."""

    delivered: int = 0
    spilled: int = 0  # of this process, on disk now, to be sent when the collector is back
    dropped: int = 0
    pending: int = 0  # still queued when the time was up

    def __bool__(self) -> bool:
        return not (self.spilled or self.dropped or self.pending)


class Tally:
    """Counts of spans and feedbacks since the start of the process."""

    def __init__(self) -> None:
        self.delivered = self.spilled = 0
        self.dropped: Counter[str] = Counter()
        self._lock: Any = threading.RLock()

    def add(self, *, delivered: int = 0, spilled: int = 0, dropped: int = 0, reason: str = "") -> None:
        """Count some more."""
        with self._lock:
            self.delivered += delivered
            self.spilled += spilled
            if dropped:
                self.dropped[reason] += dropped

    @property
    def settled(self) -> int:
        """How many were counted; an item that was spooled counts again when it is sent from the spool."""
        return self.delivered + self.spilled + sum(tuple(self.dropped.values()))

    def bound_waits(self) -> None:
        """Wait for no lock for long from now on; see `ExitLock`."""
        self._lock = ExitLock(self._lock)
