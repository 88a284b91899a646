"""Plan of an experiment: its planned and finished runs, and the conditions that stop it early."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from spanwise.collector.records import Case, Example, Feedback, Run, Target, Trace
from spanwise.evaluators.experiments.experiment_settings import ExperimentSettings
from spanwise.evaluators.experiments.run_fixture import RunFixture
from spanwise.evaluators.experiments.task_call import AbandonedTasks, TaskFunction, ValueCopier
from spanwise.evaluators.interface import Evaluator

MAX_REMARKS = 20
_USD_TOLERANCE = 1e-9  # rounding error of sums of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """Plan of one experiment: its task, evaluators and settings."""

    experiment_id: str
    name: str
    task: TaskFunction | None
    evaluators: tuple[Evaluator, ...]
    settings: ExperimentSettings
    kind: str = "kv"
    keep_examples: bool = False  # store examples with the runs, because no stored dataset has them
    # remarks to be shown below the summary table, without repetitions
    remarks: dict[str, None] = field(default_factory=dict)
    fixture: RunFixture | None = None  # set-up and tear-down around each attempt of the task
    teardown_failures: list[str] = field(default_factory=list)  # one text for each failed tear-down
    abandoned: AbandonedTasks = field(default_factory=AbandonedTasks)  # tasks that continued to run after their timeout

    def remark(self, text: str) -> None:
        """Add a remark to be shown below the summary table. Repetitions are ignored; at most `MAX_REMARKS` are kept."""
        if len(self.remarks) < MAX_REMARKS:
            self.remarks[text] = None

    @property
    def copies(self) -> ValueCopier:
        """Return the copier that makes a separate copy of the inputs for each attempt."""
        return ValueCopier(self.remark)

    def seed_of(self, example: Example, repetition: int) -> int | None:
        """Return the random seed for one run, derived from the experiment's seed; None if the experiment has none.

        It depends only on that seed, the example and the repetition, so every experiment gets the same one.
        """
        if self.settings.seed is None:
            return None
        digest = hashlib.sha256(f"{self.settings.seed}|{example.id}|{repetition}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


@dataclass(slots=True)
class PlannedRun:
    """Planned run: one example in one repetition. `slot` is its position in the results.

    With `trace` the task is not run, because the run exists already; `evaluators` still have to score it. `stored`
    means that the trace is in the store under this experiment. `replaces` holds the trace ids of earlier failed runs
    that this run replaces. `errors` holds the ids of error feedback from evaluators that run again.
    """

    slot: int
    example: Example
    repetition: int = 0
    trace: Trace | None = None
    evaluators: tuple[Evaluator, ...] | None = None
    stored: bool = False
    known: tuple[Feedback, ...] = ()  # earlier feedback on the trace; it is not stored again
    replaces: Sequence[str] = ()
    errors: Sequence[str] = ()


@dataclass(slots=True)
class FinishedRun:
    """Finished run before it is stored: its spans, the case that evaluators receive, and their feedback."""

    item: PlannedRun
    case: Case
    target: Target
    runs: Sequence[Run]
    feedback: list[Feedback] = field(default_factory=list)
    open_spans: int = 0
    raised: BaseException | None = None  # error of the task, for `evaluate()` to raise

    @property
    def trace(self) -> Trace:
        """Return its trace."""
        if self.case.trace is None:
            raise ValueError("a run without a trace")  # unreachable: every case here has a trace
        return self.case.trace

    @property
    def error(self) -> str | None:
        """Return the error of the task, or None."""
        root = self.trace.root
        return root.error or "error" if root.status == "error" else None


class StopConditions:
    """Stop conditions, checked after every finished run.

    Once a condition is met, `reason` names it and no new run starts. Running ones finish.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        total: int | None,
        remark: Callable[[str], None],
        spent_usd: float = 0.0,
    ) -> None:
        """Set the conditions for an experiment of `total` runs (None: unknown).

        `spent_usd` is the cost of the tasks in earlier parts of a resumed experiment. Raises `ValueError` if a
        condition is a share of the runs and `total` is None.
        """
        self.reason = ""
        self.raised: BaseException | None = None  # error of a task, for `evaluate()` to raise
        self._settings = settings
        self._remark = remark
        self._max_failed, self._failure_option = _compute_failure_limit(settings, total)
        self._lock = threading.Lock()
        self._failed = self._finished = 0
        self._spent_before = self._usd = spent_usd

    @property
    def spent_usd(self) -> float:
        """Return the cost of all attempts of the task, those of earlier parts of the experiment included."""
        return self._usd

    def skip_unaffordable(self, items: Iterator[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield the planned runs; if earlier parts have spent `max_usd`, only those that exist and need scores."""
        max_usd = self._settings.max_usd
        if max_usd is None or self._spent_before < max_usd:
            yield from items
            return
        skipped = 0
        for item in items:
            if item.trace is not None:
                yield item
            else:
                skipped += 1
        if skipped:
            self._stop(
                f"earlier parts of the experiment have cost ${self._spent_before:,.4f}, so none of the {skipped} "
                f"missing runs was started (max_usd={max_usd!r}; raise it to continue)"
            )

    def check(self, finished: FinishedRun) -> None:
        """Check the conditions after a finished run; may be called from any thread."""
        # an existing run was scored: the conditions concern only runs of the task
        if finished.item.trace is not None:
            return
        with self._lock:
            self._finished += 1
            self._failed += finished.error is not None
            self.raised = self.raised or finished.raised
            if self._max_failed is not None and self._failed >= self._max_failed:
                self._stop(f"{self._failed} of {self._finished} runs failed ({self._failure_option})")
            self._add_cost(finished, self._settings.max_usd)

    def _add_cost(self, finished: FinishedRun, max_usd: float | None) -> None:
        for run in finished.runs:
            known = run.cost is not None and math.isfinite(run.cost)
            self._usd += max(0.0, run.cost or 0.0) if known else 0.0
            if max_usd is not None and not known and (run.model or run.usage):
                unknown = (
                    f"max_usd does not count calls of {run.model or 'a model without a name'}, whose price is unknown"
                )
                self._remark(f"{unknown} (report it with set_usage(cost=…))")
        if max_usd is not None and self._usd >= max_usd - _USD_TOLERANCE:
            earlier = " and earlier parts of the experiment" if self._spent_before else ""
            self._stop(f"{self._finished} runs{earlier} have cost ${self._usd:,.4f} (max_usd={max_usd!r})")

    def _stop(self, reason: str) -> None:
        self.reason = self.reason or reason


def _compute_failure_limit(settings: ExperimentSettings, total: int | None) -> tuple[int | None, str]:
    """Return the number of failed runs that stops the experiment, and the option that sets it."""
    if settings.raise_errors:
        return 1, "raise_errors"
    if settings.fail_fast:
        return 1, "fail_fast"
    limit = settings.max_failures
    if limit is None:
        return None, ""
    option = f"max_failures={limit!r}"
    if not isinstance(limit, float):
        return limit, option
    if total is None:
        raise ValueError(
            f"{option} is a share of the runs, but their number is not known in advance: pass a number of runs, such as 5"
        )
    return max(1, math.ceil(limit * total)), option
