import pytest

from collector.making import SECOND, run
from looped_cases import loop_over
from spanwise.collector.filters import Filter
from spanwise.collector.pages.components import svg_charts
from spanwise.collector.pages.traces import trace_list
from spanwise.collector.records import Bucket

HOUR = 3_600 * SECOND


def test_a_window_holds_at_most_48_buckets_of_a_round_width():
    for span in (1, 60, 3_600, 86_400, 400 * 86_400, 30_000 * 86_400):
        view = svg_charts.choose_window(1_750_000_000 * SECOND, (1_750_000_000 + span) * SECOND)
        assert view.since_ns <= 1_750_000_000 * SECOND < (1_750_000_000 + span) * SECOND < view.until_ns
        assert len(range(view.since_ns, view.until_ns, view.width_ns)) <= 49


@loop_over(
    ("seconds", "width"),
    [(47, 1), (48, 2), (47 * 60, 60), (47 * 60 + 1, 300), (47 * 3_600, 3_600), (47 * 604_800, 604_800)],
)
def test_the_narrowest_width_that_fits_is_taken(seconds, width):
    view = svg_charts.choose_window(0, seconds * SECOND)
    assert view == svg_charts.Window(0, (seconds // width + 1) * width * SECOND, width * SECOND)


def test_centuries_are_cut_into_48():
    view = svg_charts.choose_window(0, 100 * 47 * 604_800 * SECOND)
    assert 47 <= (view.until_ns - view.since_ns) / view.width_ns <= 49


def test_empty_buckets_are_filled_in():
    view = svg_charts.Window(10, 16, 2)
    buckets = svg_charts.fill_buckets([Bucket(start_ns=12, width_ns=2, traces=5)], view)
    assert [(bucket.start_ns, bucket.width_ns, bucket.traces) for bucket in buckets] == [
        (10, 2, 0),
        (12, 2, 5),
        (14, 2, 0),
    ]


def test_the_highest_bar_fills_the_box_and_nothing_draws_nothing():
    assert [bar.height for bar in svg_charts.bars([0, 5, 10])] == [svg_charts.HEIGHT / 2, svg_charts.HEIGHT]
    assert svg_charts.bars([]) == svg_charts.bars([0, 0]) == []


def test_bars_stand_side_by_side_on_the_ground():
    assert svg_charts.bars([1, 0, 4]) == [svg_charts.Bar(0, 27, 62.4, 9), svg_charts.Bar(160, 0, 62.4, 36)]


def test_a_bar_is_never_too_low_to_be_seen_nor_higher_than_the_box():
    assert [bar.height for bar in svg_charts.bars([0.001, 2, 0.5], 1)] == [
        1.5,
        svg_charts.HEIGHT,
        svg_charts.HEIGHT / 2,
    ]


def test_what_the_charts_show():
    buckets = [Bucket(start_ns=0, width_ns=1), Bucket(start_ns=1, width_ns=1, traces=4, errors=1, p95_ms=2.5)]
    assert (svg_charts.shares(buckets), svg_charts.slow(buckets)) == ([0, 0.25], [0, 2.5])
    assert svg_charts.tokens([Bucket(start_ns=0, width_ns=1, input_tokens=3, output_tokens=4)]) == [7]


def shown(*starts_ns):
    return [run(start_ns=start) for start in starts_ns]


@pytest.mark.parametrize(
    ("starts", "since", "until"),
    [((100 * HOUR,), 100 * HOUR - 15 * SECOND, 100 * HOUR), ((100 * HOUR, 98 * HOUR), 94 * HOUR, 100 * HOUR)],
)
def test_with_no_time_asked_for_the_charts_cover_a_round_stretch_that_holds_what_is_shown(starts, since, until):
    assert trace_list.choose_period(Filter(), shown(*starts)) == (since, until)


def test_years_between_two_traces_make_a_stretch_of_a_year():
    newest = 20 * 366 * 24 * HOUR
    assert trace_list.choose_period(Filter(), shown(newest, 0)) == (newest - 366 * 24 * HOUR, newest)


def test_the_time_asked_for_is_the_time_covered():
    assert trace_list.choose_period(Filter(since_ns=5, until_ns=9), shown(7)) == (5, 9)
    assert trace_list.choose_period(Filter(since_ns=9, until_ns=5), shown(7)) == (9, 9)
    since, until = trace_list.choose_period(Filter(since_ns=5), shown(7))
    assert (since, until > 1_700_000_000 * SECOND) == (5, True)


def test_an_end_alone_leaves_none_of_what_is_shown_out():
    assert trace_list.choose_period(Filter(until_ns=100 * HOUR), shown(99 * HOUR, 93 * HOUR)) == (76 * HOUR, 100 * HOUR)


@pytest.mark.parametrize(
    ("filter", "length", "late"),
    [
        (Filter(), 1_000 * HOUR, False),
        (Filter(text="a"), 1, True),
        (Filter(since_ns=1), 6 * HOUR, False),
        (Filter(since_ns=1), 6 * HOUR + 1, True),
    ],
)
def test_charts_that_may_take_long_do_not_hold_up_the_list(filter, length, late):
    assert trace_list.is_slow(filter, 0, length) is late
