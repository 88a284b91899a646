"""What `/metrics` says of rules."""

from __future__ import annotations

import time

import pytest
from fastapi.testclient import TestClient

from collector.deciding import HOUR, ruled, traced
from collector.ruled import done, monitored, taken
from spanwise.collector.api import create_app
from spanwise.collector.prometheus_metrics import MAX_METRIC_RULES
from spanwise.collector.records import Booking, RuleSettings, Spender
from spanwise.collector.stores.sqlite import SQLiteStore


def metrics(store):
    with TestClient(create_app(store)) as client:
        return client.get("/metrics").text


def test_a_rule_has_its_queue_lag_and_evaluators(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        monitored(store)
        text = metrics(store)
    own = 'project="default",rule="short"'
    for line in (
        f'spanwise_rule_targets{{{own},verdict="waiting"}} 1.0',
        f'spanwise_rule_targets{{{own},verdict="sampled_out"}} 3.0',
        f"spanwise_rule_behind_changes{{{own}}} 5.0",
        f"spanwise_rule_rate{{{own}}} 1.0",
        f"spanwise_rule_workers{{{own}}} 1.0",
        "spanwise_monitor_finished_per_second 2.5",
        f'spanwise_rule_evaluator_failed{{{own},evaluator="concise"}} 1.0',
        f'spanwise_rule_evaluator_p95_seconds{{{own},evaluator="concise"}} 0.2',
    ):
        assert f"{line}\n" in text
    assert text.count("# TYPE spanwise_rule_targets gauge") == 1


def test_a_rule_has_the_weighted_means_of_the_last_day(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        now = time.time_ns()
        heads = [*traced(store, 20, start_ns=now), *traced(store, 20, start_ns=now - 48 * HOUR)]
        taken(store, "r", heads, rate=0.25)
        done(store, "r", *[("scored", number % 4 > 0) for number in range(40)])
        text = metrics(store)
    own = 'project="default",rule="r",key="concise"'
    for line in (
        f"spanwise_rule_score_mean{{{own}}} 0.75",
        f"spanwise_rule_score_effective{{{own}}} 20.0",
        f'spanwise_rule_score_outcomes{{{own},outcome="scored"}} 20.0',
        f'spanwise_rule_score_outcomes{{{own},outcome="left_out"}} 0.0',
    ):
        assert f"{line}\n" in text
    assert f"spanwise_rule_score_low{{{own}}} 0.5" in text


def test_what_is_spent(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store, name="short", settings=RuleSettings(budget={"usd_per_day": 5.0}))
        store.book(Booking(id="1", budget="default/short/usd_per_day", amount=0.5, limit=5.0))
        text = metrics(store)
    assert "spanwise_rule_usd" not in text
    own = 'project="default",rule="short",budget="usd_per_day"'
    assert f"spanwise_rule_budget{{{own}}} 5.0\n" in text
    assert f'spanwise_rule_spend{{{own},state="reserved"}} 0.5\n' in text


def test_spend_of_the_month_is_told_without_a_budget(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store, name="short")
        spender = Spender(project="default", rule="short", evaluator="polite", model="m")
        store.book(Booking(id="1", budget="default/short/usd", amount=0.5, limit=1e9, spender=spender))
        store.settle({"1": 0.25})
        text = metrics(store)
    own = 'project="default",rule="short"'
    assert f'spanwise_rule_usd{{{own},state="settled"}} 0.25\n' in text
    assert f'spanwise_rule_usd{{{own},state="unknown"}} 0.0\n' in text


@pytest.mark.process
def test_names_are_escaped_and_rules_bounded(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        for number in range(MAX_METRIC_RULES + 5):
            ruled(store, name=f'"\n{number:03}')
        text = metrics(store)
    assert text.count("\nspanwise_rule_rate{") == MAX_METRIC_RULES
    assert 'rule="\\"\\n000"' in text


def test_the_store_is_asked_once_in_a_while(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, TestClient(create_app(store)) as client:
        assert "spanwise_rule_rate{" not in client.get("/metrics").text
        ruled(store, name="late")
        assert "spanwise_rule_rate{" not in client.get("/metrics").text
