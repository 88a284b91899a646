"""What is not to be asked for a while: rules whose judge refuses more, evaluators that fail all the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FAILURES = 20  # in a row, after which an evaluator is paused
SHORTEST, LONGEST = 30.0, 600.0  # seconds of a pause, twice as long each time that it is in vain


@dataclass(slots=True)
class _Run:
    """Failures in a row."""

    failures: int = 0
    reason: str = ""
    until: float = 0.0
    seconds: float = SHORTEST


class Pauses:
    """Of one rule. Times are seconds of any clock, in order."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self.refused_until = 0.0  # a judge says that it gets too much
        self.refusals = 0  # in a row
        self.no_money_until = 0.0
        self.no_money = ""
        self.no_money_budget: Mapping[str, float] = {}  # for which that holds

    def failed(self, key: str, reason: str, now: float) -> None:
        """An evaluator has failed."""
        run = self._runs.setdefault(key, _Run())
        run.failures += 1
        run.reason = reason
        if run.failures >= FAILURES and now >= run.until:
            run.until = now + run.seconds
            run.seconds = min(2 * run.seconds, LONGEST)

    def came(self, key: str) -> None:
        """An evaluator has come to an outcome."""
        self._runs.pop(key, None)
        self.refusals = 0

    def refuse(self, seconds: float, now: float) -> None:
        """A judge wants to be left in peace."""
        self.refusals += 1
        self.refused_until = max(self.refused_until, now + seconds)

    def spent(self, why: str, seconds: float, budget: Mapping[str, float], now: float) -> None:
        """There is no money until then."""
        self.no_money, self.no_money_until, self.no_money_budget = why, now + seconds, budget

    def paused(self, key: str, now: float) -> str | None:
        """Why an evaluator is not asked now."""
        run = self._runs.get(key)
        if run is None or now >= run.until:
            return None
        return f"{key!r} has failed {run.failures} times in a row and is paused: {run.reason}"

    def until(self, key: str) -> float:
        """When an evaluator may be asked again."""
        run = self._runs.get(key)
        return run.until if run is not None else 0.0

    def all(self, now: float) -> dict[str, str]:
        """Why which evaluators are paused."""
        return {key: why for key in self._runs if (why := self.paused(key, now)) is not None}
