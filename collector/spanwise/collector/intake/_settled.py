"""Waiting on an event loop for what another thread settles, which wakes the loop once for all that it settles in a row.

`asyncio.wrap_future` wakes it once for each, and goes through five callbacks: at small requests both cost more than
what is waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Settled:
    """Waits for futures of threads: `await settled(future)`, on one loop at a time."""

    def __init__(self) -> None:
        self._mailbox: _Mailbox | None = None

    async def __call__(self, future: Future[T]) -> T:
        """Its result, or what it raises. It is cancelled, unless it is under way, with whoever waits."""
        if not future.done():
            try:
                await self._here().waiter(future)
            except asyncio.CancelledError:
                future.cancel()
                raise
        return future.result()

    def _here(self) -> _Mailbox:
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = _Mailbox(loop)
        return self._mailbox


class _Mailbox:
    """Where threads leave word for one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._settled: deque[asyncio.Future[None]] = deque()
        self._called = False  # whether the loop has been told to look, and has not begun to

    def waiter(self, future: Future[Any]) -> asyncio.Future[None]:
        """Done, on the loop, after the future is."""
        waiter = self.loop.create_future()
        future.add_done_callback(partial(self._leave, waiter))
        return waiter

    def _leave(self, waiter: asyncio.Future[None], _: Future[Any]) -> None:
        self._settled.append(waiter)  # before the look at `_called`: whoever finds it set is seen by that call
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._called = False
        while self._settled:
            waiter = self._settled.popleft()
            if not waiter.done():
                waiter.set_result(None)
