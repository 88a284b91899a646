"""Calls of slow or hanging plain functions, on daemon threads of their own.

Not the event loop's executor: it has few threads, and the loop waits for all of them when it closes, so that one
evaluator that hangs would hang the whole experiment.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(call: Callable[[], Any]) -> Any:
    """Await a call on a new daemon thread, in the caller's context. When cancelled the thread is left to itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            _deliver(loop, done, context.run(call), None)
        except (Exception, SystemExit) as error:
            _deliver(loop, done, None, error)

    threading.Thread(target=work, name="assay-evaluator", daemon=True).start()
    return await done


def _deliver(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    try:
        loop.call_soon_threadsafe(_settle, done, result, error)
    except RuntimeError:  # the loop closed in the meantime: nobody waits any more
        pass


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if isinstance(error, StopIteration):  # a future refuses these
        error = RuntimeError(f"StopIteration: {error}")
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
