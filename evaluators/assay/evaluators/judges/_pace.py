"""How fast an endpoint may be asked: learnt from what it refuses and from what its headers say. No clock of its own.

While nothing was refused there is no rate. From the first refusal on calls are let out of a bucket of tokens, whose rate
and size are what the endpoint took before it refused: some count over a window and take many at once, some take hardly
two at once. A refusal stops everybody for as long as the endpoint asks for; what has run into the bucket meanwhile is made
up for. The rate that was refused is tried again after a rest, which doubles each time that it is refused again.
"""

from __future__ import annotations

import random
from collections import deque

FLOOR = 0.1  # calls per second: slower than that nobody is asked
LONGEST = 60.0  # seconds of a pause, whatever an endpoint asks for
BACK_OFF, LONGEST_BACK_OFF = 0.25, 5.0  # seconds where it does not say: twice as long with each refusal in a row
BELOW = 0.95  # of what was taken: the rate after a refusal
GROWTH, FASTEST = 0.1, 2.0  # per second at first, twice as fast with each second without a refusal; and at most
STEADY = 2.0  # seconds over which a rate is told well, and
G_SMALL, G_LARGE, G_BURST = 5.0, 1.0, 0.0
MD, LEAST, BURSTY = 0.93, 0.6, 0.95
YOUNG = 4.0
GREW = 0.5
SHORTEST = 0.5  # at all
FIRST_REST, REST, LONGEST_REST = 1.0, 30.0, 300.0  # seconds before a rate that was told well is exceeded
_random = random.Random()  # our own: an application that seeds `random` gets its sequence


class Pace:
    """When the next call may start. Times are seconds of any clock, in order."""

    def __init__(self) -> None:
        self.rate: float | None = None  # tokens per second, one for each call; None: nothing is known
        self.size = 1.0  # of the bucket
        self._tokens = 0.0
        self._at = 0.0  # when the tokens were counted
        self._until = 0.0  # of the pause
        self._refused_at = -1.0
        self._in_a_row = 0  # refusals with nothing taken between
        self._probe = False  # a single call is under way, to see whether the pause was long enough
        self._since: float | None = None  # when the calls began of which it is counted how many are taken
        self._taken: deque[float] = deque(maxlen=10_000)  # when calls that were taken had started
        self._found = 0.0  # what the endpoint seemed to take when it refused last
        self._rest = 0.0
        self._growing = 0.0  # seconds

    def delay(self, now: float) -> float:
        """Seconds until a call may start."""
        if self.rate is None or now < self._until:
            return max(0.0, self._until - now)
        if self._in_a_row > 1:
            return LONGEST if self._probe else 0.0
        self._fill(now)
        return 0.0 if self._tokens >= 1 - 1e-6 else (1 - self._tokens) / self.rate

    def start(self, now: float) -> None:
        """A call starts."""
        if self._since is None:
            self._since = now
        self._probe = self._in_a_row > 1
        self._tokens -= 1

    def accept(self, started: float, now: float) -> None:
        """A call that had started then was taken."""
        self._probe = False
        self._taken.append(started)
        if started > self._refused_at:
            self._in_a_row = 0

    def end(self) -> None:
        """A call came to neither."""
        self._probe = False

    def refuse(self, started: float, now: float, asked: float | None) -> None:
        """A call was refused; `asked` is how long the endpoint wants to be left alone, if it says so."""
        self._probe = False
        if started > self._refused_at:
            pause = self._back_off() if asked is None else asked
            self._in_a_row += 1
            self._learn(started, now, pause)
            self._refused_at = now
            self.pause(now, pause)
        elif asked is not None:  # of the same wave
            self.pause(now, asked)

    def pause(self, now: float, seconds: float) -> None:
        """Nobody starts for so long."""
        self._until = max(self._until, now + min(seconds, LONGEST))

    def room(self, now: float, calls: float, per_second: float) -> None:
        """The endpoint says what it will still take."""
        if calls < 1:
            self.pause(now, min(1 / max(per_second, FLOOR), LONGEST))

    def _back_off(self) -> float:
        return min(BACK_OFF * 2.0 ** min(self._in_a_row, 10), LONGEST_BACK_OFF) * (0.75 + _random.random() / 2)

    def _fill(self, now: float) -> None:
        """Let run in what the time since then has brought, and let the rate grow."""
        assert self.rate is not None
        passed, self._at = max(0.0, now - self._at), max(now, self._at)
        self._tokens = min(self.size, self._tokens + passed * self.rate)
        if self._in_a_row == 0:
            self._grow(self.rate, min(passed, now - self._until), now)

    def _grow(self, rate: float, passed: float, now: float) -> None:
        if now - self._refused_at < self._rest:
            self._growing = 0.0
            return
        self._growing += passed
        self.rate = rate * (1 + min(GROWTH * 2.0 ** min(self._growing, 10), FASTEST)) ** passed

    def _learn(self, started: float, now: float, pause: float) -> None:
        """Set rate and size to what was taken since the last refusal."""
        since = started if self._since is None else self._since
        taken = sum(since <= at <= started for at in self._taken)
        if not taken:
            self.rate = self.rate or 1 / LONGEST_BACK_OFF
            return
        active = started - since
        had = self.rate
        if had is None:
            self.size = float(taken)
            self.rate = taken / max(now - since + pause, 1.0)
            self._growing = G_SMALL if taken < 10 else G_LARGE
            self._rest = 0.0
        elif self.size > 1 and active < 2 * self.size / had:
            self.size = 1.0
            self.rate = had * BURSTY
            self._growing = G_BURST
            self._rest = 0.0
        else:
            last = started - (now - started) / 2
            spans = [span for span in (1.0, 2.0, min(active, 1.0)) if SHORTEST <= span <= active]
            found = max((self._count(last - span, last) / span for span in spans), default=0.0)
            if active < YOUNG:
                found = min(MD * had, max((GREW if self._growing > 0 else LEAST) * had, found * BELOW))
            else:
                found = min(had, found) * BELOW
            again = self._found and abs(found / self._found - 1) < 0.15
            self._rest = min(max(self._rest * 2, REST), LONGEST_REST) if again else FIRST_REST
            self._found = found
            self._growing = 0.0
            self.rate = found
        self.rate = max(FLOOR, self.rate)
        self._tokens = 0.0
        self._at = now
        self._since = None

    def _count(self, since: float, until: float) -> int:
        return sum(since <= at <= until for at in self._taken)
