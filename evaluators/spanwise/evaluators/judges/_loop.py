"""The judges' loop: one event loop on one daemon thread per process, on which every question to a judge runs.

Clients, connections, limits and the cache are of the process, not of a caller's loop, which may live for one `score()`
alone. Whoever asks awaits the answer from wherever it is; cancelling it cancels the question.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from spanwise.evaluators.protocol import Ended, ended

T = TypeVar("T")

NAME = "spanwise-judges"
LAST_WORDS = 1.0  # seconds that questions and clients have at the end of the process


class _Quiet(asyncio.SelectorEventLoop):
    """In a forked child the parent's loop is left as it is: to close it there would unregister the parent's sockets."""

    def __del__(self) -> None:
        pass


class _Home:
    """A loop on its thread, and what lives as long as it does."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = _Quiet()
        self.kept: dict[Hashable, Any] = {}
        self._ends = False
        self.thread = threading.Thread(target=self._work, name=NAME, daemon=True)
        self.thread.start()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]], outcome: Future[Ended[T]]) -> None:
        """Start a question on this loop; it is cancelled with its outcome."""
        question = self.loop.create_task(_ended(work))
        question.add_done_callback(lambda question: self._deliver(question, outcome))
        outcome.add_done_callback(lambda outcome: self._cancel(question) if outcome.cancelled() else None)

    def _deliver(self, question: asyncio.Task[Ended[T]], outcome: Future[Ended[T]]) -> None:
        """Nothing at the end of the process: only daemon threads still wait, and nobody would see what they raise."""
        if self._ends:
            return
        try:
            if question.cancelled():
                outcome.cancel()
            else:
                outcome.set_result(question.result())
        except InvalidStateError:  # its caller was cancelled in the same moment
            pass

    def _cancel(self, question: asyncio.Task[Any]) -> None:
        try:
            self.loop.call_soon_threadsafe(question.cancel)
        except RuntimeError:  # the process ends
            pass

    def end(self) -> None:
        """Cancel what is under way, close what is kept, stop."""
        self._ends = True
        try:
            self.loop.call_soon_threadsafe(self.loop.stop)
        except RuntimeError:  # it has ended
            return
        self.thread.join(3 * LAST_WORDS)

    def _work(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._finished())
        finally:
            self.loop.close()

    async def _finished(self) -> None:
        questions = asyncio.all_tasks() - {asyncio.current_task()}
        for question in questions:
            question.cancel()
        if questions:
            await asyncio.wait(questions, timeout=LAST_WORDS)
        closings = [asyncio.ensure_future(_closed(kept)) for kept in self.kept.values()]
        if closings:
            await asyncio.wait(closings, timeout=LAST_WORDS)


async def _closed(kept: Any) -> None:
    close = getattr(kept, "aclose", None) or getattr(kept, "close", None)
    try:
        closing = close() if close is not None else None
        if inspect.isawaitable(closing):
            await closing
    except Exception:  # the process ends: nobody can do anything about it
        pass


_lock = threading.Lock()
_home: _Home | None = None
_left: list[_Home] = []  # the homes of parents, in forked children: not to be finalized


async def on_judges_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine comes to that runs on the judges' loop, in the caller's context. Raises what it raises."""
    home = _the_home()
    if asyncio.get_running_loop() is home.loop:
        return await work()
    outcome: Future[Ended[T]] = Future()
    home.loop.call_soon_threadsafe(home.begin, work, outcome)  # in a copy of the caller's context
    return (await asyncio.wrap_future(outcome)).get()


async def _ended(work: Callable[[], Coroutine[Any, Any, T]]) -> Ended[T]:
    return await ended(work())


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """Something that lives as long as the judges' loop, made when it is first asked for: a client, a limit.

    To be called on that loop. At the end of the process its `aclose()` or `close()` is called; a fork starts anew.
    """
    held = _the_home().kept
    if key not in held:
        held[key] = make()
    return held[key]  # type: ignore[no-any-return]


def _the_home() -> _Home:
    global _home
    with _lock:
        if _home is None or not _home.thread.is_alive():
            _home = _Home()
        return _home


def _end() -> None:
    if _home is not None:
        _home.end()


def _after_fork() -> None:
    """The child has none of its parent's threads; what its loop holds belongs to the parent."""
    global _home, _lock
    _lock = threading.Lock()
    if _home is not None:
        _left.append(_home)
        _home = None


atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)
