"""How fast an endpoint may be asked: learnt from what it refuses, and from what its headers say. No clock of its own.

While nothing was refused there is no rate. A refusal stops everybody as long as the server asks for, and sets the rate
to what it has accepted of late; from there it is felt for again, fast while far below what was refused, ever more
rarely once that was found to be the limit.
"""

from __future__ import annotations

import random
from collections import deque

FLOOR = 0.1  # calls per second: slower than that nobody is asked
LONGEST = 60.0  # seconds of a pause, whatever a server asks for
BACK_OFF = 0.25  # seconds of the first pause where it does not say; twice as long with each refusal in a row
SPAN = 2.0  # seconds over which is counted what was accepted
BELOW = 0.97  # of what was accepted: the rate after a refusal
STEP = 1.06  # of the rate that was refused: tried when that has not been tried for long enough
FIRST_REST = 4.0  # seconds before the refused rate is tried again; twice as long each time that it is refused again
LONGEST_REST = 120.0
_random = random.Random()


class Pace:
    """When the next call may start. Times are seconds of any clock, in order."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._next = 0.0
        self._paused_until = 0.0
        self._accepted: deque[float] = deque(maxlen=4096)  # when calls that were accepted had started
        self._cut = -1.0  # when the rate was lowered last
        self._limit: float | None = None  # the rate that was refused last
        self._rest = FIRST_REST
        self._in_a_row = 0
        self._grown = 0.0

    def delay(self, now: float) -> float:
        """Seconds until a call may start."""
        return max(0.0, self._paused_until - now, self._next - now)

    def start(self, now: float) -> None:
        """A call starts."""
        if self.rate is not None:
            self._next = max(self._next, now) + 1 / self.rate

    def accept(self, started: float, now: float) -> None:
        """A call that had started then was not refused."""
        self._accepted.append(started)
        if started > self._cut:
            self._in_a_row = 0
        if self.rate is not None and started > self._cut:
            self.rate = self._grown_rate(self.rate, now)

    def refuse(self, started: float, now: float, asked: float | None) -> None:
        """A call was refused; `asked` is how long the server wants to be left alone, if it says so."""
        if started <= self._cut:  # of the same wave
            if asked is not None:
                self.pause(now, asked)
            return
        pause = asked if asked is not None else BACK_OFF * 2 ** min(self._in_a_row, 10) * (0.75 + _random.random() / 2)
        self._in_a_row += 1
        accepted = self._measured(now)
        had = self.rate
        if had is None:
            self.rate = accepted
        else:
            if self._limit is not None and abs(had / self._limit - 1) < 0.15:
                self._rest = min(self._rest * 2, LONGEST_REST)
            else:
                self._rest = FIRST_REST
            self._limit = had
            self.rate = min(accepted, had) * BELOW
        self.rate = max(self.rate, FLOOR)
        self._cut = self._grown = now
        self.pause(now, pause)

    def pause(self, now: float, seconds: float) -> None:
        """Nobody starts for so long."""
        self._paused_until = max(self._paused_until, now + min(seconds, LONGEST))
        self._grown = max(self._grown, self._paused_until)

    def room(self, now: float, calls: float, per_second: float) -> None:
        """The endpoint says what it will still take."""
        if calls < 1:
            self._next = max(self._next, now + min(1 / max(per_second, FLOOR), LONGEST))

    def _measured(self, now: float) -> float:
        recent = [at for at in self._accepted if at > now - SPAN]
        if not recent:
            return (self.rate or FLOOR) / 2
        first = self._accepted[0]
        span = min(SPAN, max(1.0, now - first))
        return len(recent) / span

    def _grown_rate(self, rate: float, now: float) -> float:
        passed, self._grown = max(0.0, now - self._grown), max(now, self._grown)
        if self._limit is None:
            return rate * 3**passed
        if rate < self._limit * 0.9:
            return min(rate * 3**passed, self._limit * 0.95)
        return rate * 1.05**passed if now - self._cut > self._rest else rate
