"""What came of a job, as the store is told: feedback of evaluators that are done, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spanwise.collector.format import first_line
from spanwise.collector.records import Feedback, Finish, Verdict
from spanwise.evaluators.engine import Spent
from spanwise.evaluators.monitors._job import Came, Job, is_done, state_of
from spanwise.evaluators.monitors._memory import Memory
from spanwise.evaluators.monitors._money import OverBudget
from spanwise.evaluators.monitors._pauses import Pauses
from spanwise.evaluators.protocol import claim_keys, declared_keys, may_pass, retry_after, status_of, wait_before

WORST: tuple[Verdict, ...] = ("failed", "skipped", "scored")
SHADOW = "shadow:"  # before the keys of a shadow's feedback, which no mean of the rule's own key is to have
WAIT_AGAIN = 1.0  # seconds, for what was not even begun
FULL_TRIES = 10  # failures in full workers after which one more counts
LONGEST_FULL = 300.0  # seconds between two of these tries


class _Again(NamedTuple):
    """An evaluator that has to look again: in how many seconds, and what the row is called meanwhile."""

    verdict: Verdict
    seconds: float
    reason: str


class Outcome:
    """The end of one claim. Made where pauses are known; `now` is in seconds of their clock."""

    def __init__(self, job: Job, pauses: Pauses, memory: Memory, now: float) -> None:
        self._job, self._pauses, self._memory, self._now = job, pauses, memory, now
        self._states: dict[str, Any] = {}
        self._reported: list[str] = []
        self._feedback: list[Feedback] = []
        self._again: list[_Again] = []
        self._owners = declared_keys(job.held.evaluators)
        self._attempts = 0
        for evaluator in job.held.evaluators:
            if (came := job.came.get(evaluator.key)) is not None:
                own = claim_keys(self._owners, evaluator, list(came.feedback), job.target)
                job.came[evaluator.key] = replace(came, feedback=own)
        for evaluator in job.held.evaluators:
            self._look(evaluator.key)

    def finish(self) -> Finish:
        """What is told the store."""
        again = min(self._again, key=lambda one: one.seconds, default=None)
        done = [state["state"] for state in self._states.values()]
        verdict: Verdict = next((word for word in WORST if word in done), "skipped") if again is None else again.verdict
        return Finish(
            claim=self._job.claim,
            verdict=verdict,
            reason=self._reason(verdict) if again is None else again.reason,
            states=self._states,
            reported=tuple(self._reported),
            feedback=tuple(self._feedback),
            inputs_hash=self._job.inputs_hash,
            read_change=self._job.row.runs_change,
            attempts=self._attempts,
            again_s=None if again is None else again.seconds,
            cost=cost_of(self._feedback),
        )

    def _look(self, key: str) -> None:
        before = state_of(self._job.states, key)
        came = self._job.came.get(key)
        if came is not None:
            self._came(key, came, before)
        elif is_done(before):
            self._states[key] = before
        elif (paused := self._pauses.paused(key, self._now)) is not None:
            self._wait(key, before, _Again("throttled", self._pauses.until(key) - self._now, paused))
        elif key in self._job.unpaid:
            seconds = max(WAIT_AGAIN, self._pauses.money.until - self._now)
            self._wait(key, before, _Again("over_budget", seconds, self._pauses.money.reason))
        else:
            self._wait(key, before, _Again("waiting", WAIT_AGAIN, "it was not begun"))

    def _came(self, key: str, came: Came, before: Mapping[str, Any]) -> None:
        attempts = int(before.get("attempts") or 0)
        full = int(before.get("full") or 0)
        if full < FULL_TRIES and self._memory.is_to_blame(came.error):
            why = f"{key!r} is tried in another worker: the memory of this one was full ({self._memory})"
            self._pauses.came_to_nothing(key)
            self._wait(key, {**before, "full": full + 1}, _Again("waiting", min(2.0**full, LONGEST_FULL), why))
            return
        again = self._to_try_again(key, came, attempts)
        if again is not None:
            self._pauses.came_to_nothing(key)
            counted = again.verdict == "waiting"
            self._attempts = max(self._attempts, int(counted))
            self._wait(key, {**before, "attempts": attempts + counted}, again)
            return
        state = _state(came.feedback)
        self._attempts = max(self._attempts, 1)
        self._states[key] = {"state": state, "attempts": attempts + 1, **_error(came.feedback)}
        self._reported.append(key)
        self._feedback += [self._own(feedback) for feedback in came.feedback]
        if state != "failed":
            self._pauses.came(key)

    def _to_try_again(self, key: str, came: Came, attempts: int) -> _Again | None:
        """Whether, why and when an evaluator is to look again; None if this is its outcome."""
        error = came.error
        if isinstance(error, OverBudget):
            seconds = self._pauses.money.refused(
                str(error),
                settled=error.settled,
                left=error.left,
                end_ns=error.end_ns,
                budget=self._job.held.in_force.settings.budget,
                now=self._now,
            )
            return _Again("over_budget", seconds, str(error))
        if any(evaluator.key == key and evaluator.asking is not None for evaluator in self._job.held.evaluators):
            self._pauses.money.found()
        if not any(feedback.outcome == "error" for feedback in came.feedback):
            return None
        told = first_line(next(feedback.error or "" for feedback in came.feedback if feedback.outcome == "error"))
        if error is not None and is_refusal(error):
            seconds = wait_before(self._pauses.refusals, error)
            self._pauses.refuse(seconds, self._now)
            return _Again("throttled", seconds, f"{key!r}: {told}")
        self._pauses.failed(key, told, self._now)
        if (paused := self._pauses.paused(key, self._now)) is not None:
            return _Again("throttled", self._pauses.until(key) - self._now, paused)
        if error is None or not may_pass(error) or attempts >= self._job.held.in_force.settings.retries:
            return None
        return _Again("waiting", wait_before(attempts, error), f"{key!r} is tried again: {told}")

    def _wait(self, key: str, before: Mapping[str, Any], again: _Again) -> None:
        self._again.append(again)
        self._states[key] = {"attempts": 0, **before, "state": "waiting", "error": again.reason}

    def _own(self, feedback: Feedback) -> Feedback:
        row = self._job.row
        key = SHADOW + feedback.key if self._job.held.in_force.shadow_of else feedback.key
        return replace(feedback, key=key, rule=row.rule, claim=row.claim, id="")

    def _reason(self, verdict: str) -> str:
        told = [
            f"{key}: {first_line(str(state.get('error') or state['state']))}"
            for key, state in self._states.items()
            if state["state"] == verdict and verdict != "scored"
        ]
        return "; ".join(told)[:500] or verdict


def unchanged(job: Job) -> Finish:
    """The end of a claim of which nothing new was to be seen."""
    states = {key: state_of(job.states, key) for key in job.states}
    done = [state.get("state") for state in states.values()]
    verdict: Verdict = next((word for word in WORST if word in done), "skipped")
    return Finish(
        claim=job.claim,
        verdict=verdict,
        reason="what changed is nothing that the evaluators look at",
        states=states,
        inputs_hash=job.inputs_hash,
        read_change=job.row.runs_change,
    )


def is_refusal(error: BaseException) -> bool:
    """Whether a server says that it gets too much: no fault of the target, and no attempt at it."""
    return may_pass(error) and (status_of(error) in (429, 503, 529) or retry_after(error) is not None)


def cost_of(feedback: Sequence[Feedback]) -> float | None:
    """US dollars that judges have taken; None where nobody says."""
    spent, counted = Spent(), set[Any]()
    for one in feedback:
        spent.add(one, counted)
    return spent.cost


def _state(feedback: Sequence[Feedback]) -> str:
    outcomes = {one.outcome for one in feedback}
    if "error" in outcomes:
        return "failed"
    return "scored" if "score" in outcomes else "skipped"


def _error(feedback: Sequence[Feedback]) -> dict[str, str]:
    said = next((one.error or one.comment for one in feedback if one.outcome != "score"), None)
    return {"error": first_line(said)} if said else {}
