"""Several opinions of one case: majority, mean, agreement, members that fail."""

from __future__ import annotations

from typing import Any

import pytest

from spanwise.collector.records import Feedback
from spanwise.evaluators import judge, score
from spanwise.evaluators.judges import Ask, panel, scripted


def saying(*ratings: Any, **options: Any) -> Any:
    """A judge of one's own that gives these ratings in turn; an exception is raised."""
    replies = [one if isinstance(one, Exception) else {"rationale": f"why {one}", "rating": one} for one in ratings]
    return judge("polite", "Polite?\n{outputs}", judge=scripted(*replies), **options)


def judged(*members: Any, **options: Any) -> Feedback:
    return score(panel(*members, **options), outputs="hi")[0]


def test_what_most_say_counts_and_how_many_do_is_the_confidence() -> None:
    row = judged(saying("yes"), saying("no"), saying("yes"))
    assert (row.key, row.score, row.source, row.comment) == ("polite", True, "model", "why yes")
    assert row.metadata["confidence"] == pytest.approx(2 / 3, abs=1e-6)
    assert [word["score"] for word in row.metadata["panel"]] == [True, False, True]


def test_an_evenly_divided_panel_gives_no_score() -> None:
    row = judged(saying("yes"), saying("no"))
    assert (row.outcome, row.comment) == ("skip", "the panel is divided: yes 1, no 1")


def test_grades_have_their_mean() -> None:
    row = judged(*(saying(n, scale=range(1, 6)) for n in (3, 4, 4)))
    assert row.score == pytest.approx(11 / 3)
    assert row.comment == "why 4"


def test_a_member_that_fails_has_no_vote() -> None:
    row = judged(saying(RuntimeError("away")), saying("no"), saying("no"))
    assert (row.score, row.metadata["confidence"]) == (False, 1.0)
    assert "away" in str(row.metadata["panel"][0]["error"])
    assert row.metadata["judge"]["notes"] == ["1 of 3 members failed"]


def test_when_all_fail_it_is_an_error_and_never_a_verdict() -> None:
    row = judged(saying(RuntimeError("away")), saying(RuntimeError("gone")))
    assert row.outcome == "error"
    assert "all 2 members failed" in str(row.error)


def test_what_no_member_can_judge_is_skipped() -> None:
    (row,) = score(panel(saying("yes"), saying("yes")), inputs="hi")
    assert row.outcome == "skip"


def test_samples_are_different_questions_at_a_temperature_above_0() -> None:
    asked: list[Ask] = []

    def reply(ask: Ask) -> dict[str, str]:
        asked.append(ask)
        return {"rationale": "r", "rating": "yes"}

    row = judged(judge("polite", "Polite?\n{outputs}", judge=scripted(reply)), samples=3)
    assert sorted(ask.sample for ask in asked) == [0, 1, 2]
    assert row.metadata["judge"]["notes"] == ["asked 3 times at temperature 0.7"]


def test_what_all_members_took_is_added_up() -> None:
    each = judged(saying("yes")).metadata["judge"]
    both = judged(saying("yes"), saying("yes")).metadata["judge"]
    assert {name: both[name] for name in each if name.endswith("tokens")} == {
        name: 2 * each[name] for name in each if name.endswith("tokens")
    }


def test_its_version_is_that_of_its_members() -> None:
    one, again, other = saying("yes"), saying("yes"), saying("yes", scale=("no", "yes"))
    assert panel(one).version == panel(again).version != panel(other).version


def test_only_judges_can_be_sampled() -> None:
    with pytest.raises(ValueError, match="samples=3 needs members with a judge"):
        panel(lambda outputs: True, samples=3)
    with pytest.raises(ValueError, match="at least one member and samples >= 1"):
        panel()
