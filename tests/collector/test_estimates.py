"""Means of sampled scores: each counts as many as it stands for."""

import random

import pytest

from spanwise.collector.records import WeightedScore
from spanwise.collector.statistics import estimate_means


def scored(trace, score, probability=1.0, *, key="grounded", session=None, outcome="score"):
    return WeightedScore(
        trace_id=trace, session_id=session, key=key, score=score, probability=probability, created_ns=0, outcome=outcome
    )


def test_each_score_stands_for_one_over_its_probability():
    (mean,) = estimate_means([scored("a", 0.0, 1.0), scored("b", 1.0, 0.25), scored("c", 0.5, 1.0)])
    assert mean.mean == pytest.approx((0 + 4 + 0.5) / 6)
    assert (mean.n, mean.effective) == (3, pytest.approx(36 / 18))


def test_what_stands_for_nothing_is_left_out_and_counted():
    rows = [scored("a", 1.0), scored("b", 0.0, None), scored("c", 0.0, 0.0), scored("d", 1.0)]
    (mean,) = estimate_means(rows)
    assert (mean.mean, mean.n, mean.unknown, mean.outside) == (1.0, 2, 1, 1)


def test_errors_and_skips_are_no_scores():
    rows = [scored("a", True), scored("b", None, outcome="error"), scored("c", None, outcome="skip")]
    (mean,) = estimate_means(rows)
    assert (mean.mean, mean.n, mean.failed, mean.skipped) == (1.0, 1, 1, 1)


def test_a_label_without_a_score_is_in_no_mean():
    (mean,) = estimate_means([scored("a", None)])
    assert (mean.mean, mean.low, mean.n) == (None, None, 0)


def test_without_any_probability_the_plain_mean_is_shown_as_unweighted():
    (mean,) = estimate_means([scored("a", 1.0, None), scored("b", 0.5, None), scored("c", 0.0, 0.0)])
    assert (mean.mean, mean.low, mean.n, mean.unknown, mean.unweighted) == (None, None, 0, 2, 0.75)


def test_beside_a_weighted_mean_there_is_no_unweighted_one():
    (mean,) = estimate_means([scored("a", 1.0, None), scored("b", 0.5)])
    assert (mean.mean, mean.unknown, mean.unweighted) == (0.5, 1, None)


def test_keys_are_apart():
    means = estimate_means([scored("a", 1.0, key="b"), scored("a", 0.0, key="a")])
    assert [(mean.key, mean.mean) for mean in means] == [("a", 0.0), ("b", 1.0)]


def test_without_scores_there_is_nothing():
    assert estimate_means([]) == []


def test_scores_of_one_trace_are_one_observation():
    apart = [scored(str(n), n % 2 * 0.8) for n in range(40)]
    together = [scored(str(n // 10), (n // 10) % 2 * 0.8) for n in range(40)]
    (apart,), (together,) = estimate_means(apart), estimate_means(together)
    assert together.mean == pytest.approx(apart.mean)
    assert (apart.effective, together.effective) == (pytest.approx(40), pytest.approx(4))
    assert together.high - together.low > 3 * (apart.high - apart.low)


def test_traces_of_one_session_are_one_observation():
    apart = [scored(str(n), n // 10 % 2 * 0.8) for n in range(40)]
    together = [scored(str(n), n // 10 % 2 * 0.8, session=f"s{n // 10}") for n in range(40)]
    (apart,), (together,) = estimate_means(apart), estimate_means(together)
    assert (apart.effective, together.effective) == (pytest.approx(40), pytest.approx(4))
    assert together.high - together.low > 3 * (apart.high - apart.low)


def test_a_session_whose_turns_are_not_alike_costs_no_precision():
    """Five turns of one session that scatter as single traces do leave the interval about as wide."""
    draw = random.Random(1)
    values = [draw.random() < 0.7 for _ in range(200)]
    (apart,) = estimate_means([scored(str(n), value) for n, value in enumerate(values)])
    (together,) = estimate_means([scored(str(n), value, session=f"s{n // 5}") for n, value in enumerate(values)])
    assert together.high - together.low < 1.25 * (apart.high - apart.low)


def test_a_session_and_a_trace_of_the_same_name_are_two_observations():
    (mean,) = estimate_means([scored("x", 0.2), scored("a", 0.9, session="x")])
    assert mean.effective == pytest.approx(2)


def test_one_trace_alone_has_no_interval():
    (mean,) = estimate_means([scored("a", 0.2), scored("a", 0.9)])
    assert (mean.mean, mean.low, mean.high) == (pytest.approx(0.55), None, None)


def test_shares_that_are_all_alike_are_no_certainty():
    (mean,) = estimate_means([scored(str(n), True, 0.1) for n in range(20)])
    assert (mean.mean, mean.high) == (1.0, 1.0)
    assert 0.7 < mean.low < 0.9


def test_other_scores_that_are_all_alike_have_no_interval():
    (mean,) = estimate_means([scored(str(n), 0.3, 0.1) for n in range(20)])
    assert (mean.mean, mean.low) == (pytest.approx(0.3), None)


def test_in_words():
    rows = [scored(str(n), n % 3 / 2) for n in range(30)]
    assert str(estimate_means([*rows, scored("x", 1.0, None)])[0]) == (
        "grounded: 0.5 (95 %: 0.345 to 0.655), 30 scores, equivalent to 30 of equal weight, 1 of unknown probability"
    )
    assert str(estimate_means([scored("x", 1.0, None)])[0]) == (
        "grounded: no weighted mean (0 scores, 1 of unknown probability); unweighted mean 1 of 1 scores"
    )
