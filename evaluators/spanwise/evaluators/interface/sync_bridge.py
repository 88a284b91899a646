"""Bridge between synchronous and asynchronous code: threads, event loops, Ctrl-C and captured results.

Not the event loop's executor: it has few threads, and the loop waits for all of them when it closes, so that one
evaluator that hangs would hang the whole experiment.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from spanwise.collector.errors import StoreError

T = TypeVar("T")
_INTERNAL_MODULES = ("spanwise.", "asyncio.", "concurrent.", "threading", "opentelemetry.")


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. On Ctrl-C it is cancelled, may clean up, and `KeyboardInterrupt` is raised.

    What a caller can mend is raised from here, without the way that it took through loops and threads.
    """
    try:
        return (
            _LoopThread(coroutine).result() if _has_running_loop() else asyncio.run(_capture_interrupt(coroutine)).get()
        )
    except (ValueError, OSError, StoreError, KeyboardInterrupt) as error:
        raise error.with_traceback(_filter_user_frames(error.__traceback__)) from None


async def _capture_interrupt(coroutine: Coroutine[Any, Any, T]) -> CallResult[T]:
    """What a coroutine comes to; Ctrl-C as a value, since asyncio loses what leaves a task while its loop closes."""
    try:
        return CallResult(await coroutine)
    except (KeyboardInterrupt, SystemExit) as error:
        return CallResult(error=error)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _filter_user_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames that are neither ours nor the machinery's: a dataset's generator, for one."""
    if frames is None:
        return None
    rest = _filter_user_frames(frames.tb_next)
    module = str(frames.tb_frame.f_globals.get("__name__"))
    if module.startswith(_INTERNAL_MODULES):
        return rest
    return TracebackType(rest, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)


class _LoopThread(Generic[T]):
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


AwaitFunction: TypeAlias = Callable[[Awaitable[Any]], Any]  # from a thread: what an awaitable gives in the end


async def run_in_thread(call: Callable[[], Any]) -> Any:
    """Await a call on a new daemon thread, in the caller's context. When cancelled the thread is left to itself.

    Raises whatever the call raises.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[CallResult[Any]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        _deliver_result(loop, outcome, context.run(capture_call, call))

    threading.Thread(target=work, name="spanwise-evaluator", daemon=True).start()
    return (await outcome).get()


def make_loop_waiter(loop: asyncio.AbstractEventLoop) -> AwaitFunction:
    """A function for threads that waits until the loop has finished an awaitable, and raises what that raises."""

    def wait(awaitable: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(capture_awaitable(awaitable), loop).result().get()

    return wait


async def capture_awaitable(awaitable: Awaitable[Any]) -> CallResult[Any]:
    """What an awaitable comes to, as a value: a `SystemExit` that leaves a task would end the loop."""
    try:
        return CallResult(await awaitable)
    except BaseException as error:
        if is_task_cancelled():
            raise
        return CallResult(error=error)


def _deliver_result(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[CallResult[Any]], ended: CallResult[Any]
) -> None:
    try:
        loop.call_soon_threadsafe(_set_result, future, ended)
    except RuntimeError:  # the loop closed in the meantime: nobody waits any more
        pass


def _set_result(future: asyncio.Future[CallResult[Any]], ended: CallResult[Any]) -> None:
    if not future.done():
        future.set_result(ended)


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """What a call returned, or what it raised: a future or a queue can carry any value, but not any exception."""

    result: T | None = None
    error: BaseException | None = None

    def get(self) -> T:
        """The result. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # T may be None itself


def capture_call(call: Callable[[], T]) -> CallResult[T]:
    """What a call comes to. Raises nothing."""
    try:
        return CallResult(call())
    except BaseException as error:
        return CallResult(error=error)


def is_task_cancelled() -> bool:
    """Whether it is this asyncio task that is to end. If not, the user's code raised `CancelledError` by itself."""
    task = _get_current_task()
    return task is not None and task.cancelling() > 0


def is_interruption(error: BaseException) -> bool:
    """Whether what a coroutine raised is not its own doing: Ctrl-C, its cancellation, or that nobody runs it any more.

    Anything else is an outcome, whatever it derives from: `pytest.fail`, `SystemExit`, a `CancelledError` of its own.
    """
    if isinstance(error, asyncio.CancelledError):
        return is_task_cancelled()
    if isinstance(error, GeneratorExit):  # thrown into a coroutine that is thrown away
        return _get_current_task() is None
    return isinstance(error, KeyboardInterrupt)


def _get_current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
