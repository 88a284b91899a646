"""Evaluators on finished runs: plain ones where the run ended, the others on the loop, models in small batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import count
from typing import Any

from assay.collector.records import Case, Feedback, Target
from assay.evaluators.engine._plan import Done, Plan, is_batch
from assay.evaluators.engine._run import Wait, is_cancelled
from assay.evaluators.protocol._evaluator import Evaluator
from assay.evaluators.protocol._threads import in_thread

IDLE = 0.02  # seconds that a batch waits for more
_SEE_FAILURES = frozenset({"run", "trace", "case"})  # evaluators that ask for these can judge a failed run


class Scoring:
    """The evaluators of one experiment, sorted by where they run."""

    def __init__(self, plan: Plan) -> None:
        self._batchers = {one.key: Batcher(one, plan.batch_size) for one in plan.evaluators if is_batch(one)}
        self._plain = tuple(one for one in plan.evaluators if one.plain)
        self._others = tuple(one for one in plan.evaluators if not one.plain)
        self.has_later = bool(self._others)
        self._known: set[str] = set()  # plain ones that have come back once
        self._looked = {one.key: count(1) for one in plan.evaluators if one.max_cases is not None}

    def here(self, done: Done, wait: Wait) -> None:
        """Let the plain evaluators look at a run, on this thread."""
        for evaluator in _wanted(self._plain, done):
            done.feedback += self._left_out(evaluator, done) or evaluator.evaluate_here(done.case, done.target, wait)

    async def on_loop(self, done: Done) -> None:
        """Let the plain evaluators look at a run, on the loop; those that turn out slow move to threads."""
        for evaluator in _wanted(self._plain, done):
            done.feedback += self._left_out(evaluator, done) or await self._tried(evaluator, done)

    async def _tried(self, evaluator: Evaluator, done: Done) -> list[Feedback]:
        """The first time on a thread: one that hangs would hold up the loop, and Ctrl-C with it."""
        if evaluator.key in self._known:
            return await evaluator.evaluate(done.case, done.target)
        loop = asyncio.get_running_loop()

        def wait(awaitable: Awaitable[Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(awaited(awaitable), loop).result()

        found: list[Feedback] = await in_thread(lambda: evaluator.evaluate_here(done.case, done.target, wait))
        self._known.add(evaluator.key)
        return found

    async def later(self, done: Done) -> None:
        """Let all others look at a run, at the same time."""
        looking = (self._one(evaluator, done) for evaluator in _wanted(self._others, done))
        for feedback in await asyncio.gather(*looking):
            done.feedback += feedback

    async def _one(self, evaluator: Evaluator, done: Done) -> list[Feedback]:
        if left_out := self._left_out(evaluator, done):
            return left_out
        batcher = self._batchers.get(evaluator.key)
        try:
            if batcher is not None:
                return await batcher.score(done.case, done.target)
            return await evaluator.evaluate(done.case, done.target)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return evaluator.make.failure(done.target, error)

    def _left_out(self, evaluator: Evaluator, done: Done) -> list[Feedback] | None:
        """Skips, when the task failed or the evaluator has looked at as many runs as it may."""
        if failed := _failed(evaluator, done):
            return failed
        if evaluator.max_cases is None or next(self._looked[evaluator.key]) <= evaluator.max_cases:
            return None
        return evaluator.make.skip(done.target, f"it has looked at {evaluator.max_cases} cases (max_dataset_rows)")


class Batcher:
    """Gathers cases for an evaluator that scores many at once: full batches, or what came within `IDLE` seconds."""

    def __init__(self, evaluator: Evaluator, size: int) -> None:
        self._evaluator = evaluator
        self._size = size
        self._waiting: list[tuple[Case, Target, asyncio.Future[list[Feedback]]]] = []
        self._one_at_a_time = asyncio.Lock()  # two batches at once would only share the model's threads
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def score(self, case: Case, target: Target) -> list[Feedback]:
        """The feedback on one case, when its batch is done."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Feedback]] = loop.create_future()
        self._waiting.append((case, target, future))
        if len(self._waiting) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = loop.call_later(IDLE, self._start)
        return await future

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _flush(self) -> None:
        async with self._one_at_a_time:
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            if not batch:
                return
            cases, targets, futures = zip(*batch, strict=True)
            for future, feedback in zip(futures, await self._evaluator.evaluate_batch(cases, targets), strict=True):
                if not future.done():
                    future.set_result(feedback)
            if self._waiting and self._timer is None:
                self._start()


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """A coroutine of anything that can be awaited."""
    return await awaitable


def _wanted(evaluators: Sequence[Evaluator], done: Done) -> Sequence[Evaluator]:
    only = done.item.evaluators
    return evaluators if only is None else [one for one in evaluators if one in only]


def _failed(evaluator: Evaluator, done: Done) -> list[Feedback] | None:
    """Skips, when the task failed and the evaluator judges what it would have returned."""
    error = done.error
    if error is None or _SEE_FAILURES & set(evaluator.needs) or "outputs" in evaluator.uses:
        return None
    return evaluator.make.skip(done.target, f"the task failed: {error}")
