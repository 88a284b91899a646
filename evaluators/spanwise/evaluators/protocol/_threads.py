"""Calls of slow or hanging plain functions, on daemon threads of their own; and from a thread back to the loop.

Not the event loop's executor: it has few threads, and the loop waits for all of them when it closes, so that one
evaluator that hangs would hang the whole experiment.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from spanwise.evaluators.protocol._raised import Ended, caught, is_cancelled

Wait: TypeAlias = Callable[[Awaitable[Any]], Any]  # from a thread: what an awaitable gives in the end


async def in_thread(call: Callable[[], Any]) -> Any:
    """Await a call on a new daemon thread, in the caller's context. When cancelled the thread is left to itself.

    Raises whatever the call raises.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Ended[Any]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        _deliver(loop, outcome, context.run(caught, call))

    threading.Thread(target=work, name="spanwise-evaluator", daemon=True).start()
    return (await outcome).get()


def waiting_on(loop: asyncio.AbstractEventLoop) -> Wait:
    """A function for threads that waits until the loop has finished an awaitable, and raises what that raises."""

    def wait(awaitable: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(ended(awaitable), loop).result().get()

    return wait


async def ended(awaitable: Awaitable[Any]) -> Ended[Any]:
    """What an awaitable comes to, as a value: a `SystemExit` that leaves a task would end the loop."""
    try:
        return Ended(await awaitable)
    except BaseException as error:
        if is_cancelled():
            raise
        return Ended(error=error)


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Ended[Any]], ended: Ended[Any]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future, ended)
    except RuntimeError:  # the loop closed in the meantime: nobody waits any more
        pass


def _settle(future: asyncio.Future[Ended[Any]], ended: Ended[Any]) -> None:
    if not future.done():
        future.set_result(ended)
