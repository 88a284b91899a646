"""Two answers against each other, in both orders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Feedback
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import calibrate, evaluate, pairwise, scripted
from spanwise.evaluators.interface import Unjudged
from spanwise.evaluators.judges import Ask
from spanwise.evaluators.scoring.pairwise_comparison import Pairwise


def better(*replies: Any) -> Pairwise:
    said = [
        reply if not isinstance(reply, str) else {"rationale": f"for {reply}", "rating": reply} for reply in replies
    ]
    return pairwise("better", "Which is more helpful?", judge=scripted(*said))


def by_length(ask: Ask) -> dict[str, str]:
    """Prefers the longer answer, wherever it is shown."""
    first, second = (shown.count("z") for shown in ask.messages[-1]["content"].split("Answer A:")[1].split("Answer B:"))
    return {"rationale": "longer", "rating": "A" if first > second else "B" if second > first else "tie"}


@loop_over(
    ("replies", "winner", "turned"),
    [
        (("A", "B"), "first", None),
        (("B", "A"), "second", None),
        (("A", "A"), "tie", "first"),
        (("B", "B"), "tie", "second"),
        (("A", "tie"), "tie", None),
        (("tie", "tie"), "tie", None),
    ],
)
def test_only_what_both_orders_say_is_a_winner(replies: tuple[str, str], winner: str, turned: str | None) -> None:
    found = better(*replies)("q", "one", "two")
    assert (found.winner, found.turned) == (winner, turned)


def test_both_verdicts_are_kept_in_terms_of_the_answers() -> None:
    found = better("A", "A")("q", "one", "two")
    assert found.verdicts == ("first", "second")
    assert found.rationales == ("for A", "for A")


def test_a_verdict_that_does_not_come_about_is_no_tie() -> None:
    with pytest.raises(Unjudged):
        better("A", Unjudged("the judge is away"))("q", "one", "two")


def test_an_answer_that_names_places_of_the_prompt_stays_as_it_is() -> None:
    judge = scripted({"rationale": "r", "rating": "A"}, {"rationale": "r", "rating": "B"})
    pairwise("better", "Which is {better}?", judge=judge)("q", "{second} [criterion]", "two")
    shown = str(judge.backend.asked[0].messages[-1]["content"])  # type: ignore[union-attr]
    assert "{second} [criterion]" in shown
    assert "Which is (better)?" in shown


def test_two_experiments_are_compared_and_both_runs_told(tmp_path: Path) -> None:
    rows = [{"inputs": {"q": str(n)}} for n in range(4)]
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        short = evaluate(rows, lambda q: "z" * int(q), store=store, name="short")
        long = evaluate(rows, lambda q: "z" * (2 * int(q)), store=store, name="long")
        found = pairwise("better", "Which is longer?", judge=scripted(by_length)).compare(short, long)
        told = [store.feedbacks(key="better", experiment=one.id).items for one in (short, long)]
    assert (found.wins, found.ties, found.turned) == ((0, 3), 1, (0, 0))
    assert [sum(float(row.score or 0) for row in rows) for rows in told] == [0.5, 3.5]
    assert "short wins 0, long wins 3, 1 ties" in str(found)


def test_repetitions_of_an_example_count_as_one_pair(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        short, long = (
            evaluate(
                [{"inputs": {"q": "1"}}], lambda q, n=length: "z" * n, store=store, name=f"z{length}", repetitions=8
            )
            for length in (1, 2)
        )
        found = pairwise("better", "Which is longer?", judge=scripted(by_length)).compare(short, long)
    assert (found.wins, found.p) == ((0, 8), 1.0)


def test_a_judge_that_likes_what_is_shown_first_has_only_ties_and_that_is_reported(tmp_path: Path) -> None:
    rows = [{"inputs": {"q": str(n)}} for n in range(3)]
    first = pairwise("better", "Which?", judge=scripted(lambda ask: {"rationale": "r", "rating": "A"}))
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        one, two = (evaluate(rows, lambda q: "an answer", store=store, name=name) for name in ("one", "two"))
        found = first.compare(one, two)
        said = list(store.feedbacks(key="better", experiment=one.id))
    assert (found.ties, found.turned) == (3, (3, 0))
    assert "3 verdicts turned with the order: 3 to the answer shown first" in str(found)
    bias = calibrate(said, [_vote(row) for row in said]).position
    assert bias is not None
    assert bias.difference == 1.0


def _vote(row: Any) -> Any:
    return replace(row, source="human", author="ann", rule=None, id="")


def test_pairs_that_fail_are_counted_and_runs_without_a_counterpart_too(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        one = evaluate([{"inputs": {"q": str(n)}} for n in range(3)], lambda q: q, store=store, name="one")
        two = evaluate([{"inputs": {"q": str(n)}} for n in range(2)], lambda q: q, store=store, name="two")
        failing = pairwise("better", "Which?", judge=scripted(lambda ask: Unjudged("away")))
        found = failing.compare(one, two)
        (error, *_) = store.feedbacks(key="better")
    assert (len(found.errors), found.alone, found.p) == (2, 1, None)
    assert error.outcome == "error"


def test_failed_runs_of_either_experiment_have_no_counterpart(tmp_path: Path) -> None:
    def fails_for(*failing: str) -> Any:
        def task(q: str) -> str:
            if q in failing:
                raise ValueError("no answer")
            return q

        return task

    rows = [{"inputs": {"q": str(n)}} for n in range(5)]
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        one = evaluate(rows, fails_for("0", "1"), store=store, name="one")
        two = evaluate(rows, fails_for("1", "2", "3"), store=store, name="two")
        found = pairwise("better", "Which?", judge=scripted(lambda ask: {"rationale": "r", "rating": "A"})).compare(
            one, two
        )
    assert (len(found.pairs), found.alone) == (1, 8)  # both runs of "0" to "3"


def test_judgements_of_pairs_that_are_kept_lie_where_their_feedback_does(tmp_path: Path) -> None:
    rows = [{"inputs": {"q": n}} for n in range(2)]
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        both = [evaluate(rows, lambda q, w=w: w, store=store, progress=False, name=w) for w in ("a", "b")]
        better(*["A"] * 4).compare(*both)
        links = {one.judge_trace_id for one in store.feedbacks(key="better")}
        assert links == {one.trace_id for one in store.traces(kind="evaluator")}
        assert len(links) == 2


def outcomes(folder: Path, judge: Any) -> list[Feedback]:
    """Feedback on the two runs of one pair."""
    with SQLiteStore(folder / "spanwise.db") as store:
        both = [evaluate([{"inputs": {"q": "x"}}], lambda q, w=w: w, store=store, name=w) for w in ("a", "b")]
        pairwise("better", "Which?", judge=judge).compare(*both)
        return list(store.feedbacks(key="better"))


def test_a_pair_that_could_not_be_read_keeps_the_reply_and_leads_to_its_judgement(tmp_path: Path) -> None:
    rows = outcomes(tmp_path, scripted(lambda ask: "who knows"))
    assert {(row.outcome, row.judge_trace_id is None) for row in rows} == {("error", False)}
    assert [row.metadata.get("reply") for row in rows if row.metadata] == ["who knows"]


def test_a_pair_for_which_the_budget_is_used_up_is_a_skip(tmp_path: Path) -> None:
    rows = outcomes(tmp_path, replace(scripted(lambda ask: {"rationale": "r", "rating": "A"}), max_calls=1))
    assert {row.outcome for row in rows} == {"skip"}
    assert all("over budget" in str(row.comment) for row in rows)
