"""Runs in parallel: plain tasks on threads that pull their next example themselves, async tasks on the loop.

A no-op task must not pay a hop between threads per example, so a thread runs the task, reads its spans and calls the
plain evaluators, and threads are added only while all of them are held up.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from assay.evaluators.engine._plan import Done, Item, Plan
from assay.evaluators.engine._run import given, run_here, run_on_loop
from assay.evaluators.engine._score import Scoring
from assay.evaluators.engine._task import Task
from assay.evaluators.engine._write import Writer

HELD_UP = 0.008  # seconds: a thread that is longer at one example is waiting for something
GROWTH = 8
READ_AHEAD = 1000  # items
LONGEST_LOOK = 0.05  # seconds between two looks at whether more threads are needed


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
        elif now - self._breathed > LONGEST_LOOK:
            self._breathed = now
            await asyncio.sleep(0)

    def _work(self, item: Item, loop: asyncio.AbstractEventLoop, room: threading.Semaphore) -> None:
        """One item on a thread of `Threads`."""

        def wait(awaitable: Awaitable[Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(_awaited(awaitable), loop).result()

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


class Ahead:
    """Items read ahead on a thread, so that the loop does not wait while a store or a file gives the next page."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._queue: queue.Queue[Item | BaseException | None] = queue.Queue(READ_AHEAD)
        self._items = items
        self._stopped = False
        threading.Thread(
            target=contextvars.copy_context().run, args=(self._read,), name="assay-read", daemon=True
        ).start()

    def take(self) -> Item | None:
        """The next item if it is there already. Raises what the source of items has raised."""
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            return None
        if item is None or isinstance(item, BaseException):
            self._queue.put(item)  # the other workers want to see the end, too
        if isinstance(item, BaseException):
            raise item
        return item

    async def wait(self) -> Item | None:
        """The next item when it comes; None at the end."""
        while not self._ended:
            if (item := self.take()) is not None:
                return item
            await asyncio.sleep(0.002)
        return self.take()

    def stop(self) -> None:
        """Read no further."""
        self._stopped = True

    @property
    def _ended(self) -> bool:
        with self._queue.mutex:
            return bool(self._queue.queue) and not isinstance(self._queue.queue[0], Item)

    def _read(self) -> None:
        try:
            for item in self._items:
                self._give(item)
                if self._stopped:
                    return
            self._give(None)
        except BaseException as error:
            self._give(error)

    def _give(self, item: Item | BaseException | None) -> None:
        while not self._stopped:
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue


class Threads:
    """Daemon threads over one iterator: one at first, more while all are held up, `concurrency` at most."""

    def __init__(
        self,
        plan: Plan,
        items: Iterator[Item],
        work: Callable[[Item, asyncio.AbstractEventLoop, threading.Semaphore], None],
        writer: Writer,
    ) -> None:
        self._limit = plan.concurrency
        self._items = items
        self._work = work
        self._writer = writer
        self._context = contextvars.copy_context()
        self._taking = threading.Lock()
        self._room = threading.Semaphore(max(2 * plan.concurrency, 2 * plan.batch_size))
        self._began: dict[int, float] = {}  # by worker; when it took what it is at
        self._stopped = False
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Return when the iterator is empty and all threads are done. Raises the first error of the iterator."""
        self._loop = asyncio.get_running_loop()
        self._all_done = asyncio.Event()
        self._alive = self._started = 0
        try:
            self._start(1)
            await self._grow()
        finally:
            self._stopped = True
        if self._error is not None:
            raise self._error

    async def _grow(self) -> None:
        look = HELD_UP
        while not self._all_done.is_set():
            try:
                await asyncio.wait_for(self._all_done.wait(), look)
            except TimeoutError:
                pass
            if self._started < self._limit and self._are_held_up():
                self._start(min(self._started * (GROWTH - 1), self._limit - self._started))
            else:
                look = min(look * 1.5, LONGEST_LOOK)

    def _are_held_up(self) -> bool:
        now = time.perf_counter()
        began = list(self._began.values())
        return bool(began) and len(began) == self._alive and all(now - one > HELD_UP for one in began)

    def _start(self, count: int) -> None:
        for _ in range(count):
            self._alive += 1
            self._started += 1
            threading.Thread(target=self._pull, args=(self._started,), name="assay-run", daemon=True).start()

    def _pull(self, worker: int) -> None:
        try:
            while not self._stopped and (item := self._next()) is not None:
                self._began[worker] = time.perf_counter()
                self._context.copy().run(self._work, item, self._loop, self._room)
                while self._writer.is_full and not self._stopped:
                    time.sleep(0.01)
        except BaseException as error:  # of the source, or of our own: everything stops, and `run` raises it
            self._error = self._error or error
            self._stopped = True
        finally:
            self._began.pop(worker, None)
            self._tell()

    def _next(self) -> Item | None:
        with self._taking:
            return None if self._stopped else next(self._items, None)

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended)
        except RuntimeError:  # interrupted: the loop is gone, and nobody waits any more
            pass

    def _ended(self) -> None:
        self._alive -= 1
        if self._alive == 0:
            self._all_done.set()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
