"""A bound on how long a task may take, also for one that does not let itself be ended.

A thread cannot be ended, and a coroutine may swallow its cancellation. Such a one is left to itself: its run has failed
at its time, whatever it comes to later, and nobody waits for it, neither the next example nor the end of the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from spanwise.evaluators.protocol import Ended, caught, ended

T = TypeVar("T")
GRACE = 0.1  # seconds in which a cancelled coroutine may put things in order before it is left to itself
STOPPING = 1.0  # seconds, where all is interrupted
_MANY = 64  # of those that were left are looked through for such as have ended since


class Strays:
    """What was left to itself: how many are still at work is said at the end."""

    def __init__(self) -> None:
        self._left: list[threading.Thread | asyncio.Task[Any]] = []
        self._lock = threading.Lock()

    @property
    def alive(self) -> int:
        """How many have not ended yet."""
        with self._lock:
            return sum(map(_is_alive, self._left))

    def add(self, left: threading.Thread | asyncio.Task[Any]) -> None:
        """Wait no longer for something; called from any thread."""
        with self._lock:
            if len(self._left) >= _MANY:
                self._left = [one for one in self._left if _is_alive(one)]
            self._left.append(left)


def within(seconds: float, call: Callable[[], Any], strays: Strays) -> Any:
    """A call on a thread of its own. Raises what it raises, or `TimeoutError`."""
    answers: queue.SimpleQueue[Ended[Any]] = queue.SimpleQueue()
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: answers.put(context.run(caught, call)), name="spanwise-task", daemon=True)
    thread.start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        strays.add(thread)
        raise too_long(seconds) from None
    return answer.get()


async def in_time(awaitable: Awaitable[Any], seconds: float | None, strays: Strays, told: float | None = None) -> Any:
    """What an awaitable gives. Raises what it raises, or, when so many seconds are over, `TimeoutError`.

    That speaks of the seconds that were `told`.
    """
    if seconds is None:
        return await awaitable
    task = asyncio.create_task(ended(awaitable))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        await let_end({task}, strays)
    if not done:
        raise too_long(seconds if told is None else told)
    return task.result().get()


async def let_end(tasks: Collection[asyncio.Task[Any]], strays: Strays, grace: float = GRACE) -> None:
    """Cancel what has not ended, and leave to itself what does not end then."""
    going = {task for task in tasks if not task.done()}
    for task in going:
        task.cancel()
    if going:
        _, stubborn = await asyncio.wait(going, timeout=grace)
        for task in stubborn:
            _leave(task)
            strays.add(task)


async def alone_on_its_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives whose loop ends with it: what else is on the loop does not hold that up."""
    around = asyncio.all_tasks()
    try:
        return await coroutine
    finally:
        await let_end(asyncio.all_tasks() - around, Strays(), STOPPING)


def remaining(seconds: float | None, began: float) -> float | None:
    """What is left of a bound since `began`, on the clock of `time.monotonic`; not below 0."""
    return None if seconds is None else max(0.0, seconds - (time.monotonic() - began))


def too_long(seconds: float) -> TimeoutError:
    """What a run that took too long has failed with."""
    return TimeoutError(f"the task took more than {seconds} s")


def _leave(task: asyncio.Task[Any]) -> None:
    """Nobody is to wait for the task, as `asyncio.run` does at its end, nor to complain that it was still at work.

    Taking it off asyncio's list is what its documentation has for loops of others ("Extending").
    """
    asyncio.tasks._unregister_task(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _is_alive(left: threading.Thread | asyncio.Task[Any]) -> bool:
    return left.is_alive() if isinstance(left, threading.Thread) else not left.done()
