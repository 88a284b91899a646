"""Executor of jobs: claims due targets, loads their cases, watches timeouts, stores outcomes.

The executor's own thread runs no user code. Each rule has threads for its evaluators.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.errors import NotFound, Refused, SpanwiseError
from spanwise.collector.formatting import first_line
from spanwise.collector.record_corrections import former_names
from spanwise.collector.records import (
    Case,
    Claim,
    ClaimResult,
    Decision,
    Feedback,
    Run,
    Target,
    Verdict,
    canonical_json,
)
from spanwise.collector.stores import Store
from spanwise.evaluators.experiments import JudgeCost
from spanwise.evaluators.interface import (
    Evaluator,
    JudgementBuffer,
    compute_retry_delay,
    get_http_status,
    get_retry_after,
    is_transient,
)
from spanwise.evaluators.monitors.monitored_rule import ActiveRule, RuleKey
from spanwise.evaluators.monitors.rule_decision import batch_by_size, make_target_case
from spanwise.evaluators.monitors.rule_jobs import (
    EvaluationJob,
    EvaluatorResult,
    RuleExecution,
    evaluator_state,
    is_final,
    row_claim,
)
from spanwise.evaluators.monitors.rule_spending import BudgetExceeded, StoreLedger
from spanwise.evaluators.monitors.worker_process import WorkerMemory
from spanwise.evaluators.scoring import load_turns, make_case
from spanwise.tracer import attribute_names as names

# Outcome of a job: feedback, retries, and failures because the worker process ran out of memory.

OUTCOME_ORDER: tuple[Verdict, ...] = ("failed", "skipped", "scored")
# prefix of the feedback keys of shadow rules, so that their scores do not enter the means of the compared rule
SHADOW_PREFIX = "shadow:"
WAITING_RETRY_S = 1.0  # seconds until a retry of an evaluator that could not be started
MAX_FULL_TRIES = 10  # maximum failures by lack of memory in a full worker that do not count as attempts
MAX_FULL_DELAY_S = 300.0  # maximum seconds until the retry after such a failure


class _Retry(NamedTuple):
    """Retry of an evaluator: the outcome that the row has until then, the delay in seconds, and the reason."""

    verdict: Verdict
    seconds: float
    reason: str


class JobOutcome:
    """Outcome of a claimed target. `now` is the time by the circuit breaker's clock, in seconds."""

    def __init__(self, execution: RuleExecution, job: EvaluationJob, now: float) -> None:
        self._job, self._breaker, self._memory, self._now = job, execution.breaker, execution.memory, now
        self._budget = execution.budget
        self._states: dict[str, Any] = {}
        self._reported: list[str] = []
        self._feedback: list[Feedback] = []
        self._retries: list[_Retry] = []
        self._attempts = 0
        for evaluator in job.active_rule.evaluators:
            self._settle_evaluator(evaluator.key)

    def finish(self) -> ClaimResult:
        """Return the result for the store."""
        retry = min(self._retries, key=lambda retry: retry.seconds, default=None)
        if retry is not None:
            verdict, reason = retry.verdict, retry.reason
        else:
            verdict = _worst_outcome(self._states)
            reasons = [
                f"{key}: {first_line(str(state.get('error') or state['state']))}"
                for key, state in self._states.items()
                if state["state"] == verdict and verdict != "scored"
            ]
            reason = "; ".join(reasons)[:500] or verdict
        return ClaimResult(
            claim=self._job.claim,
            verdict=verdict,
            reason=reason,
            states=self._states,
            reported=tuple(self._reported),
            feedback=tuple(self._feedback),
            inputs_hash=self._job.inputs_hash,
            read_change=self._job.row.runs_change,
            attempts=self._attempts,
            again_s=None if retry is None else retry.seconds,
            cost=feedback_cost(self._feedback),
        )

    def _settle_evaluator(self, key: str) -> None:
        before = evaluator_state(self._job.states, key)
        result = self._job.results.get(key)
        if result is not None:
            self._record_result(key, result, before)
        elif is_final(before):
            self._states[key] = before
        elif (paused := self._breaker.paused(key, self._now)) is not None:
            self._schedule_retry(key, before, _Retry("throttled", self._breaker.paused_until(key) - self._now, paused))
        elif key in self._job.unpaid:
            seconds = max(WAITING_RETRY_S, self._breaker.budget.until - self._now)
            self._schedule_retry(key, before, _Retry("over_budget", seconds, self._breaker.budget.reason))
        else:
            self._schedule_retry(key, before, _Retry("waiting", WAITING_RETRY_S, "not started yet"))

    def _record_result(self, key: str, result: EvaluatorResult, before: Mapping[str, Any]) -> None:
        attempts = int(before.get("attempts") or 0)
        full = int(before.get("full") or 0)
        if full < MAX_FULL_TRIES and self._memory.is_to_blame(result.error):
            reason = f"{key!r} is retried in another worker, because this one reached its memory limit ({self._memory})"
            retry: _Retry | None = _Retry("waiting", min(2.0**full, MAX_FULL_DELAY_S), reason)
            before = {**before, "full": full + 1}
        else:
            retry = self._plan_retry(key, result, attempts)
            if retry is not None and retry.verdict == "waiting":
                before = {**before, "attempts": attempts + 1}
                self._attempts = 1
        if retry is not None:
            self._breaker.release_probe(key)
            self._schedule_retry(key, before, retry)
            return
        outcomes = {feedback.outcome for feedback in result.feedback}
        state = "failed" if "error" in outcomes else "scored" if "score" in outcomes else "skipped"
        self._attempts = 1
        explanation = next(
            (feedback.error or feedback.comment for feedback in result.feedback if feedback.outcome != "score"), None
        )
        self._states[key] = {"state": state, "attempts": attempts + 1}
        if explanation:
            self._states[key]["error"] = first_line(explanation)
        self._reported.append(key)
        prefix = SHADOW_PREFIX if self._job.active_rule.in_force.shadow_of else ""
        self._feedback += [
            replace(feedback, key=prefix + feedback.key, rule=self._job.row.rule, claim=self._job.row.claim, id="")
            for feedback in result.feedback
        ]
        if state != "failed":
            self._breaker.succeeded(key)

    def _plan_retry(self, key: str, result: EvaluatorResult, attempts: int) -> _Retry | None:
        """Return when and why an evaluator is to be retried, or None if its result is final."""
        error = result.error
        if isinstance(error, BudgetExceeded):
            seconds = self._breaker.budget.refused(
                str(error),
                settled=error.settled,
                left=error.left,
                end_ns=error.end_ns,
                budget=self._budget,
                now=self._now,
            )
            return _Retry("over_budget", seconds, str(error))
        if any(evaluator.key == key and evaluator.asking is not None for evaluator in self._job.active_rule.evaluators):
            self._breaker.budget.succeeded()
        if not any(feedback.outcome == "error" for feedback in result.feedback):
            return None
        reason = first_line(next(feedback.error or "" for feedback in result.feedback if feedback.outcome == "error"))
        if error is not None and is_rate_limited(error):
            seconds = compute_retry_delay(self._breaker.refusals, error)
            self._breaker.refuse(seconds, self._now)
            return _Retry("throttled", seconds, f"{key!r}: {reason}")
        self._breaker.failed(key, reason, self._now)
        if (paused := self._breaker.paused(key, self._now)) is not None:
            return _Retry("throttled", self._breaker.paused_until(key) - self._now, paused)
        if error is None or not is_transient(error) or attempts >= self._job.active_rule.in_force.settings.retries:
            return None
        return _Retry("waiting", compute_retry_delay(attempts, error), f"{key!r} is retried: {reason}")

    def _schedule_retry(self, key: str, before: Mapping[str, Any], retry: _Retry) -> None:
        self._retries.append(retry)
        self._states[key] = {"attempts": 0, **before, "state": "waiting", "error": retry.reason}


def _worst_outcome(states: Mapping[str, Any]) -> Verdict:
    outcomes = [state.get("state") for state in states.values()]
    return next((outcome for outcome in OUTCOME_ORDER if outcome in outcomes), "skipped")


def finish_unchanged(job: EvaluationJob) -> ClaimResult:
    """Return the result of a claim if the values to evaluate have not changed since the last evaluation."""
    states = {key: evaluator_state(job.states, key) for key in job.states}
    return ClaimResult(
        claim=job.claim,
        verdict=_worst_outcome(states),
        reason="the change does not affect what the evaluators read",
        states=states,
        inputs_hash=job.inputs_hash,
        read_change=job.row.runs_change,
    )


def is_rate_limited(error: BaseException) -> bool:
    """Return whether a server has answered that it receives too many requests.

    The target is not the cause, so the failure does not count as an attempt.
    """
    return is_transient(error) and (get_http_status(error) in (429, 503, 529) or get_retry_after(error) is not None)


def feedback_cost(feedback: Sequence[Feedback]) -> float | None:
    """Return the cost of judges in US dollars; None if it is unknown."""
    cost, counted = JudgeCost(), set[Any]()
    for one in feedback:
        cost.add(one, counted)
    return cost.cost


# Executor of jobs: claims due targets, loads their cases, watches timeouts, reports to the store.

ROWS_PER_REQUEST = 200  # maximum rows that a step claims, and results that a request stores
TIMEOUT_CHECK_S = 0.1  # seconds between two checks for evaluators that exceed their timeout
# seconds after the timeout until the thread of an async evaluator is abandoned; the event loop should have cancelled
# the evaluator by then
TIMEOUT_GRACE_S = 5.0


class Stuck(SpanwiseError, RuntimeError):
    """Error for a rule all of whose slots are occupied by evaluators that hang. Only a new process can continue the
    rule.
    """


class _ResultBatch(NamedTuple):
    """Results that one request stores."""

    runs: list[Run]  # judge runs, stored before the feedback that refers to them
    finishes: list[tuple[RuleExecution, ClaimResult]]
    orphans: set[str]  # ids of judge traces to delete


class JobExecutor:
    """Executor of the jobs of all rules. `now` is a monotonic clock in seconds.

    Claims last `claim_s` seconds, and another thread renews them. `wake` is set when a job is done.
    """

    def __init__(
        self,
        store: Store,
        rules: Sequence[ActiveRule],
        holder: str,
        ledgers: Mapping[RuleKey, StoreLedger],
        sizes: Mapping[str, int],
        claim_s: float,
        wake: threading.Event,
        now: Callable[[], float] = time.monotonic,
        memory: WorkerMemory | None = None,
    ) -> None:
        self._memory = memory or WorkerMemory(None)
        self._store, self._holder, self._claim_s, self._wake, self._now = store, holder, claim_s, wake, now
        self._judgements = JudgementBuffer()
        self._done: queue.SimpleQueue[EvaluationJob] = queue.SimpleQueue()
        self._loader = CaseLoader(store, sizes)
        # claimed rows whose cases are not loaded yet
        self._unloaded: dict[RuleExecution, dict[Target, Decision]] = {}
        self._finishes: list[tuple[RuleExecution, ClaimResult]] = []
        self._runs: list[Run] = []  # judge runs to store
        self._orphans: set[str] = set()  # ids of judge traces to which no feedback refers; some may be stored already
        self._request_thread = ThreadPoolExecutor(1, "spanwise-monitor-tell")
        # running request: it stores results while further cases are loaded
        self._request: tuple[Future[list[str]], _ResultBatch] | None = None
        # Of live traffic first, then of backfills. Other threads read the list, so that it is only ever replaced
        self.executions = [
            RuleExecution(rule, self._job_done, self._judgements, ledgers.get(rule.name), self._memory, now)
            for rule in rules
        ]
        self._live = tuple(self.executions)
        self.finished = 0
        self.refused = 0
        self.stuck: str | None = None
        self._watch_at = 0.0

    @property
    def claims(self) -> list[Claim]:
        """Return the claims that this executor holds. It is thread-safe."""
        return [row_claim(row) for execution in self.executions for row in execution.claimed.copy().values()]

    @property
    def in_flight(self) -> int:
        """Return the number of claimed targets that are not finished yet."""
        return sum(len(execution.claimed) for execution in self.executions)

    @property
    def busy(self) -> bool:
        """Return whether targets are claimed, or results are not yet stored."""
        return bool(self.in_flight or self._has_results)

    @property
    def next(self) -> float:
        """Return the time at which to look for due targets again."""
        return min((execution.poll_at for execution in self.executions), default=0.0)

    def step(self) -> int:
        """Claim due targets, and send finished results to the store. Return how many targets and results there were.

        Raises `Stuck` if a rule is stuck and no job of another rule is in progress.
        """
        done = 0
        while done < ROWS_PER_REQUEST and not self._done.empty():
            self._finish_job(self._done.get())
            done += 1
        if time.monotonic() >= self._watch_at:
            self._give_up_overdue()
        self._start_jobs()
        self._follow_backfills()
        claimed = 0 if self.stuck else self._claim()
        return done + claimed + self._send_results()

    def stop(self, seconds: float) -> None:
        """Wait up to `seconds` for running jobs, and release the remaining claims."""
        until = self._now() + seconds
        while self.in_flight and self._now() < until:
            try:
                self._finish_job(self._done.get(timeout=0.05))
            except queue.Empty:
                self._give_up_overdue()
            self._send_results()
        for execution in self.executions:
            execution.stop()
        try:
            self._send_all_results()
            self._finishes = [
                (execution, _release_claim(row)) for execution in self.executions for row in execution.claimed.values()
            ]
            self._send_all_results()
        finally:
            self._request_thread.shutdown(wait=False)

    def record_time(self, store_ns: int) -> None:
        """Record the store's time, which decides when a budget's period ends."""
        for execution in self.executions:
            execution.store_ns = max(execution.store_ns, store_ns)

    def _job_done(self, job: EvaluationJob) -> None:
        self._done.put(job)
        self._wake.set()

    def _finish_job(self, job: EvaluationJob) -> None:
        execution, now = job.execution, self._now()
        execution.record_job(job)
        finish = JobOutcome(execution, job, now).finish()
        self._finishes.append((execution, finish))
        given = [feedback for result in job.results.values() for feedback in result.feedback]
        if orphans := _judge_trace_ids(given) - _judge_trace_ids(finish.feedback):
            # delete judge traces to which no feedback refers, such as those of an attempt that is repeated: they would
            # be unreachable, also for a user who deletes the trace that they quote
            self._take_judge_runs()
            self._runs = [run for run in self._runs if run.trace_id not in orphans]
            self._orphans |= orphans

    def _follow_backfills(self) -> None:
        """Start and end executions, so that each rule has one for the backfill that it executes now."""
        executions = list(self._live)
        for live in self._live:
            job = live.active_rule.backfill
            own = [one for one in self.executions if one.backfill is not None and one.active_rule is live.active_rule]
            for execution in own:
                if execution.backfill is not None and job is not None and execution.backfill.id == job.id:
                    job = None
                elif not execution.claimed:
                    execution.stop()
                    continue
                executions.append(execution)
            if job is not None:
                money = StoreLedger(self._store, live.active_rule, job)
                shared = (self._job_done, self._judgements, money, self._memory, self._now)
                executions.append(RuleExecution(live.active_rule, *shared, backfill=job, live=live))
        if executions != self.executions:
            self.executions = executions

    def _take_judge_runs(self) -> None:
        self._runs += mark_monitor_runs(self._judgements.take())

    def _give_up_overdue(self) -> None:
        """Give up jobs whose evaluator exceeds its timeout. Their threads stay occupied.

        Raises `Stuck` if a rule has no free thread left, and all else is done.
        """
        now = time.monotonic()
        self._watch_at = now + TIMEOUT_CHECK_S
        for execution in self.executions:
            threads = execution.threads
            for job in list(threads.running - threads.abandoned):
                overdue = _find_overdue(execution, job, now)
                if overdue is not None and threads.abandon(job):
                    evaluator, seconds = overdue
                    error = TimeoutError(f"the evaluator took more than {seconds:g} s")
                    feedback = evaluator.make.failure(job.target, error)
                    job.results[evaluator.key] = EvaluatorResult(feedback, error, seconds)
                    self._finish_job(job)
            if threads.stuck:
                # release the waiting jobs, so that other processes can take them
                name = execution.active_rule.record.name
                self.stuck = (
                    self.stuck or f"all {threads.size} slots of rule {name!r} are occupied by hanging evaluators"
                )
                self._finishes += [(execution, _release_claim(job.row)) for job in threads.drain()]
        if self.stuck is not None and not self.in_flight and not self._finishes:
            raise Stuck(self.stuck)

    def _claim(self) -> int:
        if self._has_suspect or self._memory.is_short:
            return 0
        now = self._now()
        claimable = [(execution, rows) for execution in self._live if (rows := execution.count_claimable(now)) > 0]
        weight = sum(execution.active_rule.in_force.settings.priority for execution, _ in claimable) or 1.0
        count = 0
        for execution, rows in claimable:
            share = int(ROWS_PER_REQUEST * execution.active_rule.in_force.settings.priority / weight)
            count += self._claim_for_rule(execution, min(rows, max(1, share)), now)
            if self._has_suspect:
                return count
        # backfills last, with the concurrency that live traffic leaves unused
        for execution in self.executions[len(self._live) :]:
            if (rows := execution.count_claimable(now)) > 0 and not self._has_suspect:
                count += self._claim_for_rule(execution, rows, now)
        return count

    @property
    def _has_suspect(self) -> bool:
        """Return whether a claim is held on a target whose previous worker died. Such a target is evaluated alone."""
        return any(row.deaths for execution in self.executions for row in execution.claimed.values())

    def _claim_for_rule(self, execution: RuleExecution, limit: int, now: float) -> int:
        rule = execution.active_rule.in_force
        try:
            rows = self._store.claim(
                rule.name,
                rule.version,
                self._holder,
                self._claim_s,
                project=rule.project,
                limit=limit,
                over_budget=execution.over_budget_limit(now),
                backfill=None if execution.backfill is None else execution.backfill.id,
            )
        except Refused as refused:  # another version of the rule is in force by now
            execution.active_rule.idle = str(refused)
            return 0
        self.record_time(max((row.updated_ns for row in rows), default=0))
        execution.record_claims(rows, limit, now)
        self._unloaded.setdefault(execution, {}).update((row.target, row) for row in rows)
        self._start_jobs()
        return len(rows)

    def _start_jobs(self) -> None:
        """Load the claimed cases, and queue their jobs.

        Raises `Unavailable`. Rows that could not be read are read by the next call.
        """
        for execution, rows in self._unloaded.items():
            due = [row for row in rows.values() if not row.deaths or self.in_flight == 1]
            for row, job in self._loader.make_jobs(execution, due, self._now()):
                del rows[row.target]
                if isinstance(job, EvaluationJob):
                    execution.threads.put(job)
                else:
                    self._finishes.append((execution, job))
        self._unloaded = {execution: rows for execution, rows in self._unloaded.items() if rows}

    @property
    def _has_results(self) -> bool:
        return bool(self._request is not None or self._finishes or self._runs or self._orphans)

    def _send_results(self) -> int:
        """Process the answers to the previous request, and send the next results to the store in the background.

        Return the number of answers. Raises the store's errors; results that were not stored are sent again.
        """
        processed = self._process_answers() if self._request is not None and self._request[0].done() else 0
        self._take_judge_runs()
        if self._request is None and self._has_results:
            batch = _ResultBatch(self._runs, self._finishes[:ROWS_PER_REQUEST], self._orphans)
            self._runs, self._finishes, self._orphans = [], self._finishes[ROWS_PER_REQUEST:], set()
            future = self._request_thread.submit(self._store_results, batch)
            self._request = future, batch
            future.add_done_callback(lambda _: self._wake.set())
        return processed

    def _send_all_results(self) -> None:
        """Send results until the store has all of them."""
        while self._has_results:
            if self._request is not None:
                wait([self._request[0]])
            self._send_results()

    def _store_results(self, batch: _ResultBatch) -> list[str]:
        if batch.runs:
            self._store.append(batch.runs)
        answers = self._finish([finish for _, finish in batch.finishes]) if batch.finishes else []
        if batch.orphans:
            self._store.delete(trace_ids=tuple(batch.orphans), kind="evaluator")
        return answers

    def _finish(self, finishes: Sequence[ClaimResult]) -> list[str]:
        try:
            return self._store.finish(*finishes)
        except Refused as refused:
            if len(finishes) > 1:
                return [self._finish([finish])[0] for finish in finishes]
            bare = ClaimResult(
                claim=finishes[0].claim,
                verdict="failed",
                reason=f"the store refused the result: {refused}",
                read_change=finishes[0].read_change,
            )
            return self._store.finish(bare)

    def _process_answers(self) -> int:
        assert self._request is not None
        (future, batch), self._request = self._request, None
        try:
            answers = future.result()
        except BaseException:
            self._runs, self._finishes = batch.runs + self._runs, batch.finishes + self._finishes
            self._orphans |= batch.orphans
            raise
        for (execution, finish), answer in zip(batch.finishes, answers, strict=True):
            execution.claimed.pop(finish.claim.target, None)
            self.finished += 1
            if answer.startswith("refused"):
                self.refused += 1
                self._orphans |= _judge_trace_ids(finish.feedback)
            elif answer == "waiting":
                execution.poll_by(self._now())
            elif finish.again_s is not None:
                execution.poll_by(self._now() + finish.again_s)
        return len(answers)


def _judge_trace_ids(feedback: Iterable[Feedback]) -> set[str]:
    """Return the ids of the judge traces that the feedback refers to."""
    return {one.judge_trace_id for one in feedback if one.judge_trace_id is not None}


def _release_claim(row: Decision) -> ClaimResult:
    return ClaimResult(
        claim=row_claim(row),
        verdict="waiting",
        reason="released: its worker ended",
        inputs_hash=row.inputs_hash,
        read_change=row.read_change,
    )


def _find_overdue(execution: RuleExecution, job: EvaluationJob, now: float) -> tuple[Evaluator, float] | None:
    """Return the evaluator that exceeds its timeout, and the timeout in seconds; None if there is none."""
    if (current := job.current) is None:
        return None
    key, began = current
    evaluator = next(each for each in job.evaluators if each.key == key)
    if evaluator.plain:
        seconds = limit = execution.get_timeout(evaluator)
    else:
        seconds = max(map(execution.get_timeout, job.evaluators))
        limit = seconds + TIMEOUT_GRACE_S
    return (evaluator, seconds) if now - began > limit else None


JobOrResult: TypeAlias = EvaluationJob | ClaimResult


class CaseLoader:
    """Loader of the cases of claimed targets. `sizes` maps trace ids to bytes, for the traces whose size is known."""

    def __init__(self, store: Store, sizes: Mapping[str, int]) -> None:
        self._store, self._sizes = store, sizes

    def make_jobs(
        self, execution: RuleExecution, rows: Sequence[Decision], now: float
    ) -> Iterator[tuple[Decision, JobOrResult]]:
        """Yield each row with its job, or with its result if no evaluator needs to run."""
        to_load = []
        for row in rows:
            if execution.runnable_evaluators(row.states, now) or row.inputs_hash is not None:
                to_load.append(row)
            else:  # all evaluators wait, for example for the budget: the case is not needed
                unpaid = execution.unpaid_judges(row.states, now)
                job = EvaluationJob(execution, row, make_case(None), "", (), row.states, unpaid)
                yield row, JobOutcome(execution, job, now).finish()
        for row, case in self._load_cases(to_load):
            yield row, _make_job(execution, row, case, now)

    def _load_cases(self, rows: Sequence[Decision]) -> Iterator[tuple[Decision, Case | str]]:
        """Yield each row with its case, or with the reason why there is none."""
        by_trace: dict[str, list[Decision]] = {}
        for row in rows:
            if row.target.trace_id is not None:
                by_trace.setdefault(row.target.trace_id, []).append(row)
            elif row.target.session_id is not None:
                try:
                    yield row, make_case(load_turns(row.target.session_id, self._store, row.project))
                except NotFound:
                    yield row, "the session is not there any more"
        for batch in batch_by_size((id, self._sizes.get(id)) for id in by_trace):
            traces = {trace.trace_id: trace for trace in self._store.many(batch)}
            for id in batch:
                for row in by_trace[id]:
                    if id not in traces:
                        yield row, "the trace is not there any more"
                        continue
                    try:
                        yield row, make_target_case(row.target, traces[id]) or "its span is not there any more"
                    except Exception as error:  # an unexpected value must fail only its own target
                        yield row, f"it cannot be shown to evaluators: {type(error).__name__}: {error}"


def _make_job(execution: RuleExecution, row: Decision, case: Case | str, now: float) -> JobOrResult:
    if isinstance(case, str):
        return ClaimResult(claim=row_claim(row), verdict="failed", reason=case, read_change=row.runs_change)
    inputs_hash = hash_case(case, execution.evaluators)
    states = row.states if row.inputs_hash in (None, inputs_hash) else {}
    evaluators, unpaid = execution.runnable_evaluators(states, now), execution.unpaid_judges(states, now)
    job = EvaluationJob(execution, row, case, inputs_hash, evaluators, states, unpaid)
    if evaluators:
        return job
    if row.inputs_hash == inputs_hash and not execution.runnable_evaluators(states, float("inf")):
        return finish_unchanged(job)
    return JobOutcome(execution, job, now).finish()


_HASHED_FIELDS = ("inputs", "outputs", "documents", "reference_outputs", "history", "metadata")
_VALUE_FIELDS = frozenset((*_HASHED_FIELDS, "expected_documents", "conditions", "guidelines"))


def hash_case(case: Case, evaluators: Sequence[Evaluator]) -> str:
    """Return 32 hex digits, a hash of the case.

    The hash covers the case's values. If an evaluator uses more than the values, it covers all runs of the case.
    """
    used = {name for evaluator in evaluators for name in (*evaluator.needs, *evaluator.uses)}
    hashed: dict[str, Any] = {name: getattr(case, name) for name in _HASHED_FIELDS}
    hashed["root"] = None if case.run is None else (case.run.status, case.run.error)
    if not used <= _VALUE_FIELDS and case.trace is not None:
        # hash the former names of attributes too, so that a hash from before the renaming stays valid
        hashed["runs"] = [
            {name: getattr(run, name) for name in Run.__slots__}
            | {"attributes": former_names(run.attributes), "resource": former_names(run.resource)}
            for run in case.trace.runs
        ]
    return hashlib.sha256(canonical_json(hashed)).hexdigest()[:32]


def mark_monitor_runs(runs: Iterable[Run]) -> list[Run]:
    """Mark the runs of judges as the monitor's. Judges start outside any tracing context from which they could get the
    mark.
    """
    return [replace(run, resource={**run.resource, names.MONITOR: True}) for run in runs]
