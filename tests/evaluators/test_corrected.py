"""The mean that people would have given, from what a store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collector.making import run
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import corrected_mean


def target(n: int) -> Target:
    return Target(trace_id=f"{n + 1:032x}")


def said(n: int, score: Any, **fields: Any) -> Feedback:
    given: dict[str, Any] = {"source": "model", "version": "1", **fields}
    return Feedback(target=target(n), key="polite", score=score, **given)


def vote(n: int, score: Any, probability: float | None = 0.1) -> Feedback:
    metadata = {} if probability is None else {"drawn": {"probability": probability}}
    return Feedback(target=target(n), key="polite", score=score, source="human", author="ann", metadata=metadata)


def test_a_lenient_judge_is_put_right() -> None:
    scores = [said(n, n % 10 > 0) for n in range(1000)]  # says yes 9 times in 10
    votes = [vote(n, n % 10 > 2) for n in range(100)]  # people say yes 7 times in 10
    found = corrected_mean(scores, votes)
    assert found.judge == 0.9
    assert found.mean == pytest.approx(0.7, abs=0.02)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.7 < found.high < 0.9


def test_a_good_judge_makes_the_interval_narrower_than_the_votes_alone() -> None:
    truth = [n % 10 > 2 for n in range(1000)]
    votes = [vote(n, truth[n]) for n in range(100)]
    found = corrected_mean([said(n, yes) for n, yes in enumerate(truth)], votes)
    assert found.alone is not None
    assert (found.high or 1) - (found.low or 0) < 0.6 * (found.alone[2] - found.alone[1])


def test_votes_that_nobody_drew_are_refused_unless_it_is_insisted() -> None:
    scores, votes = [said(n, True) for n in range(10)], [vote(n, n > 0, None) for n in range(5)]
    with pytest.raises(ValueError, match="assume_random=True"):
        corrected_mean(scores, votes)
    assert corrected_mean(scores, votes, assume_random=True).votes == 5


def test_beside_drawn_votes_others_are_left_out_and_that_is_said() -> None:
    votes = [*(vote(n, True) for n in range(8)), vote(8, False, None)]
    found = corrected_mean([said(n, True) for n in range(20)], votes)
    assert (found.votes, found.notes) == (8, ("1 votes without a probability are left out",))


def test_votes_on_every_case_need_no_drawing() -> None:
    found = corrected_mean([said(n, True) for n in range(6)], [vote(n, n > 2, None) for n in range(6)])
    assert (found.votes, found.mean) == (6, pytest.approx(0.5))


def test_votes_are_weighted_by_how_likely_they_were_drawn() -> None:
    scores = [said(n, n < 900) for n in range(1000)]
    votes = [vote(n, True, 0.01) for n in range(9)] + [vote(n, False, 0.5) for n in range(900, 950)]
    assert corrected_mean(scores, votes).mean == pytest.approx(0.9, abs=0.07)


def test_few_votes_on_grades_are_too_few() -> None:
    found = corrected_mean(
        [said(n, float(n % 5 + 1)) for n in range(300)], [vote(n, float(n % 5 + 1)) for n in range(99)]
    )
    assert found.mean is None
    assert "too few labels: 99; graded scores need 100" in str(found)


def test_without_votes_there_is_no_mean_and_it_says_so() -> None:
    assert "no labels" in str(corrected_mean([said(0, True)], []))
    assert corrected_mean([said(0, True)], [vote(5, True)]).notes[0].startswith("1 votes are on cases")


def test_labels_have_no_mean() -> None:
    labelled = Feedback(target=target(0), key="tone", label="formal", source="model")
    with pytest.raises(ValueError, match="textual labels have no mean"):
        corrected_mean([labelled], [])


def test_it_reads_all_scores_of_the_newest_version_and_votes_from_the_store(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run(trace_id=f"{n + 1:032x}") for n in range(50)])
        store.add_feedback([said(n, False, version="0", created_ns=1) for n in range(50)])
        store.add_feedback([said(n, n % 5 > 0) for n in range(50)] + [vote(n, n % 5 > 1) for n in range(20)])
        found = corrected_mean("polite", store=store)
    assert (found.cases, found.votes, found.judge) == (50, 20, 0.8)
    assert found.mean == pytest.approx(0.6, abs=0.05)
