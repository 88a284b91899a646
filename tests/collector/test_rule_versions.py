"""Comparison of two versions of an application by the scores of one rule, in a store."""

import html
import json
import re
import time
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from collector.scoring import score_traces
from spanwise.cli.app import app
from spanwise.collector.api import create_app
from spanwise.collector.errors import Refused
from spanwise.collector.records import Rule, Run
from spanwise.collector.statistics import VersionScore, compare_versions
from spanwise.collector.stores import compare_rule_versions
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import evaluator, get_evaluator, monitor

HOUR_NS = 3_600_000_000_000
RULE = Rule(name="support", version="1", evaluators=({"function": "f", "source": "s"},))


def make_traces(version, scores, *, first, hours=24, start_ns=None, probability=1.0, **fields):
    """Return scored traces of a version, spread over some hours."""
    start_ns = start_ns or time.time_ns() // HOUR_NS * HOUR_NS - 48 * HOUR_NS
    return [
        (
            Run(
                trace_id=f"{first + place:032x}",
                span_id="1" * 16,
                name="answer",
                start_ns=start_ns + place % hours * HOUR_NS,
                end_ns=start_ns + place % hours * HOUR_NS + 1,
                tags=(version,),
                **fields,
            ),
            float(score),
            probability,
        )
        for place, score in enumerate(scores)
    ]


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as opened:
        opened.save_rule(RULE)
        yield opened


def compare(store, **options):
    given = {"by": "tag", "a": "v1", "b": "v2", **options}
    return compare_rule_versions(store, store.rules()[0], **given)


BAD, GOOD = [1, 1, 1, 0] * 100, [1] * 400


def test_a_better_version_is_found(store):
    score_traces(store, RULE, make_traces("v1", BAD, first=1))
    score_traces(store, RULE, make_traces("v2", GOOD, first=1001))
    found = compare(store, rising={"quality": True})
    assert found.differences["quality"].conclusion == "better"
    assert found.differences["quality"].difference == pytest.approx(0.25)
    assert found.describe_hours() == "Both versions ran in the same hours (100 % of the scores or more)."
    assert compare(store).differences["quality"].conclusion == "higher"


def test_versions_that_ran_one_after_the_other_are_before_and_after(store):
    now = time.time_ns() // HOUR_NS * HOUR_NS
    score_traces(store, RULE, make_traces("v1", BAD, first=1, start_ns=now - 60 * HOUR_NS))
    score_traces(store, RULE, make_traces("v2", GOOD, first=1001, start_ns=now - 30 * HOUR_NS))
    found = compare(store)
    assert not found.ran_together
    assert found.describe_hours().startswith("This is a before-and-after comparison: only 0 %")


def test_traces_of_both_versions_and_unknown_probabilities_are_left_out(store):
    both = [(replace(run, tags=("v1", "v2")), score, p) for run, score, p in make_traces("v1", [1] * 3, first=1)]
    unknown = make_traces("v1", [1] * 2, first=101, probability=None)
    score_traces(store, RULE, [*both, *unknown, *make_traces("v2", [1] * 4, first=201)])
    found = compare(store)
    assert (found.of_both, found.unknown) == (3, 2)
    assert (found.differences["quality"].a, found.differences["quality"].b.n) == (None, 4)
    assert found.describe_hours() == "At least one version has no scores."


def test_weights_and_users_count(store):
    score_traces(store, RULE, make_traces("v1", [1] * 10, first=1, probability=0.1, user_id="ann"))
    score_traces(store, RULE, make_traces("v1", [0] * 10, first=101, user_id="bob"))
    found = compare(store).differences["quality"].a
    assert (found.n, found.clusters) == (20, 2)
    assert found.mean == pytest.approx(100 / 110)


def test_a_version_is_a_value_of_metadata(store):
    score_traces(store, RULE, make_traces("x", [1] * 2, first=1, metadata={"release": "7"}))
    found = compare(store, by="metadata.release", a="7", b="8")
    assert found.differences["quality"].a.n == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "colour"}, "unknown field 'colour'; expected one of: tag, model"),
        ({"b": "v1"}, "a and b are the same version, 'v1'"),
        ({"margin": -1.0}, "margin must be a number >= 0, got -1.0"),
        ({"scale": (1.0, 1.0)}, "scale must be a lower and a higher score"),
        ({"scale": (2.0, 3.0)}, "a score of 'quality' is 1, outside of the scale from 2 to 3"),
    ],
)
def test_what_cannot_be_compared_is_refused(store, options, message):
    score_traces(store, RULE, make_traces("v1", [1], first=1))
    with pytest.raises(Refused, match=message):
        compare(store, **options)


def test_no_scores_at_all(store):
    assert compare(store).differences == {}
    assert compare(store).describe_hours() == "At least one version has no scores."


def test_direction_and_scale_are_those_that_the_rule_records(store):
    recorded = ({"key": "quality", "range": [1, 5], "higher_is_better": False},)
    store.save_rule(replace(RULE, metrics=recorded))
    score_traces(store, RULE, make_traces("v1", [1, 2, 2, 5] * 100, first=1))
    score_traces(store, RULE, make_traces("v2", [5, 4] * 200, first=1001))
    assert compare(store).differences["quality"].conclusion == "worse"
    assert compare(store, rising={"quality": True}).differences["quality"].conclusion == "better"
    with pytest.raises(Refused, match="outside of the scale from 0 to 1"):
        compare(store, scale=(0, 1))
    store.save_rule(replace(RULE, metrics=({"key": "quality", "range": None, "higher_is_better": True},)))
    with pytest.raises(Refused, match="outside of the scale from 0 to 1"):
        compare(store)


def test_a_rule_of_a_file_records_its_metrics():
    @evaluator(key="errors", higher_is_better=False)
    def errors(outputs: str) -> float:
        return 0.0

    first, second = (monitor("r", evaluators=[each]).record for each in (errors, get_evaluator("pii")))
    assert [(one["key"], one["higher_is_better"]) for one in first.metrics] == [("errors", False)]
    assert second.metrics


def test_scores_of_one_trace_count_once():
    pair = [VersionScore(score=1, weight=1, cluster="c", start_ns=0, trace_id=f"t{n // 4}") for n in range(400)]
    few = compare_versions(pair, pair, rising=None)
    assert (few.a.n, few.a.traces, few.low) == (400, 100, None)
    assert str(few) == "inconclusive: 200 scored traces of each version are needed"


def run_command(*words):
    return CliRunner().invoke(app, ["monitor", "compare", "support", "--a", "v1", "--b", "v2", *words])


def test_the_command_shows_means_interval_and_conclusion(store, tmp_path):
    score_traces(store, RULE, make_traces("v1", BAD, first=1))
    score_traces(store, RULE, make_traces("v2", GOOD, first=1001))
    store.close()
    shown = run_command("--store", str(tmp_path / "a.db")).stdout
    assert shown.startswith("Both versions ran in the same hours")
    assert "+0.25 [" in shown
    assert "higher" in shown
    found = json.loads(run_command("--store", str(tmp_path / "a.db"), "--json").stdout)
    assert found["differences"]["quality"]["a"]["n"] == 400


def test_the_command_names_a_scale_that_it_cannot_read(tmp_path):
    failed = run_command("--scale", "0-1", "--store", str(tmp_path / "a.db"))
    assert "--scale must be LOW:HIGH, such as 0:10, got '0-1'" in str(failed.exception)


@pytest.fixture
def client(store):
    with TestClient(create_app(store)) as made:
        yield made


def read(client, address, status=200):
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))


def test_the_page_says_first_whether_both_ran_in_the_same_hours(store, client):
    score_traces(store, RULE, make_traces("v1", BAD, first=1))
    score_traces(store, RULE, make_traces("v2", GOOD, first=1001))
    store.save_rule(replace(RULE, metrics=({"key": "quality", "higher_is_better": True},)))
    text = read(client, "/versions?rule=support&by=tag&a=v1&b=v2")
    said = (
        "Both versions ran in the same hours (100 % of the scores or more). Intervals are shown from 200 scored traces"
    )
    assert said in text
    assert "because they are asymptotic" in text
    assert re.search(r"quality 400 400 0\.75 1 \+0\.25 \+0\.\d+ to \+0\.\d+ better", text)


def test_the_page_says_what_is_missing(store, client):
    now = time.time_ns() // HOUR_NS * HOUR_NS
    score_traces(store, RULE, make_traces("v1", BAD[:100], first=1, start_ns=now - 60 * HOUR_NS))
    score_traces(store, RULE, make_traces("v2", GOOD, first=1001, start_ns=now - 30 * HOUR_NS))
    text = read(client, "/versions?rule=support&a=v1&b=v2")
    assert "This is a before-and-after comparison: only 0 %" in text
    assert "Other things have changed as well." in text
    assert "inconclusive: 200 scored traces of each version are needed" in text


def test_the_page_says_how_many_more_traces_would_do(store, client):
    score_traces(store, RULE, make_traces("v1", [1, 1, 1, 0] * 60, first=1))
    score_traces(store, RULE, make_traces("v2", [1, 1, 1, 0, 1, 1, 1, 0] * 29 + [1] * 8, first=1001))
    text = read(client, "/versions?rule=support&a=v1&b=v2")
    assert re.search(r"inconclusive \(about [\d,]+ more traces of each version\)", text)
    text = read(client, "/versions?rule=support&a=v1&b=v2&margin=0.9")
    assert "equivalent" in text


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("by=colour", "unknown field 'colour'"),
        ("b=v1", "a and b are the same version"),
        ("margin=much", "margin must be a number, got 'much'"),
        ("margin=-1", "margin must be a number >= 0"),
        ("low=1", "give both the lowest and the highest possible score"),
        ("low=3&high=2", "scale must be a lower and a higher score"),
        ("since=soon", "soon"),
        ("by=metadata.", "unknown field 'metadata.'"),
        ("by=%3Cb%3E", "unknown field '<b>'"),
    ],
)
def test_the_form_says_what_is_wrong_and_keeps_its_values(client, query, problem):
    given = {"a": "v1", "b": "v2", **dict(parse_qsl(query))}
    address = f"/versions?{urlencode({'rule': 'support', **given})}"
    assert problem in read(client, address, status=422)
    source = client.get(address).text
    for value in given.values():
        assert f'value="{html.escape(value)}"' in source
    assert "<b>" not in source.replace("<b>v", "")


def test_the_form_suggests_versions(store, client):
    score_traces(store, RULE, make_traces("v1", [1], first=1))
    source = client.get("/versions?rule=support").text
    assert '<option value="v1">' in source
    assert "Name two versions" in source
    assert client.get("/versions?rule=none").status_code == 404
    assert client.get("/versions").status_code == 404
    assert "/versions?rule=support" in client.get("/rules/support").text
