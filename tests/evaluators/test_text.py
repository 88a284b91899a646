"""Exact, contains, regex, length, emptiness: the simplest evaluators have traps, too."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.records import Case, Run, Trace
from spanwise.evaluators import evaluator, get_evaluator, score
from spanwise.evaluators.builtin import text


@loop_over(
    ("reference", "answer", "expected"),
    [
        ("Hello!", "Hello!", 1.0),
        ("Hello, world!", "Hello!", 0.0),
        ("Hello!", "hello!", 0.0),
        ("Hello!", "Hello!\n", 0.0),
        ("", "", 1.0),
        ("é", "e\u0301", 0.0),
    ],
)
def test_exact_strips_nothing_and_folds_nothing(reference, answer, expected):
    assert score(get_evaluator("exact"), outputs=answer, reference_outputs=reference)[0].score == expected


def test_exact_compares_values_and_finds_the_text_in_dicts():
    assert text.exact({"a": [1, 2]}, {"a": [1, 2]}) == 1.0
    assert text.exact({"answer": "42"}, "42") == 1.0
    assert text.exact(1, 1.0) == 1.0
    assert text.exact("1", 1) == 1.0
    assert text.exact(["a"], ["b"]) == 0.0


def test_an_answer_without_one_text_is_an_error_that_tells_the_way_out():
    feedback = score(get_evaluator("exact"), outputs={"a": "x", "b": "y"}, reference_outputs="x")[0]
    assert feedback.outcome == "error"
    assert "map=" in feedback.error


@given(st.text(), st.text())
def test_exact_is_equality(a, b):
    assert text.exact(a, b) == float(a == b) == text.exact(b, a)


@pytest.mark.parametrize(
    ("pattern", "answer", "expected"),
    [
        (r"\w+!", "Hello!", 1.0),
        (r"Hel+o, \w+!", "Hello, world!", 1.0),
        (r"\d+", "Hello!", 0.0),
        (r"^b", "ab", 0.0),
        ("", "", 1.0),
    ],
)
def test_regex_searches(pattern, answer, expected):
    assert score(get_evaluator("regex", pattern=pattern), outputs=answer)[0].score == expected


@given(
    st.text(alphabet="ab.c\n é", max_size=30),
    st.sampled_from([r"a+b", r"^a", r"c$", r"[^a]b", r"(a|b)c", r"\s\w", r"é"]),
)
def test_regex_finds_what_re_finds(answer, pattern):
    found = re.search(pattern, answer)
    assert text.search_pattern(pattern, answer) == (found.group() if found else None)


def test_a_pattern_that_is_none_is_refused_when_the_evaluator_is_made():
    with pytest.raises(ValueError, match="position"):
        get_evaluator("regex", pattern="a(b")


@pytest.mark.process
def test_a_catastrophic_pattern_is_an_error_of_that_case_in_time():
    feedback = score(get_evaluator("regex", pattern=r"^(a|aa)+$", seconds=0.2), outputs="a" * 200 + "!")[0]
    assert (feedback.outcome, "more than 0.2 s" in feedback.error) == ("error", True)


def test_flags_of_a_pattern():
    assert score(get_evaluator("regex", pattern="HELLO", flags="i"), outputs="hello")[0].score == 1.0


def test_contains_looks_for_the_reference_or_for_a_text():
    assert score(get_evaluator("contains"), outputs="Paris is it", reference_outputs="Paris")[0].score is True
    assert score(get_evaluator("contains", text="PARIS", ignore_case=True), outputs="Paris is it")[0].score is True
    missed = score(get_evaluator("contains", text=["Paris", "Rome"]), outputs="Paris")[0]
    assert (missed.score, missed.comment) == (False, "not found: 'Rome'")
    assert (
        score(get_evaluator("contains", match="any"), outputs="Paris", reference_outputs=["Rome", "Paris"])[0].score
        is True
    )


def test_contains_without_anything_to_look_for_is_a_skip():
    assert score(get_evaluator("contains"), outputs="a")[0].outcome == "skip"
    assert score(get_evaluator("contains"), outputs="a", reference_outputs=[])[0].outcome == "skip"


def test_length_counts_characters_or_words_and_checks_bounds():
    assert score(get_evaluator("length"), outputs="naïve 北京")[0].score == 8.0
    assert score(get_evaluator("length", unit="words"), outputs=" a  b\nc ")[0].score == 3.0
    within = score(get_evaluator("length", min=2, max=3), outputs="abcd")[0]
    assert (within.score, within.comment) == (False, "4 characters")


def test_bounds_that_cross_are_refused():
    with pytest.raises(ValueError, match="min 3 is above max 2"):
        get_evaluator("length", min=3, max=2)


@loop_over(
    ("answer", "expected"), [("a", True), (" \n\t\u00a0", False), ("", False), ([], False), ({"a": 1}, True), (0, True)]
)
def test_emptiness(answer, expected):
    assert score(get_evaluator("not_empty"), outputs=answer)[0].score is expected


def test_a_task_that_returned_nothing_is_empty_and_one_that_failed_is_skipped(run, failed):
    done = Run(trace_id="1" * 32, span_id="a" * 16, name="answer", status="ok")
    assert run(get_evaluator("not_empty"), Case(trace=Trace(done, (done,))))[0].score is False
    assert run(get_evaluator("not_empty"), failed)[0].comment == "needs outputs; the run failed: ValueError: boom"


@given(st.text(), st.text(), st.text())
def test_a_text_contains_its_parts(a, b, c):
    assert text.contains(a + b + c, b)
    assert text.contains((a + b + c).casefold(), b.casefold())


def test_texts_of_chat_messages_and_completions():
    from spanwise.evaluators.builtin.case_text import extract_question, extract_text

    assert extract_text([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]) == "a"
    assert extract_text({"choices": [{"message": {"content": "hi"}}]}) == "hi"
    assert (
        extract_text({"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
        == "ab"
    )
    assert extract_question({"question": "why", "k": 3}) == "why"


def test_a_tuple_is_the_list_that_json_makes_of_it():
    assert text.exact((1, 2), [1, 2]) == 1.0
    assert text.exact((1, 2), [2, 1]) == 0.0


@pytest.mark.parametrize(
    ("id", "threshold"), [("exact", 5), ("exact", -0.1), ("latency", -1), ("pii", 2), ("exact", True)]
)
def test_a_threshold_that_no_score_or_every_score_is_beyond_is_refused(id, threshold):
    with pytest.raises(ValueError, match=rf"must be a number from .*, got {threshold}"):
        get_evaluator(id, threshold=threshold)


@pytest.mark.parametrize(
    ("id", "threshold"), [("exact", 0), ("exact", 1), ("latency", float("inf")), ("length", 5), ("tokens", 10**6)]
)
def test_thresholds_within_the_range_of_scores_and_at_its_ends_are_taken(id, threshold):
    assert get_evaluator(id, metric_threshold=threshold).metrics[0].threshold == threshold


def test_a_threshold_of_ones_own_evaluator_is_within_the_range_that_it_declares():
    with pytest.raises(ValueError, match="threshold of 'stars' must be a number from 1 to 5"):
        evaluator(key="stars", range=(1, 5), threshold=0.5)(lambda outputs: 3)
    assert evaluator(key="stars", threshold=50)(lambda outputs: 3).metrics[0].threshold == 50


@pytest.mark.parametrize("bad", [{"min": -1}, {"max": -1}])
def test_lengths_below_zero_are_refused(bad):
    with pytest.raises(ValueError, match="is 0 or more, as every length, not -1"):
        get_evaluator("length", **bad)


@loop_over(
    "outputs",
    [
        "",
        " \n",
        None,
        {},
        [],
        {"answer": ""},
        {"answer": None},
        {"text": "  "},
        [""],
        {"a": "", "b": []},
        [[], {"x": " "}],
    ],
)
def test_an_answer_of_nothing_is_empty(outputs):
    assert text.NotEmpty()(outputs, SimpleNamespace(status="ok")) is False


@loop_over("outputs", ["a", 0, False, {"answer": "a"}, {"a": "", "b": "c"}, {"n": 0}, [0], {"a": [1], "b": {}}])
def test_an_answer_of_anything_is_not_empty(outputs):
    assert text.NotEmpty()(outputs) is True
