"""Cases gathered for an evaluator that scores many at once, such as one with a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from spanwise.collector.records import Case, Feedback, Target
from spanwise.evaluators.protocol import Batch, Evaluator, ends_the_run

IDLE = 0.02  # seconds that a batch waits for more

Outcome: TypeAlias = "asyncio.Future[list[Feedback]]"


class Waiting(NamedTuple):
    """A case that waits for its batch, and where its feedback goes."""

    case: Case
    target: Target
    outcome: Outcome


def is_batch(evaluator: Evaluator) -> bool:
    """Whether an evaluator scores many cases better together."""
    return isinstance(evaluator.function, Batch)


class Batcher:
    """Gathers cases for one evaluator: full batches of `size`, or what came within `IDLE` seconds."""

    def __init__(self, evaluator: Evaluator, size: int) -> None:
        self._evaluator = evaluator
        self._size = size
        self._waiting: list[Waiting] = []
        self._one_at_a_time = asyncio.Lock()  # two batches at once would only share the model's threads
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def score(self, case: Case, target: Target) -> list[Feedback]:
        """The feedback on one case, when its batch is done."""
        loop = asyncio.get_running_loop()
        outcome: Outcome = loop.create_future()
        self._waiting.append(Waiting(case, target, outcome))
        if len(self._waiting) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = loop.call_later(IDLE, self._start)
        return await outcome

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.get_running_loop().create_task(self._flush())
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def _flush(self) -> None:
        async with self._one_at_a_time:
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            if batch:
                await self._settle(batch)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Start the next batch for those that still wait, however this one ended: it may have been cancelled."""
        self._running.discard(task)
        self._waiting = [one for one in self._waiting if not one.outcome.done()]
        if self._waiting and not self._running and self._timer is None:
            self._start()

    async def _settle(self, batch: Sequence[Waiting]) -> None:
        """Give every case of a batch its outcome, whatever happens: nobody else will."""
        cases, targets, outcomes = zip(*batch, strict=True)
        try:
            feedback = await self._evaluator.evaluate_batch(cases, targets)
        except BaseException as error:
            _refuse(outcomes, error)
            if ends_the_run(error):
                raise
            return
        for outcome, of_case in zip(outcomes, feedback, strict=True):
            if not outcome.done():
                outcome.set_result(of_case)


def _refuse(outcomes: Sequence[Outcome], error: BaseException) -> None:
    """What ends the run ends the wait."""
    for outcome in outcomes:
        if not outcome.done():
            outcome.cancel(f"the batch was not scored: {type(error).__name__}")
