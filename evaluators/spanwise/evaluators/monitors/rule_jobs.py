"""Jobs of a rule: claimed targets, evaluator threads and event loop, concurrency, circuit breaker.

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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any

from spanwise.collector.records import JSON, Backfill, Case, Claim, Decision, Feedback, Target
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
from spanwise.evaluators.judges import use_ledger
from spanwise.evaluators.monitors.monitored_rule import ActiveRule
from spanwise.evaluators.monitors.rule_spending import StoreLedger, get_execution_budget
from spanwise.evaluators.monitors.worker_process import WorkerMemory
from spanwise.evaluators.scoring import CaseScorer
from spanwise.tracer.propagation import mark_monitor_spans

# Circuit breaker: pauses after repeated failures, refusals by a judge, or an exhausted budget.

FAILURE_THRESHOLD = 20  # consecutive failures until an evaluator is paused
# seconds of the first pause and of the longest one; doubled after each failed probe
MIN_PAUSE_S, MAX_PAUSE_S = 30.0, 600.0
PROBE_TIMEOUT_S = 700.0  # seconds after which a probing run counts as lost
# initial and maximum seconds between two probes of an exhausted budget; doubled as long as no call is settled
FIRST_BUDGET_PROBE_S, MAX_BUDGET_PROBE_S = 2.0, 300.0


@dataclass(slots=True)
class _FailureStreak:
    """Consecutive failures of an evaluator."""

    count: int = 0
    reason: str = ""
    until: float = 0.0
    pauses: int = 0
    probed: float | None = None  # start time of the run that probes the evaluator; None if there is none


class CircuitBreaker:
    """Circuit breaker of one rule. It is thread-safe. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streaks: dict[str, _FailureStreak] = {}
        self.refused_until = 0.0  # end of the pause that a judge's rate limit caused
        self.refusals = 0  # number of consecutive refusals
        self.budget = BudgetBreaker()

    def failed(self, key: str, reason: str, now: float) -> None:
        """Count a failure of an evaluator."""
        with self._lock:
            streak = self._streaks.setdefault(key, _FailureStreak())
            streak.count, streak.reason, streak.probed = streak.count + 1, reason, None
            if streak.count >= FAILURE_THRESHOLD and now >= streak.until:
                streak.until = now + min(MIN_PAUSE_S * 2.0**streak.pauses, MAX_PAUSE_S)
                streak.pauses += 1

    def succeeded(self, key: str) -> None:
        """Reset the failure count of an evaluator that has given an outcome."""
        with self._lock:
            self._streaks.pop(key, None)
            self.refusals = 0

    def release_probe(self, key: str) -> None:
        """Let another run probe an evaluator, because the run that probed it ended without an outcome."""
        with self._lock:
            if key in self._streaks:
                self._streaks[key].probed = None

    def begin(self, key: str, now: float) -> bool:
        """Return whether an evaluator may run now.

        After a pause, only one run may start, as a probe, until that run has an outcome.
        """
        with self._lock:
            streak = self._streaks.get(key)
            if streak is None or streak.count < FAILURE_THRESHOLD:
                return True
            if now < streak.until or (streak.probed is not None and now < streak.probed + PROBE_TIMEOUT_S):
                return False
            streak.probed = now
            return True

    def is_probing(self, now: float) -> bool:
        """Return whether an evaluator's pause is over and not yet confirmed, so that one run at a time may probe it."""
        with self._lock:
            return any(streak.count >= FAILURE_THRESHOLD and now >= streak.until for streak in self._streaks.values())

    def refuse(self, seconds: float, now: float) -> None:
        """Record that a judge's rate limit was reached. No judge call is sent for `seconds`."""
        self.refusals += 1
        self.refused_until = max(self.refused_until, now + seconds)

    def paused(self, key: str, now: float) -> str | None:
        """Return the reason why an evaluator is paused now, or None."""
        streak = self._streaks.get(key)
        if streak is None or now >= streak.until:
            return None
        return f"{key!r} has failed {streak.count} times in a row and is paused: {streak.reason}"

    def paused_until(self, key: str) -> float:
        """Return the time when an evaluator's pause ends."""
        streak = self._streaks.get(key)
        return streak.until if streak is not None else 0.0

    def list_paused(self, now: float) -> dict[str, str]:
        """Return the paused evaluators, each with the reason."""
        return {key: why for key in self._streaks.copy() if (why := self.paused(key, now)) is not None}


class BudgetBreaker:
    """Circuit breaker for a rule's budget. When the budget is exhausted, it lets single runs probe whether calls are
    possible again.

    The wait between two probes doubles while no other call is settled. At the latest it ends with the budget's
    period, measured by the store's clock.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.until = 0.0
        self._budget: Mapping[str, float] | None = None  # the exhausted budget; None if calls are possible
        self._period_end_ns = 0
        self._wait = FIRST_BUDGET_PROBE_S
        self._settled = 0.0

    def refused(
        self, reason: str, *, settled: float, left: float, end_ns: int, budget: Mapping[str, float], now: float
    ) -> float:
        """Record that a call exceeded the budget, `left` seconds before the end of its period. Return the seconds to
        wait.
        """
        if self._budget == budget and now < self.until:
            return self.until - now  # the refused call is from a run that started before the first refusal
        same = self._budget == budget and settled == self._settled
        self._wait = min(2 * self._wait, MAX_BUDGET_PROBE_S) if same else FIRST_BUDGET_PROBE_S
        self.reason, self.until, self._settled = reason, now + min(self._wait, left), settled
        self._budget, self._period_end_ns = dict(budget), end_ns
        return self.until - now

    def succeeded(self) -> None:
        """Record that the budget sufficed for a call."""
        self._budget, self._wait = None, FIRST_BUDGET_PROBE_S

    def is_used_up(self, budget: Mapping[str, float], store_ns: int) -> bool:
        """Return whether the last call exceeded this budget, and the budget's period has not ended yet."""
        return self._budget == budget and store_ns < self._period_end_ns


# Jobs of a rule: claimed targets, evaluator threads and event loop, concurrency, raised exceptions.

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

    execution: RuleExecution
    row: Decision
    case: Case
    inputs_hash: str
    evaluators: Sequence[Evaluator]  # evaluators to run
    states: Mapping[str, JSON]  # states of evaluators on this target, from earlier runs
    unpaid: frozenset[str] = frozenset()  # judges that do not run because the budget is used up
    results: dict[str, EvaluatorResult] = field(default_factory=dict)
    current: tuple[str, float] | None = None  # key of the running evaluator, and its start time
    abandoned: bool = False  # further results are discarded

    @property
    def active_rule(self) -> ActiveRule:
        """Return the rule."""
        return self.execution.active_rule

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
        if not self.abandoned:
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
class RecordingFactory(FeedbackFactory):
    """Feedback factory that also records raised exceptions."""

    errors: RaisedExceptions

    def failure(self, target: Target, error: BaseException, hint: str = "") -> list[Feedback]:
        """Record the exception, and return the feedback of `FeedbackFactory.failure`."""
        self.errors.add(self.key, target, error)
        return FeedbackFactory.failure(self, target, error, hint)


def record_exceptions(evaluator: Evaluator, errors: RaisedExceptions) -> Evaluator:
    """Return a copy of the evaluator whose feedback factory also records exceptions in `errors`."""
    options = {field.name: getattr(evaluator.make, field.name) for field in fields(FeedbackFactory)}
    return replace(evaluator, make=RecordingFactory(errors=errors, **{**options, "key": evaluator.key}))


class EventLoopThread:
    """Event loop on a daemon thread. It continues after an evaluator raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="spanwise-monitor-loop", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 1.0) -> None:
        """Stop the loop. If an evaluator blocks the loop, abandon it."""
        self._stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopped:
            capture_call(self.loop.run_forever)
        capture_call(lambda: self.loop.run_until_complete(_cancel_tasks()))
        self.loop.close()


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=0.5)


class JobThreads:
    """Daemon threads that call `run` for queued jobs, at most `size` at once, and then `done`.

    Unlike those of `concurrent.futures`, the threads do not delay the exit of the process if a job hangs.
    """

    def __init__(self, size: int, run: Callable[[EvaluationJob], None], done: Callable[[EvaluationJob], None]) -> None:
        self.size, self._run_job, self._done = size, run, done
        self._queue: queue.SimpleQueue[EvaluationJob | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()
        self.stopped = False
        self.running: set[EvaluationJob] = set()
        self.abandoned: set[EvaluationJob] = set()  # jobs that exceed their timeout and still occupy a thread

    @property
    def stuck(self) -> bool:
        """Return whether abandoned jobs occupy every thread."""
        return len(self.abandoned) >= self.size

    def put(self, job: EvaluationJob) -> None:
        """Queue a job for the next free thread."""
        self._queue.put(job)
        with self._lock:
            if self._threads < self.size and self._queue.qsize() > self._idle:
                self._threads += 1
                threading.Thread(target=self._work, name="spanwise-monitor-slot", daemon=True).start()

    def abandon(self, job: EvaluationJob) -> bool:
        """Give up a job that exceeds its timeout, and return whether it was still running."""
        with self._lock:
            if job not in self.running:
                return False
            job.abandoned = True
            self.abandoned.add(job)
            return True

    def drain(self) -> list[EvaluationJob]:
        """Remove and return the jobs that no thread has started."""
        jobs: list[EvaluationJob] = []
        with suppress(queue.Empty):
            while True:
                if (job := self._queue.get_nowait()) is not None:
                    jobs.append(job)
        return jobs

    def stop(self) -> None:
        """Stop the threads that are not blocked. Jobs that no thread has started are dropped."""
        self.stopped = True
        self.drain()
        for _ in range(self._threads):
            self._queue.put(None)

    def _work(self) -> None:
        while True:
            self._idle += 1
            job = self._queue.get()
            self._idle -= 1
            if job is None or self.stopped:
                return
            with self._lock:
                self.running.add(job)
            capture_call(lambda job=job: self._run_job(job))  # type: ignore[misc]
            with self._lock:
                self.running.discard(job)
                self.abandoned.discard(job)
            if not job.abandoned:
                self._done(job)


JUDGE_QUEUE_S = 600.0  # additional seconds for a judge: its calls may be queued, and each call has its own deadline
MAX_CLAIMED_ROWS = 200  # maximum claimed rows of a rule
MAX_BACKFILL_ROWS = 40  # maximum claimed rows of a backfill; few, so that loading them does not delay live traffic
BATCH_SIZE = 32  # cases that a model scores at once
CLAIM_BATCHES = 4  # claiming the maximum number of rows takes about this many requests
CLAIM_AHEAD_S = 0.3  # seconds of work that are claimed ahead; few, because the jobs left by a crash run one by one
MIN_DURATION_S = 0.001  # minimum seconds of a target's duration, to avoid a division by zero
FIRST_POLL_S, MAX_POLL_S = 0.05, 5.0  # initial and maximum seconds between two claims while nothing is due
RECENT_DURATIONS = 500  # number of durations kept per evaluator


class RuleExecution:
    """Execution of a rule's live traffic or of a backfill: its claimed rows, evaluators, threads and pauses.

    `money` is the budget ledger of its judges, or None. All times are seconds of the same clock. `live` is the
    execution of the rule's live traffic if this one is of a backfill. A backfill uses the concurrency that live traffic
    leaves unused, at least one thread. It has threads of its own, so that a live target never waits for it.
    """

    def __init__(
        self,
        active_rule: ActiveRule,
        done: Callable[[EvaluationJob], None],
        judgements: JudgementBuffer,
        money: StoreLedger | None,
        memory: WorkerMemory,
        now: Callable[[], float],
        backfill: Backfill | None = None,
        live: RuleExecution | None = None,
    ) -> None:
        self.active_rule, self.memory, self._now = active_rule, memory, now
        self.backfill, self._live = backfill, live
        self.breaker = CircuitBreaker()
        self.claimed: dict[Target, Decision] = {}
        self.poll_at = 0.0  # time of the next claim
        self.store_ns = 0  # last known time of the store
        self._money, self._judgements = money, judgements
        self._poll_interval = FIRST_POLL_S
        self._mean_s = CLAIM_AHEAD_S  # moving average of the duration of a target, in seconds
        self._durations: dict[str, deque[float]] = {}
        self._failed: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._errors = RaisedExceptions()
        self.evaluators = tuple(record_exceptions(evaluator, self._errors) for evaluator in active_rule.evaluators)
        self._is_batched = any(isinstance(evaluator.function, Batch) for evaluator in self.evaluators)
        self._scorer, self._loop = CaseScorer(self.evaluators, BATCH_SIZE), EventLoopThread()
        self.threads = JobThreads(self._concurrency, self._run_job, done)

    @property
    def budget(self) -> Mapping[str, float]:
        """Return the limits of the budget."""
        return get_execution_budget(self.active_rule, self.backfill)

    @property
    def _concurrency(self) -> int:
        concurrency = self.active_rule.in_force.settings.concurrency
        concurrency = max(concurrency, BATCH_SIZE) if self._is_batched else concurrency
        return concurrency if self._live is None else max(1, concurrency - len(self._live.claimed))

    def count_claimable(self, now: float) -> int:
        """Return the number of rows to claim now.

        Return 0 until a batch of rows fits, because each claim is a request to the store.
        """
        if self.active_rule.idle is not None or now < max(self.poll_at, self.breaker.refused_until):
            return 0
        if all(self.breaker.paused(evaluator.key, now) for evaluator in self.evaluators):
            return 0
        self.threads.size = self._concurrency
        if self.breaker.is_probing(now):
            return 1 - len(self.claimed)
        ahead = int(self.threads.size * CLAIM_AHEAD_S / max(self._mean_s, MIN_DURATION_S))
        if self.backfill is None:
            most = min(MAX_CLAIMED_ROWS, max(2 * self.threads.size, ahead))
        elif self.over_budget_limit(now) is not None:  # the other targets wait for the budget
            most = min(1, self.over_budget_limit(now) or 0)
        else:
            most = min(MAX_BACKFILL_ROWS, max(self.threads.size, ahead))
        free = most - len(self.claimed)
        return free if free >= max(1, most // CLAIM_BATCHES) else 0

    def record_claims(self, rows: Sequence[Decision], limit: int, now: float) -> None:
        """Record the claimed rows. If there are fewer than `limit`, no more are due, and the next poll is later."""
        self.claimed.update((row.target, row) for row in rows)
        if rows:
            self._poll_interval = FIRST_POLL_S
        if len(rows) < limit:
            self.poll_at = now + self._poll_interval
            self._poll_interval = min(2 * self._poll_interval, MAX_POLL_S)

    def poll_by(self, at: float) -> None:
        """Claim again at the time `at` or earlier, because rows are due then."""
        self.poll_at = min(self.poll_at, at)
        self._poll_interval = FIRST_POLL_S

    def runnable_evaluators(self, states: Mapping[str, JSON], now: float) -> list[Evaluator]:
        """Return the evaluators that have no final state on a target and may run now."""
        has_money = self.over_budget_limit(now) != 0
        return [
            evaluator
            for evaluator in self.evaluators
            if not is_final(evaluator_state(states, evaluator.key))
            and self.breaker.paused(evaluator.key, now) is None
            and (evaluator.asking is None or has_money)
        ]

    def unpaid_judges(self, states: Mapping[str, JSON], now: float) -> frozenset[str]:
        """Return the keys of judges that have no final state and cannot run, because the budget is used up."""
        if self.over_budget_limit(now) != 0:
            return frozenset()
        judges = (evaluator.key for evaluator in self.evaluators if evaluator.asking is not None)
        return frozenset(key for key in judges if not is_final(evaluator_state(states, key)))

    def over_budget_limit(self, now: float) -> int | None:
        """Return how many rows that wait for the budget may be claimed now: all (None), one that probes the budget, or
        none.
        """
        if not self.breaker.budget.is_used_up(self.budget, self.store_ns):
            return None
        return int(now >= self.breaker.budget.until)

    def get_timeout(self, evaluator: Evaluator) -> float:
        """Return the timeout of an evaluator in seconds."""
        timeout = self.active_rule.in_force.settings.timeout_s
        return timeout + JUDGE_QUEUE_S if evaluator.asking is not None else timeout

    def record_job(self, job: EvaluationJob) -> None:
        """Record the durations and outcomes of a finished job."""
        self._mean_s += (sum(result.seconds for result in job.results.values()) - self._mean_s) / 10
        for key, result in job.results.items():
            self._runs[key] += 1
            self._failed[key] += any(feedback.outcome == "error" for feedback in result.feedback)
            self._durations.setdefault(key, deque(maxlen=RECENT_DURATIONS)).append(result.seconds)

    def statistics(self) -> dict[str, JSON]:
        """Return the evaluators' statistics for the worker's report."""
        statistics: dict[str, JSON] = {}
        for key, durations in self._durations.copy().items():
            recent = sorted(durations.copy())
            p95_ns = percentile([int(seconds * 1e9) for seconds in recent], 95)
            counts = {"looked": self._runs[key], "failed": self._failed[key]}
            statistics[key] = {**counts, "p95_s": p95_ns / 1e9, "mean_s": fmean(recent)}
        return statistics

    def stop(self) -> None:
        """Stop the threads and the event loop. Jobs that no thread has started are dropped."""
        self.threads.stop()
        self._loop.stop()

    def _run_job(self, job: EvaluationJob) -> None:
        """Run the evaluators of a job: first the plain ones on this thread, then the others on the event loop."""
        wait = make_loop_waiter(self._loop.loop)
        for evaluator in job.evaluators:
            if evaluator.plain and self._may_begin(job, evaluator):
                job.begin(evaluator.key)
                with self._evaluator_context(job, evaluator.key):
                    scored = capture_call(
                        lambda e=evaluator: self._scorer.score_on_thread(job.case, job.target, wait, [e])  # type: ignore[misc]
                    )
                self._end(job, evaluator, scored.get() if scored.error is None else scored.error)
        others = [one for one in job.evaluators if not one.plain and self._may_begin(job, one)]
        if others and not self.threads.stopped:
            job.begin(others[0].key)
            asyncio.run_coroutine_threadsafe(capture_awaitable(self._run_async(job, others)), self._loop.loop).result()
        job.current = None

    def _may_begin(self, job: EvaluationJob, evaluator: Evaluator) -> bool:
        """Return whether an evaluator may still run on a target that has waited in the queue."""
        return not job.abandoned and self.breaker.begin(evaluator.key, self._now())

    async def _run_async(self, job: EvaluationJob, evaluators: Sequence[Evaluator]) -> None:
        await asyncio.gather(*(self._run_one(job, evaluator) for evaluator in evaluators), return_exceptions=True)

    async def _run_one(self, job: EvaluationJob, evaluator: Evaluator) -> None:
        seconds = self.get_timeout(evaluator)
        with self._evaluator_context(job, evaluator.key):
            task = asyncio.ensure_future(self._scorer.score_concurrently(job.case, job.target, [evaluator]))
            await asyncio.wait([task], timeout=seconds)
        if not task.done():
            task.cancel()
            self._end(job, evaluator, TimeoutError(f"the evaluator took more than {seconds:g} s"))
        elif task.cancelled():
            self._end(job, evaluator, asyncio.CancelledError("it cancelled itself"))
        else:
            error = task.exception()
            self._end(job, evaluator, task.result() if error is None else error)

    def _evaluator_context(self, job: EvaluationJob, key: str) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(mark_monitor_spans())
        stack.enter_context(use_judge_context(judgements=self._judgements, target=job.target, inside=None))
        stack.enter_context(use_ledger(self._money and self._money.of_evaluator(key)))
        return stack

    def _end(self, job: EvaluationJob, evaluator: Evaluator, outcome: list[Feedback] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            outcome = evaluator.make.failure(job.target, outcome)
        job.end(evaluator.key, outcome, self._errors.take(evaluator.key, job.target))
