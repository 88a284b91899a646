"""Items read ahead of the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator

from spanwise.evaluators.engine._plan import Item

READ_AHEAD = 1000  # items
PAUSE = 0.002  # seconds between two looks, while there is nothing


class Ahead:
    """Items read ahead on a thread, so that the loop does not wait while a store or a file gives the next page."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._queue: queue.Queue[Item | BaseException | None] = queue.Queue(READ_AHEAD)
        self._items = items
        self._stopped = False
        threading.Thread(
            target=contextvars.copy_context().run, args=(self._read,), name="spanwise-read", daemon=True
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

    async def wait(self, is_over: Callable[[], bool]) -> Item | None:
        """The next item when it comes; None at the end, and when it `is_over` before."""
        while not self._ended:
            if is_over():
                return None
            if (item := self.take()) is not None:
                return item
            await asyncio.sleep(PAUSE)
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
