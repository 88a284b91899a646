"""Money that lasts the day: the rate in force follows what is spent."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from evaluators.watched import rule, until, watching
from spanwise.collector.records import Booking
from spanwise.collector.rule_policy import MIN_PACING_FACTOR
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors import rule_spending
from spanwise.evaluators.monitors.rule_spending import (
    DAY_S,
    MIN_CHANGE_INTERVAL_S,
    PACING_INTERVAL_S,
    PacedBudget,
    Pacer,
    budget_name,
)


def of_day(now: float, spent: float, limit: float) -> PacedBudget:
    start = now // DAY_S * DAY_S
    return PacedBudget(spent, limit, start, start + DAY_S)


def a_day(
    traffic: Callable[[float], float], limit: float, cost: float = 0.01
) -> tuple[list[float], list[float], float]:
    """What was spent by the end of each hour, the changes of the rate, and what was refused for want of money."""
    pacer, spent, refused = Pacer(None), 0.0, 0.0
    hours, changes = [], []
    chance = random.Random(7)
    for step in range(int(DAY_S / PACING_INTERVAL_S)):
        now = step * PACING_INTERVAL_S
        wanted = traffic(now) * PACING_INTERVAL_S * pacer.factor * cost * chance.uniform(0.5, 1.5)
        refused += max(0.0, spent + wanted - limit)
        spent = min(limit, spent + wanted)
        if pacer.update(now, of_day(now, spent, limit)) is not None:
            changes.append(now)
        if step % int(3600 / PACING_INTERVAL_S) == 0:
            hours.append(spent)
    return [*hours, spent], changes, refused


@pytest.mark.parametrize("limit", [20.0, 200.0])
def test_a_days_money_lasts_the_day_under_steady_traffic(limit: float) -> None:
    hours, changes, refused = a_day(lambda now: 10.0, limit)
    assert hours[-1] == pytest.approx(limit, rel=0.1)
    assert hours[12] == pytest.approx(limit / 2, rel=0.25)
    assert refused < 0.01 * limit
    assert min(later - sooner for sooner, later in pairwise(changes)) >= MIN_CHANGE_INTERVAL_S


def test_it_also_lasts_where_traffic_comes_in_the_afternoon() -> None:
    hours, _, refused = a_day(lambda now: 20.0 if DAY_S / 2 < now < DAY_S * 3 / 4 else 1.0, 100.0)
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
    for step in range(int(3600 / PACING_INTERVAL_S)):
        now = step * PACING_INTERVAL_S
        pacer.update(now, of_day(now, step * 100.0, 11.0))
        assert pacer.factor >= MIN_PACING_FACTOR
    assert pacer.factor == MIN_PACING_FACTOR == 0.001


def test_a_new_day_begins_with_all_of_its_money() -> None:
    pacer = Pacer(0.01)
    pacer.update(DAY_S - 4, of_day(DAY_S - 4, 5.0, 5.0))
    pacer.update(DAY_S + 1, of_day(DAY_S + 1, 0.0, 5.0))
    assert pacer.update(DAY_S + 70, of_day(DAY_S + 70, 0.001, 5.0)) == pytest.approx(0.02)


def test_the_rate_in_force_goes_into_the_history_and_is_the_probability(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_spending, "PACING_INTERVAL_S", 0.1)
    made = rule(evaluators=[lambda outputs: 1.0], version="1", budget={"usd_per_day": 1.0})
    budget = budget_name("default", "r", "usd_per_day")
    with watching(store, made) as monitor:
        monitor.step()
        store.book(Booking(id="x", budget=budget, amount=0.5, limit=1.0))
        until(lambda: (monitor.step(), store.rules()[0].settings.paced)[1])
        factor = store.rules()[0].settings.paced
    assert factor is not None
    assert 0 < factor < 0.5
    assert [setting.settings.paced for setting in store.settings("r")] == [factor, None]
