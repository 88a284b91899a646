"""What every store says of why a rule did or did not look at a trace. Each test takes `store` (see conftest.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collector.conformance_claims import claim, finish, waiting
from collector.deciding import HOUR, on, outcomes, ruled, slice, traced
from collector.making import run
from spanwise.collector.errors import NotFound
from spanwise.collector.records import (
    Booking,
    DecisionExplanation,
    Feedback,
    RuleSettings,
    Stratum,
    Target,
    WorkerReport,
)
from spanwise.collector.statistics import get_sampling_position
from spanwise.collector.stores import Store


def why(store: Store, trace_id: str) -> DecisionExplanation:
    [one] = store.why(trace_id)
    return one


def because(store: Store, trace_id: str) -> tuple[str, str]:
    one = why(store, trace_id)
    return one.verdict, one.reason


def test_a_condition_that_fails_is_named_with_the_value_that_it_saw(store: Store) -> None:
    ruled(store, filter={"name": "search", "latency_ms": [">", 5000]})
    [head] = traced(store, name="answer")
    said = "filtered: name is 'answer', the rule wants 'search'; the latency is 1000.0 ms, the rule wants > 5000"
    assert because(store, head.trace_id) == ("filtered", said)
    assert {one.name: one.passes for one in why(store, head.trace_id).conditions} == {
        "name": False,
        "latency_ms": False,
    }


@pytest.mark.parametrize(
    ("rule", "trace", "said"),
    [
        (
            {"scope": "live"},
            {"experiment_id": "e"},
            "it belongs to experiment 'e', and the rule applies only to live traffic",
        ),
        ({"scope": "experiments"}, {}, "it belongs to no experiment, and the rule applies only to experiments"),
        ({"target": "session"}, {}, "it belongs to no session, and the rule scores sessions"),
        ({"enabled": False}, {}, "the rule is paused"),
        ({"filter": {"feedback": [["good", ">", 0.5]]}}, {}, "feedback 'good' has no value except from rules"),
        ({}, {"kind": "evaluator"}, "it is a trace of an evaluator"),
    ],
)
def test_what_a_rule_does_not_look_at(store: Store, rule: Any, trace: Any, said: str) -> None:
    ruled(store, **rule)
    [head] = traced(store, **trace)
    verdict, reason = because(store, head.trace_id)
    assert (verdict, reason.startswith(f"filtered: {said}")) == ("filtered", True)


def test_a_trace_from_before_a_rule_is_out_unless_the_rule_goes_back_to_it(store: Store) -> None:
    [head] = traced(store)
    ruled(store)
    said = "filtered: it last changed before version '1' of the rule was activated"
    assert because(store, head.trace_id) == ("filtered", said)
    ruled(store, since_ns=head.start_ns)
    assert because(store, head.trace_id)[0] == "waiting"


def test_the_draw_is_told_with_stratum_rate_and_pace(store: Store) -> None:
    strata = (Stratum(filter={"status": "error"}, rate=1.0), Stratum(filter={"name": "answer"}, rate=0.001))
    ruled(store, settings=RuleSettings(sample_rate=0.5, strata=strata, paced=0.5))
    head = next(one for one in traced(store, 3) if get_sampling_position(one.trace_id) > 0.001)
    said = f"u {get_sampling_position(head.trace_id):.3f} is not below the rate 0.0005 (of stratum 2, {{'name': 'answer'}}; paced: × 0.5)"
    assert because(store, head.trace_id) == ("sampled_out", f"sampled out: {said}")
    told = why(store, head.trace_id)
    assert (told.u, told.rate, told.stratum) == (get_sampling_position(head.trace_id), 0.0005, 1)


def test_a_trace_is_judged_by_the_settings_that_were_in_force(store: Store) -> None:
    ruled(store, settings=RuleSettings(sample_rate=0.0))
    [before] = traced(store)
    store.change_rule("r", settings={"sample_rate": 1.0})
    [after] = traced(store)
    assert [because(store, one.trace_id)[0] for one in (before, after)] == ["sampled_out", "waiting"]


def test_a_thumbs_down_brings_a_trace_into_its_stratum_and_a_rules_own_does_not(store: Store) -> None:
    strata = (Stratum(filter={"feedback": [["good", "<", 0.5]]}, rate=1.0),)
    ruled(store, settings=RuleSettings(sample_rate=0.0, strata=strata))
    [head] = traced(store)
    target = Target(trace_id=head.trace_id)
    store.add_feedback([Feedback(target=target, key="good", score=0.0, rule="other")])
    assert because(store, head.trace_id)[0] == "sampled_out"
    store.feedback(head.trace_id, "good", False)
    assert (why(store, head.trace_id).stratum, why(store, head.trace_id).rate) == (0, 1.0)


def test_what_a_trace_waits_for(store: Store) -> None:
    ruled(store)
    [head] = traced(store)
    assert because(store, head.trace_id) == ("waiting", "waiting: no worker runs this rule")
    store.report(WorkerReport(holder="w", project="default", rules={"r": "1"}))
    assert "it must be unchanged for 10 s" in because(store, head.trace_id)[1]
    store.save_rule(replace(store.rules()[0], version="2", since_ns=0, settings=RuleSettings(quiet_s=0)))
    assert because(store, head.trace_id) == ("waiting", "waiting: running workers have another version of this rule")
    store.report(WorkerReport(holder="w", project="default", rules={"r": "2"}))
    assert because(store, head.trace_id) == ("waiting", "waiting: not decided yet, the rule is 1 change behind")
    store.decide(slice(upto=head.cursor, version="2"))
    assert "its decision was removed" in because(store, head.trace_id)[1]


def test_what_is_stored_is_told_with_errors_attempts_and_what_comes_next(store: Store) -> None:
    [head] = waiting(store, reason="ready")
    assert because(store, head.trace_id) == ("waiting", "waiting: ready")
    [taken] = claim(store)
    assert because(store, head.trace_id)[1].startswith(f"running: ready; lease {taken.claim} of 'w', until 20")
    states = {"concise": {"state": "waiting", "error": "429"}}
    store.finish(finish(taken, verdict="throttled", states=states, reported=(), feedback=(), again_s=60, attempts=2))
    assert because(store, head.trace_id)[0] == "throttled"
    assert because(store, head.trace_id)[1].startswith("throttled; concise: 429; attempts: 2; tried next at 20")


def test_what_no_longer_counts_says_so(store: Store) -> None:
    [head] = waiting(store)
    store.finish(finish(claim(store)[0]))
    store.decide(slice(on(head, verdict="sampled_out", u=0.7, rate=0.1), after=head.cursor, upto=head.cursor))
    assert because(store, head.trace_id) == ("scored", "scored; it no longer counts: u 0.700 is not below the rate 0.1")


def test_several_targets_are_counted_and_the_worst_is_told(store: Store) -> None:
    ruled(store, target="span")
    [head] = traced(store)
    targets = [Target(trace_id=head.trace_id, span_id=f"{n}") for n in range(3)]
    rows = [on(head, target=target, verdict="skipped", reason="x") for target in targets[:2]]
    store.decide(slice(*rows, on(head, target=targets[2], verdict="failed", reason="boom"), upto=head.cursor))
    assert because(store, head.trace_id) == ("failed", "3 targets: 1 failed, 2 skipped; failed: boom")
    assert len(why(store, head.trace_id).decisions) == 3


@pytest.mark.parametrize(
    ("verdict", "reason", "said"),
    [("scored", "scored", "scored"), ("failed", "concise: boom", "failed: concise: boom")],
)
def test_nothing_is_said_twice(store: Store, verdict: Any, reason: str, said: str) -> None:
    heads = waiting(store, 2)
    states = {"concise": {"state": verdict, **({"error": "boom"} if verdict == "failed" else {})}}
    for row in claim(store, limit=2):
        store.finish(finish(row, verdict=verdict, reason=reason, states=states, reported=(), feedback=()))
    assert because(store, heads[0].trace_id) == (verdict, said)
    assert store.status()[0].errors == ((said,) if verdict == "failed" else ())


def test_a_lease_that_has_run_out_is_not_told_as_held(store: Store) -> None:
    [head] = waiting(store)
    claim(store, seconds=0.0)
    said = because(store, head.trace_id)[1]
    assert said.startswith("running; its worker 'w' has not responded since 20")
    assert said.endswith("; another worker takes over")


def test_a_score_from_before_the_last_change_of_its_trace_says_so(store: Store) -> None:
    [head] = waiting(store)
    [taken] = claim(store)
    store.finish(finish(taken, read_change=head.runs_change))
    changed = replace(on(head), change=head.change + 5, runs_change=head.runs_change + 5)
    store.decide(slice(changed, after=head.cursor, upto=head.cursor))
    [again] = claim(store)
    store.finish(finish(again, read_change=head.runs_change + 5, inputs_hash="h2"))
    changed = replace(on(head), change=head.change + 9, runs_change=head.runs_change + 9)
    store.decide(slice(changed, after=head.cursor, upto=head.cursor))
    assert "this is older than the last change of its trace" in because(store, head.trace_id)[1]


def test_what_an_earlier_version_did_is_told_as_its_own(store: Store) -> None:
    [head] = waiting(store)
    store.finish(finish(claim(store)[0]))
    ruled(store, "2")
    assert because(store, head.trace_id) == ("scored", "by version '1' of the rule: scored")


def test_only_rules_of_its_project_speak_of_a_trace_and_of_none_there_is_nothing(store: Store) -> None:
    ruled(store, name="a")
    ruled(store, name="b", project="p")
    [head] = traced(store, project="p")
    assert [one.rule.name for one in store.why(head.trace_id)] == ["b"]
    with pytest.raises(NotFound):
        store.why("0" * 32)


# status


def test_status_counts_what_was_decided_and_how_far_that_is(store: Store) -> None:
    heads = waiting(store, 3)
    store.finish(finish(claim(store)[0]))
    more = traced(store, 2)
    left_out = outcomes(*more, filtered=1, sampled_out=1)
    store.decide(slice(after=heads[-1].cursor, upto=more[0].cursor, outcomes=left_out))
    [status] = store.status(project="default")
    assert status.counts == {"filtered": 1, "sampled_out": 1, "waiting": 2, "scored": 1}
    assert (status.behind, status.cursor, 0 < status.lag_s < 60) == (1, more[0].cursor, True)
    assert store.status(project="other") == []


def test_status_tells_money_errors_rate_and_workers(store: Store) -> None:
    [head] = waiting(store, verdict="failed", reason="boom", states={"concise": {"state": "failed", "error": "bad"}})
    store.change_rule("r", settings={"sample_rate": 0.5, "paced": 0.5, "budget": {"usd_per_day": 5}})
    store.book(Booking(id="b", budget="default/r/usd_per_day", amount=2, limit=5))
    store.book(Booking(id="c", budget="default/r2/usd_per_day", amount=2, limit=5))
    for _ in range(2):
        store.report(WorkerReport(holder="w", project="default", rules={"r": "1"}, data={"n": 1}, seen_ns=0))
    store.report(WorkerReport(holder="x", project="other", rules={"r": "1"}))
    [status] = store.status()
    assert (status.rate, status.errors) == (0.25, ("failed: boom; concise: bad",))
    assert [(one.budget, one.reserved) for one in status.booked] == [("default/r/usd_per_day", 2)]
    [worker] = status.workers
    assert (worker.holder, worker.data, worker.seen_ns > head.start_ns) == ("w", {"n": 1}, True)


# weighted


def test_scores_come_with_the_probability_of_having_been_looked_at(store: Store) -> None:
    one, two, out = waiting(store, 3, probability=0.5)
    for taken, value in zip(claim(store, limit=3), (0.1, 0.2, 0.3), strict=True):
        store.finish(finish(taken, value))
    again = [on(two, probability=None), on(out, verdict="sampled_out")]
    store.decide(slice(*again, after=out.cursor, upto=out.cursor))
    store.add_feedback([Feedback(target=Target(trace_id=one.trace_id), key="good", score=1.0)])
    told = {item.trace_id: (item.score, item.probability) for item in store.weighted("r")}
    assert told == {one.trace_id: (0.1, 0.5), two.trace_id: (0.2, None), out.trace_id: (0.3, 0.0)}
    first = store.weighted("r", limit=2)
    assert len([*first, *store.weighted("r", limit=2, cursor=first.next)]) == 3
    assert [len(store.weighted("r", **named)) for named in ({"key": "x"}, {"version": "2"}, {"project": "p"})] == [
        0,
        0,
        0,
    ]
    assert [len(store.weighted("r", **named)) for named in ({"key": "concise"}, {"version": "1"}, {"until_ns": 5})] == [
        3,
        3,
        0,
    ]


def started(store: Store, *starts: int, **fields: Any) -> list[str]:
    """Traces that started at these times, each scored with its position; the ids in this order."""
    before = store.changes(limit=1_000).cursor
    ids = [run(start_ns=start, **fields) for start in starts]
    store.append(ids)
    heads = store.changes(before).heads
    store.decide(slice(*map(on, heads), after=store.cursor("r", "1"), upto=heads[-1].cursor))
    place = {one.trace_id: number for number, one in enumerate(ids)}
    for taken in claim(store, limit=len(ids)):
        store.finish(finish(taken, float(place[taken.target.trace_id or ""])))
    return [one.trace_id for one in ids]


def test_a_score_belongs_to_the_time_at_which_its_trace_started(store: Store) -> None:
    ruled(store)
    early, late = started(store, 10 * HOUR, 20 * HOUR)
    assert [one.trace_id for one in store.weighted("r", since_ns=15 * HOUR)] == [late]
    assert [one.trace_id for one in store.weighted("r", until_ns=15 * HOUR)] == [early]
    assert [one.start_ns for one in store.weighted("r", since_ns=10 * HOUR, until_ns=20 * HOUR)] == [10 * HOUR]


def test_scores_come_in_the_order_in_which_their_traces_started_page_by_page(store: Store) -> None:
    ruled(store)
    ids = started(store, *(hour * HOUR for hour in (30, 10, 20, 20)))
    found, cursor = list[str | None](), None
    while page := store.weighted("r", limit=1, cursor=cursor):
        found += [one.trace_id for one in page]
        cursor = page.next
        if cursor is None:
            break
    assert [found[0], found[3]] == [ids[0], ids[1]]
    assert sorted(map(str, found[1:3])) == sorted(ids[2:])


def test_a_score_follows_its_trace_when_an_earlier_run_arrives_later(store: Store) -> None:
    ruled(store)
    [id] = started(store, 20 * HOUR)
    store.append([run(trace_id=id, start_ns=10 * HOUR)])
    assert [one.start_ns for one in store.weighted("r")] == [10 * HOUR]
    assert len(store.weighted("r", since_ns=15 * HOUR)) == 0


def test_a_score_of_a_session_belongs_to_the_start_of_its_first_trace(store: Store) -> None:
    ruled(store, target="session")
    turns = [run(start_ns=hour * HOUR, session_id="talk") for hour in (10, 20)]
    store.append(turns)
    [*_, head] = store.changes().heads
    store.decide(slice(on(head, target=Target(session_id="talk")), upto=head.cursor))
    store.finish(finish(claim(store)[0], 0.5))
    [score] = store.weighted("r")
    assert (score.session_id, score.trace_id, score.start_ns) == ("talk", None, 10 * HOUR)


def test_a_score_carries_the_session_of_its_trace(store: Store) -> None:
    ruled(store)
    started(store, HOUR, 2 * HOUR, session_id="talk")
    assert [one.session_id for one in store.weighted("r")] == ["talk", "talk"]
