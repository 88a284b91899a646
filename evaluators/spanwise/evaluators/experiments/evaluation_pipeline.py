"""Evaluation pipeline: workers take planned runs, run the task, score the result, and pass it to the writer.

Plain tasks run on worker threads. One thread runs the task, reads its spans and calls the plain evaluators, because a
thread switch per example would cost more than a trivial task. Async tasks run on the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

from spanwise.evaluators.experiments.experiment_plan import ExperimentPlan, FinishedRun, PlannedRun, StopConditions
from spanwise.evaluators.experiments.result_writer import ResultWriter
from spanwise.evaluators.experiments.task_call import STOP_GRACE, cancel_tasks
from spanwise.evaluators.experiments.task_run import make_existing_run, run_task_on_loop, run_task_on_thread
from spanwise.evaluators.interface import is_task_cancelled, make_loop_waiter
from spanwise.evaluators.scoring import CaseScorer

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
