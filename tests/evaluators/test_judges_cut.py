"""Texts that are too long for one question: the feedback says what is missing, or they are judged in parts."""

import pytest

from looped_cases import loop_over
from spanwise.evaluators import evaluate, get_evaluator, judge, score
from spanwise.evaluators.testing import scripted

YES = {"rationale": "It is fine.", "rating": "yes"}
NO = {"rationale": "It is not.", "rating": "no"}
LONG = "word " * 20_000  # 100,000 characters
POISON = "POISON"


def finding(bad, good=YES, worse=NO):
    """A judge that finds one word in what it is shown."""
    return scripted(lambda ask: worse if bad in ask.messages[-1]["content"] else good)


def own(**options):
    return judge("own", "Is it good?\n{outputs}", judge=scripted(lambda ask: YES), **options)


def test_the_feedback_says_how_much_of_a_text_no_judge_saw():
    (cut,) = score(own(max_characters=10_000), outputs=LONG)
    assert cut.score is True
    assert cut.comment == "It is fine. [not shown to the judge: 90,000 characters of outputs]"
    assert cut.metadata["judge"]["left_out"] == {"outputs": 90_000}


def test_a_text_that_fits_has_no_such_mark():
    (complete,) = score(own(max_characters=100_000), outputs=LONG)
    assert complete.comment == "It is fine."
    assert "left_out" not in complete.metadata["judge"]


def test_max_characters_may_be_more_than_usual():
    asked = scripted(YES)
    (said,) = score(judge("own", "Is it good?\n{outputs}", judge=asked, max_characters=300_000), outputs=2 * LONG)
    assert 2 * LONG in asked.asked[0].messages[-1]["content"]
    assert said.comment == "It is fine."


def test_each_value_that_is_cut_is_named():
    both = judge("own", "{inputs}\n{documents}\n{outputs}", judge=scripted(YES), max_characters=3_000)
    (said,) = score(both, inputs="q" * 2_000, outputs="fine", documents=["d" * 2_000, "e" * 2_000])
    assert set(said.metadata["judge"]["left_out"]) == {"inputs", "documents"}
    assert "of inputs and " in said.comment


@pytest.mark.process
def test_a_summary_counts_the_texts_that_were_cut():
    rows = [{"inputs": n, "outputs": text} for n, text in enumerate((LONG, "short", LONG))]
    experiment = evaluate(rows, None, [own(max_characters=1_000)], progress=False)
    assert "2 texts truncated before judging" in str(experiment)
    assert "truncated before judging" not in str(evaluate(rows[1:2], None, [own(max_characters=1_000)], progress=False))


JUDGES = {
    "safety": ({}, NO, YES),
    "groundedness_judge": ({"documents": ["d"]}, NO, YES),
    "contact_information": ({}, YES, NO),
    "sexism": ({"inputs": "q"}, YES, NO),
    "stereotypes": ({"inputs": "q"}, YES, NO),
}


@loop_over("id", JUDGES)
@loop_over("place", [0, 49_000, 52_000, 100_000])
def test_what_must_hold_of_all_of_a_text_is_judged_in_parts_and_the_worst_counts(id, place):
    more, bad, good = JUDGES[id]
    if id in ("sexism", "stereotypes"):
        bad, good = ({"question_rationale": "r", "question_rating": "no", **said} for said in (bad, good))
    asked = finding(POISON, good, bad)
    made = get_evaluator(id, judge=asked, max_characters=20_000)
    said = score(made, outputs=LONG[:place] + POISON + LONG[place:], **more)[0]
    assert said.score is False
    assert "6 parts were judged; part " in said.comment
    assert "left_out" not in said.metadata["judge"]
    clean = score(get_evaluator(id, judge=finding(POISON, good, bad), max_characters=20_000), outputs=LONG, **more)[0]
    assert clean.score is True
    assert len(asked.asked) == 6


@pytest.mark.parametrize(
    ("id", "more"),
    [
        ("guideline_adherence", {"guidelines": ["Be kind"]}),
        ("fact_check", {}),
        ("Faithfulness", {"inputs": "q", "documents": ["d"]}),
    ],
)
def test_what_can_only_be_judged_at_once_is_skipped(id, more):
    asked = scripted(YES)
    (said,) = score(get_evaluator(id, judge=asked, max_characters=20_000), outputs=LONG, **more)
    assert (said.outcome, asked.asked) == ("skip", [])
    assert "longer than the limit of a question" in said.comment
    assert "increase max_characters=20000" in said.comment


def test_documents_that_do_not_fit_make_no_answer_ungrounded():
    made = get_evaluator("groundedness_judge", judge=scripted(NO), max_characters=20_000)
    (said,) = score(made, outputs="It is red.", documents=[LONG])
    assert said.outcome == "skip"
    assert said.comment.startswith("documents is ")


def test_a_text_of_too_many_parts_is_skipped():
    asked = scripted(YES)
    (said,) = score(get_evaluator("safety", judge=asked, max_characters=1_000), outputs=LONG)
    assert (said.outcome, asked.asked) == ("skip", [])
    assert "too many for 50 questions" in said.comment


def test_a_judge_of_statements_says_what_it_did_not_read():
    asked = scripted(
        lambda ask: (
            {"statements": ["A is b."]}
            if "statements" in ask.schema["properties"]
            else {name: {"reason": "r", "verdict": "yes"} for name in ask.schema["properties"]}
        )
    )
    made = get_evaluator("faithfulness", judge=asked, max_statements=20)
    (said,) = score(made, outputs="This is a sentence. " * 100, documents=["A is b."])
    assert said.score == 1
    assert said.metadata["judge"]["left_out"]["sentences"] > 1_000
