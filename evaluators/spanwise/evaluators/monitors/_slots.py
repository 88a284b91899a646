"""Threads on which evaluators of one rule look at targets, and its loop for those that are no plain functions.

No thread of ours waits for them: one that hangs keeps its slot, or holds up its rule's loop, and nothing else.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from spanwise.collector.records import Feedback
from spanwise.evaluators.monitors._job import Job
from spanwise.evaluators.monitors._notes import Notes
from spanwise.evaluators.protocol import Evaluator, caught, ended, waiting_on
from spanwise.evaluators.scoring import Scoring


class Loop:
    """An event loop on a daemon thread, which goes on after a Ctrl-C that an evaluator has raised."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="spanwise-monitor-loop", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 1.0) -> None:
        """End it; one that an evaluator holds up is left to itself."""
        self._over = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(seconds)

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._over:
            caught(self.loop.run_forever)
        caught(lambda: self.loop.run_until_complete(_cancelled()))
        self.loop.close()


async def _cancelled() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=0.5)


class Slots:
    """The threads of one rule. Jobs that are done are given to `done`, on the thread that did them."""

    def __init__(
        self,
        scoring: Scoring,
        notes: Notes,
        loop: Loop,
        size: int,
        around: Callable[[Job, Evaluator | None], ExitStack],
        done: Callable[[Job], None],
        may_begin: Callable[[Job, str], bool],
    ) -> None:
        self._scoring, self._notes, self._loop, self.size = scoring, notes, loop, size
        self._around, self._done, self._may_begin = around, done, may_begin
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._stopped = False
        self._idle = 0
        self._lock = threading.Lock()
        self.running: set[Job] = set()
        self.held: set[Job] = set()  # past their time, and still on a thread

    def put(self, job: Job) -> None:
        """Let a job run when there is a thread for it."""
        self._queue.put(job)
        with self._lock:
            if self._threads < self.size and self._queue.qsize() > self._idle:
                self._threads += 1
                threading.Thread(target=self._work, name="spanwise-monitor-slot", daemon=True).start()

    def let_go(self, job: Job) -> bool:
        """Give up a job that takes too long; whether it was still at work."""
        with self._lock:
            if job not in self.running:
                return False
            job.over = True
            self.held.add(job)
            return True

    @property
    def stuck(self) -> bool:
        """Whether every slot is held by what takes too long."""
        return len(self.held) >= self.size

    def drain(self) -> list[Job]:
        """Take back what no thread has begun."""
        jobs: list[Job] = []
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return jobs
            if job is not None:
                jobs.append(job)

    def stop(self) -> None:
        """Let the threads end that are not held up, and the loop. What no thread has begun stays undone."""
        self._stopped = True
        self.drain()
        for _ in range(self._threads):
            self._queue.put(None)
        self._loop.stop()

    def _work(self) -> None:
        while True:
            self._idle += 1
            job = self._queue.get()
            self._idle -= 1
            if job is None or self._stopped:
                return
            with self._lock:
                self.running.add(job)
            caught(lambda job=job: self._run(job))  # type: ignore[misc]
            with self._lock:
                self.running.discard(job)
                self.held.discard(job)
                over = job.over
            if not over:
                self._done(job)

    def _run(self, job: Job) -> None:
        wait = waiting_on(self._loop.loop)
        for evaluator in job.evaluators:
            if evaluator.plain and not job.over and self._may_begin(job, evaluator.key):
                job.begin(evaluator.key)
                with self._around(job, evaluator):
                    came = caught(lambda e=evaluator: self._scoring.here(job.case, job.target, wait, [e]))  # type: ignore[misc]
                self._end(job, evaluator, came.result, came.error)
        later = [one for one in job.evaluators if not one.plain and not job.over and self._may_begin(job, one.key)]
        if later and not self._stopped:
            job.begin(later[0].key)
            asyncio.run_coroutine_threadsafe(ended(self._all(job, later)), self._loop.loop).result()
        job.current = None

    async def _all(self, job: Job, evaluators: Sequence[Evaluator]) -> None:
        await asyncio.gather(*(self._one(job, evaluator) for evaluator in evaluators), return_exceptions=True)

    async def _one(self, job: Job, evaluator: Evaluator) -> None:
        seconds = seconds_for(evaluator, job.held.in_force.settings.timeout_s)
        with self._around(job, evaluator):
            looking = asyncio.ensure_future(self._scoring.later(job.case, job.target, [evaluator]))
            await asyncio.wait([looking], timeout=seconds)
        if not looking.done():
            looking.cancel()
            late: BaseException = TimeoutError(f"the evaluator took more than {seconds:g} s")
            self._end(job, evaluator, None, late)
            return
        error = None if looking.cancelled() else looking.exception()
        self._end(job, evaluator, None if error or looking.cancelled() else looking.result(), error)

    def _end(
        self, job: Job, evaluator: Evaluator, feedback: list[Feedback] | None, error: BaseException | None
    ) -> None:
        if feedback is None:
            feedback = evaluator.make.failure(job.target, error or asyncio.CancelledError("it cancelled itself"))
        job.end(evaluator.key, feedback, self._notes.take(evaluator.key, job.target))


LINE = 600.0  # seconds more for a judge: while it waits for its turn no call runs, and each question has its deadline


def seconds_for(evaluator: Evaluator, timeout: float) -> float:
    """How long an evaluator may look."""
    return timeout + LINE if evaluator.asking is not None else timeout
