import math
import re
import time
from datetime import datetime

import pytest

from looped_cases import loop_over
from spanwise.collector import formatting


@loop_over(
    ("ns", "text"),
    [
        (0, "0.0 ms"),
        (1_500, "2 µs"),
        (99_499, "99 µs"),
        (100_000, "0.1 ms"),
        (420_000, "0.4 ms"),
        (820_000_000, "820 ms"),
        (1_240_000_000, "1.24 s"),
        (123 * 10**9, "2 m 03 s"),
        (3_720 * 10**9, "1 h 02 m"),
        (9_999_999, "10.0 ms"),
        (10_000_000, "10 ms"),
        (59_990_000_000, "59.99 s"),
        (60 * 10**9, "1 m 00 s"),
        (3_599 * 10**9, "59 m 59 s"),
        (3_600 * 10**9, "1 h 00 m"),
        (None, "–"),
    ],
)
def test_durations(ns, text):
    assert formatting.duration(ns) == text


@loop_over(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (1.0, "1"),
        (0.8333, "0.833"),
        (1234.5, "1,234"),
        (999.9, "1,000"),
        (999.4, "999"),
        (-1234.5, "-1,234"),
        (10**15 - 1, "999,999,999,999,999"),
        (1e15, "1e+15"),
        (0.00012, "0.00012"),
        (None, "–"),
        (math.inf, "inf"),
        (1e300, "1e+300"),
    ],
)
def test_scores(value, text):
    assert formatting.number(value) == text


@loop_over(
    ("usd", "text"),
    [(None, ""), (0.0, "$0.00"), (0.00016, "$0.00016"), (0.00008, "$0.000080"), (-1.0, "$-1"), (12.5, "$12.50")],
)
def test_costs(usd, text):
    assert formatting.cost(usd) == text


def test_differences_always_show_their_sign():
    assert [formatting.signed(value) for value in (0.25, -0.25, 0.0)] == ["+0.25", "−0.25", "±0"]


def test_a_moment_that_no_calendar_has_is_still_shown():
    assert formatting.when(10**30) == f"{10**30} ns"
    assert formatting.ago(10**30) == "in the future"


@pytest.fixture
def tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_one_moment_as_lists_tooltips_and_programs_show_it(tokyo):
    moment = 1_769_817_600 * 10**9 + 1_002_003
    assert formatting.date_and_time(moment) == "2026-01-31 09:00:00"
    assert formatting.iso(moment) == "2026-01-31 09:00:00.001+09:00"
    assert formatting.utc(moment) == "2026-01-31T00:00:00.001002003Z"


def test_every_moment_that_is_stored_has_a_date():
    assert [formatting.date_and_time(end)[:4] for end in (-(2**63), 2**63 - 1)] == ["1677", "2262"]
    assert formatting.date_and_time(10**30) == formatting.iso(10**30) == f"{10**30} ns"


def test_the_further_away_a_moment_the_less_of_the_clock_it_shows():
    today = datetime.now()
    moment = today.replace(month=today.month % 12 + 1, day=3, hour=12, minute=30)
    before = moment.replace(year=today.year - 1)
    assert formatting.when(int(moment.timestamp()) * 10**9) == f"3 {moment:%b} 12:30"
    assert formatting.when(int(before.timestamp()) * 10**9) == f"3 {before:%b %Y}"
    assert re.fullmatch(r"\d\d:\d\d:\d\d", formatting.when(time.time_ns()))


@loop_over(
    ("seconds", "text"),
    [
        (1, "just now"),
        (7.5, "7 s ago"),
        (150, "2 min ago"),
        (7_300, "2 h ago"),
        (200_000, "2 d ago"),
        (-60, "in the future"),
    ],
)
def test_how_long_ago(seconds, text):
    said = (formatting.ago(time.time_ns() - int(seconds * 10**9)) for _ in range(100))
    assert text in said  # at once, unless this process is stopped between


@loop_over(
    ("made", "text"),
    [
        (formatting.count(9_999), "9,999"),
        (formatting.count(10_000), "10.0k"),
        (formatting.count(1_000_000), "1.00M"),
        (formatting.characters(1_000), "1.0k characters"),
        (formatting.characters(1_000_000), "1.0M characters"),
        (formatting.cost(0.1), "$0.10"),
        (formatting.cost(0.0999), "$0.1"),
        (formatting.signed(4e-7), "±0"),
        (formatting.signed(5e-7), "+5e-07"),
        (formatting.percent(1, 10), "10 %"),
        (formatting.percent(99, 1_000), "9.9 %"),
        (formatting.count(12_345), "12.3k"),
        (formatting.count(4_560_000), "4.56M"),
        (formatting.characters(999), "999 characters"),
        (formatting.characters(2_400), "2.4k characters"),
        (formatting.characters(3_100_000), "3.1M characters"),
        (formatting.milliseconds(1_403), "1.40 s"),
        (formatting.milliseconds(None), "–"),
    ],
)
def test_counts_and_sizes(made, text):
    assert made == text


def test_small_shares_keep_a_digit():
    assert [formatting.percent(*pair) for pair in ((1, 400), (1, 2), (0, 0))] == ["0.2 %", "50 %", "0 %"]
