"""The page of what rules spend, and the part of it on the page of a rule."""

from __future__ import annotations

import html
import re

import pytest

from collector.deciding import ruled
from spanwise.collector.records import Booking, RuleSettings, Spender

DAY = 86_400_000_000_000


def page(client, address):
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))


def call(store, id, amount, actual=None, rule="short", project="default", **spender):
    by = {"evaluator": "polite", "model": "m", **spender}
    store.book(
        Booking(
            id=id,
            budget=f"{project}/{rule}/usd_per_day",
            amount=amount,
            limit=1e9,
            spender=Spender(project=project, rule=rule, **by),
        )
    )
    if actual is not None:
        store.settle({id: actual})


@pytest.fixture
def spent(store):
    ruled(store, name="short", settings=RuleSettings(budget={"usd_per_day": 5.0, "usd_per_month": 90.0}))
    call(store, "a", 1.0, 0.75)
    call(store, "b", 2.0)
    call(store, "c", 1.0, 0.5, rule="other", evaluator="kind", model="large")
    call(store, "d", 1.0, 0.25, project="q")


def test_settled_reserved_and_unknown_are_apart(store, client, spent, monkeypatch):
    text = page(client, "/spend")
    assert "settled $1.50 reserved $2.00 cost unknown $0.00" in text
    assert "short default $0.75 $2.00 $0.00 $2.75" in text
    monkeypatch.setattr("spanwise.collector.stores.control.budgets.UNKNOWN_AFTER_NS", 0)
    text = page(client, "/spend")
    assert "settled $1.50 reserved $0.00 cost unknown $2.00" in text
    assert "$2.75 of $5.00 per day, $2.00 of it cost unknown" in text
    assert "$0.00 of $90.00 per month" in text


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("evaluator", ["polite $1.00 $2.00 $0.00 $3.00", "kind $0.50 $0.00 $0.00 $0.50"]),
        ("model", ["m $1.00 $2.00 $0.00 $3.00", "large $0.50 $0.00 $0.00 $0.50"]),
        ("project", ["default $1.25 $2.00 $0.00 $3.25", "q $0.25 $0.00 $0.00 $0.25"]),
    ],
)
@pytest.mark.parametrize("since", ["24h", "7d", "90d", "365d"])
def test_spend_is_grouped(client, spent, by, rows, since):
    text = page(client, f"/spend?by={by}&since={since}")
    for row in rows:
        assert row in text


def test_one_rule_or_project(client, spent):
    assert "other default" not in page(client, "/spend?rule=short")
    text = page(client, "/spend?project=q")
    assert "settled $0.25" in text
    assert "short q $0.25" in text


def test_a_rule_shows_its_spend_by_evaluator_and_model(client, spent):
    text = page(client, "/rules/short?project=default")
    assert "polite m $0.75 $2.00 $0.00 $2.75" in text
    assert "$2.75 of $5.00 per day" in text
    assert "kind" not in text


def test_without_spend_it_says_so(store, client):
    assert "No spend in this time" in page(client, "/spend")
    ruled(store, name="short")
    assert "Spend on judge calls" not in page(client, "/rules/short?project=default")


def test_calls_of_unknown_price_are_told(store, client):
    call(store, "a", 0.0, 0.0, model="", priced=False)
    text = page(client, "/spend?by=model")
    assert "custom judge $0.00 $0.00 $0.00 $0.00 1 call of unknown price" in text


@pytest.mark.parametrize("address", ["/spend?by=planet", "/spend?since=1s"])
def test_unknown_values_are_refused(client, address):
    assert client.get(address).status_code == 400


def test_names_are_hostile_text(store, client):
    call(store, "a", 1.0, 0.5, rule="<b>r", project="<i>p", evaluator="<u>e", model="<s>m")
    for by in ("rule", "evaluator", "model", "project"):
        source = client.get(f"/spend?by={by}").text
        assert not re.search("<b>r|<i>p|<u>e|<s>m", source)
