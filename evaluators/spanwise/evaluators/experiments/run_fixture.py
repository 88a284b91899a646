"""Fixture of a run: set-up and tear-down around each attempt of the task, by a context manager."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from spanwise.collector.records import JSON, Example
from spanwise.evaluators.experiments.task_call import TaskFunction, ValueCopier, make_task
from spanwise.evaluators.interface import AwaitFunction, CallResult, capture_awaitable, is_interruption

FIXTURE = "fixture"  # parameter of the task that gets the value of the context
MAX_TRACEBACK = 8000  # maximum characters of a traceback


@dataclass(frozen=True, slots=True)
class RunFixture:
    """Function of `evaluate(…, fixture=function)`. It returns a context manager, also an async one."""

    task: TaskFunction  # signature of the function

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return self.task.name

    def arguments(
        self, example: Example, kind: str, seed: int | None, copies: ValueCopier | None = None
    ) -> tuple[tuple[Any, ...], JSON]:
        """Return (positional, named) arguments: the example, its inputs by name, or nothing.

        Raises `TaskError` that names the missing inputs.
        """
        takes = self.task.takes
        if not takes and self.task.first is None and not self.task.takes_all:
            return (), {}
        if "example" in takes:
            example = example if copies is None else copies.of_example(example)
            inputs = example.inputs if isinstance(example.inputs, Mapping) else {}
            named = {name: value for name, value in inputs.items() if name in takes}
            extra = {"example": example, "inputs": example.inputs, "seed": seed, "history": example.history}
            return (), {**{name: value for name, value in extra.items() if name in takes}, **named}
        return self.task.arguments(example, kind, seed, copies)

    def open(
        self, example: Example, kind: str, seed: int | None, copies: ValueCopier, *, prefers_async: bool
    ) -> tuple[Any, bool]:
        """Call the function. Return the context manager, and whether it is an async one.

        Raises `TypeError` for any other value, and the errors of the function.
        """
        args, named = self.arguments(example, kind, seed, copies)
        manager = self.task.function(*args, **named)
        is_async, is_plain = (hasattr(type(manager), name) for name in ("__aexit__", "__exit__"))
        if is_async or is_plain:
            return manager, is_async and (prefers_async or not is_plain)
        if inspect.iscoroutine(manager):
            manager.close()
        raise TypeError(f"fixture {self.name!r} must return a context manager, got {manager!r:.200}")


def make_fixture(function: Any) -> RunFixture:
    """Return the fixture of a function. A generator function is decorated with `contextmanager` first.

    Raises `ValueError` if it is not callable.
    """
    if not callable(function):
        raise ValueError(f"fixture must be a function that returns a context manager, got {function!r:.200}")
    if inspect.isgeneratorfunction(function):
        function = contextmanager(function)
    elif inspect.isasyncgenfunction(function):
        function = asynccontextmanager(function)
    return RunFixture(replace(make_task(function), role=FIXTURE))


class ContextOnThread:
    """Context around one attempt on a worker thread.

    An async context manager is entered and left in one task of the event loop, as `asyncio.timeout` and AnyIO require.
    """

    def __init__(self, manager: Any, is_async: bool, wait: AwaitFunction) -> None:
        self._manager = manager
        self._wait = wait
        self._is_async = is_async
        self._task: asyncio.Task[BaseException | None]
        self._ended: asyncio.Future[BaseException | None]

    def enter(self) -> Any:
        """Enter the context, and return its value."""
        return self._wait(self._enter_on_loop()).get() if self._is_async else self._manager.__enter__()

    def leave(self, error: BaseException | None) -> BaseException | None:
        """Leave the context with the error of the attempt, and return the error of the tear-down."""
        try:
            if self._is_async:
                raised: BaseException | None = self._wait(self._leave_on_loop(error))
                return raised
            self._manager.__exit__(*_describe(error))
        except KeyboardInterrupt:
            raise
        except BaseException as other:
            return None if other is error else other
        return None

    async def _enter_on_loop(self) -> CallResult[Any]:
        entered: asyncio.Future[CallResult[Any]] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(entered))
        return await entered

    async def _hold(self, entered: asyncio.Future[CallResult[Any]]) -> BaseException | None:
        result = await capture_awaitable(self._manager.__aenter__())
        entered.set_result(result)
        if result.error is not None:
            return None
        try:
            error = await self._ended
        except asyncio.CancelledError as interruption:  # the experiment was interrupted
            await leave_on_loop(self._manager, True, interruption)
            raise
        return await leave_on_loop(self._manager, True, error)

    async def _leave_on_loop(self, error: BaseException | None) -> BaseException | None:
        self._ended.set_result(error)
        return await self._task


async def enter_on_loop(manager: Any, is_async: bool) -> Any:
    """Enter a context on the event loop, and return its value."""
    return await manager.__aenter__() if is_async else manager.__enter__()


async def leave_on_loop(manager: Any, is_async: bool, error: BaseException | None) -> BaseException | None:
    """Leave a context on the event loop with the error of the attempt, and return the error of the tear-down.

    Raises only interruptions; see `is_interruption`.
    """
    try:
        if is_async:
            await manager.__aexit__(*_describe(error))
        else:
            manager.__exit__(*_describe(error))
    except BaseException as raised:
        if raised is error:
            return None
        if is_interruption(raised):
            raise
        return raised
    return None


def _describe(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def describe_teardown_error(error: BaseException) -> dict[str, str]:
    """Return the error of a tear-down as plain values: `error` and `traceback`."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.format_exception(error)
    return {"error": text, "traceback": "".join(frames)[-MAX_TRACEBACK:]}
