"""Bridge between synchronous and asynchronous code: threads, event loops, Ctrl-C and captured results.

The event loop's executor is not used: it has few threads, and the loop waits for all of them when it closes. One
evaluator that hangs would block the whole experiment.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from spanwise.collector.errors import StoreError

T = TypeVar("T")
_INTERNAL_MODULES = ("spanwise.", "asyncio.", "concurrent.", "threading", "opentelemetry.")


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine until it ends, and return its result. On Ctrl-C, cancel it, let it clean up, and raise
    `KeyboardInterrupt`.

    Errors that callers can fix are raised without the frames of event loops and threads.
    """
    try:
        asyncio.get_running_loop()
        runs_loop = True
    except RuntimeError:
        runs_loop = False
    try:
        return _LoopThread(coroutine).result() if runs_loop else asyncio.run(_capture_interrupt(coroutine)).get()
    except (ValueError, OSError, StoreError, KeyboardInterrupt) as error:
        raise error.with_traceback(_filter_user_frames(error.__traceback__)) from None


async def _capture_interrupt(coroutine: Coroutine[Any, Any, T]) -> CallResult[T]:
    """Return the result of a coroutine, or Ctrl-C or `SystemExit` as a value.

    If a task raised them, asyncio would lose them while its loop closes.
    """
    try:
        return CallResult(await coroutine)
    except (KeyboardInterrupt, SystemExit) as error:
        return CallResult(error=error)


def _filter_user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback frames of the user's code, such as a dataset's generator, without those of Spanwise and
    Python.
    """
    if frames is None:
        return None
    inner = _filter_user_frames(frames.tb_next)
    module = str(frames.tb_frame.f_globals.get("__name__"))
    if module.startswith(_INTERNAL_MODULES):
        return inner
    return TracebackType(inner, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)


class _LoopThread(Generic[T]):
    """Thread with its own event loop for a coroutine, used if the calling thread already runs a loop."""

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
        """Wait for the end and return the result; Ctrl-C cancels the coroutine."""
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
        async def main() -> T:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._coroutine)
            self._ready.set()
            return await self._task

        try:
            self._result.append(asyncio.run(main()))
        except BaseException as error:
            self._error = error


# function that waits on a thread for an awaitable, and returns its result
AwaitFunction: TypeAlias = Callable[[Awaitable[Any]], Any]


async def run_in_thread(call: Callable[[], Any]) -> Any:
    """Run a call on a new daemon thread in the caller's context, and return its result.

    If the calling task is cancelled, the thread is abandoned.

    Raises the errors of the call.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[CallResult[Any]] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: CallResult[Any]) -> None:
        if not outcome.done():
            outcome.set_result(result)

    def work() -> None:
        result = context.run(capture_call, call)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, result)

    threading.Thread(target=work, name="spanwise-evaluator", daemon=True).start()
    return (await outcome).get()


def make_loop_waiter(loop: asyncio.AbstractEventLoop) -> AwaitFunction:
    """Return a function that threads call to wait until the loop has finished an awaitable.

    The function returns the awaitable's result or raises its error.
    """

    def wait(awaitable: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(capture_awaitable(awaitable), loop).result().get()

    return wait


async def capture_awaitable(awaitable: Awaitable[Any]) -> CallResult[Any]:
    """Return the result or the error of an awaitable as a value.

    A `SystemExit` that leaves a task would end the event loop.
    """
    try:
        return CallResult(await awaitable)
    except BaseException as error:
        if is_task_cancelled():
            raise
        return CallResult(error=error)


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """Result or error of a call as one value. Futures and queues can carry any value, but not any exception."""

    result: T | None = None
    error: BaseException | None = None

    def get(self) -> T:
        """Return the result. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # T may be None itself


def capture_call(call: Callable[[], T]) -> CallResult[T]:
    """Return the result or error of a call. Raises nothing."""
    try:
        return CallResult(call())
    except BaseException as error:
        return CallResult(error=error)


def is_task_cancelled() -> bool:
    """Return whether this asyncio task is being cancelled.

    If it is not, a `CancelledError` comes from the user's code itself.
    """
    task = _get_current_task()
    return task is not None and task.cancelling() > 0


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception ends the coroutine from outside: Ctrl-C, cancellation of its task, or its disposal.

    Any other exception is the coroutine's own outcome, including `pytest.fail`, `SystemExit`, or a `CancelledError`
    that the coroutine raised itself.
    """
    if isinstance(error, asyncio.CancelledError):
        return is_task_cancelled()
    if isinstance(error, GeneratorExit):  # Python raises it in a coroutine that is discarded; no task runs then
        return _get_current_task() is None
    return isinstance(error, KeyboardInterrupt)


def _get_current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
