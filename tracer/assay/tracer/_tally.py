"""What has become of spans and feedback, counted: of a process so far, and by one flush."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


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
        self._lock = threading.RLock()
        self._here = threading.local()

    def add(
        self, *, delivered: int = 0, spilled: int = 0, dropped: int = 0, reason: str = "", earlier: bool = False
    ) -> None:
        """Count some more; `earlier` ones were counted before, as spilled."""
        if not earlier:
            self._here.settled = self.settled_here + delivered + spilled + dropped
        with self._lock:
            self.delivered += delivered
            self.spilled += spilled
            if dropped:
                self.dropped[reason] += dropped

    @property
    def settled(self) -> int:
        """How many were counted; what went to the disk first counts again when that is."""
        return self.delivered + self.spilled + sum(tuple(self.dropped.values()))

    def set_aside(self, count: int) -> None:
        """What this thread is to settle later counts as settled for now."""
        self._here.settled = self.settled_here + count

    @property
    def settled_here(self) -> int:
        """How many were counted by this thread."""
        return int(getattr(self._here, "settled", 0))
