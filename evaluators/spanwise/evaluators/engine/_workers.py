"""Threads that pull their own items: as many as it takes, `concurrency` at most."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator

from spanwise.evaluators.engine._line import Line
from spanwise.evaluators.engine._plan import Item
from spanwise.evaluators.protocol import is_cancelled

FIRST_LOOK = 0.003  # seconds
COMPUTING = 0.3  # share of its time for which a thread computes, if it is not held up by its tasks
IDLE = 0.05  # share below which it does next to nothing but wait: then all threads are started at once
NOTE = 0.001  # seconds between two notes of it
GROWTH = 8
LONGEST_LOOK = 0.05  # seconds between two looks at whether more threads are needed


class Threads:
    """Daemon threads over one iterator: one at first, more while tasks keep them waiting, `concurrency` at most."""

    def __init__(self, line: Line, items: Iterator[Item], concurrency: int) -> None:
        self._line = line
        self._items = items
        self._limit = concurrency
        self._context = contextvars.copy_context()
        self._taking = threading.Lock()
        self._used: dict[int, float] = {}  # by worker: seconds of CPU time up to its latest run
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
        look = FIRST_LOOK
        self._looked, self._used_before = time.perf_counter(), 0.0
        while not self._all_done.is_set():
            try:
                async with asyncio.timeout(look):  # `wait_for` would make a task, which users' code may cancel
                    await self._all_done.wait()
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                if is_cancelled():
                    raise  # else somebody has cancelled the wait alone, which is an asyncio task of its own
            if self._started < self._limit and (share := self._computing()) < COMPUTING:
                more = self._limit if share < IDLE else self._started * (GROWTH - 1)
                self._start(min(more, self._limit - self._started))
            else:
                look = min(look * 1.5, LONGEST_LOOK)

    def _computing(self) -> float:
        """For which share of the time since the last look the threads computed; if it is low, more do not disturb."""
        now, used = time.perf_counter(), sum(list(self._used.values()))
        share = (used - self._used_before) / ((now - self._looked) * max(1, self._alive))
        self._looked, self._used_before = now, used
        return share

    def _start(self, count: int) -> None:
        for _ in range(count):
            self._alive += 1
            self._started += 1
            threading.Thread(target=self._pull, args=(self._started,), name="spanwise-run", daemon=True).start()

    def _pull(self, worker: int) -> None:
        try:
            noted = 0.0
            while not self._stopped and (item := self._next()) is not None:
                self._context.copy().run(self._line.here, item)
                if (now := time.perf_counter()) - noted > NOTE:  # a system call, which tiny tasks would feel
                    noted, self._used[worker] = now, time.thread_time()
                while self._line.is_full and not self._stopped:
                    time.sleep(0.01)
        except BaseException as error:  # of the source, or of our own: everything stops, and `run` raises it
            self._error = self._error or error
            self._stopped = True
        finally:
            self._tell()

    def _next(self) -> Item | None:
        with self._taking:
            return None if self._stopped or self._line.is_over else next(self._items, None)

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended)
        except RuntimeError:  # interrupted: the loop is gone, and nobody waits any more
            pass

    def _ended(self) -> None:
        self._alive -= 1
        if self._alive == 0:
            self._all_done.set()
