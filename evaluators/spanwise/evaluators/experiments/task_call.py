"""Task under test: signature, arguments with copied inputs, timeouts, set-up and tear-down of a run.

A thread cannot be terminated, and a coroutine may ignore its cancellation. A task that continues after its timeout is
therefore abandoned: its run counts as failed, and neither the next example nor the end of the loop waits for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Example
from spanwise.evaluators.interface import AwaitFunction, CallResult, capture_awaitable, capture_call, is_interruption
from spanwise.tracer.trace_capture import is_traced, is_wrapped

# Task under test: signature, arguments with copied inputs, and timeouts.

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_EXAMPLE_PARAMETERS = frozenset({"example", "history"})
_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class TaskError(SpanwiseError, ValueError):
    """Raised for a task that cannot be called with the inputs of an example."""


@dataclass(frozen=True, slots=True)
class TaskFunction:
    """Function under test. `takes` holds the names of its parameters, `needs` the names of those without a default."""

    function: Callable[..., Any]
    name: str
    takes: frozenset[str]
    needs: frozenset[str]
    takes_all: bool  # whether it has `**kwargs`
    # parameters with a special meaning: example, seed, history; they are filled even if the inputs lack them
    wants: frozenset[str]
    first: str | None  # name of the first positional parameter
    is_async: bool
    is_traced: bool  # each call opens its own span
    is_wrapped: bool  # the traced function is below another decorator
    role: str = "task"  # name of the function in errors

    def arguments(
        self,
        example: Example,
        kind: str = "kv",
        seed: int | None = None,
        copies: ValueCopier | None = None,
        fixture: Any = None,
    ) -> tuple[tuple[Any, ...], JSON]:
        """Return (positional, named) arguments for an example. With `copies`, the values are copied.

        `fixture` is the value of the parameter `fixture`, if the task gets one. Raises `TaskError` that names the missing inputs.
        """
        inputs = example.inputs
        if copies is not None:
            inputs = copies.of(inputs)
            example = copies.of_example(example) if self.wants & _EXAMPLE_PARAMETERS else example
        positional, named = self._split(inputs, kind)
        if self.wants:
            extra = {"example": example, "seed": seed, "history": example.history, "fixture": fixture}
            absent = self.wants - named.keys() - ({self.first} if positional else set())
            named = {**named, **{name: extra[name] for name in absent}}
        missing = self.needs - named.keys() - ({self.first} if positional else set())
        if missing:
            has = sorted(inputs) if isinstance(inputs, Mapping) else f"a {type(inputs).__name__}"
            raise TaskError(
                f"{self.role} {self.name!r} needs {', '.join(map(repr, sorted(missing)))}, but the example's inputs are {has}: "
                "rename the parameter or the column, or take the whole dict with a parameter named 'inputs'"
            )
        return positional, named

    def _split(self, inputs: JSON, kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not isinstance(inputs, Mapping):
            return (inputs,), {}
        if "inputs" in self.takes and "inputs" not in inputs:
            return (), {"inputs": inputs}
        if kind != "kv" and self.first is not None and not inputs.keys() <= self.takes:
            return (next(iter(inputs.values())),), {}
        return (), dict(inputs) if self.takes_all else {k: v for k, v in inputs.items() if k in self.takes}


def make_task(function: Any) -> TaskFunction:
    """Read the signature of a callable, and return it as a task. Raises `TaskError` if it is not callable."""
    if not callable(function):
        raise TaskError(f"task must be a function, or None to score existing outputs, got {function!r}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise TaskError(f"cannot read the parameters of {function!r}: wrap it in a function ({error})") from error
    inner = getattr(function, "func", function)  # `functools.partial` holds the function as `func`
    functions = (inner, getattr(inner, "__call__", None))  # noqa: B004
    named = [parameter for parameter in parameters if parameter.kind in _KEYWORD_KINDS]
    by_position = [parameter for parameter in parameters if parameter.kind in _POSITIONAL_KINDS]
    takes = frozenset(parameter.name for parameter in named)
    needs = frozenset(parameter.name for parameter in (*by_position, *named) if parameter.default is parameter.empty)
    return TaskFunction(
        function=function,
        name=str(getattr(inner, "__name__", None) or type(inner).__name__),
        takes=takes,
        needs=needs,
        wants=needs & _EXAMPLE_PARAMETERS | takes & {"seed"},
        takes_all=any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
        first=by_position[0].name if by_position else None,
        is_async=any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in functions),
        is_traced=is_traced(function),
        is_wrapped=is_wrapped(function),
    )


def join_chunks(items: Iterable[Any]) -> Any:
    """Join the items that an iterator yields: to one text if all items are texts, else to a list."""
    chunks = list(items)
    return "".join(chunks) if chunks and all(isinstance(chunk, str) for chunk in chunks) else chunks


_COPIED_FIELDS = (
    *("inputs", "reference_outputs", "outputs", "conditions", "guidelines", "history", "metadata"),
    *("documents", "expected_documents"),
)
_IMMUTABLE_TYPES = frozenset({str, int, float, bool, type(None), bytes})  # immutable types, whose values need no copies


class ValueCopier:
    """Copier of inputs.

    It adds one remark if some values cannot be copied: generators, locks, or deeply nested values.
    """

    def __init__(self, remark: Callable[[str], None]) -> None:
        self._remark = remark

    def of(self, value: JSON) -> JSON:
        """Return a deep copy of a value. A value that contains itself is supported."""
        if type(value) in _IMMUTABLE_TYPES:
            return value
        try:
            return self._copy(value, {})
        except RecursionError:
            return self._share(value, "nested too deeply")

    def of_example(self, example: Example) -> Example:
        """Return a copy of the example with copied values, for tasks that have a parameter `example`."""
        return replace(example, **{name: self.of(getattr(example, name)) for name in _COPIED_FIELDS})

    def _copy(self, value: Any, copies: dict[int, Any]) -> Any:
        kind = type(value)
        if kind in _IMMUTABLE_TYPES:
            return value
        if id(value) in copies:
            return copies[id(value)]
        if kind is dict:
            copied = copies[id(value)] = {}
            for name, member in value.items():
                copied[name] = member if type(member) in _IMMUTABLE_TYPES else self._copy(member, copies)
            return copied
        if kind is list:
            listed = copies[id(value)] = []
            listed.extend([self._copy(member, copies) for member in value])
            return listed
        try:
            return deepcopy(value, copies)
        except Exception as error:  # a `__deepcopy__` or `__reduce__` method may raise anything
            return self._share(value, str(error))

    def _share(self, value: Any, reason: str) -> Any:
        self._remark(f"inputs with a {type(value).__name__} are shared by all attempts and repetitions ({reason:.100})")
        return value


T = TypeVar("T")
CANCEL_GRACE = 0.1  # seconds for the cleanup of a cancelled coroutine before it is abandoned
STOP_GRACE = 1.0  # seconds for the cleanup of cancelled tasks when the whole experiment is stopped
_MAX_TRACKED = 64  # number of abandoned tasks above which the ended ones are removed


class AbandonedTasks:
    """Threads and tasks that were abandoned after a timeout; the end of the experiment reports those still running."""

    def __init__(self) -> None:
        self._tasks: list[threading.Thread | asyncio.Task[Any]] = []
        self._lock = threading.Lock()

    @property
    def alive(self) -> int:
        """Return the number of abandoned threads and tasks that still run."""
        with self._lock:
            return sum(map(_is_alive, self._tasks))

    def add(self, task: threading.Thread | asyncio.Task[Any]) -> None:
        """Add a thread or task that is no longer waited for; may be called from any thread."""
        with self._lock:
            if len(self._tasks) >= _MAX_TRACKED:
                self._tasks = list(filter(_is_alive, self._tasks))
            self._tasks.append(task)


def run_with_timeout(seconds: float, call: Callable[[], Any], abandoned: AbandonedTasks) -> Any:
    """Run a call on its own thread. Raises the error of the call, or `TimeoutError`."""
    results: queue.SimpleQueue[CallResult[Any]] = queue.SimpleQueue()
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=lambda: results.put(context.run(capture_call, call)), name="spanwise-task", daemon=True
    )
    thread.start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        abandoned.add(thread)
        raise make_timeout_error(seconds) from None
    return result.get()


async def await_with_timeout(
    awaitable: Awaitable[Any], seconds: float | None, abandoned: AbandonedTasks, limit: float | None = None
) -> Any:
    """Return the result of an awaitable. Raises its error, or `TimeoutError` after `seconds`.

    The message of the timeout error states `limit` if it is given, else `seconds`.
    """
    if seconds is None:
        return await awaitable
    task = asyncio.create_task(capture_awaitable(awaitable))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        await cancel_tasks({task}, abandoned)
    if not done:
        raise make_timeout_error(seconds if limit is None else limit)
    return task.result().get()


async def cancel_tasks(
    tasks: Collection[asyncio.Task[Any]], abandoned: AbandonedTasks, grace: float = CANCEL_GRACE
) -> None:
    """Cancel the tasks that are still running, and abandon those that do not end within `grace` seconds."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if running:
        _, stubborn = await asyncio.wait(running, timeout=grace)
        for task in stubborn:
            _abandon_task(task)
            abandoned.add(task)


async def run_and_cancel_others(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine, and then cancel the tasks that were started on the loop meanwhile, so that they do not delay
    its end.

    Returns the result of the coroutine.
    """
    before = asyncio.all_tasks()
    try:
        return await coroutine
    finally:
        await cancel_tasks(asyncio.all_tasks() - before, AbandonedTasks(), STOP_GRACE)


def compute_remaining(seconds: float | None, started: float) -> float | None:
    """Return the seconds that remain of a limit since `started` (`time.monotonic`), at least 0; None without a limit."""
    return None if seconds is None else max(0.0, seconds - (time.monotonic() - started))


def make_timeout_error(seconds: float) -> TimeoutError:
    """Return the error of a task that exceeded its timeout."""
    return TimeoutError(f"the task took more than {seconds} s")


def _abandon_task(task: asyncio.Task[Any]) -> None:
    """Unregister a task from asyncio.

    `asyncio.run` then neither waits for the task at its end nor warns that it is pending. The documentation of asyncio
    describes this for third-party event loops ("Extending").
    """
    asyncio.tasks._unregister_task(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _is_alive(task: threading.Thread | asyncio.Task[Any]) -> bool:
    return task.is_alive() if isinstance(task, threading.Thread) else not task.done()


# Fixture of a run: set-up and tear-down around each attempt of the task, by a context manager.

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
