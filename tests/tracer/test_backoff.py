"""How long a delivery, an evaluator, a task or a store waits before the next attempt."""

import pytest

from spanwise.tracer.http_connections import compute_backoff


def test_pauses_double_from_a_quarter_of_a_second():
    assert [compute_backoff(attempt) for attempt in range(4)] == [0.25, 0.5, 1.0, 2.0]


def test_a_store_that_says_when_it_is_back_is_asked_then_at_first():
    assert [compute_backoff(attempt, first=0.75) for attempt in range(3)] == [0.75, 1.5, 3.0]


@pytest.mark.parametrize("attempt", [2, 3, 1000, 10_000])
def test_no_pause_is_longer_than_the_longest(attempt):
    assert compute_backoff(attempt, first=1.0, longest=2.5) == 2.5
