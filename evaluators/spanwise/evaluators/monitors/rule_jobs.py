"""Jobs of a rule: claimed targets, evaluator threads and event loop, concurrency, raised exceptions.

The monitor's own threads do not wait for evaluators. An evaluator that hangs blocks only its slot or its rule's event
loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

from spanwise.collector.records import JSON, Case, Claim, Decision, Feedback, Target
from spanwise.collector.statistics import percentile
from spanwise.evaluators.interface import (
    Batch,
    Evaluator,
    FeedbackFactory,
    JudgementBuffer,
    capture_awaitable,
    capture_call,
    make_loop_waiter,
    use_judge_context,
)
from spanwise.evaluators.judges import Ledger, use_ledger
from spanwise.evaluators.monitors.circuit_breaker import CircuitBreaker
from spanwise.evaluators.monitors.monitored_rule import ActiveRule
from spanwise.evaluators.monitors.process_limits import WorkerMemory
from spanwise.evaluators.scoring import CaseScorer
from spanwise.tracer.propagation import mark_monitor_spans

FINAL_STATES = ("scored", "skipped", "failed")


@dataclass(slots=True)
class EvaluatorResult:
    """Feedback of an evaluator on a target, the exception that it raised, and its duration in seconds."""

    feedback: Sequence[Feedback]
    error: BaseException | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class EvaluationJob:
    """Claimed row with its evaluators. The thread that runs the job writes `results` and `current`; other threads read
    them.
    """

    active_rule: ActiveRule
    row: Decision
    case: Case
    inputs_hash: str
    evaluators: Sequence[Evaluator]  # evaluators to run
    states: Mapping[str, JSON]  # states of evaluators on this target, from earlier runs
    unpaid: frozenset[str] = frozenset()  # judges that do not run because the budget is used up
    results: dict[str, EvaluatorResult] = field(default_factory=dict)
    current: tuple[str, float] | None = None  # key of the running evaluator, and its start time
    over: bool = False  # True: the job is abandoned, and further results are discarded

    @property
    def target(self) -> Target:
        """Return the target to evaluate."""
        return self.row.target

    @property
    def claim(self) -> Claim:
        """Return the claim under which the worker may finish the target."""
        return row_claim(self.row)

    def begin(self, key: str) -> None:
        """Record the start of an evaluator."""
        self.current = (key, time.monotonic())

    def end(self, key: str, feedback: Sequence[Feedback], error: BaseException | None) -> None:
        """Record the result of an evaluator."""
        began = self.current[1] if self.current is not None else time.monotonic()
        if not self.over:
            self.results[key] = EvaluatorResult(feedback, error, time.monotonic() - began)


def row_claim(row: Decision) -> Claim:
    """Return the claim under which the store issued a row."""
    return Claim(project=row.project, rule=row.rule, version=row.version, target=row.target, number=row.claim)


def evaluator_state(states: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the stored state of an evaluator on a target."""
    state = states.get(key)
    return dict(state) if isinstance(state, Mapping) else {}


def is_final(state: Mapping[str, Any]) -> bool:
    """Return whether an evaluator has reached a final state."""
    return state.get("state") in FINAL_STATES


MAX_EXCEPTIONS = 10_000  # maximum number of kept exceptions, because those of abandoned evaluators are never taken


class RaisedExceptions:
    """Exceptions by evaluator and target, kept until `take` is called. It is thread-safe."""

    def __init__(self) -> None:
        self._raised: OrderedDict[tuple[str, Target], BaseException] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, key: str, target: Target, error: BaseException) -> None:
        """Record that an evaluator has raised an exception."""
        with self._lock:
            self._raised[key, target] = error
            if len(self._raised) > MAX_EXCEPTIONS:
                self._raised.popitem(last=False)

    def take(self, key: str, target: Target) -> BaseException | None:
        """Remove and return the exception of an evaluator on a target, or None."""
        with self._lock:
            return self._raised.pop((key, target), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingMaker(FeedbackFactory):
    """Feedback factory that also records raised exceptions."""

    notes: RaisedExceptions

    def failure(self, target: Target, error: BaseException, hint: str = "") -> list[Feedback]:
        """Record the exception, and return the feedback of `FeedbackFactory.failure`."""
        self.notes.add(self.key, target, error)
        return FeedbackFactory.failure(self, target, error, hint)


def record_exceptions(evaluator: Evaluator, notes: RaisedExceptions) -> Evaluator:
    """Return a copy of the evaluator whose feedback factory also records exceptions in `notes`."""
    made = {field.name: getattr(evaluator.make, field.name) for field in fields(FeedbackFactory)}
    return replace(evaluator, make=RecordingMaker(notes=notes, **{**made, "key": evaluator.key}))


class EventLoopThread:
    """Event loop on a daemon thread. It continues after an evaluator raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="spanwise-monitor-loop", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 1.0) -> None:
        """Stop the loop. If an evaluator blocks the loop, abandon it."""
        self._over = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(seconds)

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._over:
            capture_call(self.loop.run_forever)
        capture_call(lambda: self.loop.run_until_complete(_cancel_tasks()))
        self.loop.close()


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=0.5)


class EvaluatorThreads:
    """Evaluator threads of one rule. A thread that has finished a job calls `done` with it."""

    def __init__(
        self,
        scoring: CaseScorer,
        notes: RaisedExceptions,
        loop: EventLoopThread,
        size: int,
        around: Callable[[EvaluationJob, Evaluator | None], ExitStack],
        done: Callable[[EvaluationJob], None],
        may_begin: Callable[[EvaluationJob, str], bool],
    ) -> None:
        self._scoring, self._notes, self._loop, self.size = scoring, notes, loop, size
        self._around, self._done, self._may_begin = around, done, may_begin
        self._queue: queue.SimpleQueue[EvaluationJob | None] = queue.SimpleQueue()
        self._threads = 0
        self._stopped = False
        self._idle = 0
        self._lock = threading.Lock()
        self.running: set[EvaluationJob] = set()
        self.overdue: set[EvaluationJob] = set()  # jobs that exceed their timeout and still occupy a thread

    def put(self, job: EvaluationJob) -> None:
        """Queue a job for the next free thread."""
        self._queue.put(job)
        with self._lock:
            if self._threads < self.size and self._queue.qsize() > self._idle:
                self._threads += 1
                threading.Thread(target=self._work, name="spanwise-monitor-slot", daemon=True).start()

    def let_go(self, job: EvaluationJob) -> bool:
        """Give up a job that exceeds its timeout, and return whether it was still running."""
        with self._lock:
            if job not in self.running:
                return False
            job.over = True
            self.overdue.add(job)
            return True

    @property
    def stuck(self) -> bool:
        """Return whether jobs that exceed their timeouts occupy every slot."""
        return len(self.overdue) >= self.size

    def drain(self) -> list[EvaluationJob]:
        """Remove and return the jobs that no thread has started."""
        jobs: list[EvaluationJob] = []
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return jobs
            if job is not None:
                jobs.append(job)

    def stop(self) -> None:
        """Stop the loop and the threads that are not blocked. Jobs that no thread has started are dropped."""
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
            capture_call(lambda job=job: self._run(job))  # type: ignore[misc]
            with self._lock:
                self.running.discard(job)
                self.overdue.discard(job)
                over = job.over
            if not over:
                self._done(job)

    def _run(self, job: EvaluationJob) -> None:
        wait = make_loop_waiter(self._loop.loop)
        for evaluator in job.evaluators:
            if evaluator.plain and not job.over and self._may_begin(job, evaluator.key):
                job.begin(evaluator.key)
                with self._around(job, evaluator):
                    outcome = capture_call(
                        lambda e=evaluator: self._scoring.score_on_thread(job.case, job.target, wait, [e])  # type: ignore[misc]
                    )
                self._end(job, evaluator, outcome.result, outcome.error)
        later = [one for one in job.evaluators if not one.plain and not job.over and self._may_begin(job, one.key)]
        if later and not self._stopped:
            job.begin(later[0].key)
            asyncio.run_coroutine_threadsafe(capture_awaitable(self._run_async(job, later)), self._loop.loop).result()
        job.current = None

    async def _run_async(self, job: EvaluationJob, evaluators: Sequence[Evaluator]) -> None:
        await asyncio.gather(*(self._run_one(job, evaluator) for evaluator in evaluators), return_exceptions=True)

    async def _run_one(self, job: EvaluationJob, evaluator: Evaluator) -> None:
        seconds = evaluator_timeout(evaluator, job.active_rule.in_force.settings.timeout_s)
        with self._around(job, evaluator):
            task = asyncio.ensure_future(self._scoring.score_concurrently(job.case, job.target, [evaluator]))
            await asyncio.wait([task], timeout=seconds)
        if not task.done():
            task.cancel()
            late: BaseException = TimeoutError(f"the evaluator took more than {seconds:g} s")
            self._end(job, evaluator, None, late)
            return
        error = None if task.cancelled() else task.exception()
        self._end(job, evaluator, None if error or task.cancelled() else task.result(), error)

    def _end(
        self, job: EvaluationJob, evaluator: Evaluator, feedback: list[Feedback] | None, error: BaseException | None
    ) -> None:
        if feedback is None:
            feedback = evaluator.make.failure(job.target, error or asyncio.CancelledError("it cancelled itself"))
        job.end(evaluator.key, feedback, self._notes.take(evaluator.key, job.target))


JUDGE_QUEUE_S = 600.0  # additional seconds for a judge: its calls may be queued, and each call has its own deadline


def evaluator_timeout(evaluator: Evaluator, timeout: float) -> float:
    """Return the timeout of an evaluator in seconds."""
    return timeout + JUDGE_QUEUE_S if evaluator.asking is not None else timeout


MAX_CLAIMED_ROWS = 200  # maximum claimed rows of a rule
BATCH_SIZE = 32  # cases that a model scores at once
CLAIM_BATCHES = 4  # claiming the maximum number of rows takes about this many requests
CLAIM_AHEAD_S = 0.3  # seconds of work that are claimed ahead; few, because the jobs left by a crash run one by one
MIN_DURATION_S = 0.001  # minimum seconds of a target's duration, to avoid a division by zero
FIRST_POLL_S, MAX_POLL_S = 0.05, 5.0  # seconds between two claims while nothing is due, at first and at most
RECENT_DURATIONS = 500  # number of durations kept per evaluator


class RuleExecution:
    """Execution of one rule. `money` is the budget ledger of its judges, or None. All times are seconds of the same
    clock.
    """

    def __init__(
        self,
        active_rule: ActiveRule,
        loop: EventLoopThread,
        done: Callable[[EvaluationJob], None],
        judgements: JudgementBuffer,
        money: Ledger | None,
        memory: WorkerMemory,
        now: Callable[[], float],
    ) -> None:
        self.active_rule, self.memory, self._now = active_rule, memory, now
        self.pauses = CircuitBreaker()
        self.claimed: dict[Target, Decision] = {}
        self.look_at = 0.0
        self.store_ns = 0  # last known time of the store
        self.outcomes: Counter[str] = Counter()
        self.money, self._judgements = money, judgements
        self._patience = FIRST_POLL_S
        self._mean = CLAIM_AHEAD_S  # moving average of the duration of a target, in seconds
        self._durations: dict[str, deque[float]] = {}
        self._failed: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        notes = RaisedExceptions()
        self.evaluators = tuple(record_exceptions(evaluator, notes) for evaluator in active_rule.evaluators)
        self._is_batched = any(isinstance(evaluator.function, Batch) for evaluator in self.evaluators)
        self.slots = EvaluatorThreads(
            CaseScorer(self.evaluators, BATCH_SIZE), notes, loop, self._size, self._around, done, self._may_begin
        )

    @property
    def _size(self) -> int:
        concurrency = self.active_rule.in_force.settings.concurrency
        return max(concurrency, BATCH_SIZE) if self._is_batched else concurrency

    def room(self, now: float) -> int:
        """Return the number of rows to claim now.

        Return 0 until a batch of rows fits, because each claim is a request to the store.
        """
        if self.active_rule.idle is not None or now < max(self.look_at, self.pauses.refused_until):
            return 0
        if all(self.pauses.paused(evaluator.key, now) for evaluator in self.evaluators):
            return 0
        self.slots.size = self._size
        if self.pauses.is_probing(now):
            return 1 - len(self.claimed)
        ahead = int(self.slots.size * CLAIM_AHEAD_S / max(self._mean, MIN_DURATION_S))
        most = min(MAX_CLAIMED_ROWS, max(2 * self.slots.size, ahead))
        free = most - len(self.claimed)
        return free if free >= most // CLAIM_BATCHES else 0

    def took(self, rows: int, asked: int, now: float) -> None:
        """Record how many rows the store returned. If there were fewer than requested, no more are due, and the next
        poll is later.
        """
        if rows:
            self._patience = FIRST_POLL_S
        if rows < asked:
            self.look_at = now + self._patience
            self._patience = min(2 * self._patience, MAX_POLL_S)

    def look_soon(self, at: float) -> None:
        """Record that rows will be due at the time `at`."""
        self.look_at = min(self.look_at, at)
        self._patience = FIRST_POLL_S

    def to_run(self, states: Mapping[str, JSON], now: float) -> list[Evaluator]:
        """Return the evaluators that have no final state on a target and may run now."""
        return [
            evaluator
            for evaluator in self.evaluators
            if not is_final(evaluator_state(states, evaluator.key))
            and self.pauses.paused(evaluator.key, now) is None
            and not (evaluator.asking is not None and self._has_no_money(now))
        ]

    def unpaid(self, states: Mapping[str, JSON], now: float) -> frozenset[str]:
        """Return the keys of judges that have no final state and cannot run, because the budget is used up."""
        if not self._has_no_money(now):
            return frozenset()
        waiting = (one for one in self.evaluators if not is_final(evaluator_state(states, one.key)))
        return frozenset(one.key for one in waiting if one.asking is not None)

    def over_budget(self, now: float) -> int | None:
        """Return how many rows that wait for the budget may be claimed now: all (None), one that probes the budget, or
        none.
        """
        if not self.pauses.money.is_used_up(self.active_rule.in_force.settings.budget, self.store_ns):
            return None
        return int(now >= self.pauses.money.until)

    def _has_no_money(self, now: float) -> bool:
        return self.over_budget(now) == 0

    def ended(self, job: EvaluationJob) -> None:
        """Record the durations and outcomes of a finished job."""
        self._mean += (sum(outcome.seconds for outcome in job.results.values()) - self._mean) / 10
        for key, outcome in job.results.items():
            self._runs[key] += 1
            self._failed[key] += any(feedback.outcome == "error" for feedback in outcome.feedback)
            self._durations.setdefault(key, deque(maxlen=RECENT_DURATIONS)).append(outcome.seconds)

    def statistics(self) -> dict[str, JSON]:
        """Return the evaluators' statistics for the worker's report."""
        statistics: dict[str, JSON] = {}
        for key, durations in self._durations.copy().items():
            p95_ns = percentile(sorted(int(seconds * 1e9) for seconds in durations.copy()), 95)
            statistics[key] = {"looked": self._runs[key], "failed": self._failed[key], "p95_s": p95_ns / 1e9}
        return statistics

    def _may_begin(self, job: EvaluationJob, key: str) -> bool:
        """Return whether an evaluator may still run on a target that has waited in the queue."""
        return self.pauses.begin(key, self._now())

    def _around(self, job: EvaluationJob, evaluator: Evaluator | None) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(mark_monitor_spans())
        stack.enter_context(use_judge_context(judgements=self._judgements, target=job.target, inside=None))
        stack.enter_context(use_ledger(self.money))
        return stack
