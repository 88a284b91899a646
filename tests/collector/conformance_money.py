"""What every store does with leases and budgets. Each test takes `store` (see conftest.py)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from math import inf, nan
from typing import Any

import pytest

from looped_cases import loop_over
from spanwise.collector.errors import Refused, SpanwiseError
from spanwise.collector.records import Booking, BudgetUsage, Spender
from spanwise.collector.stores import Store

DAY = 86_400_000_000_000
HOUR = 3_600_000_000_000


def booking(id: str, amount: float = 1.0, **fields: Any) -> Booking:
    return Booking(**{"id": id, "budget": "p/r/usd_per_day", "amount": amount, "limit": 5.0, **fields})


def today(store: Store) -> tuple[float, float]:
    [one] = store.booked("p/r/usd_per_day")
    return one.settled, one.reserved


def test_a_limit_is_never_passed_and_what_is_given_back_can_be_booked(store: Store) -> None:
    assert store.book(booking("a", 3), booking("b", 3), booking("c", 2)) == [True, False, True]
    assert today(store) == (0, 5)
    store.settle({"a": 0.5, "unknown": 9})
    assert store.book(booking("b", 3), booking("d", 2.5)) == [False, True]
    store.settle({"c": 0, "d": 2.5})
    assert today(store) == (3, 0)


def test_an_id_books_once_and_settles_once(store: Store) -> None:
    for _ in range(2):
        assert store.book(booking("a", 3), booking("a", 3)) == [True, True]
        assert today(store) == (0, 3)
    for actual in (1.0, 4.0):
        store.settle({"a": actual})
        assert (store.book(booking("a", 3)), today(store)) == ([True], (1, 0))


def test_what_it_came_to_may_be_more_than_was_reserved(store: Store) -> None:
    store.book(booking("a", 1))
    store.settle({"a": 7})
    assert (today(store), store.book(booking("b", 0.1)), store.book(booking("c", 0))) == ((7, 0), [False], [False])


def test_budgets_periods_and_limits_are_apart(store: Store) -> None:
    others = booking("b", budget="p/r/calls", limit=1), booking("c", budget="p/r/calls", limit=1, period="minute")
    assert store.book(booking("a", 5), *others) == [True, True, True]
    assert store.book(booking("d", budget="p/r/calls", limit=1)) == [False]
    assert {one.period_start_ns % DAY for one in store.booked("p/r/usd_per_day")} == {0}
    assert {one.period_start_ns % 60_000_000_000 for one in store.booked("p/r/calls")} == {0}
    assert len(store.booked()) == 3


def test_ten_tenths_are_one(store: Store) -> None:
    assert store.book(*(booking(f"a{n}", 0.1, limit=0.3) for n in range(4))) == [True, True, True, False]
    store.settle({f"a{n}": 0.1 for n in range(3)})
    assert today(store) == (pytest.approx(0.3), 0.0)


@loop_over("amount", [-1.0, nan, inf, -inf])
def test_amounts_that_cannot_be_are_refused(store: Store, amount: float) -> None:
    store.book(booking("there", 1))
    for wrong in (booking("a", amount), booking("a", limit=amount)):
        with pytest.raises((Refused, SpanwiseError)):
            store.book(booking("b"), wrong)
    with pytest.raises((Refused, SpanwiseError)):
        store.settle({"there": amount})
    assert today(store) == (0, 1)


def test_an_id_of_another_budget_is_refused(store: Store) -> None:
    store.book(booking("a"))
    with pytest.raises(Refused, match="booking id 'a' is already used on budget 'p/r/usd_per_day'"):
        store.book(booking("a", budget="other"))


def test_many_workers_never_pass_a_limit(store: Store) -> None:
    def worker(name: int) -> int:
        return sum(
            sum(store.book(*(booking(f"{name}.{turn}.{n}", 1, limit=50) for n in range(5)))) for turn in range(6)
        )

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(worker, range(4))) == 50
    assert today(store) == (0, 50)


def test_what_was_booked_can_be_forgotten(store: Store) -> None:
    store.book(booking("a"), booking("b", budget="p/r/calls"))
    [today] = store.booked("p/r/calls")
    assert store.delete_budget("p/r/calls", before_ns=today.period_start_ns) == 0
    assert (store.delete_budget("p/r/calls"), store.delete_budget("p/r/calls")) == (1, 0)
    assert [one.budget for one in store.booked()] == ["p/r/usd_per_day"]
    assert store.book(booking("b", 5)) == [False]
    store.settle({"b": 1})
    assert store.booked("p/r/calls") == []


def test_what_is_reserved_is_told_before_it_is_settled(store: Store) -> None:
    store.book(booking("a", 2), booking("b", 1))
    store.settle({"b": 0.25})
    [one] = store.booked("p/r/usd_per_day")
    start = store.changes().now_ns // DAY * DAY
    assert one == BudgetUsage(budget="p/r/usd_per_day", period_start_ns=start, settled=0.25, reserved=2)


# spend


def spent(store: Store, id: str, amount: float, actual: float | None = None, **fields: Any) -> None:
    """A call that one evaluator of a rule made, and what it came to."""
    by = {"project": "p", "rule": "r", "evaluator": "polite", "model": "m", **fields}
    assert store.book(booking(id, amount, limit=1e9, spender=Spender(**by))) == [True]
    if actual is not None:
        store.settle({id: actual})


def test_spend_is_told_by_rule_evaluator_model_and_project(store: Store) -> None:
    spent(store, "a", 1.0, 0.25)
    spent(store, "b", 1.0, 0.5, evaluator="kind", model="large")
    spent(store, "c", 1.0, 0.125, rule="other")
    spent(store, "d", 2.0, project="q")
    store.book(booking("e", 3.0, limit=1e9))  # counts on its budget only
    start = store.changes().now_ns // HOUR * HOUR
    assert [(one.start_ns, one.settled, one.reserved, one.total) for one in store.spend()] == [
        (start, 0.875, 2.0, 2.875)
    ]
    assert [(one.project, one.rule, one.total) for one in store.spend(by=("project", "rule"))] == [
        ("q", "r", 2.0),
        ("p", "r", 0.75),
        ("p", "other", 0.125),
    ]
    assert {(one.model, one.settled) for one in store.spend(by=("model",))} == {("m", 0.375), ("large", 0.5)}
    assert [one.evaluator for one in store.spend(by=("evaluator",), project="p")] == ["kind", "polite"]
    assert [one.settled for one in store.spend(rule="other")] == [0.125]


def test_spend_has_buckets_of_hours(store: Store) -> None:
    spent(store, "a", 1.0, 0.25)
    now = store.changes().now_ns
    [hour], [day] = store.spend(bucket_ns=HOUR), store.spend(bucket_ns=DAY)
    assert (hour.start_ns, day.start_ns, day.settled) == (now // HOUR * HOUR, now // DAY * DAY, 0.25)
    assert store.spend(since_ns=now) == store.spend() != store.spend(until_ns=now - HOUR) == []
    for wrong in (HOUR - 1, 0, -HOUR):
        with pytest.raises(Refused, match="multiple of an hour"):
            store.spend(bucket_ns=wrong)
    with pytest.raises((Refused, SpanwiseError), match="planet"):
        store.spend(by=("planet",))  # type: ignore[arg-type]


def test_there_is_no_spend_at_first(store: Store) -> None:
    assert store.spend() == store.spend(by=("rule",), bucket_ns=HOUR) == []


def test_calls_of_unknown_price_are_counted(store: Store) -> None:
    spent(store, "a", 0.0, 0.0, priced=False)
    spent(store, "b", 0.0, priced=False)
    [one] = store.spend()
    assert (one.unpriced, one.total) == (2, 0.0)


def test_spend_stays_when_a_budget_is_forgotten(store: Store) -> None:
    spent(store, "a", 1.0, 0.25)
    spent(store, "b", 1.0)
    store.delete_budget("p/r/usd_per_day")
    [one] = store.spend()
    assert (one.settled, one.reserved, one.unknown) == (0.25, 0.0, 1.0)  # no one can settle it any more


def test_a_month_is_a_period(store: Store) -> None:
    assert store.book(booking("a", 3, period="month"), booking("b", 3, period="month")) == [True, False]
    [one] = store.booked()
    assert datetime.fromtimestamp(one.period_start_ns / 1e9, UTC) == datetime.now(UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )


# leases


def test_a_lease_has_one_holder(store: Store) -> None:
    lease = store.acquire("monitor", "one", 60)
    assert lease is not None
    assert store.acquire("monitor", "two", 60) is None
    assert store.acquire("monitor", "one", 60) is not None
    assert not store.release("monitor", "two")
    assert (store.release("monitor", "one"), store.release("monitor", "one")) == (True, False)
    assert store.acquire("monitor", "two", 60) is not None


def test_a_lease_that_has_run_out_is_free(store: Store) -> None:
    store.acquire("monitor", "one", -1)
    assert store.acquire("monitor", "two", 60) is not None


def test_leases_that_are_held_are_listed_and_can_be_taken_away(store: Store) -> None:
    held = [store.acquire(name, "one", 60) for name in ("rules/b", "a")]
    store.acquire("gone", "one", -1)
    assert store.leases() == held[::-1]
    assert store.delete_lease("rules/b")
    assert not store.delete_lease("rules/b")
    assert not store.delete_lease("gone")
    assert store.acquire("rules/b", "two", 60) is not None


def test_tokens_rise_with_every_holder_and_stay_through_a_renewal(store: Store) -> None:
    def token(holder: str, seconds: float = 60) -> int:
        lease = store.acquire("monitor", holder, seconds)
        assert lease is not None
        return lease.token

    first = token("one")
    assert token("one") == first
    store.release("monitor", "one")
    tokens = [first, token("one")]
    store.delete_lease("monitor")
    tokens += [token("two", -1), token("two"), token("two")]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 4
