"""Circuit breaker: pauses after repeated failures, refusals by a judge, or a used-up budget."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

FAILURE_THRESHOLD = 20  # consecutive failures until an evaluator is paused
MIN_PAUSE_S, MAX_PAUSE_S = 30.0, 600.0  # seconds of a pause, doubled after each failed probe
PROBE_TIMEOUT_S = 700.0  # seconds after which the run that probes an evaluator counts as lost
FIRST_BUDGET_PROBE_S, MAX_BUDGET_PROBE_S = (
    2.0,
    300.0,
)  # seconds between two probes of an empty budget, doubled while nothing is settled


@dataclass(slots=True)
class _FailureStreak:
    """Consecutive failures of an evaluator."""

    count: int = 0
    reason: str = ""
    until: float = 0.0
    pauses: int = 0
    probed: float | None = None  # start time of the run that probes the evaluator


class CircuitBreaker:
    """Circuit breaker of one rule. It is thread-safe. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[str, _FailureStreak] = {}
        self.refused_until = 0.0  # end of the pause that a judge's rate limit caused
        self.refusals = 0  # consecutive refusals
        self.money = BudgetBreaker()

    def failed(self, key: str, reason: str, now: float) -> None:
        """Count a failure of an evaluator."""
        with self._lock:
            run = self._failures.setdefault(key, _FailureStreak())
            run.count, run.reason, run.probed = run.count + 1, reason, None
            if run.count >= FAILURE_THRESHOLD and now >= run.until:
                run.until = now + min(MIN_PAUSE_S * 2.0**run.pauses, MAX_PAUSE_S)
                run.pauses += 1

    def succeeded(self, key: str) -> None:
        """Reset an evaluator's failures after an outcome."""
        with self._lock:
            self._failures.pop(key, None)
            self.refusals = 0

    def release_probe(self, key: str) -> None:
        """Let another run probe an evaluator, because this one ended without an outcome."""
        with self._lock:
            if key in self._failures:
                self._failures[key].probed = None

    def begin(self, key: str, now: float) -> bool:
        """Return whether an evaluator may run now. After a pause, one run probes it until that run has an outcome."""
        with self._lock:
            run = self._failures.get(key)
            if run is None or run.count < FAILURE_THRESHOLD:
                return True
            if now < run.until or (run.probed is not None and now < run.probed + PROBE_TIMEOUT_S):
                return False
            run.probed = now
            return True

    def is_probing(self, now: float) -> bool:
        """Return whether an evaluator's pause is over, so that one run at a time may probe it."""
        with self._lock:
            return any(run.count >= FAILURE_THRESHOLD and now >= run.until for run in self._failures.values())

    def refuse(self, seconds: float, now: float) -> None:
        """Send no judge calls for some seconds."""
        self.refusals += 1
        self.refused_until = max(self.refused_until, now + seconds)

    def paused(self, key: str, now: float) -> str | None:
        """Return the reason why an evaluator is paused now, or None."""
        run = self._failures.get(key)
        if run is None or now >= run.until:
            return None
        return f"{key!r} has failed {run.count} times in a row and is paused: {run.reason}"

    def until(self, key: str) -> float:
        """Return the time when an evaluator's pause ends."""
        run = self._failures.get(key)
        return run.until if run is not None else 0.0

    def all(self, now: float) -> dict[str, str]:
        """Return the paused evaluators with the reasons."""
        return {key: why for key in self._failures.copy() if (why := self.paused(key, now)) is not None}


class BudgetBreaker:
    """Circuit breaker for a rule's budget: when it is used up, single runs probe it.

    The wait doubles while no other call is settled. It ends with the budget's period, by the store's clock.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.until = 0.0
        self._budget: Mapping[str, float] | None = None  # the budget that was used up; None if calls are possible
        self._period_end_ns = 0
        self._wait = FIRST_BUDGET_PROBE_S
        self._settled = 0.0

    def refused(
        self, reason: str, *, settled: float, left: float, end_ns: int, budget: Mapping[str, float], now: float
    ) -> float:
        """Record that a call exceeded the budget, `left` seconds before the period's end. Return the seconds to wait."""
        if self._budget == budget and now < self.until:
            return self.until - now  # a run that had started before the refusal
        same = self._budget == budget and settled == self._settled
        self._wait = min(2 * self._wait, MAX_BUDGET_PROBE_S) if same else FIRST_BUDGET_PROBE_S
        self.reason, self.until, self._settled = reason, now + min(self._wait, left), settled
        self._budget, self._period_end_ns = dict(budget), end_ns
        return self.until - now

    def found(self) -> None:
        """Record that the budget had room for a call."""
        self._budget, self._wait = None, FIRST_BUDGET_PROBE_S

    def is_used_up(self, budget: Mapping[str, float], store_ns: int) -> bool:
        """Return whether the last call exceeded this budget, and its period has not ended."""
        return self._budget == budget and store_ns < self._period_end_ns
