"""Questions and writes beyond measure, and records that cannot be, are refused with the reason; pages go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from collector.making import run
from spanwise.collector import record_encoding
from spanwise.collector.client import HTTPStore
from spanwise.collector.client import http_client as transport
from spanwise.collector.client.http_client import split_in_half
from spanwise.collector.errors import Refused, TooLarge
from spanwise.collector.filters import MAX_CONDITION_VALUES, Filter
from spanwise.collector.operations import MAX_PAGE_SIZE
from spanwise.collector.records import Booking, Feedback, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as made:
        yield made


@pytest.fixture
def server(store: SQLiteStore) -> Iterator[Server]:
    with Server(store) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[HTTPStore]:
    with HTTPStore(server.url) as made:
        yield made


@pytest.mark.process
@pytest.mark.parametrize(
    "query",
    [
        "error=" + "+".join(["word"] * 1000),
        "text=" + "+".join(["word"] * 1000),
        "&".join(f"tags=t{number}" for number in range(1000)),
        "&".join(f"missing=k{number}" for number in range(501)),
        "limit=1000000",
        "limit=99999999999999999999",
        "limit=0",
    ],
)
def test_a_question_beyond_measure_is_refused_for_good(server, query):
    answer = httpx.get(f"{server.url}/api/traces?{query}", timeout=60)
    assert answer.status_code == 400
    assert "Expression tree" not in answer.text


@pytest.mark.parametrize("name", ["tags", "missing", "untried", "failed", "skipped"])
def test_so_many_conditions_can_be_asked_at_once(store, name):
    assert store.traces(Filter(**{name: tuple(map(str, range(MAX_CONDITION_VALUES)))})).items == ()
    with pytest.raises(ValueError, match=f"{name} has 451 values"):
        Filter(**{name: tuple(map(str, range(MAX_CONDITION_VALUES + 1)))})


def test_the_client_reads_more_than_a_page_by_pages(client, store):
    store.append([run() for _ in range(MAX_PAGE_SIZE + 20)])
    page = client.traces(limit=MAX_PAGE_SIZE + 10)
    assert (len(page), len({trace.trace_id for trace in page})) == (MAX_PAGE_SIZE + 10, MAX_PAGE_SIZE + 10)
    assert len(client.traces(limit=1_000_000, cursor=page.next)) == 10
    assert client.traces(limit=1_000_000).next is None


def test_a_list_without_pages_has_a_bound(client):
    assert client.running(limit=10_000) == []
    with pytest.raises(Refused, match="at most 10,000, got 10,001"):
        client.running(limit=10_001)


def test_so_many_records_can_be_sent_at_once(server):
    row = b'{"target":{"trace_id":"' + b"a" * 32 + b'"},"key":"k","score":1}'
    answer = httpx.post(f"{server.url}/api/feedback", content=b"[" + b",".join([row] * 10_001) + b"]", timeout=60)
    assert (answer.status_code, answer.json()["error"]) == (413, "TooLarge")
    assert "at most 10,000" in answer.json()["message"]


def test_of_more_records_than_that_none_is_made(server, monkeypatch):
    row, made = b'{"target":{"trace_id":"' + b"a" * 32 + b'"},"key":"k","score":1}', []
    monkeypatch.setattr(record_encoding, "decode", lambda *given: made.append(given))
    answer = httpx.post(f"{server.url}/api/feedback", content=b"[" + b",".join([row] * 10_001) + b"]", timeout=60)
    assert (answer.status_code, made) == (413, [])


def test_what_is_no_list_has_no_items():
    assert [record_encoding.count_items(body) for body in (b"[1,{},[2]]", b"[]", b'{"a":[1,2]}', b"nope", b"\xff")] == [
        3,
        0,
        0,
        0,
        0,
    ]


# Records


def sent(**fields: Any) -> list[dict[str, Any]]:
    return [{"trace_id": "a" * 32, "span_id": "b" * 16, "name": "n", **fields}]


@pytest.mark.process
@pytest.mark.parametrize(
    "fields",
    [
        {"trace_id": "g" * 32},
        {"span_id": "B"},
        {"usage": {"input_tokens": -1}},
        {"usage": {"output_tokens": 2**60}},
        {"usage": {"details": {"cache_read": -1}}},
        {"cost": -1e308},
        {"cost": 1e308},
    ],
)
@pytest.mark.parametrize("path", ["/api/runs", "/api/traces"])
def test_a_run_that_cannot_be_is_refused(server, store, path, fields):
    body = sent(**fields) if path == "/api/runs" else {"runs": sent(**fields)}
    assert httpx.post(server.url + path, json=body).status_code == 400
    assert store.count()["traces"] == 0


@pytest.mark.parametrize("time_ns", [2**70, -(2**63), 2**63 - 1])
def test_a_time_that_cannot_be_does_no_harm(server, time_ns):
    assert httpx.post(f"{server.url}/api/runs", json=sent(start_ns=time_ns)).status_code < 500
    assert httpx.get(f"{server.url}/").status_code == 200


def test_ids_are_kept_in_lower_case(server, store):
    for id in ("A" * 32, "a" * 32):
        assert httpx.post(f"{server.url}/api/runs", json=sent(trace_id=id, span_id="B" * 16)).status_code == 200
    assert (store.count()["traces"], store.count()["spans"]) == (1, 1)
    assert httpx.get(f"{server.url}/api/traces/{'A' * 32}").json()["root"]["span_id"] == "b" * 16


def test_feedback_on_an_id_in_any_case_is_one(client, store):
    store.append([run(trace_id="a" * 32)])
    upper = Feedback(target=Target(trace_id="A" * 32), key="k", score=0.0)
    client.add_feedback([upper, Feedback(target=Target(trace_id="a" * 32), key="k", score=1.0)])
    assert [row.score for row in store.trace("a" * 32).feedback] == [1.0]


@pytest.mark.parametrize("amount", [-1e308, -1.0, 1e308])
def test_money_that_nobody_spends_is_refused(client, amount):
    with pytest.raises(Refused, match="must be between 0 and"):
        client.book(Booking(id="i", budget="b", amount=amount, limit=1.0))
    with pytest.raises(Refused, match="must be between 0 and"):
        client.settle({"i": amount})


# Batches by bytes


@pytest.mark.process
def test_runs_that_are_too_much_together_go_in_several_requests(client, store):
    """400 runs of 200 kB."""
    text = "x" * 200_000
    client.append([run(inputs=text) for _ in range(400)])
    assert store.count()["spans"] == 400


def test_halves_keep_traces_whole_and_roots_last():
    root, child = run(), run(parent_id="1" * 16)
    row = Feedback(target=Target(trace_id=root.trace_id), key="k", score=1.0)
    assert list(split_in_half([root, child], [row])) == [([child], []), ([root], [row])]
    below = run(trace_id=root.trace_id, parent_id=root.span_id)
    assert list(split_in_half([root, below], [row])) == [([below], ()), ([root], [row])]
    assert list(split_in_half([root], [row])) == [((), [row]), ([root], ())]
    assert list(split_in_half([], [row, row])) == [((), [row]), ((), [row])]
    assert list(split_in_half([root], [])) == [([root], [])]


@pytest.mark.process
def test_what_cannot_be_parted_is_refused(client):
    with pytest.raises(TooLarge, match="the maximum is 33,554,432"):
        client.append([run(inputs="x" * (transport.MAX_BODY_BYTES + 1))])


@pytest.mark.process
def test_feedback_that_is_too_much_together_goes_in_several_requests(client, store):
    rows = [
        Feedback(target=Target(trace_id=f"{n + 1:032x}"), key="k", score=1.0, comment="x" * 10**6) for n in range(40)
    ]
    client.add_feedback(rows)
    assert store.count()["feedbacks"] == 40
