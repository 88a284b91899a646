"""From plain code into a coroutine and back: also inside a running loop, as notebooks have one, and with Ctrl-C."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from spanwise.collector.errors import StoreError
from spanwise.evaluators.protocol._raised import Ended

T = TypeVar("T")
_INSIDES = ("spanwise.", "asyncio.", "concurrent.", "threading", "opentelemetry.")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. On Ctrl-C it is cancelled, may clean up, and `KeyboardInterrupt` is raised.

    What a caller can mend is raised from here, without the way that it took through loops and threads.
    """
    try:
        return _Aside(coroutine).result() if _in_a_loop() else asyncio.run(_ended(coroutine)).get()
    except (ValueError, OSError, StoreError, KeyboardInterrupt) as error:
        raise error.with_traceback(_of_users(error.__traceback__)) from None


async def _ended(coroutine: Coroutine[Any, Any, T]) -> Ended[T]:
    """What a coroutine comes to; Ctrl-C as a value, since asyncio loses what leaves a task while its loop closes."""
    try:
        return Ended(await coroutine)
    except (KeyboardInterrupt, SystemExit) as error:
        return Ended(error=error)


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _of_users(frames: TracebackType | None) -> TracebackType | None:
    """The frames that are neither ours nor the machinery's: a dataset's generator, for one."""
    if frames is None:
        return None
    rest = _of_users(frames.tb_next)
    module = str(frames.tb_frame.f_globals.get("__name__"))
    if module.startswith(_INSIDES):
        return rest
    return TracebackType(rest, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)


class _Aside(Generic[T]):
    """A coroutine on a loop and thread of its own, because this thread's loop is busy with the caller."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._work,), name="spanwise-evaluate", daemon=True
        )
        self._thread.start()

    def result(self) -> T:
        """Wait for the end; hand Ctrl-C on."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self._ready.wait()
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
            raise
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _work(self) -> None:
        try:
            self._result.append(asyncio.run(self._main()))
        except BaseException as error:
            self._error = error

    async def _main(self) -> T:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._coroutine)
        self._ready.set()
        return await self._task
