"""Evaluators on cases: plain ones where the case is, the others on the loop at the same time, models in small batches.

It gives only outcomes: whatever an evaluator raises is an error of its own, and no other feedback is lost for it. What
ends everything (see `ends_the_run`) is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from spanwise.collector.records import Case, Feedback, Target
from spanwise.evaluators.protocol import Evaluator, Wait, claim_keys, declared_keys, in_thread, waiting_on
from spanwise.evaluators.scoring._batcher import Batcher, is_batch

_SEE_FAILURES = frozenset({"run", "root_run", "trace", "case"})  # evaluators that ask for these can judge a failed run


class Scoring:
    """A set of evaluators of single cases, sorted by where they run. `only` names those of them that are to look."""

    def __init__(self, evaluators: Sequence[Evaluator], batch_size: int = 32) -> None:
        self._batchers = {judge.key: Batcher(judge, batch_size) for judge in evaluators if is_batch(judge)}
        self._plain = tuple(judge for judge in evaluators if judge.plain)
        self._others = tuple(judge for judge in evaluators if not judge.plain)
        self.has_later = bool(self._others)
        self._owners = declared_keys(evaluators)
        self._returned: set[str] = set()  # keys of plain ones that have come back once
        self._looked = {judge.key: count(1) for judge in evaluators if judge.max_cases is not None}

    def here(self, case: Case, target: Target, wait: Wait, only: Sequence[Evaluator] | None = None) -> list[Feedback]:
        """What the plain evaluators say, on this thread; `wait` gets what has to be awaited."""
        feedback: list[Feedback] = []
        for evaluator in _chosen(self._plain, only):
            left_out = self._left_out(evaluator, case, target)
            said = left_out or evaluator.evaluate_here(case, target, wait)
            feedback += claim_keys(self._owners, evaluator, said, target)
        return feedback

    async def on_loop(self, case: Case, target: Target, only: Sequence[Evaluator] | None = None) -> list[Feedback]:
        """What the plain evaluators say, on the loop; those that turn out slow move to threads."""
        feedback: list[Feedback] = []
        for evaluator in _chosen(self._plain, only):
            said = self._left_out(evaluator, case, target) or await self._tried(evaluator, case, target)
            feedback += claim_keys(self._owners, evaluator, said, target)
        return feedback

    async def later(self, case: Case, target: Target, only: Sequence[Evaluator] | None = None) -> list[Feedback]:
        """What all others say, at the same time."""
        evaluators = _chosen(self._others, only)
        looking = (self._one(evaluator, case, target) for evaluator in evaluators)
        outcomes = await asyncio.gather(*looking, return_exceptions=True)
        feedback: list[Feedback] = []
        for evaluator, outcome in zip(evaluators, outcomes, strict=True):
            feedback += claim_keys(self._owners, evaluator, evaluator.settled(outcome, target), target)
        return feedback

    async def _tried(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback]:
        """The first time on a thread: one that hangs would hold up the loop, and Ctrl-C with it."""
        if evaluator.key in self._returned:
            return await evaluator.evaluate(case, target)
        wait = waiting_on(asyncio.get_running_loop())
        feedback: list[Feedback] = await in_thread(lambda: evaluator.evaluate_here(case, target, wait))
        self._returned.add(evaluator.key)
        return feedback

    async def _one(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback]:
        if left_out := self._left_out(evaluator, case, target):
            return left_out
        batcher = self._batchers.get(evaluator.key)
        return await (evaluator.evaluate(case, target) if batcher is None else batcher.score(case, target))

    def _left_out(self, evaluator: Evaluator, case: Case, target: Target) -> list[Feedback] | None:
        """Skips, when the task failed or the evaluator has looked at as many runs as it may."""
        if failed := of_failed(evaluator, case, target):
            return failed
        if evaluator.max_cases is None or next(self._looked[evaluator.key]) <= evaluator.max_cases:
            return None
        return evaluator.make.skip(target, f"it has looked at {evaluator.max_cases} cases (max_dataset_rows)")


def of_failed(evaluator: Evaluator, case: Case, target: Target) -> list[Feedback] | None:
    """Return skips when the task failed, or was cancelled without outputs, and the evaluator judges its outputs."""
    run = case.run
    cancelled = run is not None and run.status == "cancelled" and run.outputs is None
    if run is None or not (cancelled or run.status == "error"):
        return None
    if _SEE_FAILURES & set(evaluator.needs) or "outputs" in evaluator.uses:
        return None
    reason = "the run was cancelled before it returned" if cancelled else f"the task failed: {run.error or 'error'}"
    return evaluator.make.skip(target, reason)


def _chosen(evaluators: Sequence[Evaluator], only: Sequence[Evaluator] | None) -> Sequence[Evaluator]:
    return evaluators if only is None else [judge for judge in evaluators if judge in only]
