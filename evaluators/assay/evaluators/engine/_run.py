"""One run: the task under a root span, then its finished spans, then what evaluators see of it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import orjson
from opentelemetry.sdk.trace import ReadableSpan

from assay.collector.dialects import from_readable
from assay.collector.records import JSON, Case, Example, Run, Target, Trace
from assay.evaluators.datasets import view_outputs
from assay.evaluators.engine._examples import with_example
from assay.evaluators.engine._notes import feedback_of
from assay.evaluators.engine._plan import Done, Item, Plan
from assay.evaluators.engine._root import own_root, said_none
from assay.evaluators.engine._task import Task, joined
from assay.evaluators.protocol import Ended, Wait, caught, is_cancelled
from assay.evaluators.scoring import case_of
from assay.tracer import attributes as names
from assay.tracer.backoff import pause
from assay.tracer.capture import Captured, capture
from assay.tracer.spans import to_json

LARGEST = 2**26  # bytes of outputs that evaluators see; what is stored of them has the tracer's limit
_AS_THEY_ARE = (str, int, float, type(None))


class Attempt(NamedTuple):
    """A call of the task that is over: its spans, and what it came to."""

    captured: Captured
    outputs: Any = None
    as_returned: bool = True  # False: `outputs` had to be made of what was returned, as of a stream
    error: BaseException | None = None


def run_here(plan: Plan, task: Task, item: Item, wait: Wait) -> Done:
    """Run a plain task on this thread; `wait` gets an awaitable that it may have returned."""
    retries = plan.settings.retries
    for number in range(retries + 1):
        attempt = _attempt(plan, task, item, wait)
        if attempt.error is None or number == retries:
            break
        time.sleep(pause(number))
    spans, still_open = attempt.captured.spans(_span_wait(plan, attempt))
    return _done(plan, task, item, attempt, spans, still_open)


async def run_on_loop(plan: Plan, task: Task, item: Item) -> Done:
    """Run an async task on the running loop."""
    retries = plan.settings.retries
    for number in range(retries + 1):
        attempt = await _attempt_on_loop(plan, task, item)
        if attempt.error is None or number == retries:
            break
        await asyncio.sleep(pause(number))
    await asyncio.sleep(0)  # background tasks that the run has made open their spans now
    spans, still_open = await attempt.captured.aspans(_span_wait(plan, attempt))
    return _done(plan, task, item, attempt, spans, still_open)


def _span_wait(plan: Plan, attempt: Attempt) -> float:
    return 0 if isinstance(attempt.error, TimeoutError) else plan.settings.span_wait


def _attempt(plan: Plan, task: Task, item: Item, wait: Wait) -> Attempt:
    try:
        with _root(plan, task, item) as captured:
            args, named = _arguments(plan, task, item)
            outputs, as_returned = _called(task, args, named, plan.settings.timeout, wait)
            captured.run.set_outputs(outputs)
    except (Exception, SystemExit) as error:
        return Attempt(captured, error=error)
    return Attempt(captured, outputs, as_returned)


async def _attempt_on_loop(plan: Plan, task: Task, item: Item) -> Attempt:
    try:
        with _root(plan, task, item) as captured:
            args, named = _arguments(plan, task, item)
            called = _finished(task.function(*args, **named))
            outputs, as_returned = await _in_time(called, plan.settings.timeout)
            captured.run.set_outputs(outputs)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        return Attempt(captured, error=error)
    except (Exception, SystemExit) as error:
        return Attempt(captured, error=error)
    return Attempt(captured, outputs, as_returned)


def _arguments(plan: Plan, task: Task, item: Item) -> tuple[tuple[Any, ...], JSON]:
    seed = plan.seed_of(item.example, item.repetition)
    return task.arguments(item.example, plan.kind, seed, plan.copies)


def _root(plan: Plan, task: Task, item: Item) -> AbstractContextManager[Captured]:
    attributes = {
        names.EXPERIMENT: plan.experiment_id,
        names.EXAMPLE: item.example.id,
        names.REPETITION: item.repetition,
    }
    return capture(task.name, kind="chain", inputs=item.example.inputs, attributes=attributes)


def _called(task: Task, args: tuple[Any, ...], named: JSON, timeout: float | None, wait: Wait) -> tuple[Any, bool]:
    """(outputs, whether they are what was returned)."""

    def call() -> tuple[Any, bool]:
        returned = task.function(*args, **named)
        if inspect.isgenerator(returned):
            return joined(returned), False
        return (wait(returned), False) if inspect.isawaitable(returned) else (returned, True)

    return call() if timeout is None else _within(timeout, call)


async def _finished(returned: Any) -> tuple[Any, bool]:
    """(outputs, whether they are what was returned)."""
    if inspect.isasyncgen(returned):
        return joined([piece async for piece in returned]), False
    return (await returned, True) if inspect.isawaitable(returned) else (returned, True)


async def _in_time(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"the task took more than {seconds} s") from None
        raise


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """A call on a thread of its own, which is left to itself when it takes too long: a thread cannot be ended."""
    answers: queue.SimpleQueue[Ended[Any]] = queue.SimpleQueue()
    context = contextvars.copy_context()
    threading.Thread(target=lambda: answers.put(context.run(caught, call)), name="assay-task", daemon=True).start()
    try:
        ended = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"the task took more than {seconds} s") from None
    return ended.get()


def _done(plan: Plan, task: Task, item: Item, attempt: Attempt, spans: Sequence[ReadableSpan], still_open: int) -> Done:
    runs, around = _read(spans)
    root = around
    if task.is_traced:
        runs, root = own_root(runs, around, as_returned=attempt.as_returned, wrapped=task.is_wrapped)
    if attempt.error is None and root.outputs is None:
        runs, root = said_none(runs, root)
    if plan.keep_examples:
        runs, root = with_example(runs, root, item.example, around.inputs)
    trace = Trace(root, runs, complete=not still_open)
    case = _case(plan, item.example, trace, _outputs(attempt, around, root))
    feedback = feedback_of(attempt.captured, around, root)
    return Done(item, case, Target(trace_id=trace.trace_id), runs, feedback, still_open)


def _read(spans: Sequence[ReadableSpan]) -> tuple[tuple[Run, ...], Run]:
    """The runs that spans are, by start, and their root."""
    runs = tuple([from_readable(span) for span in spans])
    if len(runs) == 1:
        return runs, runs[0]
    runs = tuple(sorted(runs, key=lambda run: run.start_ns))
    return runs, next(run for run in runs if run.parent_id is None)


def _outputs(attempt: Attempt, around: Run, root: Run) -> JSON:
    """What evaluators see of outputs: plain values, as they are read back from a trace later, but never cut short."""
    if root.outputs is not around.outputs and root.outputs != around.outputs:
        return root.outputs  # the task has said of its own span what it answered
    outputs = attempt.outputs
    return outputs if isinstance(outputs, _AS_THEY_ARE) else orjson.loads(to_json(outputs, LARGEST))


def _case(plan: Plan, example: Example, trace: Trace, outputs: JSON) -> Case:
    return case_of(trace, example, plan.kind, outputs=view_outputs(outputs, plan.kind))
