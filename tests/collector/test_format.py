import math

import pytest

from assay.collector import format


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0.0 ms"),
        (420_000, "0.4 ms"),
        (820_000_000, "820 ms"),
        (1_240_000_000, "1.24 s"),
        (123 * 10**9, "2 m 03 s"),
        (3_720 * 10**9, "1 h 02 m"),
        (None, "–"),
    ],
)
def test_durations(ns, text):
    assert format.duration(ns) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (1.0, "1"),
        (0.8333, "0.833"),
        (1234.5, "1,234"),
        (0.00012, "0.00012"),
        (None, "–"),
        (math.inf, "inf"),
        (1e300, "1e+300"),
    ],
)
def test_scores(value, text):
    assert format.number(value) == text


@pytest.mark.parametrize(("usd", "text"), [(None, ""), (0.0, "$0.00"), (0.00016, "$0.00016"), (12.5, "$12.50")])
def test_costs(usd, text):
    assert format.cost(usd) == text


def test_differences_always_show_their_sign():
    assert [format.signed(value) for value in (0.25, -0.25, 0.0)] == ["+0.25", "−0.25", "±0"]


def test_a_moment_that_no_calendar_has_is_still_shown():
    assert format.when(10**30) == f"{10**30} ns"
    assert format.ago(10**30) == "in the future"


def test_small_shares_keep_a_digit():
    assert [format.percent(*pair) for pair in ((1, 400), (1, 2), (0, 0))] == ["0.2 %", "50 %", "0 %"]
