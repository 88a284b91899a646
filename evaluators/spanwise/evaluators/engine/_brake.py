"""When an experiment stops before its end: too many runs have failed, or they have cost too much."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from spanwise.evaluators.engine._plan import Done
from spanwise.evaluators.engine._settings import Settings


class Brake:
    """Looks at every run that is done; once `why` is set no new one begins, and those that run are let finish."""

    def __init__(self, settings: Settings, total: int | None, remark: Callable[[str], None]) -> None:
        """`total`: how many runs there are to do. Raises `ValueError` for a share of runs that nobody has counted."""
        self.why = ""
        self.raised: BaseException | None = None  # what a task raised, where it is to pass
        self._settings = settings
        self._remark = remark
        self._most, self._bound = _most(settings, total)
        self._lock = threading.Lock()
        self._failed = self._done = 0
        self._usd = 0.0
        self._watches = bool(self._most or settings.max_usd)

    def saw(self, done: Done) -> None:
        """Look at a run; called from any thread."""
        if not self._watches or done.item.trace is not None:  # no task ran for it
            return
        with self._lock:
            self._done += 1
            self._count_failures(done)
            if self._settings.max_usd is not None:
                self._count_cost(done, self._settings.max_usd)

    def _count_failures(self, done: Done) -> None:
        self._failed += done.error is not None
        self.raised = self.raised or done.raised
        if self._most is not None and self._failed >= self._most:
            self._stop(f"{self._failed} of {self._done} runs failed ({self._bound})")

    def _count_cost(self, done: Done, most: float) -> None:
        for run in done.runs:
            known = run.cost is not None and math.isfinite(run.cost)
            self._usd += max(0.0, run.cost or 0.0) if known else 0.0
            if not known and (run.model or run.usage):
                unknown = f"max_usd leaves out calls of {run.model or 'a model without a name'}: their price is unknown"
                self._remark(f"{unknown} (set_usage(cost=…) says it)")
        if self._usd >= most:
            self._stop(f"{self._done} runs have cost ${self._usd:,.4f} (max_usd={most!r})")

    def _stop(self, why: str) -> None:
        self.why = self.why or why


def _most(settings: Settings, total: int | None) -> tuple[int | None, str]:
    """How many failed runs are the end of it, and who says so."""
    if settings.raise_errors:
        return 1, "raise_errors"
    if settings.fail_fast:
        return 1, "fail_fast"
    most = settings.max_failures
    told = f"max_failures={most!r}"
    if most is None:
        return None, ""
    if isinstance(most, float):
        if total is None:
            raise ValueError(
                f"{told} is a share of a number of runs that nobody knows beforehand: say how many, as in 5"
            )
        return max(1, math.ceil(most * total)), told
    return most, told
