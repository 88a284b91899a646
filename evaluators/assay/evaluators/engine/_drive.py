"""Runs in parallel: plain tasks on threads that pull their next example themselves, async tasks on the loop.

A no-op task must not pay a hop between threads per example, so a thread runs the task, reads its spans and calls the
plain evaluators, and threads are added only while they hardly compute anything.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Iterator
from typing import Any

from assay.evaluators.engine._ahead import Ahead
from assay.evaluators.engine._plan import Done, Item, Plan
from assay.evaluators.engine._run import given, run_here, run_on_loop
from assay.evaluators.engine._score import Scoring, awaited
from assay.evaluators.engine._task import Task
from assay.evaluators.engine._workers import Threads
from assay.evaluators.engine._write import Writer

BREATH = 0.05  # seconds after which the loop gets a turn


class Driver:
    """Runs all items of a plan and hands what is done to the writer."""

    def __init__(self, plan: Plan, items: Iterator[Item], writer: Writer) -> None:
        self._plan = plan
        self._items = items
        self._writer = writer
        self._scoring = Scoring(plan)
        self._later: set[asyncio.Task[None]] = set()
        self._breathed = time.perf_counter()

    async def run(self) -> None:
        """Return when every item is with the writer. Raises what the source of items raises."""
        task = self._plan.task
        if task is not None and task.is_async:
            await self._on_loop(task)
        else:
            await Threads(self._plan, self._items, self._work, self._writer).run()
        while self._later:
            await asyncio.gather(*self._later)

    async def _on_loop(self, task: Task) -> None:
        ahead = Ahead(self._items)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._plan.concurrency):
                    group.create_task(self._worker(task, ahead))
        finally:
            ahead.stop()

    async def _worker(self, task: Task, items: Ahead) -> None:
        while (item := items.take() or await items.wait()) is not None:
            done = given(self._plan, item) if item.trace else await run_on_loop(self._plan, task, item)
            await self._scoring.on_loop(done)
            if self._scoring.has_later:
                await self._finish(done)
            else:
                self._writer.put(done)
            await self._breathe()

    async def _breathe(self) -> None:
        """Let others have the loop now and then, for the sake of tasks that never wait for anything.

        Not after every run: each turn of the loop gives up the interpreter's lock, and the writer's thread takes it.
        """
        now = time.perf_counter()
        if self._writer.is_full:
            await asyncio.sleep(0.01)
        elif now - self._breathed > BREATH:
            self._breathed = now
            await asyncio.sleep(0)

    def _work(self, item: Item, loop: asyncio.AbstractEventLoop, room: threading.Semaphore) -> None:
        """One item on a thread of `Threads`."""

        def wait(awaitable: Awaitable[Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(awaited(awaitable), loop).result()

        task = self._plan.task
        done = given(self._plan, item) if item.trace or task is None else run_here(self._plan, task, item, wait)
        self._scoring.here(done, wait)
        if not self._scoring.has_later:
            self._writer.put(done)
            return
        room.acquire()
        loop.call_soon_threadsafe(self._start_later, done, room)

    def _start_later(self, done: Done, room: threading.Semaphore) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(done))
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        task.add_done_callback(lambda _: room.release())

    async def _finish(self, done: Done) -> None:
        await self._scoring.later(done)
        self._writer.put(done)
