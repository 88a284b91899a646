"""Values given by hand are seen as in `evaluate()`: as plain values, whole, and none of the caller's own objects."""

import datetime
import enum
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pandas as pd
import pydantic
import pytest

from looped_cases import loop_over
from spanwise.collector.records import Case, Example
from spanwise.evaluators import evaluate, evaluator, get_evaluator, score
from spanwise.evaluators.interface import to_plain


class Answer(pydantic.BaseModel):
    text: str
    stars: int = 5


@dataclass
class Reply:
    text: str


class Pair(NamedTuple):
    first: int
    second: str


class Mood(enum.Enum):
    GOOD = "good"


class Level(enum.IntEnum):
    HIGH = 3


FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
MANY = np.arange(50_000)
VALUES = [
    ("text", "text"),
    (np.str_("text"), "text"),
    (np.int64(3), 3),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array([1.0, float("nan")]), [1.0, None]),
    (MANY, list(range(50_000))),
    (list(range(50_000)), list(range(50_000))),
    (["x"] * 10 + [np.int64(n) for n in range(30_000)], ["x"] * 10 + list(range(30_000))),
    (pd.Series([1, 2, None]), [1.0, 2.0, None]),
    (FRAME, [{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
    (pd.NA, None),
    (pd.NaT, None),
    ([pd.NA, {"at": pd.NaT}], [None, {"at": None}]),
    (Answer(text="a"), {"text": "a", "stars": 5}),
    ([Answer(text="a")], [{"text": "a", "stars": 5}]),
    (Reply("a"), {"text": "a"}),
    (Pair(1, "a"), {"first": 1, "second": "a"}),
    (("a", 1), ["a", 1]),
    (Mood.GOOD, "good"),
    (Level.HIGH, 3),
    (Decimal("0.5"), "0.5"),
    (Fraction(1, 2), 0.5),
    ({3}, [3]),
    (datetime.date(2026, 1, 2), "2026-01-02"),
    ({1: "a", "b": (2,)}, {"1": "a", "b": [2]}),
    (b"bytes", "bytes"),
]


@loop_over(("given", "seen"), VALUES, ids=lambda value: f"{type(value).__name__}")
def test_a_value_is_seen_as_plain_and_whole(given, seen):
    came = to_plain(given)
    assert repr(came) == repr(seen)  # 3 is no 3.0


@pytest.mark.process
@pytest.mark.parametrize("given", [given for given, _ in VALUES], ids=lambda value: type(value).__name__)
def test_by_hand_is_as_in_evaluate(store, given):
    looked = []

    def look(outputs=None):
        looked.append(outputs)
        return True

    evaluate([{"inputs": "q"}], lambda inputs: given, [look], store=store, progress=False)
    score(look, outputs=given)
    score(look, Case(outputs=given))
    assert looked == [looked[0]] * 3


@pytest.mark.parametrize("value", [float("nan"), np.float64("nan"), np.float32("nan"), float("inf")])
def test_what_is_no_number_is_seen_as_it_is_stored(value):
    assert to_plain(value) is None


class NoArray:
    def tolist(self):
        raise RuntimeError("no")


class Mute:
    def __repr__(self):
        pytest.fail("no")


def test_a_value_that_cannot_say_what_it_is_is_still_seen():
    assert to_plain(NoArray()) == "[NoArray that could not be captured: RuntimeError]"
    assert to_plain([Mute()]) == ["[Mute whose repr raised Failed]"]


def test_labels_of_numpy_are_those_of_python():
    said = score(get_evaluator("classification"), outputs=[np.int64(1), np.int64(0)], reference_outputs=[1, 0])
    assert (said[0].key, said[0].score) == ("classification_accuracy", 1.0)


def test_a_set_takes_arrays_and_columns_and_leaves_out_what_is_missing():
    said = score(get_evaluator("classification"), outputs=np.array([1, 0]), reference_outputs=pd.Series([1, 0]))
    assert said[0].score == 1.0
    said = score(get_evaluator("classification"), outputs=pd.Series([1, pd.NA, 0]), reference_outputs=[1, 1, 0])
    assert (said[0].score, said[0].metadata["left_out"]) == (1.0, 1)


@evaluator(summary=True)
def share(outputs, reference_outputs):
    return sum(map(str.__eq__, outputs, reference_outputs)) / len(outputs)


def test_columns_of_unequal_length_are_named_with_their_lengths():
    with pytest.raises(ValueError, match="the same length, got 3 outputs, 2 reference_outputs"):
        score(share, outputs=["a", "b", "c"], reference_outputs=["a", "b"])


@pytest.mark.parametrize("column", ["abc", 3, {"a": 1}, {"a", "b"}])
def test_a_set_of_one_value_is_refused_with_the_way_out(column):
    with pytest.raises(TypeError, match="needs a list per field, got outputs="):
        score(share, outputs=column, reference_outputs=["a", "b", "c"])


def test_the_callers_values_are_left_alone():
    outputs, reference = ["a"], {"b": ["c"]}

    def spoils(outputs, reference_outputs):
        outputs.append("x")
        reference_outputs["b"].append("x")

    score(spoils, outputs=outputs, reference_outputs=reference)
    assert (outputs, reference) == (["a"], {"b": ["c"]})


def test_references_of_an_example_are_plain_too():
    example = Example(inputs={"q": 1}, reference_outputs=np.int64(3))
    assert score(get_evaluator("exact"), outputs=np.int64(3), example=example)[0].score == 1.0


def _with_an_address(number):
    """So many texts that `str()` of an array of them leaves out the middle, where the address stands."""
    return ["nothing"] * (number // 2) + ["jane@example.com"] + ["nothing"] * (number // 2)


@pytest.mark.process
@pytest.mark.parametrize(
    "outputs",
    [
        np.array(_with_an_address(3000)),
        {"found": np.array(_with_an_address(3000), dtype=object)},
        pd.Series(_with_an_address(3000)),
        pd.DataFrame([_with_an_address(100)] + [["nothing"] * 101] * 99),
        {"table": pd.DataFrame({"a": _with_an_address(3000)})},
    ],
    ids=["array", "array in a dict", "series", "wide frame", "long frame in a dict"],
)
def test_an_address_amid_a_large_array_or_table_is_found(outputs):
    said = score(get_evaluator("pii"), outputs=outputs)
    assert (said[0].key, said[0].score, said[0].comment) == ("pii", False, "answer: 1 email")


@pytest.mark.parametrize(
    "value",
    [Answer(text="a"), np.int64(3), np.array([1, 2]), Decimal("1.5"), {"b", "a"}],
    ids=lambda value: type(value).__name__,
)
def test_a_reference_is_seen_as_it_is_stored(store, value):
    for row in ({"inputs": "q", "reference_outputs": value}, Example(inputs="q", reference_outputs=value)):
        done = evaluate([row], lambda inputs: value, [get_evaluator("exact")], store=store, progress=False)
        assert [row.scores["exact"] for row in done.rows()] == [1.0]
        assert [row.scores["exact"] for row in done.evaluate([get_evaluator("exact")]).rows()] == [1.0]


def test_the_score_of_the_only_feedback():
    result = score(get_evaluator("exact"), outputs="a", reference_outputs="a")
    assert (result.score, result["exact"], result[0], len(result)) == (1.0, *result, *result, 1)
    assert result == list(result)
    assert isinstance(result, list)


def test_the_score_of_the_primary_key():
    result = score(get_evaluator("pii"), outputs="Write to jane@example.com")
    assert len(result) > 1
    assert result.score is result["pii"].score is False
    with pytest.raises(KeyError, match="no feedback has the key 'pi'; expected one of: pii, "):
        result["pi"]


def test_without_a_single_score_the_reason_is_raised():
    pair = score(
        evaluator(key="pair")(lambda outputs: [{"key": "a", "score": 1}, {"key": "b", "score": 0}]), outputs=""
    )
    with pytest.raises(ValueError, match="no single score among 2 feedbacks; choose one by key or index: a, b"):
        _ = pair.score
    with pytest.raises(ValueError, match="'broken' has no score: error: ZeroDivisionError"):
        _ = score(evaluator(key="broken")(lambda outputs: 1 / 0), outputs="").score
    with pytest.raises(ValueError, match="'exact' has no score: skip: needs reference_outputs"):
        _ = score(get_evaluator("exact"), outputs="a").score
    with pytest.raises(ValueError, match="'mood' has the label 'good' and no score"):
        _ = score(evaluator(key="mood")(lambda outputs: "good"), outputs="a").score
