"""The HTTP API as people speak to it, beside what the conformance suites ask through the client."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from collector.making import run
from collector.otlp import PROTOBUF, request, span
from spanwise.collector.api import create_app
from spanwise.collector.errors import Refused
from spanwise.collector.records import Example, Experiment, Feedback, Key, QueueItem, Rule, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def api(store: SQLiteStore) -> Iterator[httpx.Client]:
    with Server(store) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def test_conditions_in_the_query_string(api: httpx.Client, store: SQLiteStore) -> None:
    one, other = run("answer", tags=("a", "b")), run("other")
    store.append([one, other])
    store.add_feedback([Feedback(target=Target(trace_id=one.trace_id), key="concise", score=0.25)])
    found = api.get(
        "/api/traces", params=[("feedback", "concise<0.5"), ("tags", "a"), ("tags", "b"), ("latency_ms", ">=1")]
    )
    assert [item["name"] for item in found.json()["items"]] == ["answer"]
    first = api.get("/api/traces", params={"limit": 1}).json()
    second = api.get("/api/traces", params={"limit": 1, "cursor": first["next"]}).json()
    assert [page["items"][0]["name"] for page in (first, second)] == ["other", "answer"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/api/traces?nmae=x", "did you mean 'name'"),
        ("/api/traces?feedback=concise", "is not a comparison"),
        ("/api/traces?limit=many", "limit"),
        ("/api/traces?complete=perhaps", "must be true or false"),
        ("/api/traces?since_ns=x", "invalid time 'x'"),
        ("/api/traces?filter={", "JSON"),
        ("/api/traces?cursor=zz", "zz"),
        ("/api/aggregate?group_by=shoe", "shoe"),
        ("/api/values/shoe", "shoe"),
        ("/api/feedback?target={}", "exactly one"),
    ],
)
def test_bad_questions_are_told(api: httpx.Client, path: str, told: str) -> None:
    response = api.get(path)
    assert response.status_code == 400
    assert told in response.json()["message"]


def test_bad_bodies_are_told(api: httpx.Client) -> None:
    for path, body in (
        ("/api/feedback", "{}"),
        ("/api/feedback", '[{"key": ""}]'),
        ("/api/runs", "x"),
        ("/api/rules", "[1]"),
    ):
        response = api.post(path, content=body)
        assert response.status_code == 400
        assert "the JSON does not match the expected type" in response.json()["message"]
    assert api.post("/api/feedback", content=b"[" * 100_000).status_code == 400


def test_bodies_that_are_too_much_together_are_told_to_come_later(store: SQLiteStore) -> None:
    app = create_app(store)
    pending = app.state.receiver.pending
    pending.add(pending.limit - 10, 1)  # others are being read
    with TestClient(app) as client:
        answer = client.post("/api/feedback", content="[" + " " * 20 + "]")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.post("/api/feedback", content="[]").status_code == 200
    assert pending.size == pending.limit - 10


def test_what_is_not_there_is_404(api: httpx.Client) -> None:
    for path in ("/api/traces/" + "f" * 32, "/api/datasets/none", "/api/experiments/none", "/v1/profiles"):
        assert api.get(path).status_code == 404
    assert api.delete("/api/traces/" + "f" * 32).status_code == 404
    assert api.delete("/api/traces").status_code == 400


def test_names_with_slashes(api: httpx.Client, store: SQLiteStore) -> None:
    store.save_examples("team/parcels", [Example(inputs=1)])
    assert api.get("/api/datasets/team/parcels").json()["example_count"] == 1
    assert api.get("/api/datasets/team%2Fparcels/examples").json()[0]["inputs"] == 1
    assert api.get("/api/datasets/team/parcels/versions").json()[0]["version"] == 1


def test_an_experiment_changes_in_part(api: httpx.Client, store: SQLiteStore) -> None:
    store.save_experiment(Experiment(id="e1", name="n", dataset="d"))
    changed = api.patch("/api/experiments/e1", json={"status": "finished", "ended_ns": 5}).json()
    assert (changed["status"], changed["ended_ns"], changed["name"]) == ("finished", 5, "n")
    assert store.experiment("e1").status == "finished"
    assert api.patch("/api/experiments/e1", json={"status": "odd"}).status_code == 400


def test_rules_and_experiments_come_one_or_many_at_a_time(api: httpx.Client, store: SQLiteStore) -> None:
    one, two = ({"name": name, "version": "1", "evaluators": []} for name in "ab")
    assert api.post("/api/rules", json=one).json()["name"] == "a"
    assert [rule["name"] for rule in api.post("/api/rules", json=[one, two]).json()] == ["a", "b"]
    assert api.post("/api/experiments", json=[{"id": "e", "name": "n", "dataset": "d"}, {"id": 1}]).status_code == 400
    assert (len(store.rules()), store.experiments()) == (2, [])


def test_a_rule_is_switched_off(api: httpx.Client, store: SQLiteStore) -> None:
    store.save_rule(Rule(name="r", version="1", evaluators=()))
    assert api.patch("/api/rules/r", json={"enabled": False}).json()["enabled"] is False
    assert store.rules()[0].enabled is False
    assert api.patch("/api/rules/none", json={"enabled": True}).status_code == 404


def test_a_dataset_is_described_anew(api: httpx.Client, store: SQLiteStore) -> None:
    store.save_examples("team/d", [Example(inputs=1)])
    made = api.patch("/api/datasets/team/d", json={"description": "ones", "metadata": {"k": 1}}).json()
    assert (made["version"], made["description"], made["example_count"]) == (2, "ones", 1)
    assert api.patch("/api/datasets/team/e", json={"description": "x"}).status_code == 404
    assert "nmae" in api.patch("/api/datasets/team/d", json={"nmae": "x"}).json()["message"]


def test_unknown_feedback_is_404_and_named(api: httpx.Client) -> None:
    answer = api.patch("/api/feedback", json={"f1": {"score": 1}})
    assert (answer.status_code, "'f1'" in answer.json()["message"]) == (404, True)


@pytest.mark.process
def test_an_item_of_a_queue_is_resolved(api: httpx.Client, store: SQLiteStore) -> None:
    store.enqueue([QueueItem(queue="q", target=Target(trace_id="a" * 32))])
    [item] = api.get("/api/queues/q").json()
    assert api.patch(f"/api/queues/items/{item['id']}", json={"status": "done"}).json() is True
    assert api.get("/api/queues/q").json() == []
    assert len(api.get("/api/queues/q", params={"status": ""}).json()) == 1


def test_openapi_describes_bodies_and_answers(api: httpx.Client) -> None:
    found = api.get("/openapi.json").json()
    body = found["paths"]["/api/feedback"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    one = {"$ref": "#/components/schemas/Feedback"}
    assert body == {"anyOf": [{"type": "array", "items": one}, one]}
    assert "outcome" in found["components"]["schemas"]["Feedback"]["properties"]
    assert api.get("/docs").status_code == 200


def test_health(api: httpx.Client, store: SQLiteStore) -> None:
    found = api.get("/healthz").json()
    assert (found["service"], found["store"]) == ("spanwise", store.path)
    assert api.get("/readyz").json() == {"ready": True}
    numbers = api.get("/metrics").text
    assert "# TYPE spanwise_store_queued_spans gauge" in numbers
    assert "spanwise_store_text_index_lag_seconds" in numbers


def test_another_sites_page_reaches_nothing(api: httpx.Client) -> None:
    assert api.get("/api/count", headers={"host": "evil.example"}).status_code == 403
    assert api.post("/api/feedback", content="[]", headers={"origin": "http://evil.example"}).status_code == 403
    assert api.post("/api/feedback", content="[]", headers={"origin": str(api.base_url).rstrip("/")}).status_code == 200


def test_a_server_open_to_others_needs_a_key(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANWISE_API_KEY", raising=False)
    with pytest.raises(Refused, match="set SPANWISE_API_KEY"):
        Server(store, host="0.0.0.0")


def test_keys(store: SQLiteStore) -> None:
    def key(secret: str, **fields: object) -> Key:
        return Key(id=secret, name=secret, sha256=hashlib.sha256(secret.encode()).hexdigest(), **fields)  # type: ignore[arg-type]

    for one in (key("reader", scopes=("read",)), key("old", expires_ns=time.time_ns() - 1), key("bound", project="p")):
        store.save_key(one)
    with (
        Server(store, host="0.0.0.0", api_key="master") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):

        def status(secret: str | None, method: str = "GET", path: str = "/api/count") -> int:
            headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
            return client.request(method, path, headers=headers, content="[]").status_code

        assert [status(secret) for secret in (None, "wrong", "old", "bound", "reader", "master")] == [
            401,
            401,
            401,
            403,
            200,
            200,
        ]
        assert [status(secret, "POST", "/api/feedback") for secret in ("reader", "master")] == [403, 200]
        assert client.get("/api/count", auth=("any", "master")).status_code == 200
        assert client.get("/api/count", headers={"x-api-key": "master"}).status_code == 200
        assert client.post("/v1/traces", content=request(span()), headers={"content-type": PROTOBUF}).status_code == 401
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]


def test_a_server_leaves_the_log_files_of_its_host_open(store: SQLiteStore, tmp_path: Path) -> None:
    kept = logging.FileHandler(tmp_path / "host.log", mode="w")
    log = logging.getLogger("host")
    log.addHandler(kept)
    try:
        with Server(store):
            log.error("after the server has started")
    finally:
        log.removeHandler(kept)
        kept.close()
    assert (tmp_path / "host.log").read_text() == "after the server has started\n"


def test_a_store_that_closed_under_its_server_asks_to_come_again(tmp_path):
    store = SQLiteStore(tmp_path / "a.db")
    with TestClient(create_app(store), base_url="http://127.0.0.1") as client:
        store.close()
        for path in ("/api/count", "/datasets"):
            assert client.get(path).status_code == 503


def test_one_feedback_may_be_sent_as_an_object(api: httpx.Client) -> None:
    one = {"target": {"trace_id": "1" * 32}, "key": "k", "score": 1}
    for body in (one, [one]):
        answer = api.post("/api/feedback", json=body)
        assert (answer.status_code, len(answer.json())) == (200, 1)
    assert [row["key"] for row in api.get("/api/feedback").json()["items"]] == ["k"]


@pytest.mark.process
def test_openapi_declares_errors_and_the_type_of_metrics(api: httpx.Client) -> None:
    described = api.get("/openapi.json").json()["paths"]
    metrics = described["/metrics"]["get"]["responses"]["200"]["content"]
    assert list(metrics) == [api.get("/metrics").headers["content-type"]]
    for status, params in (("400", {"limit": "x"}), ("400", {"nonsense": "1"})):
        answer = api.get("/api/traces", params=params)
        assert str(answer.status_code) == status
        schema = described["/api/traces"]["get"]["responses"][status]["content"]["application/json"]["schema"]
        assert answer.json().keys() == schema["properties"].keys()
    assert "422" in described["/api/aggregate"]["get"]["responses"]
    assert "HTTPValidationError" not in json.dumps(described)
