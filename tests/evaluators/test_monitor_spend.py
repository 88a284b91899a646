"""What rules spend on judge calls, per evaluator and model: told from the first call on, and right across a kill."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evaluators.judge_server import Reply, completion, serving
from evaluators.test_monitor_supervised import supervised, until
from evaluators.watched import decisions, rule, watching, whole
from spanwise.collector.records import Booking
from spanwise.collector.rule_policy import find_period
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Judge, judge
from spanwise.evaluators.monitors.rule_spending import PacedBudget, Pacer, budget_name

VERDICT = {"rationale": "short", "rating": "yes"}
DAY_S, MONTH_S = 86_400.0, 30 * 86_400.0


def answer(tokens: int = 10, **fields: Any) -> Reply:
    return Reply(body=completion(json.dumps(VERDICT), usage=(tokens, 0)), **fields)


def asking(key: str, url: str, model: str = "m", price: Any = (1_000.0, 0.0)) -> Any:
    asked = Judge(model=model, base_url=url, api_key="k", price=price, cache=False, max_tokens=10)
    return judge(key, "Is it " + key + "?\n{outputs}", scale=("yes", "no"), judge=asked)


def spends(store: Store) -> dict[tuple[str | None, str | None], float]:
    return {(one.evaluator, one.model): one.settled for one in store.spend(by=("evaluator", "model"))}


@pytest.mark.parametrize("budget", [{}, {"calls_per_day": 100}, {"usd_per_month": 9.0, "usd_per_day": 9.0}])
def test_each_evaluator_and_model_has_its_spend(store: Store, budget: dict[str, float]) -> None:
    with serving(lambda request: answer()) as server:
        made = [asking("polite", server.url), asking("kind", server.url, model="large", price=(2_000.0, 0.0))]
        with watching(store, rule(evaluators=made, budget=budget, pace=False)) as monitor:
            monitor.step()
            store.append([whole(1, outputs="one"), whole(2, outputs="two")])  # equal calls at once would share a reply
            monitor.step()
    assert spends(store) == {("polite", "m"): pytest.approx(0.02), ("kind", "large"): pytest.approx(0.04)}
    [one] = store.spend(by=("project", "rule"))
    assert (one.project, one.rule, one.reserved, one.unknown) == ("default", "r", 0.0, 0.0)
    for key in budget:
        [booked] = store.booked(budget_name("default", "r", key))
        assert booked.settled == (4.0 if key == "calls_per_day" else pytest.approx(0.06))


def test_a_model_of_unknown_price_is_told(store: Store) -> None:
    with (
        serving(lambda request: answer()) as server,
        watching(store, rule(evaluators=[asking("polite", server.url, model="x-unknown", price=None)])) as monitor,
    ):
        monitor.step()
        store.append([whole(1)])
        monitor.step()
    [one] = store.spend(by=("model",))
    assert (one.model, one.settled, one.unpriced) == ("x-unknown", 0.0, 1)


def test_free_evaluators_spend_nothing(store: Store) -> None:
    with watching(store, rule()) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
    assert store.spend() == []
    assert store.booked() == []


@pytest.mark.process
def test_a_connection_that_breaks_is_of_unknown_cost_also_after_its_booking_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving([Reply(body=VERDICT, cut=5), answer()]) as server,
        watching(store, rule(evaluators=[asking("polite", server.url)])) as monitor,
    ):
        monitor.step()
        store.append([whole(1)])
        monitor.step()
    bookings = "spanwise.collector.stores.control.budgets"
    [first] = store.spend()
    assert (first.settled, first.unknown) == (pytest.approx(0.01), 0.0)
    monkeypatch.setattr(f"{bookings}.UNKNOWN_AFTER_NS", 0)  # a minute later
    [later] = store.spend()
    assert (later.reserved, later.unknown) == (0.0, first.reserved)
    monkeypatch.setattr(f"{bookings}.BOOKING_LIFETIME_NS", 0)  # two days later
    store.book(Booking(id="later", budget="other", amount=0.0, limit=1.0))  # deletes old bookings
    monkeypatch.undo()
    [own] = store.booked(budget_name("default", "r", "usd"))
    assert (store.spend(), own.unknown) == ([later], first.reserved)


PAID = """
from spanwise.evaluators import Judge, judge
asked = Judge(model="m", base_url={url!r}, api_key="k", price=(1_000.0, 0.0), cache=False, max_tokens=10)
polite = judge("polite", "Is it polite?\\n{{outputs}}", scale=("yes", "no"), judge=asked)
monitor("paid", evaluators=[polite], budget={{"usd_per_day": 50.0}}, pace=False, concurrency=4)
"""


@pytest.mark.slow
def test_settled_spend_equals_the_settled_bookings_across_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed with calls under way: they stay as cost unknown, and every other cent is settled once."""
    slow = [4]  # calls of the killed worker that are still under way

    def reply(request: Any) -> Any:
        if slow[0]:
            slow[0] -= 1
            return answer(delay=3.0)
        return answer(tokens=7)

    file = tmp_path / "store.db"
    with SQLiteStore(file) as store, Server(store) as server, serving(reply) as asked:
        with supervised(tmp_path, server.url, more=PAID.format(url=asked.url)) as monitor:
            (worker,) = monitor.running()
            store.append([whole(number) for number in range(1, 21)])
            until(lambda: slow[0] == 0)
            worker.kill()
            until(lambda: len([one for one in decisions(store, rule="paid") if one.verdict == "scored"]) == 20)
            until(lambda: all(one.states for one in decisions(store, rule="paid", verdict="scored")))
        monkeypatch.setattr("spanwise.collector.stores.control.budgets.UNKNOWN_AFTER_NS", 0)
        [spend] = store.spend(by=("project", "rule"))
        [budget] = store.booked(budget_name("default", "paid", "usd_per_day"))
    with closing(sqlite3.connect(file)) as db:
        settled, lost = db.execute(
            "SELECT sum(settled), sum(CASE WHEN settled IS NULL THEN amount ELSE 0 END) FROM bookings"
        ).fetchone()
    assert (spend.project, spend.rule) == ("default", "paid")
    assert round(spend.settled, 2) == round(settled, 2) == round(budget.settled, 2) == round(20 * 0.007, 2)
    assert spend.unknown == pytest.approx(lost) == pytest.approx(budget.unknown)
    assert spend.unknown > 0


def of_month(spent: float, limit: float) -> PacedBudget:
    return PacedBudget(spent, limit, 0.0, MONTH_S)


def of_day(now: float, spent: float, limit: float) -> PacedBudget:
    start = now // DAY_S * DAY_S
    return PacedBudget(spent, limit, start, start + DAY_S)


def test_a_months_money_lasts_the_month() -> None:
    pacer, spent, at_half = Pacer(None), 0.0, 0.0
    for step in range(int(MONTH_S / 60)):
        spent = min(300.0, spent + 0.05 * pacer.factor)  # ten times what there is
        pacer.update(step * 60.0, of_month(spent, 300.0))
        at_half = spent if step * 60.0 <= MONTH_S / 2 else at_half
    assert spent == pytest.approx(300.0, rel=0.1)
    assert at_half == pytest.approx(150.0, rel=0.2)


@pytest.mark.parametrize(
    ("day", "month", "by_noon"), [(1e6, 1e6, 72.0), (14.4, 1e6, 7.2), (1e6, 144.0, 2.4), (14.4, 144.0, 2.4)]
)
def test_of_a_day_and_a_month_the_stricter_budget_paces(day: float, month: float, by_noon: float) -> None:
    pacer, spent = Pacer(None), 0.0
    for minute in range(720):
        spent += 0.1 * pacer.factor  # unpaced $144 a day
        pacer.update(60.0 * minute, of_day(60.0 * minute, spent, day), of_month(spent, month))
    assert spent == pytest.approx(by_noon, rel=0.25)


@pytest.mark.parametrize(
    ("now", "start", "end"),
    [
        ("2026-02-28T23:59:59", "2026-02-01", "2026-03-01"),
        ("2028-02-29T00:00:00", "2028-02-01", "2028-03-01"),
        ("2026-12-31T23:59:59", "2026-12-01", "2027-01-01"),
        ("2026-01-31T12:00:00", "2026-01-01", "2026-02-01"),
    ],
)
def test_a_month_ends_where_the_calendar_says(now: str, start: str, end: str) -> None:
    def ns(text: str) -> int:
        return int(time.mktime(time.strptime(text[:10], "%Y-%m-%d")) - time.timezone) * 10**9

    at = ns(now) + sum(int(part) * unit for part, unit in zip(now[11:].split(":"), (3600, 60, 1), strict=True)) * 10**9
    assert find_period("month", at) == (ns(start), ns(end))


def test_a_months_budget_that_is_used_up_is_told(store: Store) -> None:
    with serving(lambda request: answer()) as server:
        made = rule(evaluators=[asking("polite", server.url)], budget={"usd_per_month": 0.001}, pace=False)
        with watching(store, made) as monitor:
            monitor.step()
            store.append([whole(1)])
            monitor.step()
        assert server.requests == []
    [one] = decisions(store, verdict="over_budget")
    assert "usd_per_month=0.001" in one.reason
