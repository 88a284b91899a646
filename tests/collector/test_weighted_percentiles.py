"""Weighted percentiles with Woodruff's interval."""

import random

import pytest

from spanwise.collector.records import WeightedScore
from spanwise.collector.statistics import estimate_percentiles


def scored(id, score, probability=1.0, session=None, outcome="score"):
    fields = {"trace_id": id, "session_id": session, "key": "k", "probability": probability, "created_ns": 0}
    return WeightedScore(score=score, outcome=outcome, **fields)


def test_a_percentile_is_a_score_at_which_the_share_of_the_weight_is_reached():
    rows = [scored("a", 1.0, 0.1), scored("b", 2.0), scored("c", 3.0), scored("d", None, outcome="error")]
    [median] = estimate_percentiles(rows, 50)
    [high] = estimate_percentiles(rows, 90)
    assert (median.value, high.value, median.n, median.failed) == (1.0, 2.0, 3, 1)


def test_the_interval_has_scores_as_its_ends_and_holds_the_percentile():
    rows = [scored(str(number), number / 100) for number in range(100)]
    [median] = estimate_percentiles(rows, 50)
    assert median.value == 0.49
    assert (median.low, median.high) == (pytest.approx(0.39, abs=0.02), pytest.approx(0.59, abs=0.02))
    assert {median.low, median.high} <= {row.score for row in rows}


def test_scores_of_a_session_are_one_cluster():
    apart = [scored(str(number), number // 5 / 100) for number in range(500)]
    together = [scored(str(number), number // 5 / 100, session=f"s{number // 5}") for number in range(500)]
    [wide], [narrow] = estimate_percentiles(together, 50), estimate_percentiles(apart, 50)
    assert wide.high - wide.low > narrow.high - narrow.low


def test_scores_that_do_not_count_are_left_out():
    [found] = estimate_percentiles([scored("a", 1.0, None), scored("b", 2.0, 0.0), scored("c", 5.0)], 50)
    assert (found.value, found.n, found.unknown, found.low) == (5.0, 1, 1, None)
    [nothing] = estimate_percentiles([scored("a", 1.0, None)], 50)
    assert (nothing.value, nothing.low, nothing.too_few) == (None, None, False)


@pytest.mark.parametrize("percent", [0, 100, -1, float("nan")])
def test_a_percent_must_be_between_0_and_100(percent):
    with pytest.raises(ValueError, match="a percentile needs a percent above 0 and below 100"):
        estimate_percentiles([], percent)


@pytest.mark.process
@pytest.mark.parametrize("percent", [5, 50, 95])
def test_the_interval_covers_the_true_percentile(percent):
    """Strata: scores below 0.5 are sampled with rate 1, all others with rate 1/10."""
    chance, held, rounds = random.Random(percent), 0, 200
    for _ in range(rounds):
        rows = []
        for number in range(1_500):
            score = chance.random()
            rate = 1.0 if score < 0.5 else 0.1
            if chance.random() < rate:
                rows.append(scored(str(number), score, rate))
        [found] = estimate_percentiles(rows, percent)
        held += found.low <= percent / 100 <= found.high
    assert 0.92 <= held / rounds <= 0.985
