"""The rate at which an endpoint is asked, learnt from what it refuses. It has no clock of its own.

Calls start one interval apart. A refusal pauses all calls and makes the interval 1.25 times as long, a success makes it
0.98 times as long. Before the first refusal there is no interval; after it the interval is what the endpoint took.

Refusals of calls that had started before one is known are one refusal: those calls could not know better. Where nothing
was taken between two refusals, the pause was too short, and the interval stays.
"""

from __future__ import annotations

SLOWER, FASTER = 1.25, 0.98  # times the interval, after a refusal and after a success
LONGEST = 60.0  # seconds of a pause, whatever an endpoint asks for
BACK_OFF, LONGEST_BACK_OFF = 0.25, 5.0  # seconds where it does not say: twice as long with each refusal in a row
LONGEST_INTERVAL = 10.0  # seconds
BURST = 1.0  # seconds: what was taken in less than that says nothing of what is taken in one


class Pace:
    """When the next call may start. Times are seconds of any clock, in order."""

    def __init__(self) -> None:
        self.interval = 0.0
        self._next_start = 0.0
        self._paused_until = 0.0
        self._pause = 0.0  # seconds of the last one
        self._began: float | None = None
        self._started = 0
        self._refused = 0
        self._refused_at = -1.0
        self._refusals = 0  # with nothing taken between them
        self._is_measuring = False  # during the first refusals: how many calls of the first burst were taken

    def delay(self, now: float) -> float:
        """Return the seconds until a call may start."""
        return max(0.0, self._next_start - now, self._paused_until - now)

    def start(self, now: float) -> None:
        """Record that a call starts. One that starts late does not hold up the next one."""
        self._began = now if self._began is None else self._began
        self._started += 1
        self._next_start = max(self._next_start, now - self.interval) + self.interval

    def accept(self) -> None:
        """Record that a call was taken."""
        self.interval *= FASTER
        self._refusals = 0

    def refuse(self, started: float, now: float, asked: float | None) -> None:
        """Record that a call was refused; `asked` is how long the endpoint wants to be left alone, if it says so."""
        self._refused += 1
        if started > self._refused_at:
            self._is_measuring = self._refused == 1
            if not self._refusals:
                self.interval = min(self.interval * SLOWER, LONGEST_INTERVAL)
            back_off = min(BACK_OFF * 2.0 ** min(self._refusals, 10), LONGEST_BACK_OFF)
            self._pause_for(max(back_off, self.interval) if asked is None else asked, now)
            self._refusals += 1
            self._refused_at = now
        elif asked is not None and asked > 2 * self._pause:  # of another limit, such as that of a day
            self._pause_for(asked, now)
        if self._is_measuring and self._began is not None:
            taken = max(1, self._started - self._refused)
            self.interval = min(max(now - self._began, BURST) / taken, LONGEST_INTERVAL)

    def _pause_for(self, seconds: float, now: float) -> None:
        self._pause = seconds
        self._paused_until = max(self._paused_until, now + min(seconds, LONGEST))
