"""Alerts in a store: definitions, looks at real scores, changes of status, groups, acknowledgement and snoozing."""

import time
from dataclasses import replace

import pytest

from collector.alerting import BELOW, DROP, HOUR_NS, NOW, RULE, Traffic, shares
from collector.scoring import KEY, make_run
from spanwise.collector.alerts import AlertRunner, check_alert
from spanwise.collector.errors import Forbidden, NotFound, Refused
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.records import Alert, Feedback, Target
from spanwise.collector.stores import summarize_rule
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def traffic(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        store.save_rule(RULE)
        yield Traffic(store)


def test_a_mean_that_is_surely_below_the_threshold_fires_after_three_looks(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.looks(1, 0)
    assert traffic.status == "ok"
    traffic.looks(2)
    assert traffic.status == "firing"
    assert traffic.history == [("no data", "ok"), ("ok", "firing")]


def test_a_mean_that_may_be_above_the_threshold_does_not_fire(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.78), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.looks(4)
    numbers = traffic.groups[None].numbers
    assert numbers.value < 0.8 < numbers.bound
    assert traffic.history == [("no data", "ok")]


def test_a_firing_alert_is_resolved_after_three_looks_without_a_breach(traffic):
    traffic.store.save_alert(replace(BELOW, window_s=3600.0))
    traffic.score(shares(0.5, 200), since_h=2, now=NOW + HOUR_NS)
    for _ in range(3):
        traffic.look(1 / 24)
    assert traffic.status == "firing"
    traffic.score(shares(1.0, 400), since_h=2, now=NOW + 3 * HOUR_NS)
    traffic.now = NOW + 2 * HOUR_NS
    statuses = []
    for _ in range(4):
        traffic.look(1 / 24)
        statuses.append(traffic.status)
    assert statuses == ["firing", "firing", "resolved", "ok"]
    assert [(one.status, one.alert) for one in traffic.notified] == [("firing", "grounded"), ("resolved", "grounded")]


def test_ten_scores_a_day_are_no_data_and_the_alert_says_what_would_do(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.1, 10))
    traffic.looks(1, 0)
    assert traffic.status == "no data"
    assert (
        traffic.groups[None].numbers.missing
        == "effective n 10 of 30 in the window: at this rate a window of 4 days would do"
    )


def test_a_look_without_data_never_resolves_a_firing_alert(traffic):
    traffic.store.save_alert(replace(BELOW, window_s=3600.0))
    traffic.score(shares(0.5, 200), since_h=2, now=NOW + HOUR_NS)
    for _ in range(3):
        traffic.look(1 / 24)
    traffic.now += 5 * HOUR_NS
    for _ in range(5):
        traffic.look(1 / 24)
    assert traffic.status == "firing"
    assert traffic.groups[None].numbers.missing == "no scores in the window"


def test_no_data_is_notified_after_the_time_that_the_alert_names(traffic):
    traffic.store.save_alert(replace(BELOW, no_data_s=7200.0))
    traffic.looks(1, 0)
    assert traffic.notified == []
    traffic.looks(4)
    assert [one.status for one in traffic.notified] == ["no data"]


def test_the_estimate_is_that_of_the_summary_over_the_same_span(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.5, 60), probability=1.0, session_id=lambda place: f"s{place // 3}")
    traffic.score(shares(0.9, 60), probability=0.1)
    traffic.looks(1, 0)
    [mean] = summarize_rule(traffic.store, RULE, since_ns=NOW - 24 * HOUR_NS, until_ns=NOW)
    numbers = traffic.groups[None].numbers
    assert (numbers.value, numbers.effective_n) == pytest.approx((mean.mean, mean.effective))


def test_scores_with_an_unknown_probability_are_no_data(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.1, 100), probability=None)
    traffic.looks(1, 0)
    assert traffic.groups[None].numbers.missing.startswith("all 100 scores have an unknown sampling probability")


def test_an_edited_alert_closes_what_fired_and_starts_without_data(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.looks(3)
    traffic.store.save_alert(replace(BELOW, below=0.5))
    assert traffic.groups == {}
    assert traffic.history[-1] == ("firing", "closed")
    assert traffic.store.alert_events().items[0].reason == "the alert was edited"
    assert [one.status for one in traffic.notified] == ["firing", "closed"]
    traffic.looks(1)
    assert traffic.history[-1] == ("no data", "ok")


def test_a_change_of_targets_keeps_the_state(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.looks(3)
    traffic.store.save_alert(replace(BELOW, to=("pager",), repeat_s=60.0))
    assert traffic.status == "firing"


def test_a_deleted_alert_closes_what_fired(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.looks(3)
    assert traffic.store.delete_alert("grounded")
    assert (traffic.groups, traffic.history[-1]) == ({}, ("firing", "closed"))
    assert traffic.look(1) == 0


def test_an_alert_that_left_its_file_is_deleted(traffic):
    traffic.store.save_alert(BELOW, DROP, owner="rules.py")
    traffic.store.save_alert(DROP, owner="rules.py")
    assert [alert.name for alert in traffic.store.alerts()] == ["fall"]
    with pytest.raises(Refused, match=r"belongs to 'rules\.py', not to 'api'"):
        traffic.store.save_alert(DROP)


def test_a_look_waits_ten_minutes_for_decisions_and_then_says_how_many_are_missing(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.5))
    traffic.store.append([make_run(9_999, NOW - HOUR_NS)])  # changes at the present time, before the next look
    traffic.now = traffic.store.changes(limit=1).now_ns // HOUR_NS * HOUR_NS + HOUR_NS
    assert traffic.look() == 0
    assert traffic.look(0.1) == 0
    assert traffic.look(0.1) == 1
    assert traffic.groups[None].numbers.undecided == 1


def test_groups_have_their_own_states(traffic):
    traffic.store.save_alert(replace(BELOW, by="name"))
    options = {"since_h": 28, "now": NOW + 4 * HOUR_NS}
    traffic.score(shares(0.5), name="answer", **options)
    traffic.score(shares(0.95), name="search", **options)
    traffic.score(shares(0.1, 12), name="rare", **options)
    traffic.looks(3)
    assert {name: group.status for name, group in traffic.groups.items()} == {
        "answer": "firing",
        "search": "ok",
        "rare": "no data",
    }


def test_a_group_appears_with_its_first_trace_and_goes_with_its_last(traffic):
    traffic.store.save_alert(replace(BELOW, by="model", window_s=3600.0))
    traffic.looks(1, 0)
    assert traffic.groups == {}
    traffic.score([1], since_h=1, model="new", kind="llm")
    traffic.looks(1, 1 / 24)
    assert traffic.groups["new"].status == "no data"
    traffic.looks(1, 2)
    assert traffic.groups == {}


def test_groups_beyond_the_hundred_with_the_most_traffic_are_counted_and_named(traffic):
    traffic.store.save_alert(replace(BELOW, by="user"))
    traffic.score([1] * 306, user_id=lambda place: f"u{place % 102:03}" if place < 300 else "u000")
    traffic.looks(1, 0)
    [alert] = traffic.store.alerts()
    assert len(traffic.groups) == 100
    assert (alert.left_out_groups, alert.left_out_names) == (2, ("u100", "u101"))


def test_more_groups_need_more_certainty(traffic):
    traffic.store.save_alert(replace(BELOW, by="user"))
    traffic.score(shares(0.7, 300), user_id="one")
    traffic.looks(1, 0)
    alone = traffic.groups["one"].numbers.bound
    for number in range(9):
        traffic.score(shares(0.9, 60), user_id=f"other{number}")
    traffic.now += 150_000_000_000
    traffic.store.save_alert(replace(BELOW, by="user", fire_after=2))  # a new version, so that there is a look now
    traffic.looks(1, 0)
    assert traffic.groups["one"].numbers.bound > alone


def test_a_drop_is_found_against_the_seven_days_before(traffic):
    traffic.store.save_alert(DROP)
    traffic.score(shares(0.95, 1700), since_h=8 * 24, until_h=24)
    traffic.score(shares(0.7), since_h=24)
    traffic.looks(1, 0)
    numbers = traffic.groups[None].numbers
    assert numbers.baseline == pytest.approx(0.95, abs=0.01)
    assert numbers.is_breach


def test_the_baseline_does_not_move_while_the_alert_fires(traffic):
    traffic.store.save_alert(DROP)
    traffic.score(shares(0.95, 1700), since_h=8 * 24, until_h=24)
    traffic.score(shares(0.7, 1800), since_h=24, until_h=-4 * 24)
    traffic.looks(3)
    assert traffic.status == "firing"
    before = traffic.groups[None].numbers.baseline
    traffic.looks(48)
    assert traffic.groups[None].numbers.baseline == pytest.approx(before)
    assert traffic.status == "firing"


def test_the_share_of_a_label_is_alerted(traffic):
    traffic.store.save_alert(replace(BELOW, below=None, above=0.3, label="rude"))
    labels = ["rude" if place % 2 else "polite" for place in range(300)]
    traffic.score(labels)
    traffic.looks(1, 0)
    numbers = traffic.groups[None].numbers
    assert (numbers.value, numbers.is_breach) == (pytest.approx(0.5), True)


def test_the_share_of_slow_traces_is_alerted(traffic):
    slow = Alert(name="slow", measure="latency_ms > 8000", above=0.05, window_s=3600.0, filter={"name": "answer"})
    traffic.store.save_alert(slow)
    runs = [
        make_run(
            n,
            NOW - HOUR_NS + n * 7_000_000_000,
            end_ns=NOW - HOUR_NS + n * 7_000_000_000 + (9 if n % 4 == 0 else 1) * 10**9,
        )
        for n in range(500)
    ]
    traffic.store.append([*runs, *(make_run(n, NOW - HOUR_NS // 2, name="other") for n in range(1000, 2000))])
    traffic.looks(1, 0)
    numbers = traffic.groups[None].numbers
    assert (numbers.n, numbers.value, numbers.is_breach) == (500, 0.25, True)


def test_a_rule_without_scores_for_an_hour_is_silent(traffic):
    silence = Alert(name="silent", rule="support", no_score_for_s=3600.0, fire_after=1, resolve_after=1)
    traffic.store.save_alert(silence)
    traffic.now = time.time_ns()
    traffic.look()
    assert traffic.groups[None].numbers.missing == "rule 'support' has never given a score"
    traffic.score([1], since_h=1)
    traffic.look(1 / 60)
    assert traffic.status == "ok"
    traffic.look(1.1)
    assert traffic.status == "firing"
    traffic.look(1 / 60)
    assert traffic.status == "firing"


def test_an_alert_without_a_worker_for_its_rule_fires(traffic):
    traffic.store.save_alert(Alert(name="dead", rule="support", measure="no_worker", fire_after=1))
    traffic.looks(1, 0)
    assert (traffic.status, traffic.groups[None].numbers.value) == ("firing", 1.0)


def test_an_acknowledged_alert_is_not_notified_again(traffic):
    traffic.store.save_alert(replace(BELOW, repeat_s=3600.0))
    traffic.score(shares(0.6), since_h=28, now=NOW + 8 * HOUR_NS)
    traffic.looks(4)
    assert [one.status for one in traffic.notified] == ["firing", "firing"]
    assert len({one.id for one in traffic.notified}) == 2
    [group] = traffic.store.acknowledge_alert("grounded")
    assert group.is_acknowledged
    assert group.acknowledged_by
    traffic.looks(2)
    assert len(traffic.notified) == 2
    assert traffic.groups[None].is_acknowledged


def test_what_does_not_fire_cannot_be_acknowledged(traffic):
    traffic.store.save_alert(BELOW)
    with pytest.raises(Refused, match="alert 'grounded' does not fire; nothing to acknowledge"):
        traffic.store.acknowledge_alert("grounded")
    with pytest.raises(NotFound, match="there is no alert 'x'"):
        traffic.store.acknowledge_alert("x")


def test_a_snoozed_alert_is_notified_after_the_snooze_if_it_still_fires(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=32, now=NOW + 8 * HOUR_NS)
    alert = traffic.store.snooze_alert("grounded", until_ns=NOW + 5 * HOUR_NS)
    assert alert.snoozed_until_ns == NOW + 5 * HOUR_NS
    traffic.looks(4)
    assert (traffic.status, traffic.notified) == ("firing", [])
    traffic.looks(1)
    assert [one.status for one in traffic.notified] == ["firing"]


def test_one_group_can_be_snoozed(traffic):
    traffic.store.save_alert(replace(BELOW, by="name"))
    options = {"since_h": 28, "now": NOW + 4 * HOUR_NS}
    traffic.score(shares(0.5), name="answer", **options)
    traffic.score(shares(0.5), name="search", **options)
    traffic.looks(1)
    traffic.store.snooze_alert("grounded", group="answer", until_ns=NOW + 99 * HOUR_NS)
    traffic.looks(3)
    assert [(one.group, one.status) for one in traffic.notified] == [("search", "firing")]


def test_a_notification_links_to_the_chart_and_to_the_traces_that_moved_the_estimate_most(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.score([0], since_h=4, probability=0.2)
    heavy = f"{traffic.numbers:032x}"
    traffic.looks(3)
    [notification] = traffic.notified
    assert notification.links["Trace 1"] == f"/traces/{heavy}"
    assert len(notification.links) == 12
    assert notification.links["Chart"].startswith("/rules/support?project=default&range=24h&until=")
    assert notification.facts["condition"] == "below 0.8 over 24 h"


def test_a_look_is_stored_once_and_not_after_a_newer_lease(traffic):
    traffic.store.save_alert(BELOW)
    stored = []
    record = traffic.store.record_look

    class Recording:
        def __getattr__(self, name):
            return (lambda result: not stored.append(result)) if name == "record_look" else getattr(traffic.store, name)

    AlertRunner(Recording(), now=lambda: NOW).step()
    [result] = stored
    assert record(result)
    assert not record(result)
    assert not record(replace(result, looked_ns=NOW + HOUR_NS, now_ns=NOW + HOUR_NS, token=result.token - 1))
    assert not record(replace(result, looked_ns=NOW + HOUR_NS, now_ns=NOW + HOUR_NS, version="other"))


def test_only_the_holder_of_the_lease_looks(traffic):
    traffic.store.save_alert(BELOW)
    assert traffic.look() == 1
    assert AlertRunner(traffic.store, now=lambda: NOW + HOUR_NS).step() == 0


def test_looks_go_on_after_the_clock_was_set_back(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.95))
    assert traffic.look(30 * 24) == 1
    assert traffic.status == "no data"
    traffic.now = NOW
    assert traffic.look() == 1
    assert traffic.status == "ok"


def test_alerts_of_other_projects_read_their_own_scores(traffic):
    other = replace(RULE, project="other")
    traffic.store.save_rule(other)
    traffic.store.save_alert(BELOW, replace(BELOW, project="other"))
    traffic.score(shares(0.5), project="default")
    traffic.score(shares(1.0), rule=other, project="other")
    assert traffic.look() == 2
    values = {group.project: group.numbers.value for group in traffic.store.alert_groups()}
    assert values == {"default": pytest.approx(0.5), "other": pytest.approx(1.0)}


def test_a_paused_alert_has_no_looks(traffic):
    traffic.store.save_alert(BELOW, owner="rules.py")
    traffic.store.change_alert("grounded", enabled=False)
    traffic.store.save_alert(BELOW, owner="rules.py")
    assert traffic.look() == 0
    traffic.store.change_alert("grounded", enabled=True)
    assert traffic.look() == 1


def test_a_test_notification_goes_to_the_targets(traffic):
    traffic.store.save_alert(BELOW, DROP)
    traffic.store.test_alert("grounded")
    [notification] = traffic.notified
    assert (notification.status, notification.targets) == ("test", ("ops",))
    with pytest.raises(Refused, match="alert 'fall' has no targets"):
        traffic.store.test_alert("fall")


def test_a_check_says_when_an_alert_would_have_fired(traffic):
    traffic.score(shares(0.95, 40 * 24), since_h=60, until_h=20)
    traffic.score(shares(0.5, 20 * 24), since_h=20)
    found = check_alert(traffic.store, BELOW, until_ns=NOW, days=2)
    [firing] = found.firings
    assert NOW - 17 * HOUR_NS <= firing.since_ns <= NOW - HOUR_NS
    assert (firing.until_ns, found.looks) == (None, 49)
    traffic.store.save_alert(BELOW)
    traffic.now = firing.since_ns - 3 * HOUR_NS
    traffic.looks(3)
    assert traffic.groups[None].changed_ns == firing.since_ns


def test_a_check_says_how_long_the_alert_would_have_had_no_data(traffic):
    traffic.score(shares(0.95, 24 * 40), since_h=24)
    found = check_alert(traffic.store, BELOW, until_ns=NOW, days=2)
    assert 0.5 < found.share_without_data < 0.85
    assert found.firings == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"below": None}, "exactly one of below, above, drop and no_score_for; got 0"),
        ({"above": 0.9}, "exactly one of below, above, drop and no_score_for; got 2"),
        ({"window_s": 5000.0}, "window must be a whole number of hours from 1 h to 7 d, got 5000 seconds"),
        ({"key": None}, "name the key of the scores of rule 'support'"),
        ({"rule": None}, "name the rule whose scores it reads, or a measure"),
        ({"by": "colour"}, "unknown field 'colour' in by"),
        ({"measure": "latency > 3", "rule": None, "key": None}, "unknown measure 'latency > 3'"),
        ({"measure": "no_worker", "key": None}, "the measure 'no_worker' is true or false; remove below"),
        ({"below": float("nan")}, "below must be a finite number, got nan"),
        ({"fire_after": 0}, "fire_after must be at least 1 look, got 0"),
        ({"filter": {"name": "x"}}, "only measures of traces have a filter"),
        ({"sure": 1.0}, "sure must be a probability above 0.5 and at most 0.999999, got 1.0"),
        ({"name": " "}, "the name must be a text of 1 to 200 printable characters"),
    ],
)
def test_an_invalid_definition_is_refused_with_the_reason(traffic, changes, message):
    with pytest.raises(Refused, match=message):
        traffic.store.save_alert(replace(BELOW, **changes))
    assert traffic.store.alerts() == []


def test_an_alert_on_a_deleted_rule_has_no_data_and_says_why(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.looks(3)
    traffic.store.delete_rule("support")
    traffic.looks(1)
    assert (traffic.status, traffic.groups[None].numbers.missing) == (
        "firing",
        "there is no rule 'support' in project 'default'",
    )


def test_an_edited_rule_starts_without_data_and_what_fires_goes_on(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.6), since_h=28, now=NOW + 4 * HOUR_NS)
    traffic.looks(3)
    new = replace(RULE, version="2")
    traffic.store.save_rule(new)
    traffic.looks(1)
    assert (traffic.status, traffic.groups[None].numbers.missing) == ("firing", "no scores in the window")
    traffic.score(shares(1.0), rule=new, since_h=28, now=NOW + 8 * HOUR_NS)
    traffic.looks(4)
    assert traffic.history[-2:] == [("firing", "resolved"), ("resolved", "ok")]


@pytest.mark.process
def test_ten_thousand_groups_are_looked_at_like_a_hundred(traffic):
    traffic.store.save_alert(replace(BELOW, by="user"))
    traffic.score([1] * 10_000, user_id=lambda place: f"u{place}")
    traffic.score([0] * 40, user_id="busy")
    traffic.looks(1, 0)
    [alert] = traffic.store.alerts()
    assert (len(traffic.groups), alert.left_out_groups, len(alert.left_out_names)) == (100, 9_901, 20)
    assert traffic.groups["busy"].numbers.n == 40


def test_the_share_of_a_label_that_nothing_has_is_zero(traffic):
    traffic.store.save_alert(
        replace(BELOW, name="bad", below=None, above=0.3, label="bad"), replace(BELOW, name="good", label="good")
    )
    traffic.score(["fine"] * 300)
    assert traffic.look() == 2
    numbers = {group.alert: group.numbers for group in traffic.store.alert_groups()}
    assert (numbers["bad"].value, numbers["bad"].is_breach) == (0.0, False)
    assert (numbers["good"].value, numbers["good"].is_breach) == (0.0, True)


def test_a_decision_that_stays_open_delays_only_the_first_look_of_a_short_window(traffic):
    traffic.store.save_alert(replace(BELOW, window_s=3600.0))
    traffic.store.append([make_run(9_999, NOW - HOUR_NS)])
    start = traffic.store.changes(limit=1).now_ns // HOUR_NS * HOUR_NS + HOUR_NS
    traffic.now = start
    assert [traffic.look(1 / 24) for _ in range(10)] == [0] * 4 + [1] * 6 or sum(
        traffic.look(1 / 24) for _ in range(10)
    ) == 10


def test_an_alert_that_raises_does_not_stop_the_others(traffic, monkeypatch):
    traffic.store.save_alert(replace(BELOW, name="a"), replace(BELOW, name="b"))
    score_sums = traffic.store.score_sums
    calls = []

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("no")
        return score_sums(*args, **options)

    monkeypatch.setattr(traffic.store, "score_sums", failing)
    assert traffic.look() == 1


def test_the_baseline_outlives_its_traces(traffic):
    traffic.store.save_alert(DROP)
    traffic.score(shares(0.95, 1700), since_h=8 * 24, until_h=24)
    old = traffic.numbers
    traffic.score(shares(0.7, 600), since_h=24, until_h=-5)
    traffic.looks(3)
    assert traffic.status == "firing"
    traffic.store.delete(trace_ids=tuple(f"{number:032x}" for number in range(1, 501)))
    for first in range(501, old + 1, 500):
        traffic.store.delete(trace_ids=tuple(f"{number:032x}" for number in range(first, min(first + 500, old + 1))))
    traffic.score(shares(0.95, 960), since_h=0, until_h=-48, now=traffic.now)
    traffic.looks(40)
    assert ("firing", "resolved") in traffic.history


def test_a_drop_that_fires_is_closed_if_its_rule_is_edited(traffic):
    traffic.store.save_alert(replace(DROP, to=("ops",)))
    traffic.score(shares(0.95, 1700), since_h=8 * 24, until_h=24)
    traffic.score(shares(0.7, 600), since_h=24, until_h=-5)
    traffic.looks(3)
    traffic.store.save_rule(replace(RULE, version="2"))
    traffic.looks(1)
    assert traffic.status == "no data"
    assert traffic.history[-1] == ("firing", "closed")
    assert traffic.store.alert_events().items[0].reason.startswith("rule support was edited")
    assert [one.status for one in traffic.notified] == ["firing", "closed"]


def test_groups_that_vanish_are_notified_as_without_data(traffic):
    traffic.store.save_alert(replace(BELOW, by="name", window_s=3600.0, no_data_s=6 * 3600.0))
    traffic.score(shares(0.95, 120), since_h=1, name="answer")
    traffic.look()
    assert traffic.groups["answer"].status == "ok"
    traffic.looks(9)
    assert [(one.status, one.group) for one in traffic.notified] == [("no data", "answer")]
    traffic.looks(8 * 24)
    assert traffic.groups == {}


def test_a_snooze_outlives_a_group_that_vanishes_and_comes_back(traffic):
    traffic.store.save_alert(replace(BELOW, by="name", window_s=3600.0))
    traffic.score(shares(0.95, 120), since_h=1, name="answer")
    traffic.look()
    until_ns = traffic.store.changes(limit=1).now_ns + 20 * 24 * HOUR_NS
    traffic.store.snooze_alert("grounded", group="answer", until_ns=until_ns)
    traffic.looks(30)
    assert traffic.groups["answer"].snoozed_until_ns == until_ns


def test_a_firing_group_without_scores_for_a_week_is_closed(traffic):
    traffic.store.save_alert(replace(BELOW, by="name", window_s=3600.0, fire_after=1))
    traffic.score(shares(0.5, 200), since_h=1, name="answer")
    traffic.look()
    assert traffic.groups["answer"].status == "firing"
    traffic.looks(8 * 24)
    assert traffic.groups == {}
    assert traffic.store.alert_events().items[0].reason == "the group has had no scores for a week"
    assert [one.status for one in traffic.notified] == ["firing", "closed"]


def test_an_edit_that_is_undone_reports_the_new_firing(traffic):
    dead = Alert(name="dead", rule="support", measure="no_worker", fire_after=1, to=("ops",))
    traffic.store.save_alert(dead)
    traffic.look()
    traffic.store.save_alert(replace(dead, fire_after=2, created_ns=dead.created_ns + 1))
    traffic.store.save_alert(replace(dead, created_ns=dead.created_ns + 2))
    traffic.look()
    assert [one.status for one in traffic.notified] == ["firing", "closed", "firing"]


def test_many_errors_do_not_hide_the_last_score_from_a_silence(traffic):
    traffic.store.save_alert(Alert(name="silent", rule="support", no_score_for_s=3600.0, fire_after=1))
    traffic.now = time.time_ns()
    traffic.score([1], since_h=6)
    errors = [
        Feedback(
            target=Target(trace_id=f"{1:032x}", span_id=f"{n:016x}"),
            key=KEY,
            outcome="error",
            error="no",
            rule="support",
        )
        for n in range(1, 1_100)
    ]
    traffic.store.add_feedback(errors)
    traffic.look(5)
    assert traffic.status == "firing"


def test_repeats_go_on_after_the_clock_was_ahead(traffic):
    traffic.store.save_alert(replace(BELOW, repeat_s=3600.0))
    traffic.score(shares(0.5, 1000), since_h=28, until_h=-30)
    traffic.looks(3)
    traffic.now += 30 * 24 * HOUR_NS
    traffic.look()
    traffic.now -= 30 * 24 * HOUR_NS
    traffic.looks(6)
    assert len(traffic.notified) >= 6


def test_a_small_step_of_the_clock_counts_no_look_twice(traffic):
    traffic.store.save_alert(BELOW)
    traffic.score(shares(0.5))
    assert traffic.look() == 1
    traffic.now -= 2_000_000_000
    assert traffic.look() == 0
    traffic.now += 2_000_000_000
    assert traffic.look() == 0
    assert traffic.groups[None].breaches == 1


def test_the_share_of_errors_counts_results_that_are_labels(traffic):
    alert = Alert(name="errors", rule="support", measure="evaluator_errors", above=0.05, fire_after=1)
    traffic.store.save_alert(alert)
    traffic.score(["fine"] * 200)
    failed = Feedback(
        target=Target(trace_id=f"{traffic.numbers:032x}"),
        key=KEY,
        outcome="error",
        error="no",
        rule="support",
        evaluator="x",
    )
    traffic.store.add_feedback([failed])
    traffic.look()
    assert traffic.groups[None].numbers.value == pytest.approx(1 / 201, rel=0.1)


def test_a_check_of_long_sessions_has_the_numbers_of_live_looks(traffic):
    traffic.score(shares(0.95, 960), since_h=48, session_id=lambda place: f"s{place % 60}")
    traffic.store.save_alert(BELOW)
    traffic.look()
    live = traffic.groups[None].numbers
    found = check_alert(traffic.store, replace(BELOW, below=0.99), until_ns=NOW, days=1)
    [firing] = found.firings
    assert live.effective_n > 50
    assert found.without_data == 0
    assert firing.numbers.effective_n > 50


def test_a_check_leaves_out_groups_before_their_first_trace(traffic):
    traffic.score(shares(0.95, 480), since_h=24, name="new")
    found = check_alert(traffic.store, replace(BELOW, by="name"), until_ns=NOW, days=5)
    assert found.looks <= 26


def test_resolved_goes_to_those_who_were_told_of_the_firing(traffic):
    traffic.store.save_alert(replace(BELOW, window_s=3600.0))
    traffic.score(shares(0.5, 200), since_h=2, now=NOW + HOUR_NS)
    for _ in range(3):
        traffic.look(1 / 24)
    traffic.store.change_alert("grounded", to=["dev"])
    traffic.score(shares(1.0, 400), since_h=2, now=NOW + 3 * HOUR_NS)
    traffic.now = NOW + 2 * HOUR_NS
    for _ in range(4):
        traffic.look(1 / 24)
    assert [(one.status, one.targets) for one in traffic.notified] == [("firing", ("ops",)), ("resolved", ("ops",))]


def test_an_alert_on_a_label_links_to_traces_with_it(traffic):
    traffic.store.save_alert(replace(BELOW, below=None, above=0.2, label="bad", fire_after=1))
    traffic.score(["bad" if place % 2 else "fine" for place in range(300)])
    traffic.look()
    assert len([name for name in traffic.notified[0].links if name.startswith("Trace")]) == 10


@pytest.mark.parametrize("fields", [{"no_data_s": "6h"}, {"enabled": None}, {"to": 3}])
def test_a_change_of_another_type_is_refused(traffic, fields):
    traffic.store.save_alert(BELOW)
    with pytest.raises(Refused):
        traffic.store.change_alert("grounded", **fields)


@pytest.mark.parametrize("until_ns", [-5, 1, 2**62])
def test_a_snooze_ends_within_a_year(traffic, until_ns):
    traffic.store.save_alert(BELOW)
    with pytest.raises(Refused, match="can be snoozed for up to a year"):
        traffic.store.snooze_alert("grounded", until_ns=until_ns)


def test_a_key_of_one_project_records_no_looks(traffic):
    traffic.store.save_alert(BELOW)
    scoped = ProjectScopedStore(traffic.store, "default")
    assert [alert.name for alert in scoped.alerts()] == ["grounded"]
    with pytest.raises(Forbidden):
        _ = scoped.record_look


def test_scores_are_read_once_for_all_notifications_of_a_step(traffic, monkeypatch):
    store = traffic.store
    store.save_alert(*(replace(BELOW, name=f"a{number}", fire_after=1) for number in range(5)))
    traffic.score(shares(0.2))
    reads = []
    weighted = store.weighted
    monkeypatch.setattr(store, "weighted", lambda *args, **options: reads.append(args) or weighted(*args, **options))
    traffic.runner.step()
    assert len(traffic.notified) == 5
    assert all("Trace 1" in notified.links for notified in traffic.notified)
    assert len(reads) == 1
