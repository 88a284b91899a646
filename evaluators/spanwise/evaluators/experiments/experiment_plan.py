"""Plan of an experiment: its planned and finished runs, and the conditions that stop it early."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spanwise.collector.records import Case, Example, Feedback, Run, Target, Trace
from spanwise.evaluators.experiments.experiment_settings import ExperimentSettings
from spanwise.evaluators.experiments.task_call import AbandonedTasks, TaskFunction, ValueCopier
from spanwise.evaluators.interface import Evaluator

MAX_REMARKS = 20


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

    strays: AbandonedTasks = field(default_factory=AbandonedTasks)  # tasks that continued to run after their timeout

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
    def root(self) -> Run:
        """Return the root run of its trace."""
        if self.case.trace is None:
            raise ValueError("a run without a trace")  # unreachable: every case here has a trace
        return self.case.trace.root

    @property
    def error(self) -> str | None:
        """Return the error of the task, or None."""
        return self.root.error or "error" if self.root.status == "error" else None


class StopConditions:
    """Stop conditions, checked after every finished run.

    Once a condition is met, `why` names it and no new run starts. Running ones finish.
    """

    def __init__(self, settings: ExperimentSettings, total: int | None, remark: Callable[[str], None]) -> None:
        """Set the conditions for an experiment of `total` runs (None: unknown).

        Raises `ValueError` if a condition is a share of the runs and `total` is None.
        """
        self.why = ""
        self.raised: BaseException | None = None  # error of a task, for `evaluate()` to raise
        self._settings = settings
        self._remark = remark
        self._most, self._bound = _compute_failure_limit(settings, total)
        self._lock = threading.Lock()
        self._failed = self._done = 0
        self._usd = 0.0
        self._watches = bool(self._most or settings.max_usd)

    def saw(self, done: FinishedRun) -> None:
        """Check the conditions after a finished run; may be called from any thread."""
        # an existing run was scored: the conditions concern only runs of the task
        if not self._watches or done.item.trace is not None:
            return
        with self._lock:
            self._done += 1
            self._count_failures(done)
            if self._settings.max_usd is not None:
                self._count_cost(done, self._settings.max_usd)

    def _count_failures(self, done: FinishedRun) -> None:
        self._failed += done.error is not None
        self.raised = self.raised or done.raised
        if self._most is not None and self._failed >= self._most:
            self._stop(f"{self._failed} of {self._done} runs failed ({self._bound})")

    def _count_cost(self, done: FinishedRun, most: float) -> None:
        for run in done.runs:
            known = run.cost is not None and math.isfinite(run.cost)
            self._usd += max(0.0, run.cost or 0.0) if known else 0.0
            if not known and (run.model or run.usage):
                unknown = (
                    f"max_usd does not count calls of {run.model or 'a model without a name'}, whose price is unknown"
                )
                self._remark(f"{unknown} (report it with set_usage(cost=…))")
        if self._usd >= most:
            self._stop(f"{self._done} runs have cost ${self._usd:,.4f} (max_usd={most!r})")

    def _stop(self, why: str) -> None:
        self.why = self.why or why


def _compute_failure_limit(settings: ExperimentSettings, total: int | None) -> tuple[int | None, str]:
    """Return the number of failed runs that stops the experiment, and the option that sets it."""
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
                f"{told} is a share of the runs, but their number is not known in advance: pass a number of runs, such as 5"
            )
        return max(1, math.ceil(most * total)), told
    return most, told
