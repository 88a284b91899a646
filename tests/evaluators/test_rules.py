"""Rules as people write them: what is accepted, what makes a new version, what a file holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from looped_cases import loop_over
from spanwise.collector.filters import Filter, filter_to_dict
from spanwise.collector.rule_policy import build_rule_filter
from spanwise.evaluators import get_evaluator, monitor
from spanwise.evaluators.monitors import BrokenRules, load
from spanwise.evaluators.monitors.monitored_rule import assign_version

MIXED = {"name": "answer", "tags": "a", "untried": ["j"], "metadata": {"tenant": "t1", "n": 1, "flag": True}}


def concise(outputs: str) -> bool:
    return len(outputs) < 200


def rules(folder: Path, text: str) -> Path:
    file = folder / "rules.py"
    file.write_text("from spanwise.evaluators import get_evaluator, monitor\n" + text)
    return file


def test_a_rule_has_the_filter_in_its_normal_form() -> None:
    as_text = monitor("r", evaluators=[get_evaluator("pii")], filter="name=answer latency_ms>200 tags=a")
    as_data = monitor(
        "r", evaluators=[get_evaluator("pii")], filter={"tags": "a", "latency_ms": (">", 200), "name": "answer"}
    )
    assert as_text.record.filter == {"latency_ms": [">", 200.0], "name": "answer", "tags": ["a"]}
    assert as_text.record.version == as_data.record.version


@pytest.mark.parametrize(
    ("filter", "version"),
    [
        ({**MIXED, "latency_ms": [">", 200], "tokens": 5, "feedback": ("k", "<", 0.5)}, "3a6c1b551fc2"),
        ({**MIXED, "latency_ms": ">200", "tokens": "=5", "feedback": "k<0.5", "until": None}, "3a6c1b551fc2"),
        ("name=answer latency_ms>200 feedback=thumbs_up<1 metadata.tenant=t1 tag=a", "5b22cb3be324"),
        ("name=answer latency_ms=>200 feedback.thumbs_up<1 metadata=tenant=t1 tags=a", "5b22cb3be324"),
        (Filter(session="s", status="error", feedback=(("tone", "=", "kind"),), experiment=""), "918b40c00007"),
    ],
)
def test_the_version_that_a_rule_was_stored_with_stays_under_whatever_names(filter: Any, version: str) -> None:
    made = replace(monitor("r", evaluators=[concise], filter=filter).record, evaluators=({"key": "k"},))
    assert assign_version(made).version == version
    assert assign_version(replace(made, filter=filter_to_dict(build_rule_filter(made.filter)))).version == version


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"latency_ms": 200, "tag": "a"}, Filter(latency_ms=("=", 200.0), tags=("a",))),
        ({"user": 42, "since_ns": None}, Filter(user="42")),
        ({"tokens": ["<", 0]}, Filter(tokens=("<", 0.0))),
        ({"text": "!?", "feedback": ["tone", "<", "kind"]}, Filter(text="!?", feedback=(("tone", "<", "kind"),))),
    ],
)
def test_what_was_stored_under_looser_rules_is_read_as_ever(stored: dict[str, Any], read: Filter) -> None:
    assert build_rule_filter(stored) == read


@loop_over(
    ("given", "what"),
    [
        ({"filter": "tokens<0"}, "rule 'r': tokens<0: no trace would pass"),
        ({"filter": {"latency_ms": 200}}, "rule 'r': no trace takes 200 ms to the nanosecond"),
        ({"evaluators": []}, "has no evaluators"),
        ({"filter": {"nam": "a"}}, "did you mean 'name'"),
        ({"filter": "since=1h"}, "remove since and until"),
        ({"strata": [({"until_ns": 5}, 1.0)]}, "remove since and until"),
        ({"sample_rate": 1.5}, "from 0 to 1, got 1.5"),
        ({"sample_rate": True}, "from 0 to 1, got True"),
        ({"budget": {"usd_per_dey": 1}}, "did you mean 'usd_per_day'"),
        ({"budget": {"usd_per_day": float("nan")}}, "usd_per_day"),
        ({"target": "spam"}, "unknown target 'spam'; expected one of: trace, span"),
        ({"kind": "llm"}, "selects spans"),
        ({"timeout": 0}, "timeout must be a number > 0, got 0"),
        ({"evaluators": [concise, concise]}, "rule 'r': two evaluators have the key 'concise'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        monitor("r", **{"evaluators": [get_evaluator("pii")], **given})


def test_settings_make_no_version() -> None:
    rule = monitor("r", evaluators=[concise])
    other = monitor("r", evaluators=[concise], sample_rate=0.1, budget={"usd_per_day": 1}, priority=3, timeout=1)
    assert rule.record.version == other.record.version
    assert rule.record.settings != other.record.settings


@pytest.mark.parametrize(
    "changed", [{"filter": "name=a"}, {"target": "span"}, {"scope": "both"}, {"evaluators": [get_evaluator("exact")]}]
)
def test_what_is_scored_and_with_what_makes_the_version(changed: dict[str, Any]) -> None:
    rule = monitor("r", evaluators=[concise])
    assert monitor("r", **{"evaluators": [concise], **changed}).record.version != rule.record.version


def test_the_source_of_a_function_and_of_what_it_calls_makes_the_version(tmp_path: Path) -> None:
    text = "LIMIT = 10\ndef most():\n    return LIMIT\ndef short(outputs):\n    return len(outputs) < most()\n"
    rule = 'monitor("r", evaluators=[short])\n'
    versions = [
        load(rules(tmp_path, changed + rule))[0].record.version
        for changed in (text, "# why\n" + text, text.replace("10", "20"), text.replace("return LIMIT", "return 2"))
    ]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


def test_code_without_source_needs_a_version_by_hand() -> None:
    made = eval("lambda outputs: 1")
    with pytest.raises(ValueError, match=r"is not available; pass a version, such as monitor\('r', …, version="):
        monitor("r", evaluators=[made])
    one, two = (monitor("r", evaluators=[made], version=version).record for version in ("1", "2"))
    assert one.version != two.version


def test_a_parameter_that_is_a_function_counts_by_its_source() -> None:
    one = monitor("r", evaluators=[get_evaluator("regex", pattern="a")]).record
    other = monitor("r", evaluators=[get_evaluator("regex", pattern="b")]).record
    assert one.version != other.version


def test_a_file_owns_its_rules(tmp_path: Path) -> None:
    file = rules(
        tmp_path, 'monitor("a", evaluators=[get_evaluator("pii")])\nmonitor("b", evaluators=[get_evaluator("exact")])\n'
    )
    assert [(rule.record.name, rule.record.owner) for rule in load(file)] == [("a", str(file)), ("b", str(file))]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "defines no rule"),
        ("1/0\n", "does not run: ZeroDivisionError"),
        ("def f(:\n", "does not run: SyntaxError"),
        ('monitor("a", evaluators=[get_evaluator("pii")])\n' * 2, "two rules named 'a'"),
        ('monitor("a", evaluators=[get_evaluator("pii")])\nraise SystemExit(0)\n', "does not run: SystemExit"),
    ],
)
def test_a_file_is_used_whole_or_not_at_all(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(BrokenRules, match=what):
        load(rules(tmp_path, text))


def test_outside_of_a_file_a_rule_is_only_made(tmp_path: Path) -> None:
    load(rules(tmp_path, 'monitor("a", evaluators=[get_evaluator("pii")])\n'))
    assert monitor("b", evaluators=[get_evaluator("pii")]).record.owner == "api"
