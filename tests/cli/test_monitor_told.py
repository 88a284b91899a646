"""`spanwise monitor why` and `spanwise monitor status`, run as people run them, on a file and over a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.deciding import on, ruled, slice, traced
from collector.ruled import done, monitored, taken
from spanwise.cli.app import app, report_errors
from spanwise.collector.records import Rule, RuleSettings
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def url(store: SQLiteStore) -> Iterator[str]:
    with Server(store) as server:
        yield server.url


def monitor(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["monitor", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_why_names_the_condition_that_failed_and_what_it_saw(store, url):
    ruled(store, name="slow", filter={"name": "answer", "latency_ms": [">", 2000.0]})
    [head] = traced(store)
    said = monitor("why", head.trace_id[:12], "--store", url).stdout
    for words in (
        "slow  filtered",
        "holds: name: expected 'answer', got 'answer'",
        "fails: latency_ms: expected > 2,000",
    ):
        assert words in said


def test_why_shows_sample_attempts_and_error(store, url):
    ruled(store, name="short", settings=RuleSettings(sample_rate=0.5))
    taken(store, "short", traced(store), rate=0.5)
    [one] = done(store, "short", ("failed", "ValueError: \x1b[31mno"))
    said = monitor("why", str(one.target.trace_id), "--store", url).stdout
    for words in (
        "short  failed",
        "sample: u 0.2500 is below 0.5, the rule's rate",
        "1 attempt",
        "ValueError: \\x1b[31mno",
    ):
        assert words in said


def test_why_leads_from_a_skip_to_the_doctor_and_from_a_score_nowhere(store, url):
    ruled(store, name="short")
    taken(store, "short", traced(store, 2))
    [skipped, scored] = done(store, "short", ("skipped", "no documents"), ("scored", 1.0))
    command = f"spanwise doctor --where trace_ids={skipped.target.trace_id}"
    assert command in monitor("why", str(skipped.target.trace_id), "--store", url).stdout
    assert "doctor" not in monitor("why", str(scored.target.trace_id), "--store", url).stdout


def test_why_of_a_project_without_rules_names_both_projects(store, url):
    ruled(store, name="short", project="shop")
    [head] = traced(store)
    said = " ".join(monitor("why", head.trace_id, "--store", url).stderr.split())
    assert "project 'default' of the trace has no rules; the rules of this store are in project 'shop'" in said


def test_why_as_json(store, url):
    [id, *_] = monitored(store)
    told = [json.loads(line) for line in monitor("why", id, "--json", "--store", url).stdout.splitlines()]
    assert {one["rule"]["name"]: one["verdict"] for one in told}["short"] == "scored"


def test_why_without_rules(store, url):
    [head] = traced(store)
    assert "no rules" in monitor("why", head.trace_id, "--store", url).stderr


def test_why_of_a_trace_that_there_is_not(store, url):
    with pytest.raises(SystemExit, match=r"f{32}"), report_errors():
        app(["monitor", "why", "f" * 32, "--store", url])


def test_status_shows_funnels_means_and_errors(store, url):
    monitored(store)
    said = monitor("status", "--once", "--store", url).stdout
    for words in ("arrived 10 → pass the filter 8 → sampled 5 → scored 2", "waiting 1", "failed 1", "ValueError: <no>"):
        assert words in said
    assert ["concise", "0.5"] in [line.split()[:2] for line in said.splitlines()]


def test_status_as_json(store, url):
    monitored(store)
    lines = monitor("status", "--json", "--store", url).stdout.splitlines()
    by_name = {one["rule"]["name"]: one for one in map(json.loads, lines)}
    assert by_name["short"]["counts"]["filtered"] == 2
    [mean] = by_name["short"]["means"]
    assert (mean["key"], mean["n"], mean["failed"], mean["skipped"]) == ("concise", 2, 1, 1)


@pytest.mark.process
def test_status_without_rules(store, url):
    assert "no rules yet" in monitor("status", "--once", "--store", url).stdout


def test_status_of_a_file_that_nobody_serves(store, tmp_path):
    monitored(store)
    store.close()
    assert "bad <b>" in monitor("status", "--once", "--store", str(tmp_path / "spanwise.db")).stdout


def test_status_shows_the_plain_mean_of_senders_without_sampling_information_as_unweighted(store, url):
    ruled(store, name="short")
    heads = traced(store, 2)
    rows = (on(head, rule="short", probability=None) for head in heads)
    store.decide(replace(slice(*rows, upto=heads[-1].cursor), rule="short"))
    done(store, "short", ("scored", 1.0), ("scored", 0.5))
    assert "– (0.75 unweighted)" in monitor("status", "--once", "--store", url).stdout


def test_a_rule_is_listed_paused_resumed_and_removed(store, url):
    ruled(store, name="short")
    assert "short" in monitor("list", "--store", url).stdout
    said = monitor("pause", "short", "--store", url).stdout
    assert said == "paused rule 'short' of project 'default'; continue with: spanwise monitor resume short\n"
    assert "paused" in monitor("list", "--store", url).stdout
    [listed] = map(json.loads, monitor("list", "--json", "--store", url).stdout.splitlines())
    assert (listed["name"], listed["enabled"]) == ("short", False)
    monitor("resume", "short", "--store", url)
    assert [rule.enabled for rule in store.rules()] == [True]
    assert monitor("remove", "short", "--yes", "--store", url).stdout == "removed rule 'short' of project 'default'\n"
    assert store.rules() == []
    assert "there are no rules" in monitor("list", "--store", url).output


def test_a_removed_rule_of_a_file_says_that_it_comes_back(store, url):
    store.save_rule(Rule(name="short", version="1", evaluators=()), owner="rules.py")
    said = monitor("remove", "short", "--yes", "--store", url).stdout
    assert "it returns when 'rules.py' is loaded again, unless you remove it there" in said


def test_a_pause_survives_a_touched_file_and_a_new_version(store, url):
    store.save_rule(Rule(name="short", version="1", evaluators=()), owner="rules.py")
    monitor("pause", "short", "--store", url)
    for version in ("1", "2"):
        store.save_rule(Rule(name="short", version=version, evaluators=()), owner="rules.py")
        assert [(rule.version, rule.enabled) for rule in store.rules()] == [(version, False)]


@pytest.mark.parametrize("command", ["pause", "resume", "remove"])
def test_a_rule_that_is_not_there_or_in_two_projects_is_named(store, url, command):
    ruled(store, name="short")
    ruled(store, name="short", project="p")
    run = [command, "shrt", "--store", url], [command, "short", "--store", url]
    unknown, ambiguous = (CliRunner().invoke(app, ["monitor", *one], catch_exceptions=True) for one in run)
    assert "there is no rule 'shrt'" in str(unknown.exception)
    assert "are in several projects (default, p); choose one with --project" in str(ambiguous.exception)
    assert len(store.rules()) == 2
