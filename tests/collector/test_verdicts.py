"""What a claim said of a target comes in the place of what earlier claims had said, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.making import child, run
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores.backends import TargetFeedback
from spanwise.collector.stores.sqlite import SQLiteStore

TRACE = Target(trace_id="1" * 32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        made.append([root := run(trace_id="1" * 32, span_id="a" * 16), child(root, span_id="b" * 16)])
        yield made


def verdicts(claim: int, *keys: str, target: Target = TRACE, evaluators: tuple[str, ...] = ("e",), **more: Any) -> Any:
    """Feedback under keys by the first of the evaluators."""
    said = [Feedback(target=target, key=key, score=claim / 10, evaluator=evaluators[0], created_ns=1) for key in keys]
    return TargetFeedback("r", target, claim, evaluators, said, **more)


def kept(store: SQLiteStore) -> list[tuple[str, int | None]]:
    return sorted((one.key, one.claim) for one in store.feedbacks())


def test_a_later_set_comes_in_the_place_of_an_earlier_one(store: SQLiteStore) -> None:
    assert store.replace_rule_feedback([verdicts(1, "a", "b")]) == [True]
    assert store.replace_rule_feedback([verdicts(2, "b", "c")]) == [True]
    assert kept(store) == [("b", 2), ("c", 2)]
    assert {one.rule for one in store.feedbacks()} == {"r"}


def test_the_same_again_changes_nothing(store: SQLiteStore) -> None:
    store.replace_rule_feedback([verdicts(1, "a")])
    before = store.feedbacks().items
    assert store.replace_rule_feedback([verdicts(1, "a")]) == [True]
    assert store.feedbacks().items == before


def test_a_lower_claim_is_refused_whole(store: SQLiteStore) -> None:
    store.replace_rule_feedback([verdicts(2, "a")])
    assert store.replace_rule_feedback([verdicts(1, "a", "b"), verdicts(1, "c", evaluators=("f",))]) == [False, True]
    assert kept(store) == [("a", 2), ("c", 1)]


def test_an_empty_set_takes_away_what_was_said(store: SQLiteStore) -> None:
    store.replace_rule_feedback([verdicts(1, "a")])
    assert store.replace_rule_feedback([verdicts(2)]) == [True]
    assert kept(store) == []


def test_evaluators_that_report_nothing_keep_their_sets_unless_all_is_new(store: SQLiteStore) -> None:
    store.replace_rule_feedback([verdicts(1, "a"), verdicts(1, "b", evaluators=("f",))])
    store.replace_rule_feedback([verdicts(2, "a")])
    assert kept(store) == [("a", 2), ("b", 1)]
    store.replace_rule_feedback([verdicts(3, "a", anew=True)])
    assert kept(store) == [("a", 3)]


def test_other_rules_people_and_targets_are_left_alone(store: SQLiteStore) -> None:
    store.append([run(trace_id="2" * 32)])
    store.feedback("1" * 32, "vote", 1.0)
    store.add_feedback([Feedback(target=TRACE, key="other", score=1, rule="other", evaluator="e")])
    store.replace_rule_feedback([verdicts(1, "x", target=Target(trace_id="2" * 32))])
    assert store.replace_rule_feedback([verdicts(2, "a", anew=True)]) == [True]
    assert kept(store) == [("a", 2), ("other", None), ("vote", None), ("x", 1)]


def test_what_is_below_a_target_is_of_its_set_and_its_neighbours_are_not(store: SQLiteStore) -> None:
    spans = [Target(trace_id="1" * 32, span_id=id * 16) for id in "ab"]
    document = Target(trace_id="1" * 32, span_id="b" * 16, document=0)
    store.replace_rule_feedback([verdicts(1, "a", target=spans[0]), verdicts(1, "b", target=spans[1])])
    store.replace_rule_feedback([verdicts(1, "d", target=document)])
    store.replace_rule_feedback([verdicts(2, "c", target=spans[1])])
    assert kept(store) == [("a", 1), ("c", 2)]
    store.replace_rule_feedback([verdicts(3, "t")])
    assert kept(store) == [("t", 3)]


def test_sessions_have_sets_too(store: SQLiteStore) -> None:
    session = Target(session_id="s")
    assert store.replace_rule_feedback([verdicts(2, "a", target=session), verdicts(1, "b", target=session)]) == [
        True,
        False,
    ]
    assert kept(store) == [("a", 2)]


def test_a_trace_that_is_not_there_gets_none(store: SQLiteStore) -> None:
    store.add_feedback([Feedback(target=Target(trace_id="3" * 32), key="early", score=1)])
    away = [verdicts(1, "a", target=Target(trace_id=id * 32)) for id in "23"]
    store.delete(trace_ids=("1" * 32,))
    assert store.replace_rule_feedback([*away, verdicts(1, "a")]) == [False, False, False]
    assert kept(store) == [("early", None)]


def test_of_one_call_later_sets_come_in_the_place_of_earlier_ones(store: SQLiteStore) -> None:
    assert store.replace_rule_feedback([verdicts(1, "a"), verdicts(3, "b"), verdicts(2, "c")]) == [True, True, False]
    assert kept(store) == [("b", 3)]


def judged(claim: int, judge: str) -> TargetFeedback:
    said = Feedback(target=TRACE, key="k", score=1.0, evaluator="e", source="model", judge_trace_id=judge)
    return TargetFeedback("r", TRACE, claim, ("e",), [said])


def test_judgements_that_nothing_leads_to_any_more_go(store: SQLiteStore) -> None:
    store.append([run(kind="evaluator", trace_id=id * 32) for id in "abc"])
    store.replace_rule_feedback([judged(1, "a" * 32)])
    store.replace_rule_feedback([judged(3, "b" * 32)])
    assert store.replace_rule_feedback([judged(2, "c" * 32)]) == [False]
    assert [one.trace_id for one in store.traces(kind="evaluator")] == ["b" * 32]


def test_a_judgement_that_comes_after_its_claim_was_refused_is_not_kept(store: SQLiteStore) -> None:
    store.delete(trace_ids=("1" * 32,))
    assert store.replace_rule_feedback([judged(1, "a" * 32)]) == [False]
    store.append([run(kind="evaluator", trace_id="a" * 32)])
    assert store.count()["traces"] == 0


def test_a_late_copy_of_a_lower_claim_takes_its_judgement_along(store: SQLiteStore) -> None:
    store.append([run(kind="evaluator", trace_id=id * 32) for id in "ab"])
    store.replace_rule_feedback([judged(2, "b" * 32)])
    [copy] = judged(1, "a" * 32).feedback
    store.add_feedback([Feedback(**{**{name: getattr(copy, name) for name in copy.__slots__}, "rule": "r", "id": ""})])
    assert [one.trace_id for one in store.traces(kind="evaluator")] == ["b" * 32]
    assert kept(store) == [("k", 2)]


def test_verdicts_are_no_change_of_the_feed(store: SQLiteStore) -> None:
    before = store.changes()
    store.replace_rule_feedback([verdicts(1, "a")])
    assert store.changes().heads == before.heads
