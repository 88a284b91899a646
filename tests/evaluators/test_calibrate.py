"""Judges against people: pairs by target, agreement, bias, what is left out, per version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from collector.making import run
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import calibrate, judge
from spanwise.evaluators.judges import scripted


def target(n: int) -> Target:
    return Target(trace_id=f"{n + 1:032x}")


def said(n: int, score: float | bool, **fields: Any) -> Feedback:
    given = {"source": "model", "evaluator": "polite", "version": "1", **fields}
    return Feedback(target=target(n), key="polite", score=score, **given)


def vote(n: int, score: float | bool, **fields: Any) -> Feedback:
    return Feedback(target=target(n), key="polite", score=score, source="human", **{"author": "ann", **fields})


def both(pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Feedback], list[Feedback]]:
    """Judge's and people's feedback on as many traces."""
    return [said(n, a) for n, (a, _) in enumerate(pairs)], [vote(n, b) for n, (_, b) in enumerate(pairs)]


def filled(folder: Path, count: int, **fields: Any) -> SQLiteStore:
    store = SQLiteStore(folder / "spanwise.db")
    store.append([run(trace_id=f"{n + 1:032x}", outputs="word " * (n + 1), **fields) for n in range(count)])
    return store


def test_agreement_kappa_and_confusion_by_hand() -> None:
    table = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    found = calibrate(*both(table))
    assert (found.agreement.agreed, round(found.agreement.kappa or 0, 9)) == (0.7, 0.4)
    assert found.agreement.confusion == {(1.0, 1.0): 20, (1.0, 0.0): 5, (0.0, 1.0): 10, (0.0, 0.0): 15}
    assert len(found.differing) == 15
    assert "agrees with people 70 % (κ 0.40, 50 labels)" in str(found)


def test_it_reads_votes_of_the_same_key_from_the_store(tmp_path: Path) -> None:
    with filled(tmp_path, 4) as store:
        store.add_feedback([said(n, True) for n in range(4)] + [vote(n, n > 0) for n in range(4)])
        found = calibrate("polite", store=store)
    assert (found.agreement.n, found.agreement.agreed, found.version) == (4, 0.75, "1")


def test_each_version_of_a_judge_has_a_calibration_of_its_own(tmp_path: Path) -> None:
    with filled(tmp_path, 2) as store:
        store.add_feedback([said(n, False, version="1", created_ns=1) for n in range(2)])
        store.add_feedback([said(n, True, version="2", created_ns=2) for n in range(2)])
        store.add_feedback([vote(n, True) for n in range(2)])
        assert calibrate("polite", store=store).agreement.agreed == 1.0
        assert calibrate("polite", store=store, version="1").agreement.agreed == 0.0


def test_a_judge_that_failed_or_skipped_or_did_not_look_is_counted_and_no_disagreement() -> None:
    failed = Feedback(
        target=target(1), key="polite", outcome="error", error="parse failure", source="model", version="1"
    )
    skipped = Feedback(target=target(2), key="polite", outcome="skip", comment="x", source="model", version="1")
    found = calibrate([said(0, True), failed, skipped], [vote(n, True) for n in range(4)])
    assert (found.agreement.n, found.failed, found.skipped, found.unjudged) == (1, 1, 1, 1)


def test_what_most_people_say_counts_and_a_tie_is_undecided() -> None:
    voices = [
        vote(0, True),
        vote(0, True, author="bob"),
        vote(0, False, author="cy"),
        vote(1, True),
        vote(1, False, author="bob"),
    ]
    found = calibrate([said(0, True), said(1, True)], voices)
    assert (found.agreement.n, found.agreement.agreed, found.undecided, found.among) == (1, 1.0, 1, 0.25)


def test_grades_have_weighted_kappa_and_a_share_within_one() -> None:
    from sklearn.metrics import cohen_kappa_score

    pairs = [(1, 1), (2, 3), (3, 3), (4, 5), (5, 5), (5, 2), (4, 4), (1, 2)]
    found = calibrate(*both([(float(a), float(b)) for a, b in pairs])).agreement
    oracle = cohen_kappa_score(*zip(*pairs, strict=True), labels=[1, 2, 3, 4, 5], weights="quadratic")
    assert found.kappa == pytest.approx(oracle)
    assert found.within_one == 7 / 8


def test_labels_are_compared_as_they_are() -> None:
    from sklearn.metrics import cohen_kappa_score

    pairs = [("formal", "formal"), ("casual", "formal"), ("neutral", "neutral"), ("casual", "casual")]
    judged = [Feedback(target=target(n), key="tone", label=a, source="model") for n, (a, _) in enumerate(pairs)]
    votes = [Feedback(target=target(n), key="tone", label=b, source="human") for n, (_, b) in enumerate(pairs)]
    assert calibrate(judged, votes).agreement.kappa == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)))


def test_complete_agreement_is_no_certainty() -> None:
    found = calibrate(*both([(True, True)] * 15 + [(False, False)] * 5)).agreement
    assert found.kappa == 1.0
    assert found.low is not None
    assert 0.4 < found.low < 0.7


def test_always_the_same_word_on_both_sides_has_no_kappa() -> None:
    found = calibrate(*both([(True, True)] * 10))
    assert (found.agreement.agreed, found.agreement.kappa) == (1.0, None)
    assert "agrees with people 100 % (10 labels)" in str(found)


@pytest.mark.parametrize("turned", [1, -1], ids=["people", "judge"])
def test_kappa_has_no_interval_where_one_side_always_says_the_same(turned: int) -> None:
    table = [(verdict, True)[::turned] for verdict in 5 * [True] + 5 * [False]]
    found = calibrate(*both(table))
    assert (found.agreement.kappa, found.agreement.low, found.agreement.high) == (0.0, None, None)
    assert "95 %" not in str(found).splitlines()[1]


def test_a_liking_for_long_answers_is_found(tmp_path: Path) -> None:
    with filled(tmp_path, 40) as store:
        store.add_feedback([said(n, n >= 20) for n in range(40)] + [vote(n, n % 2 == 0) for n in range(40)])
        found = calibrate("polite", store=store)
    assert found.length is not None
    assert (found.length.difference, found.length.low > 0) == (1.0, True)
    assert found.bias is not None
    assert found.bias.difference == 0.0


def test_examples_of_the_prompt_are_left_out(tmp_path: Path) -> None:
    shot = {"outputs": "word", "rationale": "r", "rating": "yes"}
    polite = judge("polite", "Polite?\n{outputs}", judge=scripted(), examples=[shot])
    with filled(tmp_path, 3) as store:
        store.add_feedback([said(n, True, version=polite.version) for n in range(3)])
        found = calibrate(polite, [vote(n, True) for n in range(3)], store=store)
    assert (found.examples, found.agreement.n) == (1, 2)


def test_what_is_missing_can_be_judged_now_and_is_kept(tmp_path: Path) -> None:
    polite = judge("polite", "Polite?\n{outputs}", judge=scripted(lambda ask: {"rationale": "r", "rating": "yes"}))
    with filled(tmp_path, 3) as store:
        store.add_feedback([vote(n, n > 0) for n in range(3)])
        assert calibrate(polite, store=store).unjudged == 3
        found = calibrate(polite, store=store, missing=True)
        assert (found.unjudged, found.agreement.agreed) == (0, pytest.approx(2 / 3))
        assert calibrate(polite, store=store).agreement.n == 3


def test_no_votes_at_all_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with filled(tmp_path, 1) as store, pytest.raises(ValueError, match="spanwise judges label"):
        calibrate("polite", store=store)


def test_it_can_be_written_as_json() -> None:
    import json

    found = calibrate(*both([(True, True), (True, False)]))
    assert json.loads(json.dumps(found.to_dict()))["agreement"]["confusion"] == [[1.0, 0.0, 1], [1.0, 1.0, 1]]
    assert repr(found).startswith("<Calibration 'polite' 1: agrees with people 50 %")
