"""Pacing: the rate in force is lowered so that a day's money lasts the day. Pure: times and sums are given."""

from __future__ import annotations

from collections import deque

from spanwise.collector.rules import LEAST_PACED

LOOK = 2.0  # seconds between two looks at what was spent
APART = 60.0  # seconds between two changes of the rate
WINDOW = 600.0  # seconds over which the speed of spending is measured
SMALL = 0.1  # changes below this part are not worth a line in the history
FASTER = 2.0  # the most that a rate rises in one change: what is spent follows with a delay
DAY = 86_400.0


class Pacer:
    """Of one rule. `factor` is what its rates are multiplied with, `LEAST_PACED` at the lowest: a burst must not end
    the scoring of a day. What is still too expensive then stops when the budget is used up.
    """

    def __init__(self, factor: float | None) -> None:
        self.factor = 1.0 if factor is None else factor
        self._seen: deque[tuple[float, float]] = deque()  # when, and what had been spent by then
        self._changed_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again."""
        return not self._seen or now >= self._seen[-1][0] + LOOK

    def look(self, now: float, spent: float, limit: float) -> float | None:
        """The factor from now on, if it changes. `now` is in seconds since 1970, UTC; `spent` is of this day."""
        if self._seen and spent < self._seen[-1][1] - 1e-9 and now // DAY != self._seen[-1][0] // DAY:
            self._seen.clear()  # a new day
        self._seen.append((now, spent))
        while now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        began, before = self._seen[0]
        if now - began < LOOK or (self._changed_at is not None and now < self._changed_at + APART):
            return None
        wanted = self._wanted((spent - before) / (now - began), max(0.0, limit - spent) / (DAY - now % DAY))
        if abs(wanted - self.factor) < SMALL * self.factor and not (wanted == 1.0 != self.factor):
            return None
        self.factor, self._changed_at = wanted, now
        self._seen = deque([(now, spent)])
        return wanted

    def _wanted(self, speed: float, allowed: float) -> float:
        """Both in dollars per second."""
        if speed <= 0:
            return min(1.0, FASTER * self.factor) if allowed > 0 else self.factor
        return max(LEAST_PACED, min(1.0, self.factor * FASTER, self.factor * allowed / speed))
