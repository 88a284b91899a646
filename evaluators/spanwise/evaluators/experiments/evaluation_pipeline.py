"""Evaluation pipeline: worker threads or event-loop workers take planned runs, run and score them.

One thread runs the task, reads its spans and calls the plain evaluators, because a thread switch per example would
cost more than a trivial task. Threads are added only while the existing ones use little CPU time.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from spanwise.evaluators.experiments.experiment_plan import ExperimentPlan, FinishedRun, PlannedRun, StopConditions
from spanwise.evaluators.experiments.result_writer import ResultWriter
from spanwise.evaluators.experiments.task_call import STOP_GRACE, cancel_tasks
from spanwise.evaluators.experiments.task_run import make_existing_run, run_task_on_loop, run_task_on_thread
from spanwise.evaluators.interface import is_task_cancelled, make_loop_waiter
from spanwise.evaluators.scoring import CaseScorer

YIELD_INTERVAL = 0.05  # seconds between two yields to the event loop


async def run_pipeline(
    plan: ExperimentPlan, items: Iterator[PlannedRun], writer: ResultWriter, brake: StopConditions
) -> None:
    """Run and score items, and pass them to the writer. Return when all items are done; after a stop condition, when
    all started runs are.

    Raises the errors of the item source, and with `raise_errors` the error of a task.
    """
    line = ItemPipeline(plan, writer, brake)
    try:
        if plan.task is not None and plan.task.is_async:
            await _run_loop_workers(plan, line, items)
        else:
            await WorkerThreads(line, items, plan.settings.concurrency).run()
        await line.wait()
    finally:
        await line.stop()
    if brake.raised is not None:
        raise brake.raised


async def _run_loop_workers(plan: ExperimentPlan, line: ItemPipeline, items: Iterator[PlannedRun]) -> None:
    """Run async tasks on the event loop.

    It does not use `asyncio.TaskGroup`, which would wait forever for a task that ignores its cancellation.
    """
    ahead, breath = Prefetcher(items), _LoopYielder(line)
    workers = [asyncio.create_task(_pull_on_loop(line, ahead, breath)) for _ in range(plan.settings.concurrency)]
    try:
        await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        ahead.stop()
        await cancel_tasks(workers, plan.strays, STOP_GRACE)
        ended = [worker for worker in workers if worker.done() and not worker.cancelled()]
        errors = [
            error for worker in ended if (error := worker.exception()) is not None
        ]  # retrieved here, because asyncio logs exceptions that are never retrieved
    if errors:
        raise errors[0]
    # user code cancelled the worker, so its example would be missing from the results
    if any(worker.cancelled() for worker in workers):
        raise RuntimeError("a task has cancelled the asyncio task that ran it: let it raise CancelledError instead")


async def _pull_on_loop(line: ItemPipeline, items: Prefetcher, breath: _LoopYielder) -> None:
    while not line.is_over and (item := items.take() or await items.wait(lambda: line.is_over)) is not None:
        await line.on_loop(item)
        await breath.take()


class _LoopYielder:
    """Periodic yield to the event loop, for tasks that never await anything.

    It does not yield after every run, because each yield releases the GIL, and the writer thread then takes the GIL.
    """

    def __init__(self, line: ItemPipeline) -> None:
        self._line = line
        self._taken = time.perf_counter()

    async def take(self) -> None:
        """Wait briefly if the writer's queue is full. Otherwise yield if the last yield was `YIELD_INTERVAL` ago or
        longer.
        """
        now = time.perf_counter()
        if self._line.is_full:
            await asyncio.sleep(0.01)
        elif now - self._taken > YIELD_INTERVAL:
            self._taken = now
            await asyncio.sleep(0)


class ItemPipeline:
    """Pipeline of one experiment: runs the task, scores the result, and hands it to the writer.

    It is created on the running loop. Evaluators that are not plain run on that loop.
    """

    def __init__(self, plan: ExperimentPlan, writer: ResultWriter, brake: StopConditions) -> None:
        self._plan = plan
        self._writer = writer
        self._brake = brake
        self._scoring = CaseScorer(plan.evaluators, plan.settings.batch_size)
        self._loop = asyncio.get_running_loop()
        self._wait_on_loop = make_loop_waiter(self._loop)
        # Bounds the number of runs from worker threads whose evaluators still wait on the loop.
        self._room = threading.Semaphore(2 * max(plan.settings.concurrency, plan.settings.batch_size))
        self._later: set[asyncio.Task[None]] = set()
        # awaitables that plain tasks and evaluators on worker threads returned, running on the loop
        self._awaited: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._error: BaseException | None = None

    @property
    def is_full(self) -> bool:
        """Return whether workers should pause before they take new items."""
        return self._writer.is_full

    @property
    def is_over(self) -> bool:
        """Return whether no further item may start."""
        return self._stopped or bool(self._brake.why)

    def here(self, item: PlannedRun) -> None:
        """Process an item with a plain task on this thread.

        Evaluators that are not plain score it later, on the loop.
        """
        task = self._plan.task
        if item.trace is not None or task is None:
            done = make_existing_run(self._plan, item)
        else:
            done = run_task_on_thread(self._plan, task, item, self._wait, self._brake)
        done.feedback += self._scoring.here(done.case, done.target, self._wait, item.evaluators)
        if not self._scoring.has_later:
            self._put(done)
            return
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._start, done)

    async def on_loop(self, item: PlannedRun) -> None:
        """Process an item with an async task on the loop."""
        task = self._plan.task
        if item.trace is not None or task is None:
            done = make_existing_run(self._plan, item)
        else:
            done = await run_task_on_loop(self._plan, task, item, self._brake)
        done.feedback += await self._scoring.on_loop(done.case, done.target, item.evaluators)
        await self._finish(done)

    async def wait(self) -> None:
        """Wait until every started run has been passed to the writer. Raises the first error of a scoring task."""
        while self._later:
            await asyncio.wait(self._later)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Start no further items, and cancel running evaluators.

        Tasks that ignore their cancellation are abandoned.
        """
        self._stopped = True
        await cancel_tasks(self._later | self._awaited, self._plan.strays, STOP_GRACE)

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        return self._wait_on_loop(self._noted(awaitable))

    async def _noted(self, awaitable: Awaitable[Any]) -> Any:
        task = asyncio.current_task()
        if task is None:
            # unreachable: `make_loop_waiter` always creates a task
            raise RuntimeError("awaited outside of an asyncio task")
        self._awaited.add(task)
        task.add_done_callback(self._awaited.discard)
        return await awaitable

    def _put(self, done: FinishedRun) -> None:
        self._brake.saw(done)
        self._writer.put(done)

    def _start(self, done: FinishedRun) -> None:
        task = self._loop.create_task(self._finish(done))
        self._later.add(task)
        task.add_done_callback(self._ended)

    async def _finish(self, done: FinishedRun) -> None:
        if self._scoring.has_later:
            done.feedback += await self._scoring.later(done.case, done.target, done.item.evaluators)
        self._put(done)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._later.discard(task)
        self._room.release()
        # after `stop` a cancelled task is expected; otherwise it is an error, because its run would be missing from
        # the results
        if task.cancelled():
            self._error = self._error or RuntimeError(
                "other code cancelled the asyncio task that scores a run: the run is not stored"
            )
        else:
            self._error = self._error or task.exception()


FIRST_CHECK = 0.003  # seconds until the first check for more threads
BUSY_SHARE = 0.3  # share of CPU time below which more threads are added
IDLE_SHARE = 0.05  # share of CPU time below which all remaining threads are started at once
SAMPLE_INTERVAL = 0.001  # seconds between two measurements of a thread's CPU time
GROWTH_FACTOR = 8
MAX_CHECK_INTERVAL = 0.05  # maximum seconds between two checks for more threads


class WorkerThreads:
    """Daemon threads that take items from one iterator. At first there is one thread. While tasks wait, more are added,
    to at most `concurrency` in total.
    """

    def __init__(self, line: ItemPipeline, items: Iterator[PlannedRun], concurrency: int) -> None:
        self._line = line
        self._items = items
        self._limit = concurrency
        self._context = contextvars.copy_context()
        self._taking = threading.Lock()
        self._used: dict[int, float] = {}  # CPU seconds that each worker thread has used, at its latest measurement
        self._stopped = False
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run until the iterator is empty and all threads are done. Raises the first error of the iterator."""
        self._loop = asyncio.get_running_loop()
        self._all_done = asyncio.Event()
        self._alive = self._started = 0
        try:
            self._start(1)
            await self._grow()
        finally:
            self._stopped = True
        if self._error is not None:
            raise self._error

    async def _grow(self) -> None:
        look = FIRST_CHECK
        self._looked, self._used_before = time.perf_counter(), 0.0
        while not self._all_done.is_set():
            try:
                async with asyncio.timeout(look):  # `asyncio.wait_for` would create a task, which user code may cancel
                    await self._all_done.wait()
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                if is_task_cancelled():
                    raise  # this task was cancelled; any other CancelledError concerns only the inner wait
            if self._started < self._limit and (share := self._computing()) < BUSY_SHARE:
                more = self._limit if share < IDLE_SHARE else self._started * (GROWTH_FACTOR - 1)
                self._start(min(more, self._limit - self._started))
            else:
                look = min(look * 1.5, MAX_CHECK_INTERVAL)

    def _computing(self) -> float:
        """Return the share of CPU time that the threads used since the last check.

        If it is low, more threads do not slow down the existing ones.
        """
        now, used = time.perf_counter(), sum(list(self._used.values()))
        share = (used - self._used_before) / ((now - self._looked) * max(1, self._alive))
        self._looked, self._used_before = now, used
        return share

    def _start(self, count: int) -> None:
        for _ in range(count):
            self._alive += 1
            self._started += 1
            threading.Thread(target=self._pull, args=(self._started,), name="spanwise-run", daemon=True).start()

    def _pull(self, worker: int) -> None:
        try:
            noted = 0.0
            while not self._stopped and (item := self._next()) is not None:
                self._context.copy().run(self._line.here, item)
                # measure only every `SAMPLE_INTERVAL`: for tiny tasks the cost of the system call would be noticeable
                if (now := time.perf_counter()) - noted > SAMPLE_INTERVAL:
                    noted, self._used[worker] = now, time.thread_time()
                while self._line.is_full and not self._stopped:
                    time.sleep(0.01)
        except BaseException as error:  # from the item source or an internal error: stop all workers; `run` raises it
            self._error = self._error or error
            self._stopped = True
        finally:
            self._tell()

    def _next(self) -> PlannedRun | None:
        with self._taking:
            return None if self._stopped or self._line.is_over else next(self._items, None)

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended)
        except RuntimeError:  # the loop is closed already, after an interruption
            pass

    def _ended(self) -> None:
        self._alive -= 1
        if self._alive == 0:
            self._all_done.set()


PREFETCH_SIZE = 1000  # planned runs that are read ahead
POLL_INTERVAL = 0.002  # seconds between two checks of an empty queue


class Prefetcher:
    """Prefetching reader of planned runs.

    A thread reads ahead, so that the loop does not wait for the next page of a store or file.
    """

    def __init__(self, items: Iterator[PlannedRun]) -> None:
        self._queue: queue.Queue[PlannedRun | BaseException | None] = queue.Queue(PREFETCH_SIZE)
        self._items = items
        self._stopped = False
        threading.Thread(
            target=contextvars.copy_context().run, args=(self._read,), name="spanwise-read", daemon=True
        ).start()

    def take(self) -> PlannedRun | None:
        """Return the next item if it is available, else None. Raises the error of the item source."""
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            return None
        if item is None or isinstance(item, BaseException):
            self._queue.put(item)  # put the end marker back: the other workers must see it too
        if isinstance(item, BaseException):
            raise item
        return item

    async def wait(self, is_over: Callable[[], bool]) -> PlannedRun | None:
        """Wait for the next item and return it; None at the end, or once `is_over()` returns True."""
        while not self._ended:
            if is_over():
                return None
            if (item := self.take()) is not None:
                return item
            await asyncio.sleep(POLL_INTERVAL)
        return self.take()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True

    @property
    def _ended(self) -> bool:
        with self._queue.mutex:
            return bool(self._queue.queue) and not isinstance(self._queue.queue[0], PlannedRun)

    def _read(self) -> None:
        try:
            for item in self._items:
                self._give(item)
                if self._stopped:
                    return
            self._give(None)
        except BaseException as error:
            self._give(error)

    def _give(self, item: PlannedRun | BaseException | None) -> None:
        while not self._stopped:
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
