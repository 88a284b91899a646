"""Event loop of the judges: one daemon thread per process, with its clients and fork handling.

Clients, connections, limits and the cache belong to the process, because a caller's event loop may end after one
`score()`. A caller on any event loop can await an answer. If the caller is cancelled, its question is cancelled too.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from spanwise.evaluators.interface import CallResult, capture_awaitable

T = TypeVar("T")

THREAD_NAME = "spanwise-judges"
SHUTDOWN_TIMEOUT = 1.0  # seconds that questions and clients get to finish when the process ends


class _ForkSafeLoop(asyncio.SelectorEventLoop):
    """Event loop that a forked child never closes: closing it there would unregister the parent's sockets."""

    def __del__(self) -> None:
        pass


class _LoopThread:
    """Thread with an event loop, and the resources that live as long as the loop."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = _ForkSafeLoop()
        self.resources: dict[Hashable, Any] = {}
        self._ends = False
        self.thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self.thread.start()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]], outcome: Future[CallResult[T]]) -> None:
        """Start a question on this loop. Cancelling `outcome` cancels the question."""

        async def capture() -> CallResult[T]:
            return await capture_awaitable(work())

        def cancel_question(outcome: Future[CallResult[T]]) -> None:
            if outcome.cancelled():
                with suppress(RuntimeError):  # the loop is closed, because the process ends
                    self.loop.call_soon_threadsafe(question.cancel)

        question = self.loop.create_task(capture())
        question.add_done_callback(lambda question: self._deliver(question, outcome))
        outcome.add_done_callback(cancel_question)

    def _deliver(self, question: asyncio.Task[CallResult[T]], outcome: Future[CallResult[T]]) -> None:
        """Pass the result to the caller, unless the process is ending: then only daemon threads still wait for
        results.
        """
        if self._ends:
            return
        try:
            if question.cancelled():
                outcome.cancel()
            else:
                outcome.set_result(question.result())
        except InvalidStateError:  # the caller was cancelled at the same time
            pass

    def end(self) -> None:
        """Cancel questions in progress, close the resources, and stop the thread."""
        self._ends = True
        try:
            self.loop.call_soon_threadsafe(self.loop.stop)
        except RuntimeError:  # the loop is already closed
            return
        self.thread.join(3 * SHUTDOWN_TIMEOUT)

    def _run(self) -> None:
        async def end_questions() -> None:
            questions = asyncio.all_tasks() - {asyncio.current_task()}
            for question in questions:
                question.cancel()
            if questions:
                await asyncio.wait(questions, timeout=SHUTDOWN_TIMEOUT)
            closings = [asyncio.ensure_future(_close_resource(resource)) for resource in self.resources.values()]
            if closings:
                await asyncio.wait(closings, timeout=SHUTDOWN_TIMEOUT)

        try:
            self.loop.run_forever()
            self.loop.run_until_complete(end_questions())
        finally:
            self.loop.close()


async def _close_resource(resource: Any) -> None:
    close = getattr(resource, "aclose", None) or getattr(resource, "close", None)
    try:
        closing = close() if close is not None else None
        if inspect.isawaitable(closing):
            await closing
    except Exception:  # the process ends, so the error has no consequence
        pass


_loop_thread_lock = threading.Lock()
_loop_thread: _LoopThread | None = None
_parent_threads: list[_LoopThread] = []  # loops of parent processes, which a forked child must not finalize


async def run_on_judge_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a coroutine that runs on the judges' loop in the caller's context. Raises its errors."""
    loop_thread = _get_loop_thread()
    if asyncio.get_running_loop() is loop_thread.loop:
        return await work()
    outcome: Future[CallResult[T]] = Future()
    loop_thread.loop.call_soon_threadsafe(loop_thread.begin, work, outcome)  # in a copy of the caller's context
    return (await asyncio.wrap_future(outcome)).get()


def get_loop_singleton(key: Hashable, make: Callable[[], T]) -> T:
    """Return a resource that lives as long as the judges' loop, such as a client or a limiter. The first call creates
    it.

    Call this function only on the judges' loop. At the end of the process, the resource's `aclose()` or
    `close()` is called. After a fork, the child creates its own.
    """
    resources = _get_loop_thread().resources
    if key not in resources:
        resources[key] = make()
    return resources[key]  # type: ignore[no-any-return]


def _get_loop_thread() -> _LoopThread:
    global _loop_thread
    with _loop_thread_lock:
        if _loop_thread is None or not _loop_thread.thread.is_alive():
            _loop_thread = _LoopThread()
        return _loop_thread


@atexit.register
def _stop_loop_thread() -> None:
    if _loop_thread is not None:
        _loop_thread.end()


def _after_fork() -> None:
    """Reset the loop in a forked child, in which the loop's thread does not run. The child keeps the parent's loop
    object, so that it is not finalized.
    """
    global _loop_thread, _loop_thread_lock
    _loop_thread_lock = threading.Lock()
    if _loop_thread is not None:
        _parent_threads.append(_loop_thread)
        _loop_thread = None


os.register_at_fork(after_in_child=_after_fork)
