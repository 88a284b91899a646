"""Offloading of large requests from the event loop: priority lanes and a thread pool."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from spanwise.collector.ingest.limits import HUGE_BODY_BYTES, LARGE_BODY_BYTES, release_free_memory

R = TypeVar("R")
# a body that is larger by this many bytes lets bodies go first that arrive up to a second later
FAIRNESS_BYTES_PER_SECOND = 1024 * 1024


class PriorityLane:
    """Lock for processing large bodies one at a time. Smaller bodies go first, but waiting raises the priority of a
    body.
    """

    def __init__(self) -> None:
        self._busy, self._order = False, itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait until the lane is free, and occupy it within the `async with` block."""
        if self._busy:
            loop = asyncio.get_running_loop()
            granted = loop.create_future()
            heapq.heappush(self._waiting, (loop.time() + size / FAIRNESS_BYTES_PER_SECOND, next(self._order), granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():  # the lane was granted in the same moment: pass it on
                    self._grant_next()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._grant_next()

    def _grant_next(self) -> None:
        while self._waiting:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():  # `_busy` stays set, so that no other body enters in between
                granted.set_result(None)
                return
        self._busy = False


class Offloader:
    """Thread pool and two lanes for large bodies.

    The lanes admit one body at a time, because decoding takes several times its size in memory. Large bodies do not
    wait for huge ones; small bodies wait for neither.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "spanwise-large")  # the threads start on first use
        self._large, self._huge = PriorityLane(), PriorityLane()

    async def __call__(self, work: Callable[..., R], *args: Any) -> R:
        """Run `work` in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for the lane of a body of this size; a small one enters at once."""
        if size < LARGE_BODY_BYTES:
            yield
            return
        try:
            async with (self._large if size < HUGE_BODY_BYTES else self._huge).turn(size):
                yield
        finally:
            if size >= HUGE_BODY_BYTES:
                self.trim()

    def trim(self) -> None:
        """Schedule the return of free memory to the operating system in one second."""

        def free_memory() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped in the meantime
                self._threads.submit(release_free_memory)

        asyncio.get_running_loop().call_later(1.0, free_memory)

    def close(self) -> None:
        """Stop the threads after their current work."""
        self._threads.shutdown(cancel_futures=True)
