"""What every store does with rules: versions, settings, owners. Each test takes `store` (see conftest.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from collector.making import run
from looped_cases import loop_over
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Rule, RuleSettings, Stratum
from spanwise.collector.stores import Store


def rule(name: str = "r", version: str = "1", **fields: Any) -> Rule:
    return Rule(**{"name": name, "version": version, "evaluators": ({"key": "concise"},), **fields})


def in_force(store: Store) -> list[tuple[str, str]]:
    return [(one.name, one.version) for one in store.rules()]


def test_a_rule_comes_back_as_it_was(store: Store) -> None:
    settings = RuleSettings(sample_rate=0.1, strata=(Stratum(filter={"status": "error"}, rate=1.0),), budget={"x": 5.0})
    given = rule(filter={"feedback": [["good", "<", 0.5]]}, settings=settings, metadata={"m": 1}, project="p")
    for _ in range(2):
        store.save_rule(given)
        assert store.rules() == [given]
    assert (store.rules(project="p"), store.rules(project="q")) == ([given], [])


def test_a_new_version_takes_what_changes_from_now_on(store: Store) -> None:
    store.save_rule(rule())
    store.append([run()])
    store.save_rule(rule(version="2"))
    assert in_force(store) == [("r", "2")]
    assert [one.version for one in store.rules(all_versions=True)] == ["2", "1"]
    assert store.rules()[0].active_from == store.changes().heads[-1].change


def test_a_superseded_version_comes_back_only_when_that_is_said(store: Store) -> None:
    for version in "12":
        store.save_rule(rule(version=version))
    with pytest.raises(Refused, match="'1' of rule 'r' was superseded, by '2'"):
        store.save_rule(rule("new"), rule())
    assert in_force(store) == [("r", "2")]
    store.save_rule(rule(), activate=True)
    assert in_force(store) == [("r", "1")]


def test_a_rule_that_was_removed_comes_back_in_the_same_version(store: Store) -> None:
    store.save_rule(rule())
    assert (store.delete_rule("r", project="other"), store.delete_rule("r"), store.delete_rule("r")) == (0, 1, 0)
    assert store.rules() == []
    store.save_rule(rule(owner="rules.py"))
    assert in_force(store) == [("r", "1")]


def test_a_file_owns_its_rules_and_what_it_leaves_out_goes(store: Store) -> None:
    store.save_rule(rule("by_hand"))
    store.save_rule(rule("a"), rule("b"), owner="rules.py")
    store.save_rule(rule("b"), rule("c", project="p"), owner="rules.py")
    assert in_force(store) == [("b", "1"), ("by_hand", "1"), ("c", "1")]
    with pytest.raises(Refused, match=r"'b' of project 'default' belongs to 'rules.py', not to 'api'"):
        store.save_rule(rule("b", version="2"))
    store.save_rule(owner="rules.py")
    assert in_force(store) == [("by_hand", "1")]


@loop_over(
    ("filter", "says"),
    [
        ({"since_ns": 1}, "relative to now"),
        ({"until": "1h"}, "relative to now"),
        ({"complete": True}, "complete"),
        ({"nane": "x"}, "did you mean 'name'"),
        ({"status": "broken"}, "'broken'"),
        ({"latency_ms": ["~", 5]}, "'~'"),
    ],
)
def test_filters_that_cannot_be_are_refused_in_rules_and_strata(
    store: Store, filter: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(Refused, match=says):
        store.save_rule(rule("good"), rule(filter=filter))
    with pytest.raises(Refused, match=f"rule 'r': .*{says}"):
        store.save_rule(rule(settings=RuleSettings(strata=(Stratum(filter=filter, rate=0.5),))))
    assert store.rules() == []


@pytest.mark.parametrize(
    "settings", [{"sample_rate": 1.5}, {"paced": -0.1}, {"timeout_s": -1.0}, {"budget": {"x": -1}}]
)
def test_numbers_that_cannot_be_are_refused(store: Store, settings: Mapping[str, Any]) -> None:
    with pytest.raises(Refused, match=f"rule 'r': .*{next(iter(settings)).split('_')[-1]}"):
        store.save_rule(rule(settings=RuleSettings(**settings)))
    store.save_rule(rule())
    with pytest.raises(Refused, match=next(iter(settings)).split("_")[-1]):
        store.change_rule("r", settings=settings)
    assert store.rules() == [rule(created_ns=store.rules()[0].created_ns)]


def test_settings_make_no_version_and_have_a_history(store: Store) -> None:
    store.save_rule(rule())
    store.append([run()])
    last = store.changes().heads[-1].change
    for _ in range(2):
        store.save_rule(rule(settings=RuleSettings(sample_rate=0.1)))
    assert [(one.settings.sample_rate, one.version) for one in store.settings("r")] == [(0.1, "1"), (1.0, "1")]
    assert store.settings("r")[0].from_change > last >= store.settings("r")[1].from_change
    assert (store.settings("other"), store.settings("r", project="p")) == ([], [])


def test_some_settings_change_and_the_others_stay(store: Store) -> None:
    store.save_rule(rule(settings=RuleSettings(sample_rate=0.5, retries=7)))
    made = store.change_rule("r", settings={"paced": 0.8})
    assert store.rules() == [made]
    assert made.settings == RuleSettings(sample_rate=0.5, retries=7, paced=0.8) == store.settings("r")[0].settings
    with pytest.raises(Refused, match="unknown setting 'sample_rat' of a rule: did you mean 'sample_rate'"):
        store.change_rule("r", settings={"sample_rat": 1})


def test_the_pace_of_money_outlives_the_same_file_loaded_again(store: Store) -> None:
    store.save_rule(rule(), owner="f")
    store.change_rule("r", settings={"paced": 0.8})
    store.save_rule(rule(), owner="f")
    assert store.rules()[0].settings.paced == 0.8
    store.save_rule(rule(settings=RuleSettings(budget={"usd_per_day": 5})), owner="f")
    assert store.rules()[0].settings.paced is None


def test_a_rule_that_was_switched_off_by_hand_stays_off(store: Store) -> None:
    store.save_rule(rule(), owner="f")
    assert not store.change_rule("r", enabled=False, metadata={"why": "costs"}).enabled
    assert store.rules()[0].metadata == {"why": "costs"}
    for version in "12":
        store.save_rule(rule(version=version), owner="f")
        assert not store.rules()[0].enabled
    assert store.change_rule("r", enabled=True).enabled
    assert store.rules()[0].enabled


def test_who_paused_a_rule_is_kept_until_it_is_resumed(store: Store) -> None:
    store.save_rule(rule(), owner="f")
    paused = store.change_rule("r", enabled=False)
    assert paused.paused_by
    assert abs((paused.paused_ns or 0) - store.changes().now_ns) < 600 * 10**9
    for version in "12":
        store.save_rule(rule(version=version), owner="f")
        store.change_rule("r", settings={"sample_rate": 0.5})
        store.change_rule("r", enabled=False)  # again: the first one who paused it counts
        assert (store.rules()[0].paused_by, store.rules()[0].paused_ns) == (paused.paused_by, paused.paused_ns)
    assert store.change_rule("r", enabled=True).paused_ns is None
    assert (store.rules()[0].paused_by, store.rules()[0].paused_ns) == ("", None)


def test_nobody_can_say_that_another_paused_a_rule(store: Store) -> None:
    store.save_rule(rule(paused_by="somebody", paused_ns=5))
    assert (store.rules()[0].paused_by, store.rules()[0].paused_ns) == ("", None)


def test_what_decides_cannot_be_changed_in_a_version(store: Store) -> None:
    store.save_rule(rule(project="p"))
    with pytest.raises(Refused, match="filter"):
        store.change_rule("r", project="p", filter={})
    with pytest.raises(NotFound, match="no rule 'r' in project 'default'"):
        store.change_rule("r", enabled=True)


def test_a_rule_that_takes_older_traces_reads_the_feed_from_its_beginning(store: Store) -> None:
    from spanwise.collector.records import DecisionBatch

    store.save_rule(rule())
    store.append([run()])
    upto = store.changes().cursor
    assert store.decide(DecisionBatch(project="default", rule="r", version="1", after=None, upto=upto)) == [True]
    assert store.cursor("r", "1") == upto
    store.save_rule(rule(since_ns=5))
    assert store.cursor("r", "1") is None
