"""Random samples of cases for people to vote on."""

from __future__ import annotations

from collections import Counter

from spanwise.collector.records import Target
from spanwise.collector.statistics import draw_label_sample


def cases(count: int, first: int = 0) -> list[tuple[Target, str]]:
    return [(Target(trace_id=f"{n:032x}"), "rare" if n % 10 == 0 else "usual") for n in range(first, first + count)]


def drawn(*args: object, **options: object) -> list[Target]:
    return [one.target for one in draw_label_sample(*args, **options).drawn]  # type: ignore[arg-type]


def test_the_same_seed_draws_the_same_and_a_larger_sample_adds_to_it() -> None:
    assert drawn(cases(100), 10, 0) == drawn(cases(100)[::-1], 10, 0)
    assert {*drawn(cases(100), 10, 0)} < {*drawn(cases(100), 20, 0)}
    assert drawn(cases(100), 10, 1) != drawn(cases(100), 10, 0)


def test_each_case_is_as_likely_as_the_other() -> None:
    counts = Counter(target for seed in range(400) for target in drawn(cases(20), 5, seed))
    assert all(60 <= counts[target] <= 140 for target, _ in cases(20))  # 100 each; 5 standard deviations are 43


def test_cases_that_came_since_take_their_share() -> None:
    both = drawn(cases(200), 40, 0)
    assert 10 <= sum(target in {new for new, _ in cases(100, 100)} for target in both) <= 30


def test_of_every_stratum_as_many_and_small_ones_whole() -> None:
    sample = draw_label_sample(cases(100), 20, 0, strata=["rare", "usual"])
    assert sorted(one.stratum for one in sample.drawn) == ["rare"] * 10 + ["usual"] * 10
    assert (sample.probability("rare", 10), sample.probability("usual", 9)) == (1.0, 0.1)
    small = draw_label_sample(cases(20), 12, 0, strata=["rare", "usual"])
    assert sorted(one.stratum for one in small.drawn) == ["rare"] * 2 + ["usual"] * 10


def test_the_order_tells_nothing_of_the_verdict() -> None:
    order = [one.stratum for one in draw_label_sample(cases(100), 20, 0, strata=["rare", "usual"]).drawn]
    assert order not in (sorted(order), sorted(order, reverse=True))


def test_a_target_that_comes_twice_is_drawn_once() -> None:
    assert len(drawn(cases(5) * 2, 10, 0)) == 5


def test_fewer_cases_than_wanted_are_all_drawn_and_none_is_nothing() -> None:
    assert len(drawn(cases(3), 10, 0)) == 3
    assert drawn([], 10, 0) == []
