"""What evaluators written for others return, and what models write for numbers: understood, or told clearly."""

import enum
import uuid
from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pydantic
import pytest

from looped_cases import loop_over
from spanwise.collector.records import Target
from spanwise.evaluators import score
from spanwise.evaluators.interface import FeedbackFactory, InvalidResult

TARGET = Target(trace_id="1" * 32)
MAKER = FeedbackFactory(key="judge", keys=("judge",), name="tests.judge", version="3")


class EvaluationResult(pydantic.BaseModel):
    """As langsmith 0.4 has it, field by field."""

    key: str
    score: bool | int | float | None = None
    value: dict | str | None = None
    metadata: dict | None = None
    comment: str | None = None
    correction: dict | None = None
    evaluator_info: dict = pydantic.Field(default_factory=dict)
    feedback_config: dict | None = None
    source_run_id: uuid.UUID | str | None = None
    target_run_id: uuid.UUID | str | None = None
    extra: dict | None = None


def only(returned, maker=MAKER):
    (feedback,) = maker.wrap(returned, TARGET)
    return feedback


def test_a_result_object_of_langsmith_says_what_its_dict_says():
    said = only(EvaluationResult(key="correct", score=1, comment="yes", metadata={"a": 1}))
    assert (said.key, said.score, said.comment, said.metadata) == ("correct", 1.0, "yes", {"a": 1})
    said = only(EvaluationResult(key="kind", value="short"))
    assert (said.label, said.score, said.outcome) == ("short", None, "score")
    assert only(EvaluationResult(key="k", comment="no reference")).comment == "no reference"
    assert only(EvaluationResult(key="k")).outcome == "skip"


def test_langsmiths_other_keys_are_kept():
    rest = {
        "correction": {"answer": "b"},
        "evaluator_info": {"name": "x"},
        "extra": {"t": 1},
        "feedback_config": {"min": 0},
    }
    source = uuid.UUID(int=7)
    as_dict = only({"key": "k", "score": 0.5, "metadata": {"a": 1}, "source_run_id": source, **rest})
    as_object = only(EvaluationResult(key="k", score=0.5, metadata={"a": 1}, source_run_id=source, **rest))
    assert as_dict.metadata == as_object.metadata == {"a": 1, "source_run_id": str(source), **rest}
    assert only({"score": 1, "evaluator_info": {}, "correction": None}).metadata == {}


@pytest.mark.parametrize("given", ["1" * 32, str(uuid.UUID("1" * 32)), uuid.UUID("1" * 32)])
def test_a_target_run_that_is_the_root_is_the_trace(given):
    said = only(EvaluationResult(key="k", score=1, target_run_id=given))
    assert (said.target, said.metadata) == (TARGET, {})


def test_a_target_run_that_is_a_span_is_that_span_and_another_is_kept():
    span = only({"score": 1, "target_run_id": "b" * 16})
    assert (span.target, span.metadata) == (Target(trace_id="1" * 32, span_id="b" * 16), {})
    other = only({"score": 1, "target_run_id": "elsewhere"})
    assert (other.target, other.metadata) == (TARGET, {"target_run_id": "elsewhere"})
    of_set = MAKER.wrap({"score": 1, "target_run_id": "b" * 16}, Target(experiment_id="e"))[0]
    assert (of_set.target.experiment_id, of_set.metadata) == ("e", {"target_run_id": "b" * 16})


RESULTS = [EvaluationResult(key="a", score=1), {"key": "b", "score": 0}, EvaluationResult(key="c", value="x")]


@pytest.mark.parametrize(
    "returned",
    [
        RESULTS,
        {"results": RESULTS},
        tuple(RESULTS),
        [{"results": RESULTS[:2]}, RESULTS[2]],
        {"results": {"results": RESULTS}},
    ],
)
def test_lists_of_results_in_all_their_forms(returned):
    assert [(one.key, one.score, one.label) for one in MAKER.wrap(returned, TARGET)] == [
        ("a", 1.0, None),
        ("b", 0.0, None),
        ("c", None, "x"),
    ]


def test_a_value_that_is_a_dict_is_a_label_of_json():
    assert only({"key": "k", "value": {"b": [1], "a": None}}).label == '{"b":[1],"a":null}'


@dataclass
class Reason:
    value: Any
    reason: str


Scored = namedtuple("Scored", "score comment")


@loop_over(
    ("returned", "expected"),
    [
        (Reason(True, "because"), ("judge", True, None, "because")),
        (Reason("good", "because"), ("judge", None, "good", "because")),
        (SimpleNamespace(name="facts", score=0.5, metadata={"x": 1}), ("facts", 0.5, None, None)),
        (SimpleNamespace(name="safe", value=True, rationale="fine"), ("safe", True, None, "fine")),
        (Scored(0.5, "because"), ("judge", 0.5, None, "because")),
        ((0.5, "because"), ("judge", 0.5, None, "because")),
        ((np.float32(0.5), "because"), ("judge", 0.5, None, "because")),
        ((True, ""), ("judge", True, None, None)),
        ([(0.5, "because")], ("judge", 0.5, None, "because")),
    ],
)
def test_objects_and_pairs_of_a_score_and_why(returned, expected):
    said = only(returned)
    assert (said.key, said.score, said.label, said.comment) == expected


class Grade(enum.Enum):
    GOOD = "good"
    HALF = 0.5
    NOTHING = None


class Stars(enum.IntEnum):
    FIVE = 5


class Mood(enum.StrEnum):
    GLAD = "glad"


@loop_over(
    ("returned", "value", "label"),
    [
        (Grade.GOOD, None, "good"),
        (Grade.HALF, 0.5, None),
        (Stars.FIVE, 5.0, None),
        (Mood.GLAD, None, "glad"),
        (np.bool_(True), True, None),
        (np.int8(3), 3.0, None),
        (np.float16(0.5), 0.5, None),
        (np.array([0.5]), 0.5, None),
        (Decimal("0.25"), 0.25, None),
        (pd.Series([0.5]).mean(), 0.5, None),
    ],
)
@loop_over("wrapped", [lambda value: value, lambda value: {"score": value}, lambda value: {"value": value}])
def test_enums_and_numbers_of_all_makes(returned, value, label, wrapped):
    said = only(wrapped(returned))
    assert (said.score, type(said.score), said.label, said.outcome) == (value, type(value), label, "score")


NOTHING = [float("nan"), np.float64("nan"), np.float32("nan"), Decimal("NaN"), pd.NA, pd.NaT, "nan"]


@loop_over("nothing", NOTHING, ids=repr)
def test_whatever_is_undefined_is_a_skip(nothing):
    returned = (
        [{"key": "judge", "score": nothing}]
        if isinstance(nothing, str)
        else [nothing, {"score": nothing}, (nothing, "why")]
    )
    for one in returned:
        said = only(one)
        assert (said.outcome, said.comment) == ("skip", "the score is NaN: undefined for this case")
    assert only(Grade.NOTHING).outcome == "skip"


@pytest.mark.parametrize("endless", [float("inf"), np.float32("-inf"), Decimal("Infinity"), "inf"], ids=repr)
def test_whatever_is_infinite_is_an_error(endless):
    assert only({"score": endless}).error.endswith("inf is not finite")


@pytest.mark.parametrize(("given", "value"), [("4", 4.0), (" 0.5 ", 0.5), ("-1e-3", -0.001), (np.str_("4"), 4.0)])
def test_a_number_written_as_a_text_is_a_number(given, value):
    said = only({"score": given, "label": "good"})
    assert (said.score, said.label) == (value, "good")


@pytest.mark.parametrize("returned", ["4", {"label": "4"}, {"value": "4"}, {"score": "4/5"}])
def test_a_label_is_a_label_even_of_digits(returned):
    said = only(returned)
    assert (said.score, said.label is not None) == (None, True)


class Fitted:
    """An object with a method of that name, as a model of scikit-learn has it."""

    def score(self, x):
        return 1.0


@loop_over(
    "nonsense",
    [
        Fitted(),
        Fitted,
        EvaluationResult,
        object(),
        SimpleNamespace(value=3),
        3j,
        [[1]],
        np.array([1, 2]),
        pd.DataFrame({"a": [1]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_result_is_nonsense(nonsense):
    with pytest.raises((InvalidResult, ValueError)):
        MAKER.wrap(nonsense, TARGET)


@pytest.mark.parametrize("returned", [[0.5, "because"], ("good", "because"), [1, 2]])
def test_several_values_without_keys_are_told_how_to_say_it(returned):
    with pytest.raises(
        InvalidResult, match=r"'judge' twice.*Give each result its own key.*a score with its reason is \{'score'"
    ):
        MAKER.wrap(returned, TARGET)


class Hostile:
    @property
    def score(self):
        pytest.fail("no")

    def __eq__(self, other):
        raise SystemExit

    __hash__ = None

    def __repr__(self):
        raise KeyError("no")


def test_an_object_that_raises_while_it_is_looked_at_is_an_error():
    assert score(lambda outputs: Hostile(), outputs="a")[0].error == "Failed: no"


def test_results_that_hold_themselves_are_an_error():
    results: dict = {}
    results["results"] = [results]
    assert score(lambda outputs: results, outputs="a")[0].error.startswith("RecursionError")


@pytest.mark.parametrize(
    ("returned", "scores"),
    [
        ({"precision": 0.5, "recall": 1}, {"precision": 0.5, "recall": 1.0}),
        ({"polite": True}, {"polite": True}),
    ],
)
def test_a_dict_of_numbers_is_a_score_for_each_name(returned, scores):
    found = MAKER.wrap(returned, TARGET)
    assert {one.key: one.score for one in found} == scores


@pytest.mark.parametrize("returned", [{"precision": 0.5, "why": "so"}, {"precision": None}, {1: 0.5}, {"scor": [1]}])
def test_other_dicts_are_refused_as_before(returned):
    with pytest.raises(InvalidResult, match="returned a dict with"):
        MAKER.wrap(returned, TARGET)
