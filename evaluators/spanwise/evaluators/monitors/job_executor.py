"""Executor of jobs: claims due targets, loads their cases, watches timeouts, reports to the store.

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
from typing import Any

from spanwise.collector.errors import NotFound, Refused, SpanwiseError
from spanwise.collector.former_names import former_names
from spanwise.collector.records import Case, Claim, ClaimResult, Decision, Feedback, Run, Target, Trace, canonical_json
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import Evaluator, JudgementBuffer
from spanwise.evaluators.judges import Ledger
from spanwise.evaluators.monitors.job_outcome import JobOutcome, finish_unchanged
from spanwise.evaluators.monitors.monitored_rule import ActiveRule, RuleKey
from spanwise.evaluators.monitors.process_limits import WorkerMemory
from spanwise.evaluators.monitors.rule_decision import batch_by_size, make_target_case
from spanwise.evaluators.monitors.rule_jobs import (
    EvaluationJob,
    EventLoopThread,
    RuleExecution,
    evaluator_timeout,
    row_claim,
)
from spanwise.evaluators.scoring import load_turns, make_case
from spanwise.tracer import attribute_names as names

ROWS_PER_REQUEST = 200  # maximum rows that a step claims, and results that a request stores
TIMEOUT_CHECK_S = 0.1  # seconds between two checks for evaluators that exceed their timeout
# seconds after the timeout until the thread of an async evaluator is abandoned; the event loop should have cancelled
# the evaluator by then
TIMEOUT_GRACE_S = 5.0


class Stuck(SpanwiseError, RuntimeError):
    """Error for a rule all of whose slots are occupied by evaluators that hang. Only a new process can continue the
    rule.
    """


class JobExecutor:
    """Executor of the jobs of all rules. `now` is a monotonic clock in seconds.

    Claims last `claim_s` seconds, and another thread renews them. `wake` is set when a job is done.
    """

    def __init__(
        self,
        store: Store,
        rules: Sequence[ActiveRule],
        holder: str,
        ledgers: Mapping[RuleKey, Ledger],
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
        self._loading = JobLoader(store, sizes)
        self._finishes: list[tuple[RuleExecution, ClaimResult]] = []
        self._request_thread = ThreadPoolExecutor(1, "spanwise-monitor-tell")
        # running request: it stores results while further cases are loaded
        self._request: Future[list[str]] | None = None
        self._keeping = 0  # number of judge runs that the running request stores
        self._leaving: frozenset[str] = frozenset()  # ids of judge traces that the running request deletes
        self._orphans: set[str] = set()  # ids of judge traces to which no feedback refers; some may be stored already
        self._runs: list[Run] = []  # judge runs to store before the feedback that refers to them
        self._unread: dict[RuleKey, dict[Target, Decision]] = {}  # claimed rows whose cases are not loaded yet
        self.working = [
            RuleExecution(
                one, EventLoopThread(), self._job_done, self._judgements, ledgers.get(one.name), self._memory, now
            )
            for one in rules
        ]
        self._by_name = {one.active_rule.name: one for one in self.working}
        self.finished = 0
        self.refused = 0
        self.stuck: str | None = None
        self._watch_at = 0.0

    @property
    def claims(self) -> list[Claim]:
        """Return the claims that this executor holds. It is thread-safe."""
        return [row_claim(row) for one in self.working for row in one.claimed.copy().values()]

    @property
    def in_flight(self) -> int:
        """Return the number of claimed targets that are not finished yet."""
        return sum(len(one.claimed) for one in self.working)

    @property
    def busy(self) -> bool:
        """Return whether targets are claimed, or results are not yet stored."""
        return bool(self.in_flight or self._request is not None or self._finishes or self._runs or self._orphans)

    @property
    def next(self) -> float:
        """Return the time at which to look for due targets again."""
        return min((one.look_at for one in self.working), default=0.0)

    def step(self) -> int:
        """Claim due targets, and send finished results to the store. Return how many targets and results there were.

        Raises `Stuck` if a rule is stuck and no job of another rule is in progress.
        """
        done = self._collect()
        if time.monotonic() >= self._watch_at:
            self._watch()
        self._start()
        claimed = 0 if self.stuck else self._claim()
        return done + claimed + self._send_results()

    def stop(self, seconds: float) -> None:
        """Wait up to `seconds` for running jobs, and release the remaining claims."""
        until = self._now() + seconds
        while self.in_flight and self._now() < until:
            try:
                self._finish_job(self._done.get(timeout=0.05))
            except queue.Empty:
                self._watch()
            self._send_results()
        for one in self.working:
            one.slots.stop()
        try:
            self._send_remaining()
            self._finishes = [(one, _release_claim(row)) for one in self.working for row in one.claimed.values()]
            self._send_remaining()
        finally:
            self._request_thread.shutdown(wait=False)

    def see_time(self, store_ns: int) -> None:
        """Record the store's time, which decides when a budget's period ends."""
        for one in self.working:
            one.store_ns = max(one.store_ns, store_ns)

    def _job_done(self, job: EvaluationJob) -> None:
        self._done.put(job)
        self._wake.set()

    def _collect(self) -> int:
        count = 0
        while count < ROWS_PER_REQUEST:
            try:
                job = self._done.get_nowait()
            except queue.Empty:
                break
            self._finish_job(job)
            count += 1
        return count

    def _finish_job(self, job: EvaluationJob) -> None:
        working = self._by_name[job.active_rule.name]
        now = self._now()
        working.ended(job)
        finish = JobOutcome(job, working.pauses, working.memory, now).finish()
        self._finishes.append((working, finish))
        if orphans := _judge_trace_ids(
            f for result in job.results.values() for f in result.feedback
        ) - _judge_trace_ids(finish.feedback):
            self._forget(orphans)

    def _forget(self, judgements: set[str]) -> None:
        """Delete judge traces to which no feedback refers, such as those of an attempt that is repeated.

        They would be unreachable otherwise, also for a user who deletes the trace that they quote.
        """
        self._runs += mark_monitor_runs(self._judgements.take())
        kept = self._runs[: self._keeping]
        self._runs = kept + [run for run in self._runs[self._keeping :] if run.trace_id not in judgements]
        self._orphans |= judgements

    def _watch(self) -> None:
        """Give up jobs whose evaluator exceeds its timeout. Their threads still occupy slots."""
        now = time.monotonic()
        self._watch_at = now + TIMEOUT_CHECK_S
        for one in self.working:
            for job in list(one.slots.running - one.slots.overdue):
                if (late := _overdue_evaluator(job, now)) is not None and one.slots.let_go(job):
                    self._give_up(one, job, *late)
            if one.slots.stuck:
                # release the waiting jobs, so that other processes can take them
                name = one.active_rule.record.name
                self.stuck = (
                    self.stuck or f"all {one.slots.size} slots of rule {name!r} are held by evaluators that hang"
                )
                for waiting in one.slots.drain():
                    self._finishes.append((one, _release_claim(waiting.row)))
        if self.stuck is not None and not self.in_flight and not self._finishes:
            raise Stuck(self.stuck)

    def _give_up(self, one: RuleExecution, job: EvaluationJob, key: str, seconds: float) -> None:
        error = TimeoutError(f"the evaluator took more than {seconds:g} s")
        evaluator = next(each for each in one.evaluators if each.key == key)
        job.over = False
        job.end(key, evaluator.make.failure(job.target, error), error)
        job.over = True
        self._finish_job(job)

    def _claim(self) -> int:
        if self._suspects or self._memory.is_short:
            return 0
        now = self._now()
        rooms = [(one, room) for one in self.working if (room := one.room(now)) > 0]
        weight = sum(one.active_rule.in_force.settings.priority for one, _ in rooms) or 1.0
        count = 0
        for one, room in rooms:
            share = max(1, int(ROWS_PER_REQUEST * one.active_rule.in_force.settings.priority / weight))
            count += self._claim_of(one, min(room, share), now)
            if self._suspects:
                break
        return count

    @property
    def _suspects(self) -> bool:
        """Return whether a claim is held on a target whose previous worker died. Such a target is evaluated alone."""
        return any(row.deaths for one in self.working for row in one.claimed.values())

    def _claim_of(self, one: RuleExecution, limit: int, now: float) -> int:
        rule = one.active_rule.in_force
        try:
            rows = self._store.claim(
                rule.name,
                rule.version,
                self._holder,
                self._claim_s,
                project=rule.project,
                limit=limit,
                over_budget=one.over_budget(now),
            )
        except Refused as refused:  # another version of the rule is in force by now
            one.active_rule.idle = str(refused)
            return 0
        one.took(len(rows), limit, now)
        self.see_time(max((row.updated_ns for row in rows), default=0))
        one.claimed.update((row.target, row) for row in rows)
        self._unread.setdefault(one.active_rule.name, {}).update((row.target, row) for row in rows)
        self._start()
        return len(rows)

    def _start(self) -> None:
        """Load the claimed cases, and queue their jobs.

        Raises `Unavailable`. Rows that could not be read are read by the next call.
        """
        for name, rows in self._unread.items():
            one = self._by_name[name]
            due = [row for row in rows.values() if not row.deaths or self.in_flight == 1]
            for made in self._loading.jobs(one, due, self._now()):
                del rows[made.target if isinstance(made, EvaluationJob) else made.claim.target]
                if isinstance(made, EvaluationJob):
                    one.slots.put(made)
                else:
                    self._finishes.append((one, made))

    def _send_results(self) -> int:
        """Process the answers to the previous request, and send the next results to the store in the background.

        Raises the store's errors; results that were not stored are sent again.
        """
        processed = self._process_answers() if self._request is not None and self._request.done() else 0
        self._runs += mark_monitor_runs(self._judgements.take())
        if self._request is None and (self._finishes or self._runs or self._orphans):
            lot, self._keeping = [finish for _, finish in self._finishes[:ROWS_PER_REQUEST]], len(self._runs)
            self._leaving = frozenset(self._orphans)
            self._request = self._request_thread.submit(
                self._store_results, list(self._runs), lot, tuple(self._leaving)
            )
            self._request.add_done_callback(lambda _: self._wake.set())
        return processed

    def _process_answers(self) -> int:
        assert self._request is not None
        request, keeping, self._request, self._keeping = self._request, self._keeping, None, 0
        answers = request.result()
        lot = self._finishes[: len(answers)]
        del self._finishes[: len(answers)], self._runs[:keeping]
        self._orphans -= self._leaving
        for (one, finish), answer in zip(lot, answers, strict=True):
            self._process_answer(one, finish, answer)
        return len(lot)

    def _store_results(
        self, runs: Sequence[Run], finishes: Sequence[ClaimResult], orphans: tuple[str, ...]
    ) -> list[str]:
        """Store judge traces first, then the results whose feedback refers to them. `orphans` are judge traces to
        delete.
        """
        if runs:
            self._store.append(runs)
        answers = self._finish(finishes) if finishes else []
        if orphans:
            self._store.delete(trace_ids=orphans, kind="evaluator")
        return answers

    def _send_remaining(self) -> None:
        """Send results until the store has all of them."""
        while self._request is not None or self._finishes or self._runs or self._orphans:
            if self._request is not None:
                wait([self._request])
            self._send_results()

    def _finish(self, finishes: Sequence[ClaimResult]) -> list[str]:
        try:
            return self._store.finish(*finishes)
        except Refused as refused:
            if len(finishes) > 1:
                return [self._finish([finish])[0] for finish in finishes]
            bare = ClaimResult(
                claim=finishes[0].claim,
                verdict="failed",
                reason=f"the store refused what came of it: {refused}",
                read_change=finishes[0].read_change,
            )
            return self._store.finish(bare)

    def _process_answer(self, one: RuleExecution, finish: ClaimResult, answer: str) -> None:
        one.claimed.pop(finish.claim.target, None)
        self.finished += 1
        one.outcomes[finish.verdict] += 1
        if answer.startswith("refused"):
            self.refused += 1
            self._orphans |= _judge_trace_ids(finish.feedback)
        elif answer == "waiting":
            one.look_soon(self._now())
        elif finish.again_s is not None:
            one.look_soon(self._now() + finish.again_s)


def _judge_trace_ids(feedback: Iterable[Feedback]) -> set[str]:
    """Return the ids of the judge traces that the feedback refers to."""
    return {one.judge_trace_id for one in feedback if one.judge_trace_id is not None}


def _release_claim(row: Decision) -> ClaimResult:
    return ClaimResult(
        claim=row_claim(row),
        verdict="waiting",
        reason="given back: its worker ended",
        inputs_hash=row.inputs_hash,
        read_change=row.read_change,
    )


def _overdue_evaluator(job: EvaluationJob, now: float) -> tuple[str, float] | None:
    """Return the evaluator that exceeds its timeout, and the timeout in seconds; None if there is none."""
    current = job.current
    if current is None:
        return None
    key, began = current
    evaluator = next(each for each in job.evaluators if each.key == key)
    seconds = evaluator_timeout(evaluator, job.active_rule.in_force.settings.timeout_s)
    if evaluator.plain:
        return (key, seconds) if now - began > seconds else None
    longest = max(evaluator_timeout(each, job.active_rule.in_force.settings.timeout_s) for each in job.evaluators)
    return (key, longest) if now - began > longest + TIMEOUT_GRACE_S else None


JobOrFinish = EvaluationJob | ClaimResult


class JobLoader:
    """Loader of the cases of claimed targets. `sizes` maps trace ids to bytes, for the traces whose size is known."""

    def __init__(self, store: Store, sizes: Mapping[str, int]) -> None:
        self._store, self._sizes = store, sizes

    def jobs(self, working: RuleExecution, rows: Sequence[Decision], now: float) -> Iterator[JobOrFinish]:
        """Yield a job for each claim with evaluators to run, and a finished result for each other claim."""
        wanted = []
        for row in rows:
            if working.to_run(row.states, now) or row.inputs_hash is not None:
                wanted.append(row)
            else:
                unpaid = working.unpaid(row.states, now)
                yield JobOutcome(
                    EvaluationJob(
                        working.active_rule, row, make_case(None), row.inputs_hash or "", (), row.states, unpaid
                    ),
                    working.pauses,
                    working.memory,
                    now,
                ).finish()
        yield from self._trace_jobs(working, [row for row in wanted if row.target.trace_id is not None], now)
        for row in wanted:
            if row.target.session_id is not None:
                try:
                    case: Case | str = make_case(load_turns(row.target.session_id, self._store, row.project))
                except NotFound:
                    case = "the session is not there any more"
                yield _make_job(working, row, case, now)

    def _trace_jobs(self, working: RuleExecution, rows: Sequence[Decision], now: float) -> Iterator[JobOrFinish]:
        by_trace: dict[str, list[Decision]] = {}
        for row in rows:
            by_trace.setdefault(row.target.trace_id or "", []).append(row)
        for lot in batch_by_size((id, self._sizes.get(id)) for id in by_trace):
            traces = {trace.trace_id: trace for trace in self._store.many(lot)}
            for id in lot:
                for row in by_trace[id]:
                    yield _make_job(working, row, _load_target_case(row, traces.get(id)), now)


def _load_target_case(row: Decision, trace: Trace | None) -> Case | str:
    """Return the case of a target, or the reason why there is none."""
    if trace is None:
        return "the trace is not there any more"
    try:
        return make_target_case(row.target, trace) or "its span is not there any more"
    except Exception as error:  # an unexpected value must fail only its own target
        return f"it cannot be shown to evaluators: {type(error).__name__}: {error}"


def _make_job(working: RuleExecution, row: Decision, case: Case | str, now: float) -> JobOrFinish:
    if isinstance(case, str):
        return ClaimResult(claim=row_claim(row), verdict="failed", reason=case, read_change=row.runs_change)
    hashed = hash_case(case, working.evaluators)
    same = row.inputs_hash in (None, hashed)
    states = row.states if same else {}
    evaluators = working.to_run(states, now)
    job = EvaluationJob(working.active_rule, row, case, hashed, evaluators, states, working.unpaid(states, now))
    if evaluators:
        return job
    if row.inputs_hash == hashed and len(working.to_run(states, float("inf"))) == 0:
        return finish_unchanged(job)
    return JobOutcome(job, working.pauses, working.memory, now).finish()


_HASHED_FIELDS = ("inputs", "outputs", "documents", "reference_outputs", "history", "metadata")
_VALUE_FIELDS = frozenset((*_HASHED_FIELDS, "expected_documents", "conditions", "guidelines"))


def hash_case(case: Case, evaluators: Sequence[Evaluator]) -> str:
    """Return 32 hex digits, a hash of the case.

    The hash covers the case's values. If an evaluator uses more than the values, it covers all runs of the case.
    """
    asked = {name for evaluator in evaluators for name in (*evaluator.needs, *evaluator.uses)}
    seen: dict[str, Any] = {name: getattr(case, name) for name in _HASHED_FIELDS}
    seen["root"] = None if case.run is None else (case.run.status, case.run.error)
    if not asked <= _VALUE_FIELDS and case.trace is not None:
        seen["runs"] = [_run_fields(run) for run in case.trace.runs]
    return hashlib.sha256(canonical_json(seen)).hexdigest()[:32]


def _run_fields(run: Run) -> dict[str, Any]:
    fields = {name: getattr(run, name) for name in Run.__slots__}
    return {**fields, "attributes": former_names(run.attributes), "resource": former_names(run.resource)}


def mark_monitor_runs(runs: Iterable[Run]) -> list[Run]:
    """Mark the runs of judges as the monitor's. Judges start outside any tracing context from which they could get the
    mark.
    """
    return [replace(run, resource={**run.resource, names.MONITOR: True}) for run in runs]
