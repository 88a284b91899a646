"""What every store does with claims: who runs what, and what came of it. Each test takes `store` (see conftest.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collector.deciding import on, ruled, slice, traced
from collector.making import child
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Claim, ClaimResult, Decision, Feedback, Rule, Target, TraceHead
from spanwise.collector.stores import Store

DONE = {"concise": {"state": "scored"}}


def waiting(store: Store, count: int = 1, **fields: Any) -> list[TraceHead]:
    """Traces that were decided to be taken."""
    ruled(store)
    heads = traced(store, count)
    assert store.decide(slice(*(on(head, **fields) for head in heads), upto=heads[-1].cursor)) == [True]
    return heads


def claim(store: Store, holder: str = "w", seconds: float = 60, limit: int = 1) -> list[Decision]:
    return store.claim("r", "1", holder, seconds, limit=limit)


def claim_of(taken: Decision) -> Claim:
    return Claim(project=taken.project, rule=taken.rule, version=taken.version, target=taken.target, number=taken.claim)


def score(target: Target, value: float = 1.0, key: str = "concise", **fields: Any) -> Feedback:
    return Feedback(**{"target": target, "key": key, "score": value, "evaluator": key, "rule": "r", **fields})


def finish(taken: Decision, value: float = 1.0, **fields: Any) -> ClaimResult:
    """What comes of an evaluator that gave a score."""
    made = {"verdict": "scored", "states": DONE, "reported": ("concise",), "feedback": (score(taken.target, value),)}
    known = {"inputs_hash": "h1", "read_change": taken.runs_change, "attempts": 1}
    return ClaimResult(claim=claim_of(taken), **{**made, **known, **fields})  # type: ignore[arg-type]


def only(store: Store) -> Decision:
    [one] = store.decisions()
    return one


def scores(store: Store, trace_id: str) -> dict[str, Any]:
    return {one.key: one.score for one in store.trace(trace_id).feedback}


def test_a_claim_is_given_once_and_finished_once(store: Store) -> None:
    [head] = waiting(store, probability=0.5)
    [taken] = claim(store)
    assert (taken.verdict, taken.holder, taken.probability, taken.target) == ("running", "w", 0.5, only(store).target)
    assert (claim(store, "other"), claim(store, limit=0)) == ([], [])
    for _ in range(2):
        assert store.finish(finish(taken, cost=0.5, reason="done")) == ["finished"]
        kept = only(store)
        assert (kept.verdict, kept.reason, kept.states, kept.cost, kept.attempts) == ("scored", "done", DONE, 0.5, 1)
        assert (kept.holder, kept.until_ns, kept.inputs_hash, kept.claim) == (None, None, "h1", taken.claim)
        assert scores(store, head.trace_id) == {"concise": 1.0}
    assert claim(store) == []


def test_the_oldest_come_first_and_as_many_as_are_asked_for(store: Store) -> None:
    heads = waiting(store, 5)
    assert [one.target.trace_id for one in claim(store, limit=3)] == [head.trace_id for head in heads[:3]]
    assert [one.target.trace_id for one in claim(store, limit=3)] == [head.trace_id for head in heads[3:]]


def test_what_waits_for_a_time_is_not_given_out_before(store: Store) -> None:
    now = store.changes().now_ns
    waiting(store, next_ns=now + 3_600_000_000_000)
    assert claim(store) == []
    ruled(store, name="due")
    [head] = traced(store)
    store.decide(replace(slice(on(head, rule="due", next_ns=now - 1), upto=head.cursor), rule="due"))
    assert len(store.claim("due", "1", "w", 60)) == 1


def test_a_stalled_worker_finishes_nothing_once_another_has_taken_over(store: Store) -> None:
    [head] = waiting(store)
    [first] = claim(store, "stalled", seconds=-1)
    [second] = claim(store, "other")
    assert (second.claim > first.claim, second.deaths) == (True, 1)
    assert store.finish(finish(first, 0.0)) == [f"refused: claim {first.claim} was taken over by claim {second.claim}"]
    assert store.finish(finish(second, 1.0), finish(first, 0.0))[0] == "finished"
    assert scores(store, head.trace_id) == {"concise": 1.0}
    assert store.renew([claim_of(first)], "stalled", 60) == [False]


def test_a_late_finish_counts_while_nobody_else_has_taken_the_claim(store: Store) -> None:
    waiting(store)
    [taken] = claim(store, seconds=-1)
    assert store.finish(finish(taken)) == ["finished"]


def test_claims_are_renewed_by_their_holder_alone(store: Store) -> None:
    one, _ = waiting(store, 2)
    taken = claim(store, seconds=-1, limit=2)
    assert store.renew([claim_of(each) for each in taken], "other", 60) == [False, False]
    assert store.renew([claim_of(each) for each in taken], "w", 60) == [True, True]
    assert claim(store, "other") == []
    store.delete(trace_ids=(one.trace_id,))
    assert store.renew([claim_of(each) for each in taken], "w", 60) == [False, True]


def test_what_has_ended_a_worker_runs_alone_and_others_go_on(store: Store) -> None:
    waiting(store, 4)
    died = claim(store, seconds=-1, limit=2)
    fresh = store.changes().cursor
    assert [one.deaths for one in claim(store, "w2", limit=4)] == [1]
    assert [one.deaths for one in claim(store, "w3", limit=4)] == [1]
    assert [one.deaths for one in claim(store, "w4", limit=4)] == [0, 0]
    assert (len(died), fresh) == (2, fresh)


def test_a_target_that_ends_three_workers_is_failed_with_an_error_of_each_evaluator(store: Store) -> None:
    store.save_rule(Rule(name="r", version="1", evaluators=({"key": "concise"}, {"key": "kind"})))
    [head] = waiting(store, states={"kind": {"state": "scored"}})
    for _ in range(3):
        assert len(claim(store, seconds=-1)) == 1
    assert claim(store) == []
    kept = only(store)
    assert (kept.verdict, kept.reason, kept.deaths) == ("failed", "ended the worker 3 times", 3)
    [error] = store.trace(head.trace_id).feedback
    assert (error.key, error.outcome, error.error, error.rule) == ("concise", "error", "ended the worker 3 times", "r")
    assert kept.states["concise"] == {"state": "failed", "error": "ended the worker 3 times"}


def test_a_claim_that_is_given_back_is_taken_again_in_its_time(store: Store) -> None:
    waiting(store, 2)
    soon, late = claim(store, limit=2)
    back = {"states": {}, "reported": (), "feedback": (), "reason": "429", "attempts": 0}
    given = finish(soon, verdict="throttled", again_s=0, **back), finish(late, verdict="throttled", again_s=60, **back)
    assert store.finish(*given) == store.finish(*given) == ["finished", "finished"]
    assert [(one.verdict, one.reason, one.attempts) for one in store.decisions()] == [("throttled", "429", 0)] * 2
    assert [one.target for one in claim(store, limit=2)] == [soon.target]


def test_a_retry_replaces_only_what_it_reports(store: Store) -> None:
    [head] = waiting(store)
    [first] = claim(store)
    both = {"concise": {"state": "scored"}, "slow": {"state": "waiting", "attempts": 1}}
    store.finish(finish(first, verdict="waiting", states=both))
    [second] = claim(store)
    done = {"slow": {"state": "scored"}}
    told = finish(second, states=done, reported=("slow",), feedback=(score(second.target, 0.5, "slow"),))
    assert store.finish(told) == ["finished"]
    assert scores(store, head.trace_id) == {"concise": 1.0, "slow": 0.5}
    assert only(store).states == {"concise": {"state": "scored"}, "slow": {"state": "scored"}}
    assert (only(store).attempts, only(store).reopened) == (2, 0)


def test_a_claim_that_is_given_back_unused_takes_nothing_with_it(store: Store) -> None:
    [head] = waiting(store)
    [first] = claim(store)
    store.finish(finish(first, verdict="waiting"))
    before = only(store)
    [second] = claim(store)
    store.finish(ClaimResult(claim=claim_of(second), verdict="waiting", reason="given back"))
    kept = only(store)
    assert (kept.states, kept.inputs_hash, kept.read_change) == (before.states, "h1", before.read_change)
    assert scores(store, head.trace_id) == {"concise": 1.0}


def test_other_inputs_replace_all_that_was_said(store: Store) -> None:
    [head] = waiting(store)
    [first] = claim(store)
    store.finish(
        finish(first, feedback=(score(first.target), score(first.target, key="old")), reported=("concise", "old"))
    )
    again(store, head)
    [second] = claim(store)
    assert store.finish(finish(second, 0.0, inputs_hash="h2")) == ["finished"]
    assert (scores(store, head.trace_id), only(store).reopened) == ({"concise": 0.0}, 1)


def again(store: Store, head: TraceHead) -> TraceHead:
    """The trace gets another run, and that is decided on."""
    store.append([child(store.trace(head.trace_id).root)])
    [later] = [one for one in store.changes(head.cursor).heads if one.trace_id == head.trace_id]
    cursor = store.cursor("r", "1")
    assert store.decide(slice(on(later), after=cursor, upto=later.cursor)) == [True]
    return later


def test_a_trace_that_changed_while_it_was_read_is_run_again_once(store: Store) -> None:
    [head] = waiting(store)
    [first] = claim(store)
    later = again(store, head)
    assert (only(store).verdict, only(store).runs_change) == ("running", later.runs_change)
    for _ in range(2):
        assert store.finish(finish(first)) == ["waiting"]
    assert scores(store, head.trace_id) == {"concise": 1.0}
    [second] = claim(store)
    again(store, later)
    assert store.finish(finish(second, 0.0, inputs_hash="h2", read_change=later.runs_change)) == ["finished"]
    assert (only(store).verdict, only(store).reopened) == ("scored", 1)


def test_a_done_trace_is_opened_again_by_other_inputs_once_and_by_equal_ones_for_nothing(store: Store) -> None:
    [head] = waiting(store)
    store.finish(finish(claim(store)[0]))
    for hash, reopened in (("h1", 0), ("h1", 0), ("h2", 1)):
        head = again(store, head)
        [taken] = claim(store)
        assert store.finish(finish(taken, inputs_hash=hash)) == ["finished"]
        assert only(store).reopened == reopened
    again(store, head)
    assert (claim(store), only(store).verdict) == ([], "scored")


def test_a_version_that_was_superseded_claims_and_finishes_nothing(store: Store) -> None:
    [head] = waiting(store, 1)
    [taken] = claim(store)
    ruled(store, "2")
    with pytest.raises(Refused, match="version '1' of rule 'r' in project 'default' is not in force"):
        claim(store)
    assert store.finish(finish(taken)) == ["refused: version '1' of rule 'r' in project 'default' is not in force"]
    assert (store.renew([claim_of(taken)], "w", 60), scores(store, head.trace_id)) == ([False], {})
    assert only(store).verdict == "superseded"


def test_claims_of_a_later_version_are_higher(store: Store) -> None:
    [head] = waiting(store)
    [first] = claim(store)
    assert store.finish(finish(first, 0.0)) == ["finished"]
    ruled(store, "2")
    store.decide(slice(on(head, version="2"), upto=head.cursor, version="2"))
    [second] = store.claim("r", "2", "w", 60)
    assert second.claim > first.claim
    assert store.finish(finish(second, 1.0)) == ["finished"]
    assert scores(store, head.trace_id) == {"concise": 1.0}


def test_a_rule_that_is_switched_off_gives_nothing_out_and_takes_what_is_under_way(store: Store) -> None:
    waiting(store, 2)
    [taken] = claim(store)
    store.change_rule("r", enabled=False)
    assert (claim(store), store.finish(finish(taken))) == ([], ["finished"])


def test_nothing_is_kept_of_a_deleted_target(store: Store) -> None:
    [head] = waiting(store)
    [taken] = claim(store)
    store.delete(trace_ids=(head.trace_id,))
    for _ in range(2):
        assert store.finish(finish(taken))[0].startswith("refused: ")
    assert (store.count()["feedbacks"], len(store.decisions())) == (0, 0)
    with pytest.raises(NotFound):
        store.trace(head.trace_id)


def test_decisions_that_were_removed_refuse_what_was_under_way(store: Store) -> None:
    [head] = waiting(store)
    [taken] = claim(store)
    store.delete_decisions(rule="r")
    assert store.finish(finish(taken))[0].startswith("refused: there is no such decision")
    assert scores(store, head.trace_id) == {}


@pytest.mark.parametrize("verdict", ["running", "filtered", "superseded"])
def test_a_claim_ends_with_a_verdict_that_says_what_comes_next(store: Store, verdict: Any) -> None:
    waiting(store)
    [taken] = claim(store)
    with pytest.raises(Refused, match=f"invalid verdict '{verdict}'"):
        store.finish(finish(taken, verdict=verdict))
    assert only(store).verdict == "running"


@pytest.mark.parametrize("seconds", [1e300, -1e300])
def test_a_time_that_cannot_be_is_refused(store: Store, seconds: float) -> None:
    waiting(store)
    with pytest.raises(Refused, match="the duration of a lease must be"):
        claim(store, seconds=seconds)
    with pytest.raises(Refused, match="the duration of a lease must be"):
        store.acquire("name", "w", seconds)


def test_of_what_is_over_budget_the_newest_comes_first_and_after_what_waits(store: Store) -> None:
    heads = waiting(store, 3)
    over = {"verdict": "over_budget", "again_s": 0, "states": {}, "reported": (), "feedback": ()}
    for taken in claim(store, limit=3):
        assert store.finish(finish(taken, **over)) == ["finished"]
    [fresh] = traced(store)
    store.decide(slice(on(fresh), after=heads[-1].cursor, upto=fresh.cursor))
    order = [fresh, *heads[::-1]]
    assert [one.target.trace_id for one in claim(store, limit=9)] == [head.trace_id for head in order]


def test_sessions_are_claimed_and_finished_as_traces_are(store: Store) -> None:
    ruled(store, target="session")
    [head] = traced(store, session_id="s/1")
    store.decide(slice(on(head, target=Target(session_id="s/1")), upto=head.cursor))
    [taken] = claim(store)
    assert store.finish(finish(taken)) == store.finish(finish(taken)) == ["finished"]
    [kept] = store.feedbacks(target=Target(session_id="s/1"))
    assert (kept.score, kept.rule, kept.claim) == (1.0, "r", taken.claim)
