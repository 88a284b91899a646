"""Numbers in texts, tolerances as pytest's, and what runs took."""

import dataclasses
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.records import Run, Trace, Usage
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.numbers import find_numbers, is_close

FINITE = st.floats(-1e6, 1e6)


@given(FINITE, FINITE, st.sampled_from([0.0, 1e-6, 0.5]), st.sampled_from([0.0, 1e-6, 0.1]))
def test_tolerances_are_those_of_pytest_approx(value, expected, absolute, relative):
    assert is_close(value, expected, absolute=absolute, relative=relative) == (
        value == pytest.approx(expected, rel=relative, abs=absolute)
    )


@loop_over(
    ("text", "expected"),
    [
        ("42", [42]),
        ("-3.5e2 m", [-350]),
        ("about 15,969.5 km", [15969.5]),
        ("1,234,567", [1234567]),
        ("in 1999 and 2001", [1999, 2001]),
        ("no number", []),
        ("v1.2.3", []),
        ("$1,000!", [1000]),
        ("50%", [50]),
        ("−7", [-7]),
        (".5", [0.5]),
        ("1 000 000", [1000000]),
        ("COVID19", []),
    ],
)
def test_numbers_in_texts(text, expected):
    assert find_numbers(text) == expected


@loop_over(
    ("text", "expected"),
    [
        ("10km", [10]),
        ("1,299.50EUR", [1299.5]),
        ("2.5GB of 8GB", [2.5, 8]),
        ("25C", [25]),
        ("3m²", []),
        ("12km²", [12]),
        ("80km/h", [80]),
        ("距离是10公里", [10]),
        ("10kmx", []),
        ("10km2", []),
        ("-5.5kg", [-5.5]),
        ("5µm", [5]),
        ("300ms.", [300]),
        ("1e3Hz", [1000]),
    ],
)
def test_units_may_be_glued_to_numbers(text, expected):
    assert find_numbers(text) == expected


@loop_over(
    "text", ["10k", "5m", "€5m", "2B", "3bn", "10万", "1億", "3rd", "GPT4", "0x1F", "4K", "a10km", "1.2.3km", "12h30"]
)
def test_what_may_be_another_number_is_none(text):
    assert find_numbers(text) == []


def test_decimal_commas():
    assert find_numbers("15.969,5 und 3,25", decimal=",") == [15969.5, 3.25]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_written_number_is_read_back(value):
    assert find_numbers(repr(value)) == [value]


def test_numbers_within_a_tolerance():
    judge = get_evaluator("numeric", absolute=0.5, relative=0)
    assert score(judge, outputs="The answer is 41.6.", reference_outputs=42)[0].score is True
    assert score(judge, outputs={"answer": 41.4}, reference_outputs="42")[0].score is False
    several = score(judge, outputs="41 or 42", reference_outputs=42)[0]
    assert (several.score, several.comment) == (False, "'41 or 42' contains 2 numbers, expected exactly one")


def test_a_reference_without_a_number_is_an_error():
    assert score(get_evaluator("numeric"), outputs="1", reference_outputs="none")[0].outcome == "error"


@pytest.mark.parametrize("bad", [{"absolute": -1}, {"relative": float("inf")}, {"decimal": "·"}])
def test_bad_tolerances_are_refused(bad):
    with pytest.raises(ValueError):
        get_evaluator("numeric", **bad)


@pytest.fixture
def agent():
    """A root that sums up two model calls, as some frameworks do."""
    make = {"trace_id": "1" * 32, "start_ns": 0, "end_ns": 1_500_000_000}
    root = Run(span_id="a" * 16, name="agent", usage=Usage(30, 12), cost=0.3, **make)
    calls = [
        Run(
            span_id=f"{n}" * 16,
            parent_id="a" * 16,
            name="call",
            kind="llm",
            usage=Usage(10 * n, 4 * n),
            cost=0.1 * n,
            **make,
        )
        for n in (1, 2)
    ]
    return Trace(root, (root, *calls))


def test_what_a_run_took(agent):
    assert score(get_evaluator("latency"), agent)[0].score == 1.5
    assert score(get_evaluator("tokens"), agent)[0].score == 42.0
    assert score(get_evaluator("tokens", count="output"), agent)[0].score == 12.0
    assert score(get_evaluator("cost"), agent)[0].score == pytest.approx(0.3)


def test_what_is_not_told_is_a_skip(agent):
    bare = dataclasses.replace(agent.root, usage=None, cost=None, end_ns=0)
    feedback = [score(get_evaluator(id), Trace(bare, (bare,)))[0].outcome for id in ("latency", "tokens", "cost")]
    assert feedback == ["skip"] * 3
    assert score(get_evaluator("latency"), outputs="a")[0].comment == "needs run; the case has none"


def test_thresholds_of_what_is_better_low(agent):
    metric = get_evaluator("latency", threshold=2.0).metrics[0]
    assert (metric.passes(1.5), metric.passes(2.5)) == (True, False)


def test_no_finite_number_is_close_to_infinity():
    assert not is_close(1.0, float("inf"), relative=0.1)
    assert is_close(float("inf"), float("inf"))


@pytest.mark.parametrize("value", [np.float32(0.5), Decimal("0.5"), Fraction(1, 2)])
def test_numbers_of_every_kind_are_numbers(value):
    assert score(get_evaluator("numeric"), outputs=value, reference_outputs=0.5)[0].score is True


@loop_over(
    ("answer", "reference", "same"),
    [
        ("9" * 400, "1" * 400, False),
        ("9" * 400, "9" * 400, True),
        (10**400, "1" + "0" * 399 + "1", False),
        (10**400, "1" + "0" * 400, True),
        ("9007199254740993", 9007199254740992, False),
        ("9007199254740993", 9007199254740992.0, True),
        (np.int64(2**62 + 1), 2**62, False),
        ("1e999", "2e999", False),
        ("1e999", "1" + "0" * 999, True),
        ("1e999999999999", "1", False),
        ("-" + "9" * 400, "9" * 400, False),
        ("9" * 400, 5, False),
    ],
)
def test_numbers_that_no_float_holds_are_compared_exactly(answer, reference, same):
    judge = get_evaluator("numeric", relative=0.0)
    assert score(judge, outputs=answer, reference_outputs=reference)[0].score is same


@given(st.integers(2**53, 10**40), st.integers(2**53, 10**40), st.integers(0, 10**40))
def test_whole_numbers_are_close_as_whole_numbers_are(value, expected, absolute):
    judge = get_evaluator("numeric", relative=0.0, absolute=float(absolute))
    near = abs(value - expected) <= int(float(absolute))
    assert score(judge, outputs=str(value), reference_outputs=str(expected))[0].score is near


@pytest.mark.parametrize("relative", [1e-6, 0.5])
def test_tolerances_hold_for_numbers_that_no_float_holds(relative):
    judge = get_evaluator("numeric", relative=relative)
    near, far = 10**400 + int(relative * 10**6) * 10**393, 10**400 + int(relative * 10**6) * 10**395
    assert score(judge, outputs=near, reference_outputs=10**400)[0].score is True
    assert score(judge, outputs=far, reference_outputs=10**400)[0].score is False


def test_a_number_of_a_million_digits_is_compared_in_time():
    assert score(get_evaluator("numeric"), outputs="9" * 1_000_000, reference_outputs="9" * 999_999)[0].score is False


def test_a_number_beyond_all_bounds_is_an_error_and_no_wrong_answer():
    feedback = score(get_evaluator("numeric"), outputs="1e99999999999999999999", reference_outputs=1)[0]
    assert (feedback.outcome, feedback.error[:13]) == ("error", "OverflowError")


@pytest.mark.parametrize(
    "fields", [{"outputs": float("nan"), "reference_outputs": 1}, {"outputs": 1, "reference_outputs": float("nan")}]
)
def test_a_number_that_is_none_is_missing(fields):
    assert score(get_evaluator("numeric"), **fields)[0].outcome == "skip"


def test_the_text_of_nan_is_no_number_and_as_a_reference_an_error():
    assert (
        score(get_evaluator("numeric"), outputs="nan", reference_outputs=1)[0].comment
        == "'nan' contains 0 numbers, expected exactly one"
    )
    assert score(get_evaluator("numeric"), outputs=1, reference_outputs="nan")[0].outcome == "error"
