"""Comparison of two versions of an application by the scores of one rule, in a store."""

import json
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from collector.scoring import score_traces
from spanwise.cli.app import app
from spanwise.collector.errors import Refused
from spanwise.collector.records import Rule, Run
from spanwise.collector.stores import compare_rule_versions
from spanwise.collector.stores.sqlite import SQLiteStore

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
