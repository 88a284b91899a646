"""Outcome of a job: feedback, retries, and failures because the worker process ran out of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spanwise.collector.formatting import first_line
from spanwise.collector.records import ClaimResult, Feedback, Verdict
from spanwise.evaluators.experiments import JudgeCost
from spanwise.evaluators.interface import (
    compute_retry_delay,
    get_http_status,
    get_retry_after,
    is_transient,
)
from spanwise.evaluators.monitors.rule_jobs import (
    EvaluationJob,
    EvaluatorResult,
    RuleExecution,
    evaluator_state,
    is_final,
)
from spanwise.evaluators.monitors.rule_spending import BudgetExceeded

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
