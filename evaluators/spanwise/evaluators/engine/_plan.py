"""What an experiment is to do, and the pieces that travel through it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from spanwise.collector.records import Case, Example, Feedback, Run, Target, Trace
from spanwise.evaluators.engine._fresh import Copies
from spanwise.evaluators.engine._settings import Settings
from spanwise.evaluators.engine._task import Task
from spanwise.evaluators.engine._timeout import Strays
from spanwise.evaluators.protocol import Evaluator

MOST_REMARKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One experiment: what is run, what judges it, and how."""

    experiment_id: str
    name: str
    task: Task | None
    evaluators: tuple[Evaluator, ...]
    settings: Settings
    kind: str = "kv"
    keep_examples: bool = False  # with the runs, as no dataset in the store has them
    remarks: dict[str, None] = field(default_factory=dict)  # what is to be said of the whole, once

    strays: Strays = field(default_factory=Strays)  # tasks that did not stop at their timeout

    def remark(self, text: str) -> None:
        """Say something below the summary's table, once; of very many remarks the first."""
        if len(self.remarks) < MOST_REMARKS:
            self.remarks[text] = None

    @property
    def copies(self) -> Copies:
        """What gives every attempt inputs of its own."""
        return Copies(self.remark)

    def seed_of(self, example: Example, repetition: int) -> int | None:
        """A seed for one run: the same in every experiment with this seed."""
        if self.settings.seed is None:
            return None
        digest = hashlib.sha256(f"{self.settings.seed}|{example.id}|{repetition}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


@dataclass(slots=True)
class Item:
    """One run to do: an example in one repetition. `slot` is its place in the results.

    With `trace` the run is there already, and `evaluators` are those that still have to look at it; `stored` says that
    the trace is in the store under this experiment. `replaces` are the trace ids of failed runs in whose place this one
    comes, `errors` the ids of feedback of evaluators that failed and look again.
    """

    slot: int
    example: Example
    repetition: int = 0
    trace: Trace | None = None
    evaluators: tuple[Evaluator, ...] | None = None
    stored: bool = False
    known: tuple[Feedback, ...] = ()  # what was said of the trace before, and is not to be said again
    replaces: Sequence[str] = ()
    errors: Sequence[str] = ()


@dataclass(slots=True)
class Done:
    """A finished run on its way to the store: its spans, what evaluators see of it, and what they said."""

    item: Item
    case: Case
    target: Target
    runs: Sequence[Run]
    feedback: list[Feedback] = field(default_factory=list)
    open_spans: int = 0
    raised: BaseException | None = None  # what the task raised, where that is to pass through `evaluate()`

    @property
    def root(self) -> Run:
        """The root run of its trace."""
        if self.case.trace is None:
            raise ValueError("a run without a trace")  # cannot be: every case here is built around one
        return self.case.trace.root

    @property
    def error(self) -> str | None:
        """Why the task failed, if it did."""
        return self.root.error or "error" if self.root.status == "error" else None
