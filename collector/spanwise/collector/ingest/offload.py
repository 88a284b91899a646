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
FAIRNESS_BYTES_PER_SECOND = (
    1024 * 1024
)  # bytes a second: who has so much more to bring lets those pass who come a second later


class PriorityLane:
    """One large body at a time, with all that comes of it; of those that wait the smaller ones first, within bounds."""

    def __init__(self) -> None:
        self._busy, self._order = False, itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for one's turn, and hold up the others."""
        if self._busy:
            await self._wait(size)
        self._busy = True
        try:
            yield
        finally:
            self._next()

    async def _wait(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        called = loop.create_future()
        heapq.heappush(self._waiting, (loop.time() + size / FAIRNESS_BYTES_PER_SECOND, next(self._order), called))
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # it was this one's turn: somebody else's, then
                self._next()
            raise

    def _next(self) -> None:
        while self._waiting:
            called = heapq.heappop(self._waiting)[2]
            if not called.done():  # `_busy` stays: it passes on to that one, so that nobody comes in between
                called.set_result(None)
                return
        self._busy = False


class Offloader:
    """Two lanes for large bodies, as each takes several times its size in memory, and threads to work in.

    The large do not wait for the huge; what is smaller waits for neither.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "spanwise-large")  # which start with the first work
        self._large, self._huge = PriorityLane(), PriorityLane()

    async def __call__(self, work: Callable[..., R], *args: Any) -> R:
        """Do something large."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """The right to work on a body of so many bytes; at once for a small one."""
        if size < LARGE_BODY_BYTES:
            yield
            return
        async with (self._large if size < HUGE_BODY_BYTES else self._huge).turn(size):
            yield
        if size >= HUGE_BODY_BYTES:
            self.trim()

    def trim(self) -> None:
        """Give freed memory back to the system, a second from now."""
        asyncio.get_running_loop().call_later(1.0, self._trim)

    def _trim(self) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            self._threads.submit(release_free_memory)

    def close(self) -> None:
        """End the threads, after the work that they are at."""
        self._threads.shutdown(cancel_futures=True)
