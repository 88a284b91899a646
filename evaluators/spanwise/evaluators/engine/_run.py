"""One run: the task under a root span, then its finished spans, then what evaluators see of it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan

from spanwise.collector.dialects import Also, from_readable
from spanwise.collector.records import JSON, Case, Example, Run, Target, Trace
from spanwise.evaluators.datasets import view_outputs
from spanwise.evaluators.engine._attempts import as_attempt, marked
from spanwise.evaluators.engine._brake import Brake
from spanwise.evaluators.engine._examples import with_example
from spanwise.evaluators.engine._notes import feedback_beside, feedback_of
from spanwise.evaluators.engine._plan import Done, Item, Plan
from spanwise.evaluators.engine._root import own_root, said_none
from spanwise.evaluators.engine._task import Task, joined
from spanwise.evaluators.engine._timeout import in_time, remaining, within
from spanwise.evaluators.protocol import Wait, ends_the_run, is_cancelled, plain, retries_on, wait_before
from spanwise.evaluators.scoring import case_of
from spanwise.tracer import attributes as names
from spanwise.tracer.capture import Captured, capture

SLICE = 0.1  # seconds


class Attempt(NamedTuple):
    """A call of the task that is over: its spans, and what it came to."""

    captured: Captured
    outputs: Any = None
    as_returned: bool = True  # False: `outputs` had to be made of what was returned, as of a stream
    error: BaseException | None = None


def run_here(plan: Plan, task: Task, item: Item, wait: Wait, brake: Brake) -> Done:
    """Run a plain task on this thread; `wait` gets an awaitable that it may have returned."""
    failed: list[Attempt] = []
    attempt = _attempt(plan, task, item, wait)
    while (pause := _pause(plan, attempt, len(failed))) is not None:
        for seconds in _slices(pause):
            time.sleep(0 if brake.why else seconds)
        if brake.why:
            break
        failed.append(attempt)
        attempt = _attempt(plan, task, item, wait)
    spans, still_open = attempt.captured.spans(_span_wait(plan, attempt))
    return _done(plan, task, item, attempt, failed, spans, still_open)


async def run_on_loop(plan: Plan, task: Task, item: Item, brake: Brake) -> Done:
    """Run an async task on the running loop."""
    failed: list[Attempt] = []
    attempt = await _attempt_on_loop(plan, task, item)
    while (pause := _pause(plan, attempt, len(failed))) is not None:
        for seconds in _slices(pause):
            await asyncio.sleep(0 if brake.why else seconds)
        if brake.why:
            break
        failed.append(attempt)
        attempt = await _attempt_on_loop(plan, task, item)
    await asyncio.sleep(0)  # background tasks that the run has made open their spans now
    spans, still_open = await attempt.captured.aspans(_span_wait(plan, attempt))
    return _done(plan, task, item, attempt, failed, spans, still_open)


def _pause(plan: Plan, attempt: Attempt, failed: int) -> float | None:
    """Seconds to wait before another attempt, when so many have failed before this one; None: this is the last."""
    if attempt.error is None or failed >= plan.settings.retries:
        return None
    try:
        again = retries_on(plan.settings.retry_on)(attempt.error)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        plan.remark(f"retry_on raised {told:.200}; what it was asked about was not tried again")
        return None
    return wait_before(failed, attempt.error) if again else None


def _slices(seconds: float) -> Iterator[float]:
    """A pause in pieces, between which one can see that all is over."""
    whole, rest = divmod(seconds, SLICE)
    yield from (*repeat(SLICE, int(whole)), rest)


def _span_wait(plan: Plan, attempt: Attempt) -> float:
    return 0 if isinstance(attempt.error, TimeoutError) else plan.settings.span_wait


def _attempt(plan: Plan, task: Task, item: Item, wait: Wait) -> Attempt:
    try:
        with _root(plan, task, item) as captured:
            args, named = _arguments(plan, task, item)
            outputs, as_returned = _called(plan, task, args, named, wait)
            captured.run.set_outputs(outputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Attempt(captured, error=error)
    return Attempt(captured, outputs, as_returned)


async def _attempt_on_loop(plan: Plan, task: Task, item: Item) -> Attempt:
    try:
        with _root(plan, task, item) as captured:
            args, named = _arguments(plan, task, item)
            called = _finished(task.function(*args, **named))
            outputs, as_returned = await in_time(called, plan.settings.timeout, plan.strays)
            captured.run.set_outputs(outputs)
    except BaseException as error:
        if ends_the_run(error):
            raise
        return Attempt(captured, error=error)
    if is_cancelled():  # the task has swallowed it
        raise asyncio.CancelledError
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


_PLAIN = frozenset((str, dict, list, int, float, bool, type(None)))  # results that are not looked at any further


def _called(plan: Plan, task: Task, args: tuple[Any, ...], named: JSON, wait: Wait) -> tuple[Any, bool]:
    """(outputs, whether they are what was returned)."""
    timeout, began = plan.settings.timeout, time.monotonic()

    def call() -> tuple[Any, bool]:
        returned = task.function(*args, **named)
        if type(returned) in _PLAIN:
            return returned, True
        if isinstance(returned, Iterator):
            return joined(returned), False
        if not (inspect.isawaitable(returned) or isinstance(returned, AsyncIterable)):
            return returned, True
        left = remaining(timeout, began)
        return wait(in_time(_finished(returned), left, plan.strays, timeout))[0], False

    return call() if timeout is None else within(timeout, call, plan.strays)


async def _finished(returned: Any) -> tuple[Any, bool]:
    """(outputs, whether they are what was returned)."""
    if inspect.isawaitable(returned):
        returned = await returned
    if isinstance(returned, AsyncIterable):
        return joined([piece async for piece in returned]), False
    if isinstance(returned, Iterator):  # it may wait for each piece: on a thread it holds up no other task
        return await asyncio.to_thread(joined, returned), False
    return returned, True


def _done(
    plan: Plan,
    task: Task,
    item: Item,
    attempt: Attempt,
    failed: Sequence[Attempt],
    spans: Sequence[ReadableSpan],
    still_open: int,
) -> Done:
    also: list[Also] = []
    around, runs, root = _rooted(task, attempt, spans, also)
    outputs = _outputs(attempt, around, root)
    if attempt.error is None and outputs is None:
        runs, root = said_none(runs, root)
    if plan.keep_examples:
        runs, root = with_example(runs, root, item.example, around.inputs)
    earlier: Sequence[Run] = ()
    if failed:
        runs, root = marked(runs, root, len(failed) + 1)
        trees = [_rooted(task, one, one.captured.spans(0)[0], [])[1:] for one in failed]
        earlier = [run for number, tree in enumerate(trees, 1) for run in as_attempt(*tree, number, root)]
    trace = Trace(root, runs, complete=not still_open)
    case = _case(plan, item.example, trace, outputs)
    feedback = feedback_of(attempt.captured, around, root) + feedback_beside(also, around, root)
    raised = attempt.error if plan.settings.raise_errors else None
    return Done(item, case, Target(trace_id=trace.trace_id), (*earlier, *runs), feedback, still_open, raised)


def _rooted(
    task: Task, attempt: Attempt, spans: Sequence[ReadableSpan], also: list[Also]
) -> tuple[Run, tuple[Run, ...], Run]:
    """The run around a call of the task, all runs of it, and which of them is their root."""
    runs, around = _read(spans, also)
    if not task.is_traced:
        return around, runs, around
    return around, *own_root(runs, around, as_returned=attempt.as_returned, wrapped=task.is_wrapped)


def _read(spans: Sequence[ReadableSpan], also: list[Also]) -> tuple[tuple[Run, ...], Run]:
    """The runs that spans are, by start, and their root; what they say beside is added to `also`."""
    runs = tuple([from_readable(span, also) for span in spans])
    if len(runs) == 1:
        return runs, runs[0]
    runs = tuple(sorted(runs, key=lambda run: run.start_ns))
    return runs, next(run for run in runs if run.parent_id is None)


def _outputs(attempt: Attempt, around: Run, root: Run) -> JSON:
    """What evaluators see of outputs: plain values, as they are read back from a trace later, but never cut short."""
    if root.outputs is not around.outputs and root.outputs != around.outputs:
        return root.outputs  # the task has said of its own span what it answered
    return plain(attempt.outputs)


def _case(plan: Plan, example: Example, trace: Trace, outputs: JSON) -> Case:
    return case_of(trace, example, plan.kind, outputs=view_outputs(outputs, plan.kind))
