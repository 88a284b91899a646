"""What a rule did, in words: no verdict, number or report may make these fall over."""

from dataclasses import replace
from typing import get_args

from spanwise.collector.diagnostics import rule_report
from spanwise.collector.records import (
    BudgetUsage,
    ConditionResult,
    Decision,
    DecisionExplanation,
    Rule,
    RuleSettings,
    RuleStatus,
    Stratum,
    Target,
    Verdict,
    WorkerReport,
)

NOW = 1_000_000_000_000_000_000
RULE = Rule(name="grounded", version="v1", evaluators=({"key": "grounded"},))
STATUS = RuleStatus(rule=RULE, counts={}, cursor=None, behind=0, lag_s=0.0, rate=1.0)
WORKER = WorkerReport(holder="here/1", project="default", rules={"grounded": "v1"}, seen_ns=NOW)
DECIDED = Decision(rule="grounded", version="v1", target=Target(trace_id="a" * 32), verdict="scored", probability=1.0)


def working(**said):
    return replace(STATUS, workers=(replace(WORKER, data={what: {"grounded": one} for what, one in said.items()}),))


def test_every_verdict_has_words():
    assert set(rule_report.WORDS) == set(get_args(Verdict))


def test_a_verdict_has_one_name_in_texts_and_as_an_identifier():
    assert {name: words.replace(" ", "_") for name, words in rule_report.WORDS.items()} == {
        n: n for n in rule_report.WORDS
    }


def test_the_funnel_narrows():
    status = replace(STATUS, counts={"filtered": 5, "sampled_out": 3, "scored": 1, "failed": 1})
    assert [(stage.name, stage.count) for stage in rule_report.funnel(status)] == [
        ("arrived", 10),
        ("pass the filter", 5),
        ("sampled", 2),
        ("scored", 1),
    ]


def test_who_lies_outside_the_sample():
    why = DecisionExplanation(rule=RULE, verdict="sampled_out", reason="", u=0.43124, rate=0.1)
    assert rule_report.sampling(why) == "u 0.4312 is not below 0.1, the rule's rate"
    assert rule_report.sampling(replace(why, verdict="scored", u=0.05, stratum=1)) == (
        "u 0.0500 is below 0.1, the rate of stratum 2"
    )
    assert rule_report.sampling(replace(why, u=None)) == ""


def test_conditions_as_they_are_written():
    told = [
        ConditionResult(name="latency_ms", wanted=(">", 200.0), seen=120.4, passes=False),
        ConditionResult(name="feedback", wanted=["thumbs_up", "=", 0.0], seen=None, passes=False),
        ConditionResult(name="tags", wanted=["a", "b"], seen=[], passes=False),
        ConditionResult(name="metadata", wanted={"tenant": "t1"}, seen={"tenant": None}, passes=False),
        ConditionResult(name="name", wanted="answer", seen="x" * 300, passes=False),
    ]
    said = [rule_report.describe_condition(one) for one in told]
    assert said[:4] == [
        "latency_ms: expected > 200, got 120",
        "feedback: expected thumbs_up = 0, got nothing",
        "tags: expected a, b, got nothing",
        "metadata: expected tenant 't1', got tenant nothing",
    ]
    assert len(said[4]) < 250


def test_a_budget_shows_the_newest_period_only():
    rule = replace(RULE, settings=RuleSettings(budget={"usd_per_day": 5.0, "calls_per_minute": 60}))
    booked = (
        BudgetUsage(budget="default/grounded/usd_per_day", period_start_ns=1, settled=4.0),
        BudgetUsage(budget="default/grounded/usd_per_day", period_start_ns=2, settled=1.0, reserved=0.25, unknown=0.5),
    )
    money, calls = rule_report.spending(rule, booked)
    assert str(money) == "$1.75 of $5.00 per day, $0.25 of it reserved, $0.50 of it cost unknown"
    assert (money.share, str(calls), calls.share) == (0.35, "0 of 60 calls per minute", 0)


def test_a_budget_of_nothing_is_spent():
    (budget,) = rule_report.spending(replace(RULE, settings=RuleSettings(budget={"usd_per_day": 0})), ())
    assert budget.share == 1


def test_what_there_is_to_know_of_a_decision():
    waiting = replace(DECIDED, verdict="waiting", attempts=1, deaths=2, next_ns=NOW + 20 * 10**9, incomplete=True)
    assert list(rule_report.facts(waiting, NOW)) == [
        "evaluated although parts of the trace are missing",
        "1 attempt",
        "ended 2 workers",
        "next attempt in 20.00 s",
    ]
    assert list(rule_report.facts(replace(waiting, next_ns=NOW - 1), NOW))[-1] == "next attempt now"


def test_for_how_many_a_scored_one_stands():
    assert list(rule_report.facts(DECIDED, NOW)) == []
    assert list(rule_report.facts(replace(DECIDED, probability=0.1), NOW)) == ["counts as 10 traces in weighted means"]
    assert "probability unknown" in next(rule_report.facts(replace(DECIDED, probability=None), NOW))
    assert "not in weighted means" in next(rule_report.facts(replace(DECIDED, probability=0.0), NOW))


def test_states_of_any_shape_are_shown():
    odd = replace(DECIDED, states={"a": {"state": "failed", "error": "No\nat line 3"}, "b": "scored", "c": {}})
    assert rule_report.states(odd) == [("a", "failed", "No"), ("b", "scored", ""), ("c", "", "")]


def test_targets_by_name():
    targets = [{"trace_id": "t"}, {"trace_id": "t", "span_id": "s"}, {"session_id": "talk"}]
    targets.append({"trace_id": "t", "span_id": "s", "document": 0})
    said = [rule_report.target(replace(DECIDED, target=Target(**one))) for one in targets]
    assert said == ["the trace", "span s", "session talk", "document 1 of span s"]


def test_who_carries_a_rule_out():
    assert rule_report.standing(STATUS, NOW) == ("no worker runs this rule", False)
    assert rule_report.standing(replace(STATUS, workers=(WORKER,)), NOW) == ("1 worker", True)
    told, right = rule_report.standing(replace(STATUS, workers=(WORKER,)), NOW + 120 * 10**9)
    assert (told.startswith("no worker runs this rule since"), right) == (True, False)
    other = replace(STATUS, workers=(replace(WORKER, rules={"grounded": "v0"}),))
    assert rule_report.standing(other, NOW) == ("running workers have another version of this rule", False)
    off = replace(STATUS, rule=replace(RULE, enabled=False))
    assert rule_report.standing(off, NOW) == ("paused", True)
    off = replace(STATUS, rule=replace(RULE, enabled=False, paused_by="ann", paused_ns=1_800_000_000 * 10**9))
    assert rule_report.standing(off, NOW) == ("paused by ann since 2027-01-15 08:00 UTC", True)


def test_a_worker_that_idles_says_why():
    status = working(idle="paused: failed 20 times in a row")
    assert rule_report.standing(status, NOW) == ("1 worker, idle", False)
    assert rule_report.idle(status.workers[0], "grounded") == ["paused: failed 20 times in a row"]
    status = working(paused={"grounded": "failed 20 times in a row"})
    assert rule_report.idle(status.workers[0], "grounded") == ["grounded is paused: failed 20 times in a row"]


def test_workers_speak_together():
    status = working(evaluators={"grounded": {"looked": 100, "failed": 2, "p95_s": 1.5}})
    status = replace(status, workers=status.workers * 2)
    assert [(one.key, str(one)) for one in rule_report.work(status, NOW)] == [
        ("grounded", "2.0 % of 200 evaluations by the running workers failed, p95 1.50 s")
    ]


def test_a_worker_of_several_rules_is_counted_once():
    worker = replace(WORKER, data={"finished_per_s": 40, "decided_per_s": 200.0})
    others = replace(worker, holder="there"), replace(worker, holder="gone", seen_ns=0), replace(worker, data={})
    assert rule_report.sum_throughput([worker, worker, *others[:2]], NOW) == (80, 400)
    assert rule_report.sum_throughput([others[2]], NOW) == (0, 0)


def test_workers_that_say_nothing_are_no_fault():
    for data in ({}, {"evaluators": None}, {"evaluators": {"grounded": None}}, {"evaluators": {"grounded": {}}}):
        assert rule_report.work(replace(STATUS, workers=(replace(WORKER, data=data),)), NOW) == []


def test_the_rate_and_what_paces_it():
    settings = RuleSettings(sample_rate=0.1, paced=0.42, strata=(Stratum(filter={}, rate=1.0),))
    status = replace(STATUS, rule=replace(RULE, settings=settings), rate=0.042)
    assert rule_report.rate(status) == "4.2 %, paced by the budget to 0.42 of 10 %; 1 stratum of other rates"


def test_how_far_behind():
    assert rule_report.behind(STATUS) == "up to date"
    assert rule_report.behind(replace(STATUS, behind=1, lag_s=4.2)) == "1 change behind, the oldest from 4.20 s ago"


def test_a_rate_at_the_lowest_pace_says_what_happens_then():
    settings = RuleSettings(sample_rate=0.5, paced=0.001)
    status = replace(STATUS, rule=replace(RULE, settings=settings), rate=0.0005)
    assert rule_report.rate(status).endswith(
        "the lowest rate that pacing sets; scoring stops when the budget is used up"
    )
    status = replace(STATUS, rule=replace(RULE, settings=replace(settings, paced=0.01)), rate=0.005)
    assert "scoring stops" not in rule_report.rate(status)
