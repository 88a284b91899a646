"""Runs in parallel: plain tasks on threads that pull their next example themselves, async tasks on the loop.

A no-op task must not pay a hop between threads per example, so a thread runs the task, reads its spans and calls the
plain evaluators, and threads are added only while they hardly compute anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from spanwise.evaluators.engine._ahead import Ahead
from spanwise.evaluators.engine._brake import Brake
from spanwise.evaluators.engine._line import Line
from spanwise.evaluators.engine._plan import Item, Plan
from spanwise.evaluators.engine._timeout import STOPPING, let_end
from spanwise.evaluators.engine._workers import Threads
from spanwise.evaluators.engine._write import Writer

BREATH = 0.05  # seconds after which the loop gets a turn


async def drive(plan: Plan, items: Iterator[Item], writer: Writer, brake: Brake) -> None:
    """Return when every item is with the writer, or all that had begun when the brake was on.

    Raises what the source of items raises, and, with `raise_errors`, what a task has.
    """
    line = Line(plan, writer, brake)
    try:
        if plan.task is not None and plan.task.is_async:
            await _on_loop(plan, line, items)
        else:
            await Threads(line, items, plan.settings.concurrency).run()
        await line.wait()
    finally:
        await line.stop()
    if brake.raised is not None:
        raise brake.raised


async def _on_loop(plan: Plan, line: Line, items: Iterator[Item]) -> None:
    """No task group: that would wait for ever for a task that does not let itself be interrupted."""
    ahead, breath = Ahead(items), _Breath(line)
    workers = [asyncio.create_task(_work(line, ahead, breath)) for _ in range(plan.settings.concurrency)]
    try:
        await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        ahead.stop()
        await let_end(workers, plan.strays, STOPPING)
        ended = [worker for worker in workers if worker.done() and not worker.cancelled()]
        errors = [
            error for worker in ended if (error := worker.exception()) is not None
        ]  # asked for, else asyncio logs it
    if errors:
        raise errors[0]
    if any(worker.cancelled() for worker in workers):  # not by us, and its example would be missing without a word
        raise RuntimeError("a task has cancelled the asyncio task that ran it: let it raise CancelledError instead")


async def _work(line: Line, items: Ahead, breath: _Breath) -> None:
    while not line.is_over and (item := items.take() or await items.wait(lambda: line.is_over)) is not None:
        await line.on_loop(item)
        await breath.take()


class _Breath:
    """Gives others the loop now and then, for the sake of tasks that never wait for anything.

    Not after every run: each turn of the loop gives up the interpreter's lock, and the writer's thread takes it.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._taken = time.perf_counter()

    async def take(self) -> None:
        """Wait while the store is behind; else let the loop turn if it has not for long."""
        now = time.perf_counter()
        if self._line.is_full:
            await asyncio.sleep(0.01)
        elif now - self._taken > BREATH:
            self._taken = now
            await asyncio.sleep(0)
