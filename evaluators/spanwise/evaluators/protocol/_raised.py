"""What a call comes to, as a value; and which exceptions are its outcome, which the end of everything around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """What a call returned, or what it raised: a future or a queue can carry any value, but not any exception."""

    result: T | None = None
    error: BaseException | None = None

    def get(self) -> T:
        """The result. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # T may be None itself


def caught(call: Callable[[], T]) -> Ended[T]:
    """What a call comes to. Raises nothing."""
    try:
        return Ended(call())
    except BaseException as error:
        return Ended(error=error)


def is_cancelled() -> bool:
    """Whether it is this asyncio task that is to end. If not, the user's code raised `CancelledError` by itself."""
    task = _task()
    return task is not None and task.cancelling() > 0


def ends_the_run(error: BaseException) -> bool:
    """Whether what a coroutine raised is not its own doing: Ctrl-C, its cancellation, or that nobody runs it any more.

    Anything else is an outcome, whatever it derives from: `pytest.fail`, `SystemExit`, a `CancelledError` of its own.
    """
    if isinstance(error, asyncio.CancelledError):
        return is_cancelled()
    if isinstance(error, GeneratorExit):  # thrown into a coroutine that is thrown away
        return _task() is None
    return isinstance(error, KeyboardInterrupt)


def _task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
