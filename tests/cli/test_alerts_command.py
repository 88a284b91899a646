"""`spanwise alerts`, and the same by API and MCP."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from cli.mcp_clients import calling, failing, here, store_access
from collector.alerting import BELOW, HOUR_NS, NOW, RULE, Traffic, shares
from spanwise.cli.app import app
from spanwise.collector import connect
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

RULES = """
from spanwise.evaluators import alert
alert("strict", rule="support", key="quality", below=0.9)
alert("lenient", rule="support", key="quality", below=0.1)
alert("down", rule="support", measure="no_worker")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A store with an alert that fires."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(RULES)
    with SQLiteStore(tmp_path / "a.db") as store:
        store.save_rule(RULE)
        store.save_alert(BELOW)
        traffic = Traffic(store)
        traffic.score(shares(0.6), since_h=27, until_h=0, now=NOW)
        traffic.now = NOW - 3 * HOUR_NS
        for _ in range(3):
            traffic.look(1)
    return tmp_path / "a.db"


def run(file, *arguments):
    answer = CliRunner().invoke(app, ["alerts", *arguments, "--store", str(file)])
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_the_list_has_one_line_for_each_group(file):
    [row] = (json.loads(line) for line in run(file, "list", "--json").splitlines() if line[0] == "{")
    assert (row["name"], row["groups"][0]["status"]) == ("grounded", "firing")
    assert "firing" in run(file, "list")


def test_one_alert_is_shown_with_its_numbers_and_history(file):
    text = run(file, "show", "grounded")
    assert "grounded fires: the mean of quality (rule support) is 0." in text
    assert "ok → firing" in text


def test_alerts_of_a_file_are_checked_on_past_traffic(file):
    text = run(file, "check", "rules.py", "--days", "2")
    assert "strict: mean of quality (rule support) below 0.9 over 24 h, over the last 2 days" in text
    assert "would have fired once" in text
    assert "would have fired never" in text
    rows = [
        json.loads(line)
        for line in run(file, "check", "rules.py", "--days", "2", "--json").splitlines()
        if line[0] == "{"
    ]
    assert [(row["alert"], len(row["firings"])) for row in rows] == [("strict", 1), ("lenient", 0)]


def test_a_firing_alert_is_acknowledged_and_snoozed(file):
    assert "acknowledged: grounded fires" in run(file, "ack", "grounded")
    assert "grounded is snoozed until" in run(file, "snooze", "grounded", "--for", "4h")
    assert "acknowledged by" in run(file, "list", "--json") or "acknowledged" in run(file, "show", "grounded")
    assert "grounded is no longer snoozed" in run(file, "snooze", "grounded")


def test_a_test_is_queued_for_the_targets(file):
    assert "queued a test for ops" in run(file, "test", "grounded")
    with SQLiteStore(file) as store:
        assert store.notifications().items[0].notification.status == "test"


def test_an_unknown_alert_is_refused_with_a_remedy(file):
    answer = CliRunner().invoke(app, ["alerts", "show", "none", "--store", str(file)])
    assert answer.exit_code != 0
    assert "there is no alert 'none'; the alerts are: " in answer.output + str(answer.exception)


@pytest.mark.process
def test_the_api_has_the_same_operations(file):
    with SQLiteStore(file) as local, Server(local) as server, connect(server.url) as store:
        assert [alert.name for alert in store.alerts()] == ["grounded"]
        store.save_alert(replace(BELOW, name="other", below=0.5))
        assert {alert.name for alert in store.alerts()} == {"grounded", "other"}
        [group] = store.acknowledge_alert("grounded")
        assert group.is_acknowledged
        assert store.snooze_alert("grounded", until_ns=NOW + 24 * HOUR_NS).snoozed_until_ns == NOW + 24 * HOUR_NS
        assert store.change_alert("grounded", to=["x"]).to == ("x",)
        assert store.test_alert("grounded")
        assert [event.after for event in store.alert_events(alert="grounded")] == ["firing", "ok"]
        assert store.delete_alert("other")
        sums = store.measure_sums("latency_ms > 0", since_ns=NOW - 24 * HOUR_NS, until_ns=NOW, block_s=3600)
        assert sum(each.n for each in sums) == sum(each.total for each in sums) > 400


@pytest.mark.process
def test_agents_read_and_handle_alerts(file):
    places = store_access.StoreAccess(str(file))

    def ask(tool, **arguments):
        return here(places, calling(tool, **arguments), write=True)

    assert ask("list_alerts")["alerts"][0]["status"] == "firing"
    assert ask("show_alert", alert="grounded")["events"][0]["after"] == "firing"
    assert ask("check_alert", alert="grounded", threshold=0.1, days=2)["firings"] == []
    assert ask("acknowledge_alert", alert="grounded")["acknowledged"] == 1
    assert ask("list_alerts")["alerts"][0]["acknowledged"]
    assert ask("snooze_alert", alert="grounded", duration="4h")["snoozed_until"]
    assert ask("send_test_alert", alert="grounded")["targets"] == ["ops"]


@pytest.mark.process
def test_agents_without_write_access_only_read_alerts(file):
    places = store_access.StoreAccess(str(file))
    assert "Unknown tool" in here(places, failing("acknowledge_alert", alert="grounded"))
