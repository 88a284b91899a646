"""How fast an endpoint may be asked: learnt from what it refuses and from what its headers say. No clock of its own.

While nothing was refused there is no rate. From the first refusal on, calls are let out of a bucket of tokens, whose
rate and size are what the endpoint took before it refused: some count over a window and take many at once, some take
hardly two. A refusal stops everybody for as long as the endpoint asks for. After it the rate is what was measured, less
a little; it grows again, slowly at first, and stands still for long once the same rate was found twice.

The figures were chosen by simulating endpoints that allow 20 calls a second: buckets of 2, 5, 20 and 100 tokens, fixed
and sliding windows, with Retry-After and without, at latencies from 20 to 300 ms.
"""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

FLOOR = 0.1  # calls per second: slower than that nobody is asked
LONGEST = 60.0  # seconds of a pause, whatever an endpoint asks for
BACK_OFF, LONGEST_BACK_OFF = 0.25, 5.0  # seconds where it does not say: twice as long with each refusal in a row
BELOW = 0.95  # of the rate that was measured: the rate after a refusal
GROWTH, FASTEST = 0.1, 2.0  # of the rate per second: at first, twice as much with each second; and at most
FEW = 10  # calls that were taken at once say little about a rate: it grows fast from there
SHORTEST, YOUNG = 0.5, 4.0  # seconds: less tells no rate; less tells none that is to be trusted without bounds
REST, LONGEST_REST = 30.0, 300.0  # seconds before a rate that was found twice is exceeded
ALIKE = 0.15  # of a rate
_random = random.Random()  # our own: an application that seeds `random` gets its sequence


class Room(NamedTuple):
    """How many calls an endpoint will still take, and the seconds that it takes for room for another."""

    calls: float
    wait: float


class Pace:
    """When the next call may start. Times are seconds of any clock, in order."""

    def __init__(self, chance: random.Random = _random) -> None:
        self._chance = chance
        self.rate: float | None = None  # tokens per second, one for each call; None: nothing is known
        self._size = 1.0  # of the bucket
        self._tokens = 0.0
        self._at = 0.0  # when the tokens were counted
        self._paused_until = 0.0
        self._refused_at = -1.0
        self._refusals = 0  # with nothing taken between
        self._probing = False  # one call at a time, to see whether the pause was long enough
        self._probe = False  # that one is under way
        self._since: float | None = None  # when the calls began of which it is counted how many are taken
        self._taken: deque[float] = deque(maxlen=10_000)  # when calls that were taken had started
        self._found = 0.0  # the rate that was measured last
        self._rest = 1.0  # seconds after a refusal in which the rate stays as it is
        self._growing = 0.0  # seconds
        self._calls = 0  # started so far
        self._told: Room | None = None  # what the endpoint said last, as things stood
        self._told_at = 0.0  # then
        self._told_of = 0  # to the call of that number

    def delay(self, now: float) -> float:
        """Seconds until a call may start."""
        if now < self._paused_until:
            return self._paused_until - now
        if self._probing:
            return LONGEST if self._probe else 0.0
        if self.rate is None:
            return self._without_room(now)
        self._fill(self.rate, now)
        by_rate = 0.0 if self._tokens >= 1 - 1e-6 else (1 - self._tokens) / self.rate
        return max(by_rate, self._without_room(now))

    def start(self, now: float) -> int:
        """A call starts; its number."""
        self._since = now if self._since is None else self._since
        self._probe = self._probing
        self._tokens -= 1
        self._calls += 1
        return self._calls

    def accept(self, started: float) -> None:
        """A call that had started then was taken."""
        self._taken.append(started)
        if started > self._refused_at:
            self._refusals, self._probing = 0, False

    def end(self) -> None:
        """A call is over, whatever came of it."""
        self._probe = False

    def refuse(self, started: float, now: float, asked: float | None) -> None:
        """A call was refused; `asked` is how long the endpoint wants to be left alone, if it says so."""
        if started <= self._refused_at:  # of a wave that is known
            self.pause(now, asked or 0.0)
            return
        pause = self._back_off() if asked is None else asked
        self._refusals += 1
        since = started if self._since is None else self._since
        taken = self._count(since, started)
        if taken:
            self._learn(taken, since, started, now, pause)
            self._tokens, self._at, self._since = 0.0, now, None
        else:
            self._probing = True
        self._refused_at = now
        self.pause(now, pause)

    def pause(self, now: float, seconds: float) -> None:
        """Nobody starts for so long."""
        self._paused_until = max(self._paused_until, now + min(seconds, LONGEST))

    def tell(self, room: Room, call: int, now: float) -> None:
        """What the endpoint says in its reply to a call: of calls that started after that one it knows nothing."""
        if call > self._told_of:
            self._told, self._told_at, self._told_of = room, now, call

    def _without_room(self, now: float) -> float:
        """Seconds until there is room, from what was told, calls since then, and what is given back meanwhile."""
        if self._told is None:
            return 0.0
        wait = max(self._told.wait, 1e-3)
        missing = 1 - (self._told.calls - (self._calls - self._told_of) + (now - self._told_at) / wait)
        return min(missing * wait, LONGEST) if missing > 1e-6 else 0.0

    def _back_off(self) -> float:
        return min(BACK_OFF * 2.0 ** min(self._refusals, 10), LONGEST_BACK_OFF) * (0.75 + self._chance.random() / 2)

    def _fill(self, rate: float, now: float) -> None:
        """Let run in what the time since then has brought, and let the rate grow."""
        passed, self._at = max(0.0, now - self._at), max(now, self._at)
        self._tokens = min(self._size, self._tokens + passed * rate)
        if now - self._refused_at < self._rest:
            self._growing = 0.0 if self._rest else self._growing
        else:
            open_for = min(passed, now - self._paused_until)
            self._growing += open_for
            self.rate = rate * (1 + min(GROWTH * 2.0 ** min(self._growing, 10), FASTEST)) ** open_for

    def _learn(self, taken: int, since: float, started: float, now: float, pause: float) -> None:
        """Set rate and size to what was taken since the refusal before."""
        had, lasted = self.rate, started - since
        if had is None:  # all at once
            self._size = float(taken)
            self.rate = taken / max(now - since + pause, 1.0)
            self._growing, self._rest = 5.0 if taken < FEW else 1.0, 0.0
        elif self._size > 1 and lasted < 2 * self._size / had:  # right after as many at once as the pause had brought
            self._size = 1.0
            self.rate = had * BELOW
            self._growing, self._rest = 0.0, 0.0
        else:
            found = self._measured(lasted, started, now) * BELOW
            least = 0.5 if self._growing > 0 else 0.6
            self.rate = min(0.93 * had, max(least * had, found)) if lasted < YOUNG else min(had * BELOW, found)
            alike = self._found > 0 and abs(self.rate / self._found - 1) < ALIKE
            self._rest = min(max(self._rest * 2, REST), LONGEST_REST) if alike else 1.0
            self._growing, self._found = 0.0, self.rate
        self.rate = max(FLOOR, self.rate)

    def _measured(self, lasted: float, started: float, now: float) -> float:
        """Calls per second that were taken of late; of those that started right before, some have no reply yet."""
        end = started - (now - started) / 2
        spans = [span for span in (1.0, 2.0, min(lasted, 1.0)) if SHORTEST <= span <= lasted]
        return max((self._count(end - span, end) / span for span in spans), default=0.0)

    def _count(self, since: float, until: float) -> int:
        return sum(since <= at <= until for at in self._taken)
