"""Money that lasts the day: the rate in force follows what is spent."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from evaluators.watched import rule, until, watching
from spanwise.collector.records import Booking
from spanwise.collector.rules import LEAST_PACED
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors import _pace
from spanwise.evaluators.monitors._money import budget_of
from spanwise.evaluators.monitors._pace import APART, DAY, LOOK, Pacer


def a_day(
    traffic: Callable[[float], float], limit: float, cost: float = 0.01
) -> tuple[list[float], list[float], float]:
    """What was spent by the end of each hour, the changes of the rate, and what was refused for want of money."""
    pacer, spent, refused = Pacer(None), 0.0, 0.0
    hours, changes = [], []
    chance = random.Random(7)
    for step in range(int(DAY / LOOK)):
        now = step * LOOK
        wanted = traffic(now) * LOOK * pacer.factor * cost * chance.uniform(0.5, 1.5)
        refused += max(0.0, spent + wanted - limit)
        spent = min(limit, spent + wanted)
        if pacer.look(now, spent, limit) is not None:
            changes.append(now)
        if step % int(3600 / LOOK) == 0:
            hours.append(spent)
    return [*hours, spent], changes, refused


@pytest.mark.parametrize("limit", [20.0, 200.0])
def test_a_days_money_lasts_the_day_under_steady_traffic(limit: float) -> None:
    hours, changes, refused = a_day(lambda now: 10.0, limit)
    assert hours[-1] == pytest.approx(limit, rel=0.1)
    assert hours[12] == pytest.approx(limit / 2, rel=0.25)
    assert refused < 0.01 * limit
    assert min(later - sooner for sooner, later in pairwise(changes)) >= APART


def test_it_also_lasts_where_traffic_comes_in_the_afternoon() -> None:
    hours, _, refused = a_day(lambda now: 20.0 if DAY / 2 < now < DAY * 3 / 4 else 1.0, 100.0)
    assert refused < 5.0
    assert hours[18] < 90.0
    assert hours[-1] > 50.0


def test_money_that_suffices_changes_nothing() -> None:
    hours, changes, _ = a_day(lambda now: 1.0, 10_000.0)
    assert changes == []
    assert hours[-1] < 1_000.0


def test_what_a_thousandth_of_the_rate_still_costs_stops_at_the_budget() -> None:
    hours, _, refused = a_day(lambda now: 10.0, 5.0)
    assert hours[-1] == 5.0
    assert 2.0 < refused < 6.0  # a thousandth of the traffic costs $8.64 a day


def test_a_burst_lowers_a_rate_to_a_thousandth_at_the_lowest() -> None:
    pacer = Pacer(None)
    for step in range(int(3600 / LOOK)):
        pacer.look(step * LOOK, step * 100.0, 11.0)
        assert pacer.factor >= LEAST_PACED
    assert pacer.factor == LEAST_PACED == 0.001


def test_a_new_day_begins_with_all_of_its_money() -> None:
    pacer = Pacer(0.01)
    pacer.look(DAY - 4, 5.0, 5.0)
    pacer.look(DAY + 1, 0.0, 5.0)
    assert pacer.look(DAY + 70, 0.001, 5.0) == pytest.approx(0.02)


def test_the_rate_in_force_goes_into_the_history_and_is_the_probability(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pace, "LOOK", 0.1)
    made = rule(evaluators=[lambda outputs: 1.0], version="1", budget={"usd_per_day": 1.0})
    budget = budget_of("default", "r", "usd_per_day")
    with watching(store, made) as monitor:
        monitor.step()
        store.book(Booking(id="x", budget=budget, amount=0.5, limit=1.0))
        until(lambda: (monitor.step(), store.rules()[0].settings.paced)[1])
        factor = store.rules()[0].settings.paced
    assert factor is not None
    assert 0 < factor < 0.5
    assert [setting.settings.paced for setting in store.settings("r")] == [factor, None]
