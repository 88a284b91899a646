"""Circuit breaker: pauses after repeated failures, refusals by a judge, or an exhausted budget."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

FAILURE_THRESHOLD = 20  # consecutive failures until an evaluator is paused
# seconds of the first pause and of the longest one; doubled after each failed probe
MIN_PAUSE_S, MAX_PAUSE_S = 30.0, 600.0
PROBE_TIMEOUT_S = 700.0  # seconds after which a probing run counts as lost
# initial and maximum seconds between two probes of an exhausted budget; doubled as long as no call is settled
FIRST_BUDGET_PROBE_S, MAX_BUDGET_PROBE_S = 2.0, 300.0


@dataclass(slots=True)
class _FailureStreak:
    """Consecutive failures of an evaluator."""

    count: int = 0
    reason: str = ""
    until: float = 0.0
    pauses: int = 0
    probed: float | None = None  # start time of the run that probes the evaluator; None if there is none


class CircuitBreaker:
    """Circuit breaker of one rule. It is thread-safe. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streaks: dict[str, _FailureStreak] = {}
        self.refused_until = 0.0  # end of the pause that a judge's rate limit caused
        self.refusals = 0  # number of consecutive refusals
        self.budget = BudgetBreaker()

    def failed(self, key: str, reason: str, now: float) -> None:
        """Count a failure of an evaluator."""
        with self._lock:
            streak = self._streaks.setdefault(key, _FailureStreak())
            streak.count, streak.reason, streak.probed = streak.count + 1, reason, None
            if streak.count >= FAILURE_THRESHOLD and now >= streak.until:
                streak.until = now + min(MIN_PAUSE_S * 2.0**streak.pauses, MAX_PAUSE_S)
                streak.pauses += 1

    def succeeded(self, key: str) -> None:
        """Reset the failure count of an evaluator that has given an outcome."""
        with self._lock:
            self._streaks.pop(key, None)
            self.refusals = 0

    def release_probe(self, key: str) -> None:
        """Let another run probe an evaluator, because the run that probed it ended without an outcome."""
        with self._lock:
            if key in self._streaks:
                self._streaks[key].probed = None

    def begin(self, key: str, now: float) -> bool:
        """Return whether an evaluator may run now.

        After a pause, only one run may start, as a probe, until that run has an outcome.
        """
        with self._lock:
            streak = self._streaks.get(key)
            if streak is None or streak.count < FAILURE_THRESHOLD:
                return True
            if now < streak.until or (streak.probed is not None and now < streak.probed + PROBE_TIMEOUT_S):
                return False
            streak.probed = now
            return True

    def is_probing(self, now: float) -> bool:
        """Return whether an evaluator's pause is over and not yet confirmed, so that one run at a time may probe it."""
        with self._lock:
            return any(streak.count >= FAILURE_THRESHOLD and now >= streak.until for streak in self._streaks.values())

    def refuse(self, seconds: float, now: float) -> None:
        """Record that a judge's rate limit was reached. No judge call is sent for `seconds`."""
        self.refusals += 1
        self.refused_until = max(self.refused_until, now + seconds)

    def paused(self, key: str, now: float) -> str | None:
        """Return the reason why an evaluator is paused now, or None."""
        streak = self._streaks.get(key)
        if streak is None or now >= streak.until:
            return None
        return f"{key!r} has failed {streak.count} times in a row and is paused: {streak.reason}"

    def paused_until(self, key: str) -> float:
        """Return the time when an evaluator's pause ends."""
        streak = self._streaks.get(key)
        return streak.until if streak is not None else 0.0

    def list_paused(self, now: float) -> dict[str, str]:
        """Return the paused evaluators, each with the reason."""
        return {key: why for key in self._streaks.copy() if (why := self.paused(key, now)) is not None}


class BudgetBreaker:
    """Circuit breaker for a rule's budget. When the budget is exhausted, it lets single runs probe whether calls are
    possible again.

    The wait between two probes doubles while no other call is settled. At the latest it ends with the budget's
    period, measured by the store's clock.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.until = 0.0
        self._budget: Mapping[str, float] | None = None  # the exhausted budget; None if calls are possible
        self._period_end_ns = 0
        self._wait = FIRST_BUDGET_PROBE_S
        self._settled = 0.0

    def refused(
        self, reason: str, *, settled: float, left: float, end_ns: int, budget: Mapping[str, float], now: float
    ) -> float:
        """Record that a call exceeded the budget, `left` seconds before the end of its period. Return the seconds to
        wait.
        """
        if self._budget == budget and now < self.until:
            return self.until - now  # the refused call is from a run that started before the first refusal
        same = self._budget == budget and settled == self._settled
        self._wait = min(2 * self._wait, MAX_BUDGET_PROBE_S) if same else FIRST_BUDGET_PROBE_S
        self.reason, self.until, self._settled = reason, now + min(self._wait, left), settled
        self._budget, self._period_end_ns = dict(budget), end_ns
        return self.until - now

    def succeeded(self) -> None:
        """Record that the budget sufficed for a call."""
        self._budget, self._wait = None, FIRST_BUDGET_PROBE_S

    def is_used_up(self, budget: Mapping[str, float], store_ns: int) -> bool:
        """Return whether the last call exceeded this budget, and the budget's period has not ended yet."""
        return self._budget == budget and store_ns < self._period_end_ns
