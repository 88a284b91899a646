"""pydantic-evals' results, from its own bytes: events of functions evaluated as they run, and an experiment's spans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.dialects.capture import replay
from spanwise.collector.dialects import RawSpan, read_span
from spanwise.collector.records import Event, Feedback
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SENT = Path(__file__).parents[2] / "fixtures" / "dialects" / "pydantic_evals"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as made:
        yield made


def by_key(store: SQLiteStore, file: str) -> dict[str, Feedback]:
    with Server(store) as server:
        assert {status for status, _ in replay(SENT / file, server.url)} == {200}
    return {one.key: one for one in store.feedbacks()}


def test_results_of_a_running_function_come_before_its_span_and_stand_on_it(store):
    found = by_key(store, "online.jsonl.gz")
    trace = store.trace(found["zero"].target.trace_id or "")
    assert {one.target.span_id for one in found.values()} == {trace.root.span_id}
    assert {one.key for one in trace.feedback} == {"Polite", "zero", "length", "tone", "Broken"}
    assert {one.created_ns > 0 for one in found.values()} == {True}


@pytest.mark.parametrize("file", ["online.jsonl.gz", "offline.jsonl.gz"])
def test_scores_labels_and_comments_are_right(store, file):
    found = by_key(store, file)
    assert (found["zero"].score, found["zero"].label, found["zero"].outcome) == (0.0, None, "score")
    assert (found["length"].score, found["tone"].score, found["tone"].label) == (37.0, None, "neutral")
    polite = found["Polite"]
    assert (polite.score, polite.comment, polite.version) == (True, "no word of thanks", "v2")
    assert isinstance(polite.score, bool)
    assert {(one.source, one.evaluator) for one in found.values()} == {
        ("code", "Polite"),
        ("code", "Several"),
        ("code", "Broken"),
    }


@pytest.mark.parametrize("file", ["online.jsonl.gz", "offline.jsonl.gz"])
def test_an_evaluator_that_failed_has_an_error_and_no_score(store, file):
    broken = by_key(store, file)["Broken"]
    assert (broken.outcome, broken.score, broken.label) == ("error", None, None)
    assert "KeyError" in (broken.error or "")


def test_an_experiments_scores_stand_on_its_case(store):
    found = by_key(store, "offline.jsonl.gz")
    trace = store.trace(found["zero"].target.trace_id or "")
    case = next(run for run in trace.runs if run.name.startswith("case: "))
    assert {one.target.span_id for one in found.values()} == {case.span_id}


def test_a_result_that_is_none_is_told_and_the_others_are_kept():
    results = '{"a": {"value": NaN}, "b": {"value": null}, "c": {"value": 1}, "d": 5, "e": {"value": [1]}}'
    results = results.replace("NaN", '"x"')
    raw = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="case: x", scope="pydantic-evals")
    raw.attributes = {"scores": results, "labels": "not JSON", "assertions": [1]}
    also = read_span(raw).also
    assert [one.key for one in also if isinstance(one, Feedback)] == ["a", "c"]
    assert sum(isinstance(one, ValueError) for one in also) == 2


def test_a_failure_without_words_is_still_one():
    raw = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="evaluator: x", scope="pydantic-evals", status=2)
    raw.parent_id, raw.attributes = "3" * 16, {"evaluator_name": "x"}
    raw.events = (Event("exception", 1, {}),)
    (failure,) = read_span(raw).also
    assert isinstance(failure, Feedback)
    assert (failure.error, failure.target.span_id) == ("error", "3" * 16)
