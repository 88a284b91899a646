"""Classification against scikit-learn."""

import asyncio
import time
import warnings

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.records import Case
from spanwise.evaluators import get_evaluator
from spanwise.evaluators.builtin.classification import classification_report

LABELS = st.sampled_from(["yes", "no", "maybe", "北"])
PAIRS = st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=30)


@pytest.mark.process
@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@given(pairs=PAIRS)
def test_numbers_are_scikit_learns(average, pairs):
    from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

    predicted, expected = [p for p, _ in pairs], [e for _, e in pairs]
    found = classification_report(predicted, expected, average=average)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a matrix of one class
        theirs = precision_recall_fscore_support(expected, predicted, average=average, zero_division=0)
        matrix = confusion_matrix(expected, predicted).tolist()
    assert (found.precision, found.recall, found.f1) == pytest.approx(theirs[:3])
    assert found.accuracy == pytest.approx(accuracy_score(expected, predicted))
    assert [list(row) for row in found.confusion] == matrix


@pytest.mark.process
@given(pairs=PAIRS)
def test_binary_numbers_are_scikit_learns(pairs):
    from sklearn.metrics import precision_recall_fscore_support

    predicted, expected = ([one == "yes" for one in side] for side in zip(*pairs, strict=True))
    theirs = precision_recall_fscore_support(expected, predicted, average="binary", zero_division=0)
    named = [["yes" if one else "no" for one in side] for side in (predicted, expected)]
    found = classification_report(*named, average="binary", positive="yes")
    assert (found.precision, found.recall, found.f1) == pytest.approx(theirs[:3])


@given(pairs=PAIRS, data=st.data())
def test_the_order_of_cases_does_not_matter(pairs, data):
    shuffled = data.draw(st.permutations(pairs))
    one, other = (classification_report([p for p, _ in some], [e for _, e in some]) for some in (pairs, shuffled))
    assert one == other


def test_an_evaluator_over_all_cases_counts_those_left_out(target):
    cases = [
        Case(outputs="Yes ", reference_outputs="yes"),
        Case(outputs="no", reference_outputs="yes"),
        Case(outputs="x"),
    ]
    feedback = asyncio.run(get_evaluator("classification", normalize=True).evaluate_set(cases, target))
    assert [one.key for one in feedback] == [
        f"classification_{name}" for name in ("accuracy", "precision", "recall", "f1")
    ]
    assert feedback[0].score == 0.5
    counts = {"labels": ["no", "yes"], "confusion": [[0, 0], [1, 1]], "cases": 2, "left_out": 1}
    assert feedback[0].metadata == {"evaluator_parameters": {"normalize": True}, **counts}


def test_a_label_that_only_the_model_uses_is_a_class(target):
    found = classification_report(["a", "unknown"], ["a", "a"])
    assert found.labels == ("a", "unknown")
    assert found.precision == 0.5


def test_an_answer_that_is_no_text_is_wrong_and_stops_nothing(target):
    cases = [Case(outputs=said, reference_outputs="a") for said in ("a", {"x": 1, "y": 2}, [])]
    accuracy = asyncio.run(get_evaluator("classification").evaluate_set(cases, target))[0]
    assert accuracy.score == pytest.approx(1 / 3)
    assert accuracy.metadata["labels"] == ["[]", "a", "{'x': 1, 'y': 2}"]


def test_too_few_cases_are_a_skip(target):
    judge = get_evaluator("classification", min_test_cases=3)
    feedback = asyncio.run(judge.evaluate_set([Case(outputs="a", reference_outputs="a")], target))
    assert feedback[0].comment == "1 cases, fewer than 3"


@pytest.mark.parametrize("bad", [{"average": "mean"}, {"average": "binary"}, {"positive": "yes"}])
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValueError, match="average"):
        get_evaluator("classification", **bad)


def test_nothing_and_unequal_lists_are_refused():
    with pytest.raises(ValueError, match="0 predictions for 0"):
        classification_report([], [])
    with pytest.raises(ValueError, match="1 predictions for 2"):
        classification_report(["a"], ["a", "b"])


@pytest.mark.process
def test_labels_without_end_stay_linear_and_small(target):
    cases = [
        Case(outputs=f"answer {i}", reference_outputs="a" if i % 2 else f"label {i} {'x' * 999}") for i in range(20_000)
    ]
    started = time.process_time()
    accuracy = asyncio.run(get_evaluator("classification").evaluate_set(cases, target))[0]
    assert time.process_time() - started < 30  # quadratic: minutes
    matrix = accuracy.metadata
    assert (len(matrix["labels"]), matrix["labels_left_out"]) == (50, 29_951)
    assert "a" in matrix["labels"]
    assert len(orjson.dumps(matrix)) < 30_000


def test_the_numbers_are_over_all_labels_also_those_left_out():
    labels = [str(i) for i in range(200)]
    found = classification_report(labels, [*labels[:100], *labels[:100]])
    assert (found.accuracy, found.recall, found.left_out) == (0.5, 0.25, 150)


def test_a_positive_label_that_nobody_uses_is_no_zero(target):
    cases = [Case(outputs=said, reference_outputs="ham") for said in ("spam", "ham")]
    (first, *_) = asyncio.run(
        get_evaluator("classification", average="binary", positive="Spam").evaluate_set(cases, target)
    )
    assert first.outcome == "error"
    assert "no case has the positive label 'Spam'; labels are ham, spam" in first.error
