"""A rule beside its shadow: on the targets of both, what changed and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.watched import rule, scores, watching, whole
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Claim, ClaimResult, Decision, DecisionBatch, Feedback, Run, Target
from spanwise.evaluators import get_evaluator, monitor
from spanwise.evaluators.monitors import diff
from spanwise.evaluators.monitors.job_executor import SHADOW_PREFIX


def record(name, **options):
    return monitor(name, evaluators=[get_evaluator("pii")], **options).record


def scored(store, rule, scores, cost=None):
    """Decide and finish: `scores` by number of trace."""
    record = next(one for one in store.rules() if one.name == rule)
    targets = {number: Target(trace_id=f"{number:032x}") for number in scores}
    store.append([Run(trace_id=target.trace_id, span_id="1" * 16, name="a") for target in targets.values()])
    lease = store.acquire(f"decide {rule}", "me", 60)
    rows = [
        Decision(rule=rule, version=record.version, target=target, verdict="waiting", probability=0.5, change=10**6)
        for target in targets.values()
    ]
    cursor = store.changes(limit=1).cursor
    at = store.cursor(rule, record.version)
    decided = DecisionBatch(
        project="default", rule=rule, version=record.version, after=at, upto=cursor, rows=tuple(rows), token=lease.token
    )
    assert store.decide(decided) == [True]
    numbers = {target.trace_id: number for number, target in targets.items()}
    claimed = store.claim(rule, record.version, "me", 60, limit=len(scores))
    for row in claimed:
        claim = Claim(project="default", rule=rule, version=record.version, target=row.target, number=row.claim)
        key = f"{SHADOW_PREFIX}quality" if record.shadow_of else "quality"
        said = Feedback(
            target=row.target,
            key=key,
            score=float(scores[numbers[row.target.trace_id]]),
            evaluator="quality",
            rule=rule,
            claim=row.claim,
        )
        finish = ClaimResult(
            claim=claim,
            verdict="scored",
            states={"quality": {"state": "scored"}},
            reported=("quality",),
            feedback=(said,),
            read_change=10**6,
            cost=cost,
        )
        assert store.finish(finish) == ["finished"]


def test_the_change_is_that_on_the_targets_of_both(store):
    store.save_rule(record("old"), record("new", shadow_of="old", filter="name=a"))
    scored(store, "old", dict.fromkeys(range(1, 21), 0), cost=0.25)
    scored(store, "new", dict.fromkeys(range(11, 31), 1), cost=0.5)
    found = diff(store, "old")
    assert (found.both, found.only_old, found.only_new) == (10, 10, 10)
    [quality] = found.differences
    assert (quality.key, quality.old.mean, quality.new.mean, quality.change.mean) == ("quality", 0.0, 1.0, 1.0)
    assert (found.cost_old, found.cost_new) == (0.25, 0.5)


def test_a_rule_without_a_shadow_says_how_to_make_one(store):
    store.save_rule(record("old"))
    with pytest.raises(Refused, match="has no shadow; define another rule with shadow_of='old'"):
        diff(store, "old")


def test_of_several_shadows_one_is_named(store):
    store.save_rule(record("old"), record("b", shadow_of="old"), record("c", shadow_of="old"))
    with pytest.raises(Refused, match=r"has several shadows \(b, c\); select one"):
        diff(store, "old")
    assert diff(store, "old", "c").new.name == "c"


def test_an_unknown_rule_names_those_that_there_are(store):
    store.save_rule(record("old"))
    with pytest.raises(NotFound, match="no rule 'odl' in project 'default'; it has old"):
        diff(store, "odl")


def test_beyond_chance_is_an_interval_without_zero(store):
    from spanwise.collector.statistics import SampledMean
    from spanwise.evaluators.monitors import KeyDifference

    mean = SampledMean(key="k", mean=0.2, low=0.1, high=0.3, n=5, effective=5.0)
    made = KeyDifference(key="k", old=mean, new=mean, change=mean)
    assert made.beyond_chance
    assert not replace(made, change=replace(mean, low=-0.1)).beyond_chance
    assert not replace(made, change=replace(mean, low=None, high=None)).beyond_chance


def test_what_a_shadow_says_is_in_no_mean_of_the_rule(store):
    def length(outputs):
        return 0.5

    rules = [rule("old"), rule("new", evaluators=[length], shadow_of="old")]
    with watching(store, *rules) as worker:
        worker.step()
        store.append([whole(number) for number in range(1, 7)])
        worker.step()
    assert scores(store, 1) == {"length": 2.0, f"{SHADOW_PREFIX}length": 0.5}
    assert {one.rule for one in store.feedbacks(key="length")} == {"old"}
    [found] = diff(store, "old").differences
    assert (found.key, found.change.n, found.change.mean) == ("length", 6, -1.5)


def test_a_rule_is_not_its_own_shadow():
    with pytest.raises(ValueError, match="rule 'r' cannot be its own shadow"):
        rule(shadow_of="r")
