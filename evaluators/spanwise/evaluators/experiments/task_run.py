"""Task run: attempts under a root span, retries, the resulting trace, and runs that exist already."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan

from spanwise.collector.dialects import RawLog, SideRecord, read_feedback, read_sdk_span
from spanwise.collector.formatting import first_line
from spanwise.collector.records import JSON, Feedback, Link, Run, Target, Trace
from spanwise.evaluators.datasets import view_outputs
from spanwise.evaluators.experiments.dataset_source import add_root_attributes, attach_example, make_example_attributes
from spanwise.evaluators.experiments.experiment_plan import ExperimentPlan, FinishedRun, PlannedRun, StopConditions
from spanwise.evaluators.experiments.task_call import (
    ContextOnThread,
    RunFixture,
    TaskFunction,
    await_with_timeout,
    compute_remaining,
    describe_teardown_error,
    enter_on_loop,
    join_chunks,
    leave_on_loop,
    run_with_timeout,
)
from spanwise.evaluators.interface import (
    AwaitFunction,
    compile_retry_on,
    compute_retry_delay,
    is_interruption,
    is_task_cancelled,
    to_plain,
)
from spanwise.evaluators.scoring import make_case
from spanwise.tracer import attribute_names as names
from spanwise.tracer.trace_capture import Captured, FeedbackEvent, capture

PAUSE_SLICE = 0.1  # maximum seconds between two checks for a stop during a pause


class TaskAttempt(NamedTuple):
    """Finished call of the task: the spans that it opened, and its result."""

    captured: Captured
    outputs: Any = None
    as_returned: bool = True  # False: `outputs` was assembled from the returned value, which was a stream for example
    error: BaseException | None = None
    teardown_error: BaseException | None = None


def run_task_on_thread(
    plan: ExperimentPlan, task: TaskFunction, item: PlannedRun, wait: AwaitFunction, conditions: StopConditions
) -> FinishedRun:
    """Run a plain task on this thread; `wait` resolves an awaitable that the task may return."""
    failed: list[TaskAttempt] = []
    attempt = _attempt_on_thread(plan, task, item, wait)
    while (pause := _compute_pause(plan, attempt, len(failed))) is not None:
        for seconds in _slice_pause(pause):
            time.sleep(0 if conditions.reason else seconds)
        if conditions.reason:
            break
        failed.append(attempt)
        attempt = _attempt_on_thread(plan, task, item, wait)
    spans, still_open = attempt.captured.spans(_get_span_wait(plan, attempt))
    return _make_finished_run(plan, task, item, attempt, failed, spans, still_open)


async def run_task_on_loop(
    plan: ExperimentPlan, task: TaskFunction, item: PlannedRun, conditions: StopConditions
) -> FinishedRun:
    """Run an async task on the running loop."""
    failed: list[TaskAttempt] = []
    attempt = await _attempt_on_loop(plan, task, item)
    while (pause := _compute_pause(plan, attempt, len(failed))) is not None:
        for seconds in _slice_pause(pause):
            await asyncio.sleep(0 if conditions.reason else seconds)
        if conditions.reason:
            break
        failed.append(attempt)
        attempt = await _attempt_on_loop(plan, task, item)
    await asyncio.sleep(0)  # let background tasks that the run started open their spans
    spans, still_open = await attempt.captured.aspans(_get_span_wait(plan, attempt))
    return _make_finished_run(plan, task, item, attempt, failed, spans, still_open)


def _compute_pause(plan: ExperimentPlan, attempt: TaskAttempt, failed: int) -> float | None:
    """Return the seconds until the next attempt after `failed` earlier failures, or None for no further attempt."""
    if attempt.error is None or failed >= plan.settings.retries:
        return None
    try:
        retries = compile_retry_on(plan.settings.retry_on)(attempt.error)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        plan.remark(f"retry_on raised {text:.200}; the failed attempt was not retried")
        return None
    return compute_retry_delay(failed, attempt.error) if retries else None


def _slice_pause(seconds: float) -> Iterator[float]:
    """Yield the parts of a pause, so that the caller can check between them whether the experiment was stopped."""
    slices, remainder = divmod(seconds, PAUSE_SLICE)
    yield from (*repeat(PAUSE_SLICE, int(slices)), remainder)


def _get_span_wait(plan: ExperimentPlan, attempt: TaskAttempt) -> float:
    return 0 if isinstance(attempt.error, TimeoutError) else plan.settings.span_wait


def _attempt_on_thread(plan: ExperimentPlan, task: TaskFunction, item: PlannedRun, wait: AwaitFunction) -> TaskAttempt:
    if plan.fixture is None:
        return _call_on_thread(plan, task, item, wait)
    try:
        manager, is_async = _open_fixture(plan, plan.fixture, item, prefers_async=False)
        context = ContextOnThread(manager, is_async, wait)
        value = context.enter()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _fail_setup(plan, task, item, error)
    try:
        attempt = _call_on_thread(plan, task, item, wait, value)
    except BaseException as interruption:
        context.leave(interruption)
        raise
    return attempt._replace(teardown_error=context.leave(attempt.error))


async def _attempt_on_loop(plan: ExperimentPlan, task: TaskFunction, item: PlannedRun) -> TaskAttempt:
    if plan.fixture is None:
        return await _call_on_loop(plan, task, item)
    try:
        manager, is_async = _open_fixture(plan, plan.fixture, item, prefers_async=True)
        value = await enter_on_loop(manager, is_async)
    except BaseException as error:
        if is_interruption(error):
            raise
        return _fail_setup(plan, task, item, error)
    try:
        attempt = await _call_on_loop(plan, task, item, value)
    except BaseException as interruption:
        await leave_on_loop(manager, is_async, interruption)
        raise
    return attempt._replace(teardown_error=await leave_on_loop(manager, is_async, attempt.error))


def _open_fixture(
    plan: ExperimentPlan, fixture: RunFixture, item: PlannedRun, *, prefers_async: bool
) -> tuple[Any, bool]:
    seed = plan.seed_of(item.example, item.repetition)
    return fixture.open(item.example, plan.kind, seed, plan.copies, prefers_async=prefers_async)


def _fail_setup(plan: ExperimentPlan, task: TaskFunction, item: PlannedRun, error: BaseException) -> TaskAttempt:
    """Return an attempt that failed with the error of its set-up, before the task was called."""
    with suppress(BaseException), _capture_root(plan, task, item) as captured:
        raise error
    return TaskAttempt(captured, error=error)


def _call_on_thread(
    plan: ExperimentPlan, task: TaskFunction, item: PlannedRun, wait: AwaitFunction, fixture: Any = None
) -> TaskAttempt:
    try:
        with _capture_root(plan, task, item) as captured:
            args, named = _make_arguments(plan, task, item, fixture)
            outputs, as_returned = _call_task(plan, task, args, named, wait)
            captured.run.set_outputs(outputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return TaskAttempt(captured, error=error)
    return TaskAttempt(captured, outputs, as_returned)


async def _call_on_loop(plan: ExperimentPlan, task: TaskFunction, item: PlannedRun, fixture: Any = None) -> TaskAttempt:
    try:
        with _capture_root(plan, task, item) as captured:
            args, named = _make_arguments(plan, task, item, fixture)
            called = _await_outputs(task.function(*args, **named))
            outputs, as_returned = await await_with_timeout(called, plan.settings.timeout, plan.abandoned)
            captured.run.set_outputs(outputs)
    except BaseException as error:
        if is_interruption(error):
            raise
        return TaskAttempt(captured, error=error)
    if is_task_cancelled():  # the task has suppressed its cancellation
        raise asyncio.CancelledError
    return TaskAttempt(captured, outputs, as_returned)


def _make_arguments(
    plan: ExperimentPlan, task: TaskFunction, item: PlannedRun, fixture: Any
) -> tuple[tuple[Any, ...], JSON]:
    seed = plan.seed_of(item.example, item.repetition)
    return task.arguments(item.example, plan.kind, seed, plan.copies, fixture)


def _capture_root(plan: ExperimentPlan, task: TaskFunction, item: PlannedRun) -> AbstractContextManager[Captured]:
    attributes = {
        names.EXPERIMENT: plan.experiment_id,
        names.EXAMPLE: item.example.id,
        names.REPETITION: item.repetition,
    }
    return capture(task.name, kind="chain", inputs=item.example.inputs, attributes=attributes)


# a returned value of these types needs no further inspection
_PLAIN_TYPES = frozenset((str, dict, list, int, float, bool, type(None)))


def _call_task(
    plan: ExperimentPlan, task: TaskFunction, args: tuple[Any, ...], named: JSON, wait: AwaitFunction
) -> tuple[Any, bool]:
    """Call the task. Return its outputs, and whether they are the returned value itself (not assembled from a
    stream).
    """
    timeout, started = plan.settings.timeout, time.monotonic()

    def call() -> tuple[Any, bool]:
        returned = task.function(*args, **named)
        if type(returned) in _PLAIN_TYPES:
            return returned, True
        if isinstance(returned, Iterator):
            return join_chunks(returned), False
        if not (inspect.isawaitable(returned) or isinstance(returned, AsyncIterable)):
            return returned, True
        remaining = compute_remaining(timeout, started)
        return wait(await_with_timeout(_await_outputs(returned), remaining, plan.abandoned, timeout))[0], False

    return call() if timeout is None else run_with_timeout(timeout, call, plan.abandoned)


async def _await_outputs(returned: Any) -> tuple[Any, bool]:
    """Resolve a returned value. Return the outputs, and whether they are that value itself (not assembled from a
    stream).
    """
    if inspect.isawaitable(returned):
        returned = await returned
    if isinstance(returned, AsyncIterable):
        return join_chunks([chunk async for chunk in returned]), False
    # the iterator may block for each chunk, so read it on a thread and keep the loop free
    if isinstance(returned, Iterator):
        return await asyncio.to_thread(join_chunks, returned), False
    return returned, True


def _make_finished_run(
    plan: ExperimentPlan,
    task: TaskFunction,
    item: PlannedRun,
    attempt: TaskAttempt,
    failed: Sequence[TaskAttempt],
    spans: Sequence[ReadableSpan],
    still_open: int,
) -> FinishedRun:
    side_records: list[SideRecord] = []
    around, runs, root = _find_root(task, attempt, spans, side_records)
    outputs, native = _select_outputs(attempt, around, root)
    if attempt.error is None and outputs is None and names.OUTPUT_VALUE not in root.attributes:
        # mark the null output explicitly, even if the settings exclude inputs and outputs from recording
        runs, root = add_root_attributes(runs, root, {names.OUTPUT_VALUE: "null"})
    if plan.keep_examples:
        runs, root = attach_example(runs, root, item.example, around.inputs)
    earlier: Sequence[Run] = ()
    if failed:
        runs, root = add_root_attributes(runs, root, {names.ATTEMPT: len(failed) + 1})
        trees = [_find_root(task, each, each.captured.spans(0)[0], [])[1:] for each in failed]
        earlier = [run for number, tree in enumerate(trees, 1) for run in move_below_root(*tree, number, root)]
    if plan.fixture is not None:
        runs, root = _attach_teardown_errors(plan, runs, root, [*failed, attempt])
    trace = Trace(root, runs, complete=not still_open)
    case = make_case(trace, item.example, plan.kind, outputs=view_outputs(outputs, plan.kind), native_outputs=native)
    feedback = read_task_feedback(attempt.captured, around, root) + read_span_feedback(side_records, around, root)
    raised = attempt.error if plan.settings.raise_errors else None
    return FinishedRun(item, case, Target(trace_id=trace.trace_id), (*earlier, *runs), feedback, still_open, raised)


def _attach_teardown_errors(
    plan: ExperimentPlan, runs: tuple[Run, ...], root: Run, attempts: Sequence[TaskAttempt]
) -> tuple[tuple[Run, ...], Run]:
    """Return the runs of a trace and its root, with the errors of tear-downs on the root, and add them to the plan."""
    errors = [describe_teardown_error(each.teardown_error) for each in attempts if each.teardown_error is not None]
    plan.teardown_failures.extend(first_line(error["error"])[:200] for error in errors)
    return add_root_attributes(runs, root, {names.TEARDOWN_ERRORS: errors}) if errors else (runs, root)


def _find_root(
    task: TaskFunction, attempt: TaskAttempt, spans: Sequence[ReadableSpan], side_records: list[SideRecord]
) -> tuple[Run, tuple[Run, ...], Run]:
    """Convert spans to runs. Return the run that was opened around the task, all runs of the trace by start time, and
    their root.

    Side records of the spans are appended to `side_records`.
    """
    runs = tuple([read_sdk_span(span, side_records) for span in spans])
    around = runs[0]
    if len(runs) > 1:
        runs = tuple(sorted(runs, key=lambda run: run.start_ns))
        around = next(run for run in runs if run.parent_id is None)
    if not task.is_traced:
        return around, runs, around
    return around, *promote_task_span(runs, around, as_returned=attempt.as_returned, wrapped=task.is_wrapped)


def _select_outputs(attempt: TaskAttempt, around: Run, root: Run) -> tuple[JSON, Any]:
    """Return the outputs that evaluators see, and the object that the task returned.

    Outputs are plain values, with the types that reading the trace from the store would give, but they are never
    truncated.
    """
    if root.outputs is not around.outputs and root.outputs != around.outputs:
        return root.outputs, None  # the task recorded other outputs on its own span
    return to_plain(attempt.outputs), attempt.outputs


_COUNT_ATTRIBUTES = (names.SPANS_STARTED, names.SPANS_OPEN, names.SPANS_DROPPED, names.CALLS_SENT)


def promote_task_span(
    runs: Sequence[Run], around: Run, *, as_returned: bool = True, wrapped: bool = False
) -> tuple[tuple[Run, ...], Run]:
    """Make the task's own span the root, in place of the span that was opened `around` the task.

    Returns the runs of a traced task, and their root. The span around stays the root if no finished span of the task
    represents the run: the task opened none or several (a retrying wrapper), did not end in time, or had another
    status than the run. With `wrapped`, it also stays if a wrapper returned other outputs.

    The root's outputs are those recorded by the task's span. They are taken from the span around if the task's span
    has none, or if `as_returned` is False because a stream was joined.
    """
    children = [run for run in runs if run.parent_id == around.span_id]
    if len(children) != 1:
        return tuple(runs), around
    task_span = children[0]
    # only spans that end after their local root carry this attribute
    ended_late = names.LOCAL_ROOT in task_span.attributes
    other_outputs = wrapped and task_span.outputs not in (None, around.outputs)
    if ended_late or other_outputs or (around.status == "error") != (task_span.status == "error"):
        return tuple(runs), around
    counts = {name: around.attributes[name] for name in _COUNT_ATTRIBUTES if name in around.attributes}
    root = replace(
        task_span,
        parent_id=None,
        outputs=task_span.outputs if as_returned and task_span.outputs is not None else around.outputs,
        attributes={**task_span.attributes, names.LOCAL_ROOT: around.span_id, **counts},
        experiment_id=around.experiment_id,
        example_id=around.example_id,
        repetition=around.repetition,
    )
    root = _move_span_counts(around, root, root.span_id)
    remaining = tuple(
        root if run is task_span else _move_span_counts(around, run, root.span_id) for run in runs if run is not around
    )
    return remaining, root


def _move_span_counts(around: Run, run: Run, root_id: str) -> Run:
    """Return a run whose span counts refer to the new root, without the removed span `around`."""
    attributes = run.attributes
    if attributes.get(names.LOCAL_ROOT) != around.span_id:
        return run
    started = attributes.get(names.SPANS_STARTED)
    moved: dict[str, JSON] = {names.LOCAL_ROOT: root_id}
    if isinstance(started, int):
        moved[names.SPANS_STARTED] = started - 1
    return replace(run, attributes={**attributes, **moved})


def move_below_root(runs: Sequence[Run], root: Run, number: int, final: Run) -> Iterator[Run]:
    """Yield the runs of a failed attempt, moved into the trace of the final attempt, below its root `final`. Their root
    is marked with the attempt's number, starting at 1.

    They do not belong to the experiment's example. Only the final run counts, and evaluators do not see the others (see
    `make_case`).
    """
    marked_runs, task_root = add_root_attributes(runs, root, {names.ATTEMPT: number})
    for run in marked_runs:
        parent = final.span_id if run is task_root else run.parent_id
        yield replace(run, trace_id=final.trace_id, parent_id=parent, experiment_id=None, example_id=None, repetition=0)


def read_task_feedback(captured: Captured, around: Run, root: Run) -> list[Feedback]:
    """Return the feedback that the task gave with `current_run().feedback(…)`, in the form that OTLP export would give
    it.

    Feedback on the span `around` the task is moved to the root that replaced it. Invalid feedback, such as feedback
    without a score, is ignored: telemetry must not break the task.
    """
    events = captured.feedback
    if not events:
        return []
    records = [_parse_feedback_event(event, {around.span_id: root.span_id}) for event in events]
    return [record for record in records if record is not None]


def read_span_feedback(side_records: Iterable[SideRecord], around: Run, root: Run) -> list[Feedback]:
    """Return the feedback among the side records of spans: annotations, evaluation results of other libraries.

    Feedback on the span `around` the task is moved to the root that replaced it.
    """
    feedback = [record for record in side_records if isinstance(record, Feedback)]
    return [
        replace(each, target=replace(each.target, span_id=root.span_id), id="")
        if each.target.span_id == around.span_id
        else each
        for each in feedback
    ]


def _parse_feedback_event(event: FeedbackEvent, moved: dict[str, str]) -> Feedback | None:
    span_id = f"{event.span_id:016x}"
    log = RawLog(
        trace_id=f"{event.trace_id:032x}",
        span_id=moved.get(span_id, span_id),
        time_ns=event.time_ns,
        attributes=event.attributes,
    )
    try:
        return read_feedback(log)
    except ValueError:
        return None


def make_existing_run(plan: ExperimentPlan, item: PlannedRun) -> FinishedRun:
    """Return a finished run that exists without running a task.

    Its trace is one of:

    - a trace of this experiment
    - a trace to which feedback is attached in place
    - a copy of another trace
    - a new trace that holds given outputs
    """
    if item.trace is None:
        trace = _wrap_outputs(plan, item)
    else:
        trace = item.trace if item.stored or plan.settings.attach else _copy_trace(plan, item, item.trace)
    runs = () if trace is item.trace else trace.runs
    case = make_case(trace, item.example, plan.kind)
    return FinishedRun(item, case, Target(trace_id=trace.trace_id), runs, list(item.known))


def _wrap_outputs(plan: ExperimentPlan, item: PlannedRun) -> Trace:
    """Return a new trace that holds the given outputs of an example, as a target for feedback."""
    now = time.time_ns()
    trace_id = _derive_trace_id(plan, item)
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
        experiment_id=plan.experiment_id,
        example_id=item.example.id,
        repetition=item.repetition,
    )
    if plan.keep_examples:
        run = replace(run, attributes=make_example_attributes(item.example, run, run.inputs))
    return Trace(run, (run,), complete=True)


def _copy_trace(plan: ExperimentPlan, item: PlannedRun, trace: Trace) -> Trace:
    """Copy a stored trace into the experiment. The root of the copy links to the original."""
    trace_id = _derive_trace_id(plan, item)
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


def _derive_trace_id(plan: ExperimentPlan, item: PlannedRun) -> str:
    """Return a trace id derived from the experiment, the example and the repetition, so that storing the same run twice
    is idempotent.
    """
    text = f"{plan.experiment_id}|{item.example.id}|{item.repetition}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
