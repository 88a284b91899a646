"""From what an evaluator returned, lacked or raised to feedback: exactly what, under which key, in which words."""

import decimal
import fractions
import time
import types

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Case, Example, Feedback, Run, Target, Trace
from spanwise.evaluators import Metric, evaluator, get_evaluator, score
from spanwise.evaluators.interface import FeedbackFactory, InvalidResult, explain_missing_fields

TARGET = Target(trace_id="1" * 32)
MAKER = FeedbackFactory(key="judge", keys=("judge",), name="tests.judge", version="3", source="llm")


def made(returned, maker=MAKER):
    return maker.wrap(returned, TARGET)


def only(returned, maker=MAKER):
    (feedback,) = made(returned, maker)
    return feedback


@loop_over("returned", [True, 0.5, 3, "good", {"score": 1}, None, {"error": "no"}, float("nan")])
def test_every_outcome_says_who_gave_it(returned):
    feedback = only(returned)
    assert (feedback.evaluator, feedback.version, feedback.source, feedback.key) == ("tests.judge", "3", "llm", "judge")
    assert feedback.target == TARGET


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (decimal.Decimal("0.5"), 0.5),
        (fractions.Fraction(1, 4), 0.25),
        ({"value": 2}, 2.0),
        ({"value": True}, True),
        ({"score": 0, "label": "none"}, 0.0),
    ],
)
def test_numbers_of_all_kinds_are_plain_scores(returned, value):
    feedback = only(returned)
    assert (feedback.score, type(feedback.score), feedback.outcome) == (value, type(value), "score")


def test_a_label_stands_beside_a_score():
    assert (only({"score": 1, "label": "good"}).label, only({"score": 1, "value": "fine"}).label) == ("good", "fine")
    assert only({"score": 1, "label": 5}).label is None
    assert (only({"score": "good", "label": "other"}).label, only({"score": "good"}).score) == ("good", None)


def test_a_label_goes_before_a_value():
    assert only({"label": "yes", "value": "no"}).label == "yes"


def test_reasoning_is_a_comment_where_there_is_none():
    assert only({"score": 1, "reasoning": "because"}).comment == "because"
    assert only({"score": 1, "comment": "so", "reasoning": "because"}).comment == "so"
    assert only({"score": 1}).comment is None


def test_an_error_in_a_dict_is_an_error_and_keeps_what_stands_beside():
    feedback = only({"error": ValueError("bad"), "comment": 5, "metadata": {"a": 1}})
    assert (feedback.outcome, feedback.error, feedback.comment, feedback.metadata) == ("error", "bad", "5", {"a": 1})
    assert feedback.score is None


def test_a_dict_without_a_score_is_a_skip_that_may_say_why():
    assert (only({"comment": "no question"}).outcome, only({"comment": "no question"}).comment) == (
        "skip",
        "no question",
    )
    assert only({"key": "other"}).comment == "the evaluator gave no score"
    assert only({"metadata": {"a": 1}}).metadata == {"a": 1}


def test_undefined_and_infinite_scores_keep_their_metadata():
    undefined = only({"score": float("nan"), "metadata": {"a": 1}})
    infinite = only({"score": float("-inf"), "metadata": {"a": 1}, "key": "other"})
    assert (undefined.outcome, undefined.comment) == ("skip", "the score is NaN: undefined for this case")
    assert (infinite.outcome, infinite.error, infinite.key) == (
        "error",
        "InvalidResult: the score -inf is not finite",
        "other",
    )
    assert undefined.metadata == infinite.metadata == {"a": 1}


def test_a_key_that_is_empty_is_nonsense():
    with pytest.raises(InvalidResult, match="an empty key"):
        made({"key": "", "score": 1})


def test_a_key_that_comes_twice_is_nonsense_unless_it_speaks_of_something_else():
    span = Target(trace_id="1" * 32, span_id="a" * 16)
    assert len(made([{"key": "a", "score": 1}, {"key": "a", "score": 0, "target": span}])) == 2
    with pytest.raises(InvalidResult, match=r"the key 'a' twice: the second would overwrite the first"):
        made([{"key": "a", "score": 1}, {"key": "b", "score": 1}, {"key": "a", "score": 0}])


@pytest.mark.parametrize("returned", [[], (), {"results": []}])
def test_an_empty_list_is_a_skip(returned):
    feedback = only(returned)
    assert (feedback.outcome, feedback.comment) == ("skip", "the evaluator returned an empty list")


def test_results_may_be_a_single_one():
    assert only({"results": {"key": "k", "score": 1}}).key == "k"


def test_a_misspelt_field_is_named_with_those_that_there_are():
    with pytest.raises(
        InvalidResult,
        match=r"a dict with unknown fields: 'scor'; known fields: comment, error, judge_trace_id, key, label",
    ):
        made({"scor": 1})


def test_feedback_that_says_who_gave_it_is_believed():
    theirs = Feedback(target=TARGET, key="k", score=1.0, evaluator="theirs", version="9")
    assert (only(theirs).evaluator, only(theirs).version) == ("theirs", "9")
    assert (only(Feedback(target=TARGET, key="k", score=1.0)).evaluator, only(theirs).score) == ("tests.judge", 1.0)


def test_another_key_renames_all_that_an_evaluator_gives():
    two = evaluator(metrics=[Metric("judge", primary=True), Metric("judge_fail"), Metric("words")], key="mine")

    @two
    def judge(outputs):
        return [{"key": "judge", "score": 1}, {"key": "judge_fail", "score": 0}, {"key": "words", "score": 2}]

    assert [feedback.key for feedback in score(judge, outputs="a")] == ["mine", "mine_fail", "mine_words"]
    assert [feedback.key for feedback in score(judge)] == ["mine", "mine_fail", "mine_words"]
    assert [metric.key for metric in judge.metrics] == ["mine", "mine_fail", "mine_words"]


def test_the_registrys_name_stays_under_another_key():
    feedback = score(get_evaluator("exact", key="same"), outputs="a", reference_outputs="a")[0]
    assert (feedback.key, feedback.evaluator) == ("same", "exact")


def test_details_may_be_left_out_but_not_the_traceback_of_an_error():
    quiet = evaluator(details=False)
    assert score(quiet(lambda outputs: {"score": 1, "metadata": {"a": 1}}), outputs="a")[0].metadata == {}
    assert "ZeroDivisionError" in score(quiet(lambda outputs: 1 / 0), outputs="a")[0].metadata["traceback"]


def test_a_long_traceback_is_kept_from_its_end():
    def judge(outputs):
        raise ValueError("x" * 20_000 + "the end")

    text = score(judge, outputs="a")[0].metadata["traceback"]
    assert (len(text), text.rstrip().endswith("the end")) == (8000, True)


def test_an_error_without_words_is_its_name():
    def judge(outputs):
        raise KeyError

    assert score(judge, outputs="a")[0].error == "KeyError"


def test_a_traceback_begins_where_the_evaluator_does_also_on_a_thread():
    @evaluator(timeout=30.0)
    def judge(outputs):
        time.sleep(0)
        return 1 / 0

    text = score(judge, outputs="a")[0].metadata["traceback"]
    assert text.count("File ") == 1
    assert "in judge" in text


RUN = Run(trace_id="1" * 32, span_id="a" * 16, name="x")
FAILED = Run(trace_id="1" * 32, span_id="a" * 16, name="x", status="error")
GIVEN = Example(inputs=1, outputs="o")


@loop_over(
    ("names", "case", "why"),
    [
        (["outputs", "inputs"], Case(), "needs outputs and inputs; the case has none"),
        (["outputs"], Case(trace=Trace(RUN, (RUN,))), "needs outputs; the case has none"),
        (["outputs"], Case(trace=Trace(FAILED, (FAILED,))), "needs outputs; the run failed: no message"),
        (["inputs"], Case(trace=Trace(FAILED, (FAILED,))), "needs inputs; the case has none"),
        (["example"], Case(), "needs example; the case belongs to no example"),
        (["expected_documents"], Case(), "needs expected_documents; the case belongs to no example"),
        (["expected_documents"], Case(example=GIVEN), "needs expected_documents; the case has none"),
        (["reference_outputs"], Case(example=Example(inputs=1)), "needs reference_outputs; the case has none"),
        (
            ["reference_outputs"],
            Case(example=GIVEN),
            "needs reference_outputs; the example has outputs but no reference: if its outputs are the "
            "reference, read them with columns={'outputs': 'reference_outputs'}",
        ),
    ],
)
def test_a_skip_says_what_is_missing_and_why(names, case, why):
    assert explain_missing_fields(names, case) == why


def test_an_item_of_a_list_may_be_any_mapping():
    first, second = made([types.MappingProxyType({"key": "a", "score": 1}), {"key": "b", "score": 0}])
    assert [(first.key, first.score), (second.key, second.score)] == [("a", 1.0), ("b", 0.0)]


def test_an_empty_dict_is_a_skip():
    assert (only({}).outcome, only({}).comment) == ("skip", "the evaluator gave no score")
