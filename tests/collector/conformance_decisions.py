"""What every store does with decisions: kept with the rule's cursor, once. Each test takes `store` (see conftest.py)."""

from __future__ import annotations

from typing import Any

import pytest

from collector.conformance_claims import claim, finish
from collector.deciding import on, outcomes, ruled, slice, traced, verdicts
from collector.making import child
from looped_cases import loop_over
from spanwise.collector.errors import Refused
from spanwise.collector.records import Decision, Target
from spanwise.collector.stores import Store


def test_what_is_decided_is_kept_with_the_cursor_and_repeated_changes_nothing(store: Store) -> None:
    ruled(store)
    head, *others = traced(store, 6)
    given = on(
        head, reason="all pass", probability=0.25, u=0.2, rate=0.5, stratum=1, states={"concise": {"state": "waiting"}}
    )
    decided = slice(given, upto=head.cursor, outcomes=outcomes(*others, filtered=2, sampled_out=3))
    assert store.cursor("r", "1") is None
    for _ in range(2):
        assert store.decide(decided) == [True]
        [kept] = store.decisions()
        assert (kept.reason, kept.probability, kept.u, kept.rate, kept.stratum) == ("all pass", 0.25, 0.2, 0.5, 1)
        assert (kept.target, kept.change, kept.states) == (given.target, head.change, given.states)
        assert store.cursor("r", "1") == head.cursor
        assert store.status()[0].counts == {"filtered": 2, "sampled_out": 3, "waiting": 1}


def test_of_two_who_decide_one_is_told_no(store: Store) -> None:
    ruled(store)
    one, two = traced(store, 2)
    assert store.decide(slice(upto=one.cursor)) == [True]
    assert store.decide(slice(on(two), after=None, upto=two.cursor)) == [False]
    assert store.decide(slice(after=one.cursor, upto=two.cursor), slice(after="5", upto="6")) == [True, False]
    assert verdicts(store) == []


def test_a_token_from_before_a_lease_was_taken_over_decides_nothing(store: Store) -> None:
    ruled(store)
    heads = traced(store, 3)
    first = store.acquire("deciding", "one", -1)
    second = store.acquire("deciding", "two", 60)
    assert first is not None
    assert second is not None
    assert store.decide(slice(upto=heads[0].cursor, token=second.token)) == [True]
    assert store.decide(slice(after=heads[0].cursor, upto=heads[1].cursor, token=first.token)) == [False]
    assert store.decide(slice(after=heads[0].cursor, upto=heads[1].cursor, token=second.token)) == [True]


def test_a_version_that_is_not_in_force_decides_nothing(store: Store) -> None:
    ruled(store)
    [head] = traced(store)
    ruled(store, "2")
    assert store.decide(slice(on(head), upto=head.cursor)) == [False]
    assert store.decide(slice(on(head, version="3"), upto=head.cursor, version="3")) == [False]
    store.delete_rule("r")
    assert store.decide(slice(on(head, version="2"), upto=head.cursor, version="2")) == [False]


def test_rows_may_lie_beyond_the_cursor(store: Store) -> None:
    ruled(store)
    one, two = traced(store, 2)
    store.decide(slice(upto=one.cursor))
    for _ in range(2):
        assert store.decide(slice(on(two), after=one.cursor, upto=one.cursor)) == [True]
    assert verdicts(store) == ["waiting"]


def test_a_trace_that_is_decided_twice_counts_once_under_its_last_outcome(store: Store) -> None:
    ruled(store)
    one, two = traced(store, 2)

    def decide(*rows: Decision, **named: int) -> dict[str, int]:
        heads = (one, two)[: sum(named.values())]
        store.decide(slice(*rows, after=store.cursor("r", "1"), upto=one.cursor, outcomes=outcomes(*heads, **named)))
        return {name: count for name, count in store.status()[0].counts.items() if count}

    assert decide(filtered=2) == decide(filtered=2) == {"filtered": 2}
    assert decide(filtered=1, sampled_out=1) == {"filtered": 1, "sampled_out": 1}
    assert decide(on(one), taken=1) == {"waiting": 1, "sampled_out": 1}
    assert decide(on(one, verdict="filtered"), filtered=1) == {"filtered": 1, "sampled_out": 1}


def test_a_trace_that_was_scored_and_is_left_out_now_counts_once(store: Store) -> None:
    ruled(store)
    [head] = traced(store)
    store.decide(slice(on(head), upto=head.cursor, outcomes=outcomes(head, taken=1)))
    store.finish(finish(claim(store)[0]))
    left_out = on(head, verdict="sampled_out")
    again = slice(left_out, after=head.cursor, upto=head.cursor, outcomes=outcomes(head, sampled_out=1))
    store.decide(again)
    assert {name: count for name, count in store.status()[0].counts.items() if count} == {"scored": 1}


@loop_over("bad", [(1, "scored"), (0, "filtered"), (-5, "taken")])
def test_an_outcome_that_cannot_be_is_refused(store: Store, bad: tuple[int, str]) -> None:
    ruled(store)
    with pytest.raises(Refused, match="unknown outcome"):
        store.decide(slice(upto="1", outcomes={"a" * 32: bad}))


def test_the_spans_of_a_trace_count_as_one_trace_of_the_worst_verdict(store: Store) -> None:
    ruled(store, target="span")
    one, two = traced(store, 2)
    spans = [Target(trace_id=one.trace_id, span_id=f"{n:016x}") for n in range(3)]
    rows = [on(one, target=span) for span in spans[:2]]
    rows += [on(one, target=spans[2], verdict="failed"), on(two, verdict="skipped")]
    store.decide(slice(*rows, upto=two.cursor, outcomes=outcomes(one, two, taken=2)))
    counts = {name: count for name, count in store.status()[0].counts.items() if count}
    assert counts == {"failed": 1, "skipped": 1}


def test_deciding_anew_counts_from_zero(store: Store) -> None:
    ruled(store)
    heads = traced(store, 2)
    store.decide(slice(upto=heads[0].cursor, outcomes=outcomes(*heads, filtered=2)))
    store.delete_decisions(rule="r")
    assert store.status()[0].counts["filtered"] == 0
    store.decide(slice(upto=heads[0].cursor, outcomes=outcomes(heads[0], filtered=1)))
    assert store.status()[0].counts["filtered"] == 1


@pytest.mark.parametrize("fields", [{"verdict": "scored"}, {"verdict": "running"}, {"probability": 1.5}, {"u": -0.1}])
def test_what_cannot_be_decided_is_refused_with_all_beside_it(store: Store, fields: Any) -> None:
    ruled(store)
    one, two = traced(store, 2)
    with pytest.raises(Refused, match=str(next(iter(fields.values())))):
        store.decide(slice(on(one), upto=one.cursor), slice(on(two, **fields), after=one.cursor, upto=two.cursor))
    assert (verdicts(store), store.cursor("r", "1")) == ([], None)


def test_a_change_rewrites_the_draw_and_lets_the_verdict_stand(store: Store) -> None:
    ruled(store)
    [head] = traced(store)
    store.decide(slice(on(head, verdict="skipped", reason="too large", probability=0.1, rate=0.1), upto=head.cursor))
    store.feedback(head.trace_id, "thumbs", False)
    [later] = store.changes(head.cursor).heads
    assert (later.runs_change, later.change > head.change) == (head.runs_change, True)
    store.decide(slice(on(later, probability=1.0, rate=1.0, stratum=0), after=head.cursor, upto=later.cursor))
    [kept] = store.decisions()
    assert (kept.verdict, kept.reason, kept.probability, kept.rate, kept.stratum) == (
        "skipped",
        "too large",
        1.0,
        1.0,
        0,
    )
    store.decide(slice(on(head, probability=0.1), after=later.cursor, upto=later.cursor))
    assert store.decisions().items[0].probability == 1.0  # an older change has nothing new to say


def test_what_falls_outside_leaves_the_estimates_and_what_waits_goes(store: Store) -> None:
    ruled(store)
    done, waits, new = traced(store, 3)
    store.decide(slice(on(done, verdict="skipped", reason="x", probability=0.5), on(waits), upto=new.cursor))
    out = {"verdict": "sampled_out", "reason": "u is not below the rate", "u": 0.7, "rate": 0.1}
    store.decide(slice(*(on(head, **out) for head in (done, waits, new)), after=new.cursor, upto=new.cursor))
    [kept] = store.decisions()
    assert (kept.verdict, kept.reason, kept.probability, kept.u, kept.rate) == ("skipped", "x", 0.0, 0.7, 0.1)
    store.decide(slice(on(done, probability=0.9), after=new.cursor, upto=new.cursor))
    assert store.decisions().items[0].probability == 0.9


def test_runs_that_change_open_a_decision_again(store: Store) -> None:
    ruled(store)
    [head] = traced(store)
    store.decide(slice(on(head, verdict="skipped", reason="x"), upto=head.cursor))
    store.append([child(store.trace(head.trace_id).root)])
    [later] = store.changes(head.cursor).heads
    store.decide(slice(on(later, reason="again"), after=head.cursor, upto=later.cursor))
    [kept] = store.decisions()
    assert (kept.verdict, kept.reason, kept.runs_change) == ("waiting", "again", later.runs_change)


def test_targets_of_all_kinds_are_found_under_their_trace(store: Store) -> None:
    ruled(store)
    [head] = traced(store, session_id="a/b")
    place = {"trace_id": head.trace_id}
    targets = [
        Target(**place),
        Target(**place, span_id="1" * 16),
        Target(**place, span_id="1" * 16, document=3),
        Target(session_id="a/b"),
    ]
    assert store.decide(slice(*(on(head, target=target) for target in targets * 2), upto=head.cursor)) == [True]
    targets[-1] = Target(session_id="a/b", project="default")  # that of the rule
    assert [one.target for one in store.decisions(trace_id=head.trace_id)] == targets[::-1]
    store.delete(trace_ids=(head.trace_id,))
    assert verdicts(store) == []


def test_a_session_goes_with_its_last_trace(store: Store) -> None:
    ruled(store)
    one, two = traced(store, 2, session_id="s")
    store.decide(slice(on(one, target=Target(session_id="s")), upto=two.cursor))
    store.delete(trace_ids=(one.trace_id,))
    assert verdicts(store) == ["waiting"]
    store.delete(trace_ids=(two.trace_id,))
    assert verdicts(store) == []


def test_nothing_is_decided_about_what_was_deleted(store: Store) -> None:
    ruled(store)
    gone, stays = traced(store, 2, session_id="s")
    store.delete(trace_ids=(gone.trace_id,))
    over = on(gone, target=Target(session_id="over"))
    assert store.decide(slice(on(gone), over, on(stays), upto=stays.cursor)) == [True]
    assert [one.target.trace_id for one in store.decisions()] == [stays.trace_id]


def test_decisions_are_listed_by_what_they_say(store: Store) -> None:
    ruled(store)
    heads = traced(store, 5)
    store.decide(
        slice(
            *(on(head, verdict="failed" if n % 2 else "waiting") for n, head in enumerate(heads)), upto=heads[-1].cursor
        )
    )
    ids = [head.trace_id for head in heads[::-1]]
    first = store.decisions(limit=2)
    assert [one.target.trace_id for one in (*first, *store.decisions(cursor=first.next))] == ids
    assert [one.target.trace_id for one in store.decisions(verdict="failed")] == ids[1::2]
    assert (len(store.decisions(rule="x")), len(store.decisions(rule="r", version="1", project="default"))) == (0, 5)
    assert (len(store.decisions(version="2")), len(store.decisions(project="p"))) == (0, 0)


def test_what_waits_is_superseded_with_its_version(store: Store) -> None:
    ruled(store)
    waits, done = traced(store, 2)
    store.decide(slice(on(waits), on(done, verdict="failed"), upto=done.cursor))
    ruled(store, "2")
    assert verdicts(store) == ["failed", "superseded"]
    assert (verdicts(store, verdict="superseded"), verdicts(store, verdict="waiting")) == (["superseded"], [])


def test_decisions_that_are_removed_can_be_made_anew(store: Store) -> None:
    ruled(store)
    one, two = traced(store, 2)
    store.decide(slice(on(one), on(one, target=Target(trace_id=one.trace_id, span_id="1")), on(two), upto=two.cursor))
    assert store.delete_decisions(trace_id=one.trace_id, rule="x") == 0
    assert store.delete_decisions(trace_id=one.trace_id, rule="r", project="default") == 2
    store.decide(slice(on(one), after=two.cursor, upto=two.cursor))
    assert (len(store.decisions()), store.delete_decisions(rule="r"), len(store.decisions())) == (2, 2, 0)
    with pytest.raises(Refused, match="pass the trace_id or the rule"):
        store.delete_decisions(project="default")


def test_a_thousand_rows_in_one_call(store: Store) -> None:
    ruled(store)
    heads = traced(store, 100)
    rows = [on(head, target=Target(trace_id=head.trace_id, span_id=f"{n:x}")) for head in heads for n in range(10)]
    assert store.decide(slice(*rows, upto=heads[-1].cursor)) == [True]
    assert store.status()[0].counts["waiting"] == 1000
