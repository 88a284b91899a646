"""The pages of alerts: list, one alert, and what people do there."""

import html
import re
import time
from dataclasses import replace

import pytest

from collector.alerting import BELOW, HOUR_NS, NOW, RULE, Traffic, shares
from spanwise.collector.records import Alert


def page(client, address):
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))


@pytest.fixture
def firing(store):
    store.save_rule(RULE)
    store.save_alert(BELOW, Alert(name="a/b", rule="support", measure="no_worker", fire_after=1))
    traffic = Traffic(store)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    for _ in range(3):
        traffic.look(1)
    return traffic


def test_without_alerts_the_page_says_how_to_define_one(client):
    text = page(client, "/alerts")
    assert "No alerts yet" in text
    assert "spanwise alerts check rules.py" in text


def test_the_list_shows_status_estimate_bound_and_threshold(firing, client):
    text = page(client, "/alerts")
    numbers = firing.groups[None].numbers if None in firing.groups else None
    assert re.search(
        r"grounded firing 0\.\d+ 0\.\d+ 0\.8 4\d\d mean of quality \(rule support\) below 0\.8 over 24 h", text
    )
    assert numbers is not None


def test_firing_groups_come_first(firing, client):
    firing.store.save_alert(replace(BELOW, name="aaa", below=0.1))
    firing.look(1)
    text = page(client, "/alerts")
    assert text.index("grounded") < text.index("aaa")


def test_the_page_of_an_alert_has_its_history(firing, client):
    text = page(client, "/alerts/grounded?project=default")
    assert "grounded fires: the mean of quality (rule support) is 0." in text
    assert "ok → firing" in text
    assert "no data → ok" in text


def test_an_alert_is_acknowledged_on_its_page(firing, client):
    answer = client.post("/alerts/grounded", data={"action": "acknowledge"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/alerts/grounded?project=default")
    assert "acknowledged by" in page(client, "/alerts/grounded")


def test_an_alert_is_snoozed_and_woken_on_its_page(firing, client):
    client.post("/alerts/grounded", data={"action": "snooze", "for": "4h"})
    alert = next(alert for alert in firing.store.alerts() if alert.name == "grounded")
    assert alert.snoozed_until_ns > time.time_ns()
    assert "snoozed until" in page(client, "/alerts/grounded")
    client.post("/alerts/grounded", data={"action": "wake"})
    assert "snoozed until" not in page(client, "/alerts/grounded")


def test_an_alert_whose_name_has_a_slash_is_paused_resumed_and_deleted(firing, client):
    client.post("/alerts/a/b", data={"action": "pause"})
    assert "paused" in page(client, "/alerts/a/b")
    client.post("/alerts/a/b", data={"action": "resume"})
    client.post("/alerts/a/b", data={"action": "delete"})
    assert [alert.name for alert in firing.store.alerts()] == ["grounded"]


def test_a_test_is_sent_from_the_page(firing, client):
    client.post("/alerts/grounded", data={"action": "test"})
    assert firing.notified[-1].status == "test"


@pytest.mark.parametrize(
    ("name", "fields", "status"),
    [
        ("grounded", {"action": "explode"}, 400),
        ("grounded", {"action": "snooze", "for": "soon"}, 400),
        ("none", {"action": "acknowledge"}, 404),
        ("none", {"action": "delete"}, 404),
        ("grounded", {"action": "acknowledge", "group": "x"}, 404),
    ],
)
def test_an_unknown_action_alert_or_group_is_refused(firing, client, name, fields, status):
    assert client.post(f"/alerts/{name}", data=fields).status_code == status


def test_markup_in_names_and_groups_is_escaped(store, client):
    store.save_rule(RULE)
    evil = '<img src=x onerror="alert(1)">'
    store.save_alert(replace(BELOW, name=evil, by="name"))
    traffic = Traffic(store)
    traffic.score(shares(0.5, 60), name=evil)
    traffic.look()
    for address in ("/alerts", "/alerts/%3Cimg%20src=x%20onerror=%22alert(1)%22%3E"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "<img" not in answer.text


def test_the_page_of_a_rule_shows_its_alerts_and_marks_the_charts(firing, client):
    [status] = [one for one in firing.store.status() if one.rule.name == RULE.name]
    address = firing.notified[0].links["Chart"].partition("#")[0]
    answer = client.get(address)
    assert answer.status_code == 200, status
    assert 'class="mark firing"' in answer.text
    assert re.search(r"grounded: firing, ", answer.text)
    assert re.search(r"Alerts:.*?grounded</a> <span class=\"state bad\">firing", answer.text, re.DOTALL)


@pytest.mark.parametrize("until", ["x", "-1", "9" * 20, "0"])
def test_the_end_of_a_rules_charts_is_a_time(firing, client, until):
    assert client.get(f"/rules/support?project=default&until={until}").status_code == 400
