"""Circuit breaker: pauses after repeated failures, refusals by a judge, or a used-up budget."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

FAILURE_THRESHOLD = 20  # in a row, after which an evaluator is paused
MIN_PAUSE_S, MAX_PAUSE_S = 30.0, 600.0  # seconds of a pause, twice as long each time that it is in vain
PROBE_TIMEOUT_S = 700.0  # seconds after which the run that probes an evaluator counts as lost
FIRST_BUDGET_PROBE_S, MAX_BUDGET_PROBE_S = (
    2.0,
    300.0,
)  # seconds between two probes of an empty budget, doubled while nothing is settled


@dataclass(slots=True)
class _FailureStreak:
    """Failures of an evaluator in a row."""

    count: int = 0
    reason: str = ""
    until: float = 0.0
    pauses: int = 0
    probed: float | None = None  # since when a run probes whether it works again


class CircuitBreaker:
    """Of one rule, from any thread. Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[str, _FailureStreak] = {}
        self.refused_until = 0.0  # a judge says that it gets too many calls
        self.refusals = 0  # in a row
        self.money = BudgetBreaker()

    def failed(self, key: str, reason: str, now: float) -> None:
        """Count a failure of an evaluator."""
        with self._lock:
            run = self._failures.setdefault(key, _FailureStreak())
            run.count, run.reason, run.probed = run.count + 1, reason, None
            if run.count >= FAILURE_THRESHOLD and now >= run.until:
                run.until = now + min(MIN_PAUSE_S * 2.0**run.pauses, MAX_PAUSE_S)
                run.pauses += 1

    def came(self, key: str) -> None:
        """Forget an evaluator's failures: it has come to an outcome."""
        with self._lock:
            self._failures.pop(key, None)
            self.refusals = 0

    def came_to_nothing(self, key: str) -> None:
        """Let another run probe an evaluator: this one ended without an outcome of it."""
        with self._lock:
            if key in self._failures:
                self._failures[key].probed = None

    def begin(self, key: str, now: float) -> bool:
        """Return whether an evaluator may run now. After a pause one run probes it, until it comes to an outcome."""
        with self._lock:
            run = self._failures.get(key)
            if run is None or run.count < FAILURE_THRESHOLD:
                return True
            if now < run.until or (run.probed is not None and now < run.probed + PROBE_TIMEOUT_S):
                return False
            run.probed = now
            return True

    def is_probing(self, now: float) -> bool:
        """Return whether the pause of some evaluator is over, and one run at a time is to probe it."""
        with self._lock:
            return any(run.count >= FAILURE_THRESHOLD and now >= run.until for run in self._failures.values())

    def refuse(self, seconds: float, now: float) -> None:
        """Ask a judge nothing for some seconds."""
        self.refusals += 1
        self.refused_until = max(self.refused_until, now + seconds)

    def paused(self, key: str, now: float) -> str | None:
        """Return why an evaluator is not asked now."""
        run = self._failures.get(key)
        if run is None or now >= run.until:
            return None
        return f"{key!r} has failed {run.count} times in a row and is paused: {run.reason}"

    def until(self, key: str) -> float:
        """Return when an evaluator may be asked again."""
        run = self._failures.get(key)
        return run.until if run is not None else 0.0

    def all(self, now: float) -> dict[str, str]:
        """Return why which evaluators are paused."""
        return {key: why for key in self._failures.copy() if (why := self.paused(key, now)) is not None}


class BudgetBreaker:
    """Whether a rule's budget is used up, and when one run probes it again.

    The wait doubles while others settle nothing. It ends with the period of the budget, by the store's clock.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.until = 0.0
        self._budget: Mapping[str, float] | None = None  # that was used up; None: there is money
        self._period_end_ns = 0
        self._wait = FIRST_BUDGET_PROBE_S
        self._settled = 0.0

    def refused(
        self, reason: str, *, settled: float, left: float, end_ns: int, budget: Mapping[str, float], now: float
    ) -> float:
        """Note that a call found no room, `left` seconds before the period's end; return the seconds to wait."""
        if self._budget == budget and now < self.until:
            return self.until - now  # a run that had begun before
        same = self._budget == budget and settled == self._settled
        self._wait = min(2 * self._wait, MAX_BUDGET_PROBE_S) if same else FIRST_BUDGET_PROBE_S
        self.reason, self.until, self._settled = reason, now + min(self._wait, left), settled
        self._budget, self._period_end_ns = dict(budget), end_ns
        return self.until - now

    def found(self) -> None:
        """Note that a call found room."""
        self._budget, self._wait = None, FIRST_BUDGET_PROBE_S

    def is_used_up(self, budget: Mapping[str, float], store_ns: int) -> bool:
        """Return whether the last call found no room in this budget, and its period goes on."""
        return self._budget == budget and store_ns < self._period_end_ns
