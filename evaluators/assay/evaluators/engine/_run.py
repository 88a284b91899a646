"""One run: the task under a root span, then its finished spans, then what evaluators see of it."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import orjson
from opentelemetry.sdk.trace import ReadableSpan

from assay.collector.dialects import from_readable
from assay.collector.records import JSON, Case, Document, Example, Link, Run, Target, Trace
from assay.evaluators.datasets._kinds import view, view_outputs
from assay.evaluators.engine._examples import kept as kept_of
from assay.evaluators.engine._notes import feedback_of_run
from assay.evaluators.engine._plan import Done, Item, Plan
from assay.evaluators.engine._task import Task, joined
from assay.tracer import attributes as names
from assay.tracer.capture import Captured, capture
from assay.tracer.spans import to_json

Wait = Callable[[Awaitable[Any]], Any]
FIRST_PAUSE = 0.25  # seconds before the first retry; doubles
LARGEST = 2**26  # bytes of outputs that evaluators see; what is stored of them has the tracer's limit
_RETRIEVAL = ("retriever", "reranker")
_PLAIN = (str, int, float, type(None))


def run_here(plan: Plan, task: Task, item: Item, wait: Wait) -> Done:
    """Run a plain task on this thread; `wait` gets an awaitable that it may have returned."""
    for attempt in range(plan.retries + 1):
        captured, outputs, error = _attempt(plan, task, item, wait)
        if error is None or attempt == plan.retries:
            break
        time.sleep(FIRST_PAUSE * 2**attempt)
    spans, still_open = captured.spans(0 if isinstance(error, TimeoutError) else plan.span_wait)
    return _done(plan, item, captured, spans, still_open, outputs)


async def run_on_loop(plan: Plan, task: Task, item: Item) -> Done:
    """Run an async task on the running loop."""
    for attempt in range(plan.retries + 1):
        captured, outputs, error = await _attempt_on_loop(plan, task, item)
        if error is None or attempt == plan.retries:
            break
        await asyncio.sleep(FIRST_PAUSE * 2**attempt)
    await asyncio.sleep(0)  # background tasks that the run has made open their spans now
    spans, still_open = await captured.aspans(0 if isinstance(error, TimeoutError) else plan.span_wait)
    return _done(plan, item, captured, spans, still_open, outputs)


def given(plan: Plan, item: Item) -> Done:
    """A run that is there already: a stored trace, or the outputs that an example brings along."""
    if item.trace is not None and item.stored:
        return Done(item, _case(plan, item.example, item.trace), Target(trace_id=item.trace.trace_id), ())
    trace = _adopted(plan, item, item.trace) if item.trace else _trace_of_example(plan, item)
    return Done(item, _case(plan, item.example, trace), Target(trace_id=trace.trace_id), trace.runs)


def _attempt(plan: Plan, task: Task, item: Item, wait: Wait) -> tuple[Captured, Any, BaseException | None]:
    outputs = None
    try:
        with _root(plan, task, item) as captured:
            args, named = task.arguments(item.example, plan.kind, plan.seed_of(item.example, item.repetition))
            outputs = _called(task, args, named, plan.timeout, wait)
            captured.run.set_outputs(outputs)
    except (Exception, SystemExit) as error:
        return captured, None, error
    return captured, outputs, None


async def _attempt_on_loop(plan: Plan, task: Task, item: Item) -> tuple[Captured, Any, BaseException | None]:
    outputs = None
    try:
        with _root(plan, task, item) as captured:
            args, named = task.arguments(item.example, plan.kind, plan.seed_of(item.example, item.repetition))
            outputs = await _in_time(_finished(task.function(*args, **named)), plan.timeout)
            captured.run.set_outputs(outputs)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        return captured, None, error
    except (Exception, SystemExit) as error:
        return captured, None, error
    return captured, outputs, None


def is_cancelled() -> bool:
    """Whether it is this asyncio task that is to end. If not, the user's code raised `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _root(plan: Plan, task: Task, item: Item) -> Any:
    attributes = {
        names.EXPERIMENT: plan.experiment_id,
        names.EXAMPLE: item.example.id,
        names.REPETITION: item.repetition,
    }
    return capture(task.name, kind="chain", inputs=item.example.inputs, attributes=attributes)


def _called(task: Task, args: tuple[Any, ...], named: JSON, timeout: float | None, wait: Wait) -> Any:
    def call() -> Any:
        returned = task.function(*args, **named)
        if inspect.isgenerator(returned):
            return joined(returned)
        return wait(returned) if inspect.isawaitable(returned) else returned

    return call() if timeout is None else _within(timeout, call)


async def _in_time(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"the task took more than {seconds} s") from None
        raise


async def _finished(returned: Any) -> Any:
    if inspect.isasyncgen(returned):
        return joined([piece async for piece in returned])
    return await returned if inspect.isawaitable(returned) else returned


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """A call on a thread of its own, which is left to itself when it takes too long: a thread cannot be ended."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            answers.put((context.run(call), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=work, name="assay-task", daemon=True).start()
    try:
        returned, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"the task took more than {seconds} s") from None
    if error is not None:
        raise error
    return returned


def _done(
    plan: Plan, item: Item, captured: Captured, spans: Sequence[ReadableSpan], still_open: int, outputs: Any
) -> Done:
    runs = tuple([from_readable(span) for span in spans])
    if len(runs) > 1:
        runs = tuple(sorted(runs, key=lambda run: run.start_ns))
    root = runs[0] if len(runs) == 1 else next(run for run in runs if run.parent_id is None)
    if plan.keep_examples:
        kept = replace(root, attributes={**root.attributes, **kept_of(item.example)})
        runs, root = tuple(kept if run is root else run for run in runs), kept
    trace = Trace(root, runs, complete=not still_open)
    case = _case(plan, item.example, trace, _seen(outputs))
    feedback = [one for event in captured.feedback if (one := feedback_of_run(event))]
    return Done(item, case, Target(trace_id=trace.trace_id), runs, feedback, still_open)


def _seen(outputs: Any) -> JSON:
    """What evaluators see of outputs: plain values, as they are read back from a trace later, but never cut short."""
    return outputs if isinstance(outputs, _PLAIN) else orjson.loads(to_json(outputs, LARGEST))


def _case(plan: Plan, example: Example, trace: Trace, outputs: JSON = None) -> Case:
    fields = view(example, plan.kind)
    if outputs is None:
        outputs = trace.root.outputs
    return Case(
        example=example,
        trace=trace,
        inputs=fields["inputs"],
        outputs=outputs if plan.kind == "kv" else view_outputs(outputs, plan.kind),
        reference_outputs=fields["reference_outputs"],
        documents=_documents(trace, example),
        expected_documents=example.expected_documents,
        conditions=example.conditions,
        guidelines=example.guidelines,
        history=fields["history"],
        metadata=example.metadata,
    )


def _documents(trace: Trace, example: Example) -> tuple[Document, ...] | None:
    """The retrieved context; None when nothing was retrieved, () when a retrieval found nothing."""
    found = trace.documents
    if found:
        return found
    return () if any(run.kind in _RETRIEVAL for run in trace.runs) else example.documents


def _trace_of_example(plan: Plan, item: Item) -> Trace:
    """A trace around what an example brings along, so that feedback has something to hang on."""
    now = time.time_ns()
    trace_id = _trace_id(plan, item)
    run = Run(
        trace_id=trace_id,
        span_id=trace_id[:16],
        name=plan.name,
        start_ns=now,
        end_ns=now,
        status="ok",
        inputs=item.example.inputs,
        outputs=item.example.outputs,
        documents=item.example.documents or (),
        attributes=kept_of(item.example) if plan.keep_examples else {},
        experiment_id=plan.experiment_id,
        example_id=item.example.id,
        repetition=item.repetition,
    )
    return Trace(run, (run,), complete=True)


def _adopted(plan: Plan, item: Item, trace: Trace) -> Trace:
    """A copy of a stored trace that belongs to the experiment; its root is linked to the original."""
    trace_id = _trace_id(plan, item)
    runs = {run.span_id: replace(run, trace_id=trace_id, experiment_id=None) for run in trace.runs}
    root = replace(
        runs[trace.root.span_id],
        links=(*trace.root.links, Link(trace.trace_id, trace.root.span_id)),
        experiment_id=plan.experiment_id,
        example_id=item.example.id,
        repetition=item.repetition,
    )
    runs[root.span_id] = root
    return Trace(root, tuple(runs.values()), complete=trace.complete)


def _trace_id(plan: Plan, item: Item) -> str:
    """The same for the same run of an experiment, so that storing it twice stores it once."""
    text = f"{plan.experiment_id}|{item.example.id}|{item.repetition}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
