"""Steps of answer and context: how they are told, and put beside each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.case_text import extract_steps
from spanwise.evaluators.testing import scripted

NAMES = ("edits", "insertions", "deletions", "mismatches", "context_steps", "answer_steps")


def letters(texts):
    """Texts with the same first letter are the same step, others have nothing in common."""
    return [[float(text[:1].lower() == letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


def numbered(letters):
    return "\n".join(f"{number}. {letter}" for number, letter in enumerate(letters, 1))


def counts(answer, *chunks, **parameters):
    rows = score(
        get_evaluator("step_alignment", **{"model": letters, "similarity": 0.9, **parameters}),
        outputs=answer,
        documents=chunks,
    )
    assert [row.outcome for row in rows] == ["score"] * 6, rows
    assert [row.key for row in rows] == [f"step_alignment_{name}" for name in NAMES]
    return [row.score for row in rows]


@loop_over(
    ("text", "expected"),
    [
        ("To do:\n1. Open it.\n2) Close\n   the lid.\n\nThat is all.", ["Open it.", "Close the lid."]),
        ("Step 1: Open.\n**Step 2:** Close.\n### Step 3 - Go", ["Open.", "Close.", "Go"]),
        ("- Open\n* Close\n• [x] Go", ["Open", "Close", "Go"]),
        ("1. Open\n   - slowly\n2. Close", ["Open - slowly", "Close"]),
        ("(1) Open\n(2) Close", ["Open", "Close"]),
        ("a) Open\nb) Close\niv) Go", ["Open", "Close", "Go"]),
        ("1.1. Open\n1.2. Close", ["Open", "Close"]),
        ("To do it: 1. open, 2. close, and 3. go.", ["open", "close, and", "go."]),
        ("First, open it. It is heavy. Then close it. Finally go.", ["open it. It is heavy.", "close it.", "go."]),
        ("第一步：打开。\n第二步：关闭。", ["打开。", "关闭。"]),
        ("1、打开\n2、关闭", ["打开", "关闭"]),
        ("首先,打开它。然后关闭它。", ["打开它。", "关闭它。"]),
        ("١. افتح\n٢. أغلق", ["افتح", "أغلق"]),
        ("चरण 1: खोलें\nचरण 2: बंद करें", ["खोलें", "बंद करें"]),
        ("① Open\n② Close 🙂", ["Open", "Close 🙂"]),
        ("1. Run:\n```\n2. not a step\n```\n2. Go", ["Run: ``` 2. not a step ```", "Go"]),
        ("It was built in 1998. Paris is old. Mont Blanc is 4. 806 m high.", []),
        ("", []),
    ],
)
def test_what_a_text_enumerates(text, expected):
    assert extract_steps(text) == expected


@loop_over(
    ("answer", "context", "expected"),
    [
        ("abc", "abc", [0, 0, 0, 0, 3, 3]),
        ("ac", "abc", [1, 1, 0, 0, 3, 2]),
        ("abxc", "abc", [1, 0, 1, 0, 3, 4]),
        ("axc", "abc", [1, 0, 0, 1, 3, 3]),
        ("ba", "ab", [2, 1, 1, 0, 2, 2]),  # one step stays the same: not two mismatches
        ("", "ab", [2, 2, 0, 0, 2, 0]),
        ("ab", "", [2, 0, 2, 0, 0, 2]),
    ],
)
def test_edits_insertions_deletions_and_mismatches(answer, context, expected):
    assert counts(numbered(answer), numbered(context)) == expected


@pytest.mark.process
@given(answer=st.text("abcd", max_size=8), context=st.text("abcd", max_size=8))
def test_edits_are_levenshteins(answer, context):
    if answer or context:
        edits, insertions, deletions, mismatches, wanted, given = counts(numbered(answer), numbered(context))
        assert edits == Levenshtein.distance(answer, context) == insertions + deletions + mismatches
        assert (wanted, given, insertions - deletions) == (len(context), len(answer), len(context) - len(answer))


def test_the_alignment_is_in_the_metadata_and_can_be_left_out():
    first = score(
        get_evaluator("step_alignment", model=letters, similarity=0.9), outputs=numbered("ax"), documents=["1. a\n2. b"]
    )
    assert first[0].metadata["steps"] == [
        {"edit": "same", "context": "a", "answer": "a", "similarity": 1.0},
        {"edit": "mismatch", "context": "b", "answer": "x", "similarity": 0.0},
    ]
    assert first[0].comment == "'x' in the place of 'b'"
    short = get_evaluator("step_alignment", model=letters, similarity=0.9, sentence_level_metrics=False)
    assert "steps" not in score(short, outputs=numbered("ax"), documents=["1. a\n2. b"])[0].metadata


def test_steps_of_chunks_follow_each_other_and_what_overlaps_counts_once():
    chunks = [numbered("abc"), numbered("bcd"), numbered("abc"), "nothing", numbered("a")]
    assert counts(numbered("abcda"), *chunks)[0] == 0


def test_without_steps_there_is_nothing_to_align():
    rows = score(get_evaluator("step_alignment", model=letters, similarity=0.9), outputs="Yes.", documents=["No."])
    assert {row.comment for row in rows} == {"neither the retrieved context nor the answer has steps"}


def test_nothing_passes_or_fails_until_a_threshold_is_given():
    assert {metric.threshold for metric in get_evaluator("step_alignment").metrics} == {None}
    given = get_evaluator("step_alignment", threshold=1).metrics[0]
    assert [given.passes(edits) for edits in (0.0, 1.0, 2.0)] == [True, True, False]


def test_another_model_needs_a_similarity_of_its_own():
    with pytest.raises(
        ValueError,
        match=r"0\.6, is only valid for all-MiniLM-L6-v2; pass the minimum cosine of two equal steps for 'letters'",
    ):
        get_evaluator("step_alignment", model=letters)
    with pytest.raises(ValueError, match="similarity must be from -1 to 1, got 2"):
        get_evaluator("step_alignment", similarity=2)


def test_a_function_may_tell_the_steps():
    assert counts("a b", "a c", splitter=str.split)[:4] == [1, 0, 0, 1]
    [row, *_] = score(
        get_evaluator("step_alignment", model=letters, similarity=0.9, splitter=lambda text: [1]),
        outputs="a",
        documents=["b"],
    )
    assert "a splitter must return a list of texts, not [1]" in row.error


def test_a_judge_may_list_the_steps():
    def listed(ask):
        text = ask.messages[-1]["content"]
        return {"steps": ["a", "b"] if "of the context" in text else ["a", "x", " "]}

    judge = scripted(listed)
    rows = score(
        get_evaluator("step_alignment", model=letters, similarity=0.9, judge=judge),
        outputs="of the answer",
        documents=["of the context", " ", "of the context"],
    )
    assert [row.score for row in rows] == [1, 0, 0, 1, 2, 2]
    assert len(judge.asked) == 3
    assert rows[0].metadata["steps"][1]["edit"] == "mismatch"
    assert rows[0].metadata["judge"]["calls"] == 3


def test_a_judge_who_lists_nothing_is_no_score():
    made = get_evaluator("step_alignment", model=letters, similarity=0.9, judge=scripted(lambda ask: {"steps": "a"}))
    assert {row.outcome for row in score(made, outputs="1. a", documents=["1. a"])} == {"error"}


def test_rules_and_a_judge_exclude_each_other():
    with pytest.raises(ValueError, match="pass splitter or judge, not both"):
        get_evaluator("step_alignment", splitter=str.split, judge=scripted("x"))
    with pytest.raises(ValueError, match="prompt= needs judge="):
        get_evaluator("step_alignment", prompt="List the steps of {text}")


def test_more_steps_than_can_be_aligned_are_refused():
    text = "- a\n" * 501
    rows = score(get_evaluator("step_alignment", model=letters, similarity=0.9), outputs=text, documents=[text])
    assert "the limit is 500 each" in rows[0].error


def test_a_bad_case_does_not_spoil_its_batch():
    from spanwise.collector.records import Case, Document

    good = Case(outputs=numbered("ab"), documents=(Document(content=numbered("ab")),))
    bad = Case(outputs={"a": 1, "b": 2}, documents=good.documents)
    came = get_evaluator("step_alignment", model=letters, similarity=0.9).function.batch([good, bad, good])
    assert [isinstance(one, Exception) for one in came] == [False, True, False]
    assert came[0] == came[2]


@pytest.mark.process
@loop_over("piece", [" ", "# ", "1. ", "1.", "- ", "Step ", "step 1 ", "```\n", "(", "> > ", "then "])
def test_hostile_texts_are_looked_at_in_time(piece):
    assert all(step.strip() for step in extract_steps(piece * (300_000 // len(piece))))


@loop_over(
    "text",
    [
        "**1.** Open the door\n**2.** Sit down",
        "1.Open the door\n2.Sit down",
        "**1.**Open the door\n**2.**Sit down",
        "1)Open the door\n2)Sit down",
        "__1.__ Open the door\n__2.__ Sit down",
        "1.**Open the door**\n2.**Sit down**",
    ],
)
def test_numbers_in_bold_or_without_a_space_are_numbers_of_steps(text):
    assert extract_steps(text) == ["Open the door", "Sit down"]


def test_a_number_within_a_number_is_none():
    assert extract_steps("1.5 litres of water\n2.5 litres of milk") == []
