"""How many messages are read at the same time: gRPC holds all of one before it hands it on, and never says how much."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from spanwise.collector.intake import Retryable

T = TypeVar("T")
MOST = 6
SECONDS = 60.0  # for one
PATIENCE = 2.0  # that one has before it makes room for another


class Reads:
    """Reads messages; where there are as many as may be, who has been read longest makes room for who comes new."""

    def __init__(self, most: int = MOST) -> None:
        self._free = asyncio.Semaphore(most)
        self._under_way: dict[asyncio.Timeout, float] = {}

    async def __call__(self, read: Callable[[], Awaitable[T]]) -> T:
        """What is read. Raises `Retryable`: it did not come in time, or there is no room for it."""
        await self._room()
        limit = asyncio.timeout(SECONDS)
        try:
            async with limit:
                self._under_way[limit] = asyncio.get_running_loop().time()
                return await read()
        except TimeoutError:
            raise Retryable("stalled", "the rest of the message did not come") from None
        finally:
            self._under_way.pop(limit, None)
            self._free.release()

    async def _room(self) -> None:
        if not self._free.locked():
            await self._free.acquire()  # at once
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._free.acquire()
            return
        except TimeoutError:
            self._cut_off()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._free.acquire()
        except TimeoutError:
            raise Retryable("overload", "too many messages come at the same time") from None

    def _cut_off(self) -> None:
        """End the reading that has taken longest, if that is long."""
        now = asyncio.get_running_loop().time()
        oldest, since = min(self._under_way.items(), key=lambda one: one[1], default=(None, now))
        if oldest is not None and now - since >= PATIENCE and not oldest.expired():
            del self._under_way[oldest]
            oldest.reschedule(now)
