"""Evaluation events that name a model response instead of a span: the store finds the run, now or when it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector.conformance_traces import eventually
from collector.making import child, run
from spanwise.collector.errors import Refused
from spanwise.collector.records import Amendment, Feedback, Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write import side_tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def server(store: SQLiteStore) -> Iterator[Server]:
    with Server(store) as running:
        yield running


def call(response: str = "resp-1", **fields: Any) -> Run:
    attributes = {"gen_ai.response.id": response, **fields.pop("attributes", {})}
    return run("call", **{"kind": "llm", "attributes": attributes, **fields})


def post(server: Server, project: str | None = None, trace_id: str = "", **attributes: Any) -> httpx.Response:
    """Send one evaluation event as the convention describes it."""
    named = {"gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": 0.5}
    named |= {name.replace("__", "."): value for name, value in attributes.items()}
    values = [
        {"key": key, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
        for key, value in named.items()
    ]
    record = {"timeUnixNano": "5", "eventName": "gen_ai.evaluation.result", "attributes": values}
    resource = [{"key": "openinference.project.name", "value": {"stringValue": project}}] if project else []
    body = {"resource": {"attributes": resource}, "scopeLogs": [{"logRecords": [record | {"traceId": trace_id}]}]}
    return httpx.post(f"{server.url}/v1/logs", json={"resourceLogs": [body]})


def on(store: SQLiteStore, one: Run) -> list[Feedback]:
    return list(store.trace(one.trace_id).feedback)


@pytest.mark.process
def test_an_event_finds_the_run_by_its_response(server: Server, store: SQLiteStore) -> None:
    root = run()
    store.append([root, one := child(root, "call", kind="llm", attributes={"gen_ai.response.id": "resp-1"})])
    assert post(server, gen_ai__response__id="resp-1", gen_ai__evaluation__explanation="why").json() == {}
    [found] = on(store, root)
    assert (found.target.span_id, found.key, found.score, found.comment) == (one.span_id, "relevance", 0.5, "why")
    assert found.created_ns == 5
    assert found.metadata == {"gen_ai.response.id": "resp-1"}
    [summary] = store.traces(feedback="relevance<1")
    assert (summary.trace_id, summary.feedback) == (root.trace_id, {"relevance": 0.5})


@pytest.mark.process
def test_an_event_may_come_before_its_run_and_a_restart_between(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with SQLiteStore(path) as store, Server(store) as server:
        assert post(server, gen_ai__response__id="resp-1").json() == {}
        assert list(store.feedbacks()) == []
    with SQLiteStore(path) as store:
        store.append([one := call()])
        assert [(found.key, found.target.span_id) for found in on(store, one)] == [("relevance", one.span_id)]
        assert store.traces().items[0].feedback == {"relevance": 0.5}
        assert store.health()["amendments_waiting"] == 0
        assert store.check(deep=True) == []


@pytest.mark.process
def test_an_event_sent_again_is_kept_once(server: Server, store: SQLiteStore) -> None:
    for _ in range(2):
        post(server, gen_ai__response__id="resp-1")
    store.append([one := call()])
    post(server, gen_ai__response__id="resp-1", gen_ai__evaluation__score__value=1.0)
    assert [found.score for found in on(store, one)] == [1.0]


@pytest.mark.process
def test_projects_with_the_same_response_do_not_mix(server: Server, store: SQLiteStore) -> None:
    post(server, "b", gen_ai__response__id="resp-1")
    store.append([of_a := call(project="a")])
    assert on(store, of_a) == []
    store.append([of_b := call(project="b")])
    assert (len(on(store, of_a)), len(on(store, of_b))) == (0, 1)
    post(server, "a", gen_ai__response__id="resp-1", gen_ai__evaluation__name="tone")
    assert ([one.key for one in on(store, of_a)], len(on(store, of_b))) == (["tone"], 1)


@pytest.mark.process
def test_an_event_that_may_mean_several_projects_is_refused(server: Server, store: SQLiteStore) -> None:
    store.append([call(project="a"), call(project="b")])
    said = post(server, gen_ai__response__id="resp-1").json()["partialSuccess"]
    assert said["rejectedLogRecords"] == "1"
    assert "response 'resp-1' is of several projects ('a', 'b')" in said["errorMessage"]
    assert list(store.feedbacks()) == []


@pytest.mark.process
def test_an_event_without_span_and_response_is_on_its_conversation(server: Server, store: SQLiteStore) -> None:
    post(server, gen_ai__conversation__id="c1")
    [found] = store.feedbacks()
    assert (found.target.session_id, found.score) == ("c1", 0.5)


@pytest.mark.process
def test_the_span_context_of_an_event_wins_over_its_response(server: Server, store: SQLiteStore) -> None:
    store.append([named := call(), other := call("resp-2")])
    post(server, trace_id=other.trace_id, gen_ai__response__id="resp-1")
    assert (len(on(store, named)), len(on(store, other))) == (0, 1)


def test_feedback_on_a_response_is_on_the_call_and_not_on_who_fetches_or_repeats_it(store: SQLiteStore) -> None:
    root = run("agent", kind="agent", attributes={"gen_ai.response.id": "resp-1"})
    fetched = {"gen_ai.response.id": "resp-1", "gen_ai.operation.name": "fetch_response"}
    one = child(root, "chat", kind="llm", attributes={"gen_ai.response.id": "resp-1"})
    store.append([root, child(root, "fetch", attributes=fetched), one])
    store.add_amendments([Amendment("", "", {"feedback": {"1": {"key": "k", "score": 1.0}}}, response_id="resp-1")])
    assert [found.target.span_id for found in on(store, root)] == [one.span_id]


def test_a_fetched_response_does_not_take_what_waits_for_the_call(store: SQLiteStore) -> None:
    said = Amendment("", "", {"feedback": {"1": {"key": "k", "label": "good"}}}, response_id="resp-1")
    assert store.add_amendments([said]) == [False]
    store.append([fetch := call(kind="chain", attributes={"gen_ai.operation.name": "fetch_response"})])
    assert on(store, fetch) == []
    store.append([one := call()])
    assert [found.label for found in on(store, one)] == ["good"]


def test_content_and_feedback_of_a_response_may_wait_together(store: SQLiteStore) -> None:
    fields = {"outputs": "Soon.", "feedback": {"1": {"key": "k", "score": True}}}
    store.add_amendments([Amendment("", "", fields, response_id="resp-1")])
    store.append([one := call()])
    assert store.trace(one.trace_id).root.outputs == "Soon."
    assert [found.score for found in on(store, one)] == [True]
    assert store.add_amendments([Amendment(one.trace_id, one.span_id, {"feedback": {"2": {"key": "l", "score": 1}}})])
    assert {found.key for found in on(store, one)} == {"k", "l"}


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "", "score": 1.0},
        {"key": "k"},
        {"score": 1.0},
        {"key": "k", "score": "x"},
        {"key": "k", "score": 1.0, "no": 1} | {"label": 7},
        "text",
    ],
    ids=repr,
)
def test_invalid_feedback_in_an_amendment_is_refused(store: SQLiteStore, fields: Any) -> None:
    with pytest.raises(Refused):
        store.add_amendments([Amendment("", "", {"feedback": {"1": fields}}, response_id="resp-1")])
    assert store.health()["amendments_waiting"] == 0


@pytest.mark.process
@pytest.mark.parametrize("response", ["x" * 201, "é"])
def test_a_response_that_no_store_can_find_is_refused(server: Server, response: str) -> None:
    said = post(server, gen_ai__response__id=response).json()["partialSuccess"]
    assert "gen_ai.response.id must have at most 200 ASCII characters" in said["errorMessage"]


def test_deleting_a_trace_deletes_its_feedback_on_responses(store: SQLiteStore) -> None:
    said = Amendment("", "", {"feedback": {"1": {"key": "k", "score": 1.0}}}, response_id="resp-1")
    store.append([one := call()])
    store.add_amendments([said])
    store.delete(trace_ids=(one.trace_id,))
    assert list(store.feedbacks()) == []
    store.append([call()])
    assert store.add_amendments([said]) == [True]


def test_feedback_finds_its_response_among_many_later_ones(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store._traces._file.appender.responses, "size", 10)
    store.append([one := call()])
    for start in range(0, 400, 100):
        store.append([call(f"later-{number}") for number in range(start, start + 100)])
    store._traces._file.write(lambda db: side_tables.prune_response_ids(db))
    said = Amendment("", "", {"feedback": {"1": {"key": "k", "score": 1.0}}}, response_id="resp-1")
    assert store.add_amendments([said]) == [True]
    assert eventually(lambda: len(on(store, one)), 1, seconds=5)
