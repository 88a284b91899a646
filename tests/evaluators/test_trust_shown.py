"""How far a judge agrees with people stands beside its mean: in summaries, comparisons and HTML."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, compare, evaluate, get_evaluator, judge
from spanwise.evaluators.judges import scripted

ROWS = [{"inputs": {"q": str(n)}, "reference_outputs": str(n)} for n in range(4)]


def polite() -> object:
    says = scripted(lambda ask: {"rationale": "r", "rating": "yes"})
    return judge("polite", "Polite?\n{outputs}", judge=says)


def made(store: SQLiteStore, name: str) -> Experiment:
    return evaluate(ROWS, lambda q: q, [polite(), get_evaluator("exact")], store=store, name=name)


def test_a_judge_that_nobody_has_checked_says_so_and_code_does_not(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        lines = str(made(store, "one")).splitlines()
    assert "never checked" in next(line for line in lines if "polite" in line)
    assert "never checked" not in next(line for line in lines if "exact" in line)


@pytest.mark.process
def test_votes_stand_beside_the_mean_everywhere_and_do_not_change_it(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        first, second = made(store, "one"), made(store, "two")
        for row in first.rows():
            store.feedback(row.trace.trace_id, "polite", row.inputs != {"q": "0"}, author="ann")
        said = "agrees with people 75 % (κ 0.00, 4 labels)"
        again = Experiment.load(store, "one")
        shown = [str(first), str(again), first.to_html(), str(second)]
        beside = str(compare(first, second))
        assert (again.summary()["polite"].n, again.summary()["polite"].mean) == (4, 1.0)
    assert all(said in text for text in shown)
    assert beside.count("agrees with people 75 %") == 2


def test_a_summary_can_be_printed_when_the_store_is_closed(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        experiment = made(store, "one")
    assert "polite" in str(experiment)


def test_an_experiment_without_judges_has_no_such_column(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        text = str(evaluate(ROWS, lambda q: q, [get_evaluator("exact")], store=store, name="plain"))
    assert "agreement" not in text
    assert "people" not in text


@pytest.mark.parametrize("votes", [0, 1])
def test_one_vote_is_a_vote(tmp_path: Path, votes: int) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        experiment = made(store, "one")
        for row in list(experiment.rows())[:votes]:
            store.feedback(row.trace.trace_id, "polite", True, author="ann")
        assert ("agrees with people 100 % (1 label)" if votes else "never checked") in str(experiment)
