"""The way of one item: its task runs, evaluators look at its case, and what came of it goes to the writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

from spanwise.evaluators.engine._brake import Brake
from spanwise.evaluators.engine._given import given
from spanwise.evaluators.engine._plan import Done, Item, Plan
from spanwise.evaluators.engine._run import run_here, run_on_loop
from spanwise.evaluators.engine._timeout import STOPPING, let_end
from spanwise.evaluators.engine._write import Writer
from spanwise.evaluators.protocol import waiting_on
from spanwise.evaluators.scoring import Scoring


class Line:
    """Where items go in and finished runs come out. Made on the running loop, which does what is not plain."""

    def __init__(self, plan: Plan, writer: Writer, brake: Brake) -> None:
        self._plan = plan
        self._writer = writer
        self._brake = brake
        self._scoring = Scoring(plan.evaluators, plan.settings.batch_size)
        self._loop = asyncio.get_running_loop()
        self._wait_on_loop = waiting_on(self._loop)
        # runs of threads whose case still waits for evaluators on the loop: no more than so many
        self._room = threading.Semaphore(2 * max(plan.settings.concurrency, plan.settings.batch_size))
        self._later: set[asyncio.Task[None]] = set()
        self._awaited: set[asyncio.Task[Any]] = (
            set()
        )  # for threads: what plain tasks and evaluators return to be awaited
        self._stopped = False
        self._error: BaseException | None = None

    @property
    def is_full(self) -> bool:
        """Whether new items should wait."""
        return self._writer.is_full

    @property
    def is_over(self) -> bool:
        """Whether no new item is to begin."""
        return self._stopped or bool(self._brake.why)

    def here(self, item: Item) -> None:
        """Do an item with a plain task on this thread; evaluators that are not plain look at it on the loop, later."""
        task = self._plan.task
        if item.trace is not None or task is None:
            done = given(self._plan, item)
        else:
            done = run_here(self._plan, task, item, self._wait, self._brake)
        done.feedback += self._scoring.here(done.case, done.target, self._wait, item.evaluators)
        if not self._scoring.has_later:
            self._put(done)
            return
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._start, done)

    async def on_loop(self, item: Item) -> None:
        """Do an item with an async task on the loop."""
        task = self._plan.task
        if item.trace is not None or task is None:
            done = given(self._plan, item)
        else:
            done = await run_on_loop(self._plan, task, item, self._brake)
        done.feedback += await self._scoring.on_loop(done.case, done.target, item.evaluators)
        await self._finish(done)

    async def wait(self) -> None:
        """Return when everything is with the writer. Raises what went wrong on the way."""
        while self._later:
            await asyncio.wait(self._later)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Let nothing begin, and nothing look any more; what does not let itself be ended is not waited for."""
        self._stopped = True
        await let_end(self._later | self._awaited, self._plan.strays, STOPPING)

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        return self._wait_on_loop(self._noted(awaitable))

    async def _noted(self, awaitable: Awaitable[Any]) -> Any:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("awaited outside of an asyncio task")  # cannot be: `waiting_on` makes one
        self._awaited.add(task)
        task.add_done_callback(self._awaited.discard)
        return await awaitable

    def _put(self, done: Done) -> None:
        self._brake.saw(done)
        self._writer.put(done)

    def _start(self, done: Done) -> None:
        task = self._loop.create_task(self._finish(done))
        self._later.add(task)
        task.add_done_callback(self._ended)

    async def _finish(self, done: Done) -> None:
        if self._scoring.has_later:
            done.feedback += await self._scoring.later(done.case, done.target, done.item.evaluators)
        self._put(done)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._later.discard(task)
        self._room.release()
        if task.cancelled():  # unless `stop` did, when nobody asks any more: its run would be missing without a word
            self._error = self._error or RuntimeError(
                "something has cancelled the asyncio task in which evaluators look at a run: it is not stored"
            )
        else:
            self._error = self._error or task.exception()
