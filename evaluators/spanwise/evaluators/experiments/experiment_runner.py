"""Entry points `evaluate()`, `aevaluate()` and `dry_run()`, and the pipeline that runs tasks and scores results."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, Unpack

from spanwise.collector.errors import StoreError
from spanwise.collector.records import Example
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import select_latest
from spanwise.collector.store_connection import OnDemandStore
from spanwise.evaluators.experiments.dataset_source import iterate_async_rows, make_source, plan_runs
from spanwise.evaluators.experiments.experiment_plan import (
    EvaluateOptions,
    ExampleEvaluators,
    ExperimentPlan,
    ExperimentSettings,
    FinishedRun,
    PlannedRun,
    StopConditions,
    accept_options,
    make_settings,
)
from spanwise.evaluators.experiments.experiment_preparation import (
    ExperimentJob,
    open_experiment_store,
    prepare_attach,
    prepare_experiment,
)
from spanwise.evaluators.experiments.experiment_progress import (
    ExperimentTally,
    Heartbeat,
    StallWatchdog,
    compute_wall_ns,
)
from spanwise.evaluators.experiments.experiment_results import (
    Experiment,
    register_rescore,
    run_set_evaluators,
    save_requested_results,
)
from spanwise.evaluators.experiments.experiment_summary import format_resume_command
from spanwise.evaluators.experiments.result_writer import ResultWriter, UnstoredRuns, make_spool, make_spooled_store
from spanwise.evaluators.experiments.task_call import (
    FIXTURE,
    STOP_GRACE,
    cancel_tasks,
    make_fixture,
    make_task,
    run_and_cancel_others,
)
from spanwise.evaluators.experiments.task_run import make_existing_run, run_task_on_loop, run_task_on_thread
from spanwise.evaluators.interface import (
    Evaluator,
    JudgementBuffer,
    as_evaluator,
    check_keys,
    is_task_cancelled,
    make_loop_waiter,
    make_progress_bar,
    print_message,
    redirect_status,
    run_coroutine,
    stderr_console,
    use_judge_context,
)
from spanwise.evaluators.scoring import CaseScorer, Estimate, estimate

# Evaluation pipeline: workers take planned runs, run the task, score the result, and pass it to the writer.
#
# Plain tasks run on worker threads. One thread runs the task, reads its spans and calls the plain evaluators, because
# a thread switch per example would cost more than a trivial task. Async tasks run on the event loop.

YIELD_INTERVAL = 0.05  # seconds between two yields to the event loop
FULL_QUEUE_PAUSE = 0.01  # seconds between two checks of a writer whose queue is full


async def run_pipeline(
    plan: ExperimentPlan, items: Iterator[PlannedRun], writer: ResultWriter, conditions: StopConditions
) -> None:
    """Run and score items, and pass them to the writer. Return when all items are done; after a stop condition, when
    all started runs are.

    Raises the errors of the item source, and with `raise_errors` the error of a task.
    """
    pipeline = RunPipeline(plan, writer, conditions)
    try:
        if plan.task is not None and plan.task.is_async:
            await _run_loop_workers(plan, pipeline, items)
        else:
            await WorkerThreads(pipeline, items, plan.settings.concurrency).run()
        await pipeline.wait()
    finally:
        await pipeline.stop()
    if conditions.raised is not None:
        raise conditions.raised


class RunPipeline:
    """Processing of single runs: runs the task, scores the result, and hands it to the writer.

    It is created on the running loop. Evaluators that are not plain run on that loop.
    """

    def __init__(self, plan: ExperimentPlan, writer: ResultWriter, conditions: StopConditions) -> None:
        self._plan = plan
        self._writer = writer
        self._conditions = conditions
        self._scorer = CaseScorer(plan.evaluators, plan.settings.batch_size)
        self._loop = asyncio.get_running_loop()
        self._wait_on_loop = make_loop_waiter(self._loop)
        # Bounds the number of runs from worker threads whose evaluators still wait on the loop.
        self._scoring_slots = threading.Semaphore(2 * max(plan.settings.concurrency, plan.settings.batch_size))
        self._scoring_tasks: set[asyncio.Task[None]] = set()
        # awaitables that plain tasks and evaluators on worker threads returned, running on the loop
        self._awaited: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._error: BaseException | None = None
        self._last_yield = time.perf_counter()

    @property
    def is_full(self) -> bool:
        """Return whether workers should pause before they take new items."""
        return self._writer.is_full

    @property
    def is_over(self) -> bool:
        """Return whether no further item may start."""
        return self._stopped or bool(self._conditions.reason)

    def process_on_thread(self, item: PlannedRun) -> None:
        """Process an item with a plain task on this thread.

        Evaluators that are not plain score it later, on the loop.
        """
        task = self._plan.task
        if item.trace is not None or task is None:
            run = make_existing_run(self._plan, item)
        else:
            run = run_task_on_thread(self._plan, task, item, self._wait, self._conditions)
        run.feedback += self._scorer.score_on_thread(run.case, run.target, self._wait, item.evaluators)
        if self._scorer.has_concurrent:
            self._scoring_slots.acquire()
            self._loop.call_soon_threadsafe(self._start_scoring, run)
        else:
            self._pass_on(run)

    async def process_on_loop(self, item: PlannedRun) -> None:
        """Process an item with an async task on the loop."""
        task = self._plan.task
        if item.trace is not None or task is None:
            run = make_existing_run(self._plan, item)
        else:
            run = await run_task_on_loop(self._plan, task, item, self._conditions)
        run.feedback += await self._scorer.score_on_loop(run.case, run.target, item.evaluators)
        await self._finish_scoring(run)

    async def yield_to_loop(self) -> None:
        """Wait briefly if the writer's queue is full, else yield if the last yield was `YIELD_INTERVAL` ago or longer.

        Tasks that never await anything would otherwise block the loop. It does not yield after every run, because
        each yield releases the GIL, and the writer thread then takes the GIL.
        """
        now = time.perf_counter()
        if self.is_full:
            await asyncio.sleep(FULL_QUEUE_PAUSE)
        elif now - self._last_yield > YIELD_INTERVAL:
            self._last_yield = now
            await asyncio.sleep(0)

    async def wait(self) -> None:
        """Wait until every started run has been passed to the writer. Raises the first error of a scoring task."""
        while self._scoring_tasks:
            await asyncio.wait(self._scoring_tasks)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Start no further items, and cancel running evaluators.

        Tasks that ignore their cancellation are abandoned.
        """
        self._stopped = True
        await cancel_tasks(self._scoring_tasks | self._awaited, self._plan.abandoned, STOP_GRACE)

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        """Wait on a worker thread until the loop has finished an awaitable that a task or an evaluator returned."""

        async def track() -> Any:
            task = asyncio.current_task()
            if task is None:
                # unreachable: `make_loop_waiter` always creates a task
                raise RuntimeError("awaited outside of an asyncio task")
            self._awaited.add(task)
            task.add_done_callback(self._awaited.discard)
            return await awaitable

        return self._wait_on_loop(track())

    def _pass_on(self, run: FinishedRun) -> None:
        if self._scorer.has_composites:
            run.feedback += self._scorer.score_composites(run.case, run.target, run.feedback, run.item.evaluators)
        self._conditions.check(run)
        self._writer.put(run)

    def _start_scoring(self, run: FinishedRun) -> None:
        task = self._loop.create_task(self._finish_scoring(run))
        self._scoring_tasks.add(task)
        task.add_done_callback(self._end_scoring)

    async def _finish_scoring(self, run: FinishedRun) -> None:
        if self._scorer.has_concurrent:
            run.feedback += await self._scorer.score_concurrently(run.case, run.target, run.item.evaluators)
        self._pass_on(run)

    def _end_scoring(self, task: asyncio.Task[None]) -> None:
        self._scoring_tasks.discard(task)
        self._scoring_slots.release()
        # after `stop` a cancelled task is expected; otherwise it is an error, because its run would be missing from
        # the results
        if task.cancelled():
            self._error = self._error or RuntimeError(
                "other code cancelled the asyncio task that scores a run: the run is not stored"
            )
        else:
            self._error = self._error or task.exception()


FIRST_CHECK, MAX_CHECK_INTERVAL = 0.003, 0.05  # initial and maximum seconds between two checks for more threads
SHORT_ITEM = 0.001  # seconds; for shorter items, switching between threads costs more than waiting does


class WorkerThreads:
    """Daemon threads that take items from one iterator.

    One thread starts. As soon as items take longer than `SHORT_ITEM`, the others start, `concurrency` in total.
    """

    def __init__(self, pipeline: RunPipeline, items: Iterator[PlannedRun], concurrency: int) -> None:
        self._pipeline = pipeline
        self._items = items
        self._limit = concurrency
        self._context = contextvars.copy_context()
        self._source_lock = threading.Lock()  # held while the iterator is read, which may take long
        self._count_lock = threading.Lock()
        self._started = self._running = self._taken = 0
        self._waited_for_writer = False  # since the last check for more threads
        self._stopped = False
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run until the iterator is empty and all threads are done. Raises the first error of the iterator."""
        self._loop = asyncio.get_running_loop()
        self._all_done = asyncio.Event()
        try:
            self._start_thread()
            await self._start_more()
        finally:
            self._stopped = True
        if self._error is not None:
            raise self._error

    async def _start_more(self) -> None:
        """Wait until all threads are done, and start the remaining ones if items take long."""
        interval, taken, checked = FIRST_CHECK, 0, time.perf_counter()
        while not self._all_done.is_set():
            try:
                # `asyncio.wait_for` would create a task, which user code may cancel
                async with asyncio.timeout(interval if self._started < self._limit else None):
                    await self._all_done.wait()
            except TimeoutError:
                now = time.perf_counter()
                if self._taken - taken < (now - checked) / SHORT_ITEM and not self._waited_for_writer:
                    while self._started < self._limit:
                        self._start_thread()
                taken, checked, self._waited_for_writer = self._taken, now, False
                interval = min(1.5 * interval, MAX_CHECK_INTERVAL)
            except asyncio.CancelledError:
                if is_task_cancelled():
                    raise  # this task was cancelled; any other CancelledError concerns only the inner wait

    def _start_thread(self) -> None:
        self._started += 1
        with self._count_lock:
            self._running += 1
        threading.Thread(target=self._work, name="spanwise-run", daemon=True).start()

    def _work(self) -> None:
        try:
            while True:
                with self._source_lock:
                    if self._stopped or self._pipeline.is_over or (item := next(self._items, None)) is None:
                        return
                    self._taken += 1
                self._context.copy().run(self._pipeline.process_on_thread, item)
                while self._pipeline.is_full and not self._stopped:
                    self._waited_for_writer = True
                    time.sleep(FULL_QUEUE_PAUSE)
        except BaseException as error:  # from the item source or an internal error: stop all workers; `run` raises it
            self._error = self._error or error
            self._stopped = True
        finally:
            with self._count_lock:
                self._running -= 1
                is_last = not self._running
            if is_last:
                with suppress(RuntimeError):  # the loop is closed already, after an interruption
                    self._loop.call_soon_threadsafe(self._all_done.set)


async def _run_loop_workers(plan: ExperimentPlan, pipeline: RunPipeline, items: Iterator[PlannedRun]) -> None:
    """Run async tasks on the event loop.

    It does not use `asyncio.TaskGroup`, which would wait forever for a task that ignores its cancellation.
    """
    prefetcher = Prefetcher(items)

    async def work() -> None:
        while (item := await prefetcher.take(lambda: pipeline.is_over)) is not None:
            await pipeline.process_on_loop(item)
            await pipeline.yield_to_loop()

    workers = [asyncio.create_task(work()) for _ in range(plan.settings.concurrency)]
    try:
        await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        prefetcher.stop()
        await cancel_tasks(workers, plan.abandoned, STOP_GRACE)
        ended = [worker for worker in workers if worker.done() and not worker.cancelled()]
        errors = [
            error for worker in ended if (error := worker.exception()) is not None
        ]  # retrieved here, because asyncio logs exceptions that are never retrieved
    if errors:
        raise errors[0]
    # user code cancelled the worker, so its example would be missing from the results
    if any(worker.cancelled() for worker in workers):
        raise RuntimeError("a task has cancelled the asyncio task that ran it: let it raise CancelledError instead")


PREFETCH_SIZE = 1000  # planned runs that are read ahead
POLL_INTERVAL = 0.002  # seconds between two checks of an empty queue


class Prefetcher:
    """Prefetching reader of planned runs.

    A thread reads ahead, so that the loop does not wait for the next page of a store or file.
    """

    def __init__(self, items: Iterator[PlannedRun]) -> None:
        self._items = items
        self._queue: queue.Queue[PlannedRun | BaseException | None] = queue.Queue(PREFETCH_SIZE)
        self._stopped = False
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._read,), name="spanwise-read", daemon=True).start()

    async def take(self, is_over: Callable[[], bool]) -> PlannedRun | None:
        """Wait for the next item and return it; None at the end, or once `is_over()` returns True.

        Raises the error of the item source.
        """
        while not is_over():
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                await asyncio.sleep(POLL_INTERVAL)
                continue
            if isinstance(item, PlannedRun):
                return item
            self._queue.put(item)  # put the end marker back: the other workers must see it too
            if item is not None:
                raise item
            return None
        return None

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True

    def _read(self) -> None:
        end: BaseException | None = None
        try:
            for item in self._items:
                self._put(item)
                if self._stopped:
                    return
        except BaseException as error:
            end = error
        self._put(end)

    def _put(self, item: PlannedRun | BaseException | None) -> None:
        while not self._stopped:
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue


# Entry points `evaluate()`, `aevaluate()` and `dry_run()`; execution of a prepared experiment.


@accept_options
def evaluate(
    dataset: Any, task: Any = None, evaluators: Iterable[Any] = (), **options: Unpack[EvaluateOptions]
) -> Experiment:
    """Run a task over a dataset, score every run with evaluators, and store runs and scores as an experiment.

    Arguments:

    - `dataset`: the name of a stored dataset (`name@3` for a version), a path (JSONL, JSON, CSV, YAML,
      Parquet), a dataset of the Hugging Face hub (`hf://openai/gsm8k`), a DataFrame, an Arrow table, a list or (async) generator of dicts or examples, stored traces or a `Filter` over them, or an
      experiment to score further.
    - `evaluators`: callables, ids or evaluators. They score the examples that name them or that name none (see
      `Example.evaluators`); the others are scored by the evaluators that they name.
    - `task`: called with the inputs by name, with the whole dict if it has a parameter `inputs`, or with the
      single value if the inputs are not a dict. Async tasks run on one event loop, others on threads. The span of
      a task under `@trace` becomes the root of its run, as in production. Without a task the existing outputs,
      traces or runs are scored.
    - `attach`: add feedback to live traces in place; no experiment is stored.
    - `repetitions`: number of runs per example.
    - `limit`: the first examples, or with `seed` a random sample. A task with a parameter `seed` gets one per
      run.
    - `split`: one split or several. `only`: example ids, or prefixes of ids.
    - `timeout`: seconds per attempt. `retries`: further attempts after a transient failure, or after those that
      `retry_on` (exception types, or a function of the exception) accepts.
    - `fail_fast`, `max_failures` (a number, or a share of the runs such as 0.2) and `max_usd` (cost of the tasks'
      spans, those of earlier parts of a resumed experiment included): stop the experiment. Running tasks finish, and
      the experiment can be resumed.
    - `raise_errors`: raise the error of a task.
    - `fixture`: function that returns a context manager, also an async one, for set-up and tear-down around each
      attempt. It gets the example, or its inputs by name. The task gets the context's value as its parameter
      `fixture`.
    - `resume`: continue an interrupted experiment (True: the one named `name`; or an experiment's id).
    - `span_wait`: seconds to wait for spans that are still open when the task ends.
    - `store`: see `spanwise.collector.connect` for None.

    With `resume`, stored runs are not run again, except failed ones. More repetitions, a larger limit and added
    examples are run. Examples, repetitions, seed, split, limit, the given metadata, and the code, constants and plain
    object state that the task reaches in its project (not in installed packages) are compared with the stored
    experiment. Any other change in them raises `CannotResume`. An evaluator whose version, parameters or code have
    changed scores all runs again.

    A failing task or evaluator is recorded as an error, not raised. Raises `ValueError` for a task that does not fit
    the inputs, a bad row or an experiment that cannot be resumed, and `TypeError` for an unknown option.
    """
    return run_coroutine(
        run_and_cancel_others(run_experiment(dataset, task, evaluators, make_settings(options, "evaluate")))
    )


@accept_options
async def aevaluate(
    dataset: Any, task: Any = None, evaluators: Iterable[Any] = (), **options: Unpack[EvaluateOptions]
) -> Experiment:
    """Evaluate as `evaluate` does, from async code. Async tasks and evaluators run on the running event loop."""
    return await run_experiment(dataset, task, evaluators, make_settings(options, "aevaluate"))


@register_rescore
def rescore(experiment: Experiment, evaluators: Iterable[Any], **options: Unpack[EvaluateOptions]) -> Experiment:
    """Score the runs of an experiment with more evaluators, in its own store unless another is given."""
    options.setdefault("store", experiment.store)
    return evaluate(experiment, None, evaluators, **options)


def make_evaluators(evaluators: Any) -> list[Evaluator]:
    """Return the evaluators of a call; one id or function stands for a list of it."""
    return [
        as_evaluator(each)
        for each in ([evaluators] if isinstance(evaluators, str) or callable(evaluators) else evaluators)
    ]


async def run_experiment(
    dataset: Any, task: Any, evaluators: Iterable[Any], settings: ExperimentSettings
) -> Experiment:
    """Prepare an experiment, run it until it is finished, and return it."""
    evaluator_list = make_evaluators(evaluators)
    set_evaluators = (
        *(each for each in evaluator_list if each.summary),
        *map(as_evaluator, settings.summary_evaluators),
    )
    case_evaluators = tuple(each for each in evaluator_list if not each.summary)
    check_keys((*case_evaluators, *set_evaluators))
    for evaluator in (*case_evaluators, *set_evaluators):
        if evaluator.asking is not None:
            evaluator.asking.ready()
    task = make_task(task) if task is not None else None
    if settings.fixture is not None:
        make_fixture(settings.fixture)  # raises an error if it is invalid
        if task is None:
            raise ValueError("fixture=… prepares each run of a task, but there is no task: remove it, or pass a task")
        if FIXTURE in task.takes:
            task = replace(task, wants=task.wants | {FIXTURE})
    if isinstance(dataset, AsyncIterable):
        dataset = iterate_async_rows(dataset, make_loop_waiter(asyncio.get_running_loop()))
    prepare = prepare_attach if settings.attach else prepare_experiment
    store = await asyncio.to_thread(open_experiment_store, settings)
    settings = replace(settings, store=store)
    try:
        job = await asyncio.to_thread(prepare, dataset, task, case_evaluators, set_evaluators, settings)
        with Heartbeat(job.store, job.record.id) if job.is_saved else nullcontext():
            return await _run_job(job)
    finally:
        if isinstance(store, OnDemandStore):
            await asyncio.to_thread(store.release)


async def _run_job(job: ExperimentJob) -> Experiment:
    plan, conditions = job.plan, job.conditions
    for evaluator in (*plan.evaluators, *job.set_evaluators):
        for remark in evaluator.remarks:
            plan.remark(remark)
    job.tally.remarks = plan.remarks
    spool = make_spool(plan.experiment_id, job.store)
    progress = plan.settings.progress
    bar = make_progress_bar(plan.name, job.total, progress)
    loop = asyncio.get_running_loop()
    with (
        bar,
        redirect_status(bar.show_status),
        StallWatchdog(bar, loop, prints=progress is not False) as watchdog,
    ):

        def count(batch: Sequence[FinishedRun]) -> None:
            _count_batch(job.tally, batch)
            bar.advance(len(batch), job.tally.failed)
            watchdog.note_progress()

        judgements = JudgementBuffer()
        writer = ResultWriter(job.store, spool, count, judgements)
        try:
            with use_judge_context(judgements=judgements, inside=None):
                await run_pipeline(plan, job.items, writer, conditions)
        except BaseException as error:
            await _handle_interruption(job, writer, error, watchdog.status)
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise error from None
        unstored = await asyncio.to_thread(writer.close)
    if conditions.reason:
        plan.remarks[f"stopped: {conditions.reason}"] = None
        print_message(f"spanwise: stopped: {conditions.reason}; continue with {_format_resume_hint(job)}")
    if failures := plan.teardown_failures:
        plan.remark(f"{len(failures)} attempts had a failed tear-down, for example: {failures[0]} (see errors())")
    if running := plan.abandoned.alive:
        plan.remark(f"{running} tasks did not stop at their timeout and still run in this process")
    store = job.store if unstored is None else make_spooled_store(job.store, spool)
    experiment = Experiment(job.record, store, job.tally, unstored=unstored, examples=job.examples)
    if unstored is not None:
        print_message(_describe_unstored(unstored, job))
    try:
        if job.set_evaluators and unstored is None and not conditions.reason:
            await run_set_evaluators(experiment, job.set_evaluators, job.store, job.tally)
        status = "interrupted" if unstored or conditions.reason else "finished"
        experiment.record = await asyncio.to_thread(_close_record, job, status)
    # return the results even if the record could not be updated: the runs are stored
    except (StoreError, OSError) as problem:
        print_message(f"spanwise: the end of the experiment could not be stored: {problem}")
    evaluators = (*plan.evaluators, *job.set_evaluators)
    await asyncio.to_thread(save_requested_results, experiment, [evaluator.key for evaluator in evaluators])
    if progress is not False and stderr_console.is_terminal and not stderr_console.is_jupyter:
        stderr_console.print(experiment)
    return experiment


def _count_batch(tally: ExperimentTally, batch: Sequence[FinishedRun]) -> None:
    """Add a stored batch of runs and their feedback to the totals."""
    for run in batch:
        item, trace = run.item, run.trace
        if not item.stored:
            spans = run.runs or trace.runs  # without own runs, feedback was attached to a trace that is stored already
            wall_ns = compute_wall_ns(spans)
            tally.add_run(item.slot, trace.trace_id, wall_ns, run.error, run.open_spans, item.example.id)
            tally.add_calls(spans)
        tally.add_judgements(run.feedback[len(item.known) :])
        for outcome in select_latest(run.feedback):
            tally.add_feedback(outcome, item.example.id)


def _format_resume_hint(job: ExperimentJob) -> str:
    return format_resume_command(job.record.id) if job.is_saved else "evaluate(…, attach=True, resume=True)"


async def _handle_interruption(job: ExperimentJob, writer: ResultWriter, error: BaseException, status: str) -> None:
    """Store the finished runs, and print the command that resumes the experiment."""
    unstored = await asyncio.to_thread(writer.close)
    if unstored is not None:
        print_message(_describe_unstored(unstored, job))
    try:
        await asyncio.to_thread(_close_record, job, "interrupted")
    except StoreError as problem:
        print_message(f"spanwise: the interruption could not be stored: {problem}")
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        while_waiting = f", while {status}" if status else ""
        print_message(
            f"spanwise: interrupted after {job.tally.runs} runs{while_waiting}; continue with {_format_resume_hint(job)}"
        )


def _close_record(job: ExperimentJob, status: Any) -> Record:
    setup, now = {**(job.record.metadata.get("setup") or {}), **job.environment.result()}, time.time_ns()
    before = job.record  # rescoring keeps the recorded end time and status
    ended_ns = before.ended_ns or now
    totals = {**job.tally.totals(), "seconds": round((ended_ns - job.record.started_ns) / 1e9, 3)}
    spent_usd = job.conditions.spent_usd or (before.metadata.get("totals") or {}).get("spent_usd")
    if spent_usd:
        totals["spent_usd"] = spent_usd
    record = replace(
        job.record,
        evaluators=before.evaluators if job.choice is None else job.choice.describe(before.evaluators),
        status=before.status if job.rescores else status,
        ended_ns=before.ended_ns if job.rescores else ended_ns,
        seen_ns=before.seen_ns if job.rescores else now,
        example_count=job.record.example_count or len(job.tally.traces) // max(1, job.plan.settings.repetitions),
        metadata={**job.record.metadata, "setup": setup, "totals": totals},
    )
    if job.is_saved:
        job.store.save_experiment(record)
    return record


def _describe_unstored(unstored: UnstoredRuns, job: ExperimentJob) -> str:
    message = f"spanwise: the store did not accept {unstored.runs} runs ({unstored.why})."
    if not unstored.paths:
        return (
            f"{message} No file could be written either: they exist only in memory, as rows of the returned experiment"
        )
    files = " and ".join(map(str, unstored.paths))
    command = format_resume_command(job.record.id) if job.is_saved else f"spanwise experiments deliver {files}"
    return f"{message} They are saved in {files}: {command} stores them without running anything again"


def dry_run(dataset: Any, evaluators: Iterable[Any], **options: Unpack[EvaluateOptions]) -> Estimate:
    """Estimate the judge calls and cost of `evaluate(dataset, task, evaluators, …)` with the same options.

    Reference outputs are used in place of the task's answers. Raises the same errors as `evaluate()` for a dataset
    that cannot be read, and for an evaluator without a judge.
    """
    settings = make_settings(options, "dry_run")
    store = open_experiment_store(settings)
    try:
        source = make_source(dataset, store, "dry run", settings.splits, save=False)
        items, _ = plan_runs(source, limit=settings.limit, seed=settings.seed, only=settings.ids)
        cases = [item.trace or item.example for item in items]
        choice = ExampleEvaluators(make_evaluators(evaluators))
        choice.add(case for case in cases if isinstance(case, Example))
        return estimate(choice.all, map(choice.name_all, cases), repetitions=settings.repetitions)
    finally:
        if isinstance(store, OnDemandStore):
            store.release()
