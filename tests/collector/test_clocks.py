"""Clocks that are wrong by years: what bears such a time is kept, in its place, and breaks nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from collector.making import run
from collector.otlp import JSON, PROTOBUF, attribute, request, span
from spanwise.collector import record_encoding
from spanwise.collector.record_corrections import (
    DAY_NS,
    HOUR_NS,
    MAX_CLOCK_SKEW_NS,
    correct_feedback_time,
    correct_span_times,
    correct_time,
)
from spanwise.collector.records import Feedback, OpenRun, Retention, Run, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

YEAR = 366 * DAY_NS
TRACE = "a" * 32
# start and end as they are sent, by which field is marked
WRONG = {
    "a year ahead": (lambda now: (now + YEAR, now + YEAR + 5), {"start_ns", "end_ns"}),
    "2262": (lambda _: (2**63 - 1, 2**63 - 1), {"start_ns", "end_ns"}),
    "2554": (lambda _: (2**64 - 1, 2**64 - 1), {"start_ns", "end_ns"}),
    "an end ahead": (lambda now: (now - 5, 2**63 - 1), {"end_ns"}),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as made:
        yield made


@pytest.fixture
def client(store: SQLiteStore) -> Iterator[httpx.Client]:
    with Server(store) as server, httpx.Client(base_url=server.url) as made:
        yield made


def sent(run: Run) -> dict[str, Any]:
    return {name.rpartition(".")[2]: value for name, value in run.attributes.items() if "spanwise.sent." in name}


def test_what_can_be_stays_as_it_is() -> None:
    now = time.time_ns()
    for start, end in ((0, 0), (now, now + 5), (now + MAX_CLOCK_SKEW_NS - 1, now + MAX_CLOCK_SKEW_NS - 1), (now, 0)):
        assert correct_span_times(start, end) is None


@pytest.mark.parametrize("ahead", [2 * MAX_CLOCK_SKEW_NS, HOUR_NS, 12 * HOUR_NS, YEAR])
def test_a_time_ahead_goes_back_by_whole_hours_and_lasts_as_long(ahead: int) -> None:
    now = time.time_ns()
    found = correct_span_times(now + ahead + 7, now + ahead + 12)
    assert found is not None
    assert (found.end_ns - found.start_ns, (now + ahead + 7 - found.start_ns) % HOUR_NS) == (5, 0)
    assert now - HOUR_NS <= found.start_ns <= time.time_ns()


def test_a_time_before_1970_is_its_first_moment() -> None:
    found = correct_span_times(-(2**63), 5)
    assert found is not None
    assert (found.start_ns, found.end_ns, found.sent) == (0, 5, {"spanwise.sent.start_ns": -(2**63)})


@pytest.mark.parametrize("clock", WRONG)
def test_protobuf_with_a_wrong_clock_is_kept_and_marked(store: SQLiteStore, client: httpx.Client, clock: str) -> None:
    (start, end), marked = WRONG[clock][0](time.time_ns()), WRONG[clock][1]
    body = request(span(trace_id=b"\xaa" * 16, start_time_unix_nano=start, end_time_unix_nano=end))
    assert client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF}).content == b""
    kept = store.trace(TRACE).root
    assert max(kept.start_ns, kept.end_ns) <= time.time_ns()
    assert sent(kept).keys() == marked
    assert sent(kept)["end_ns"] in (end, str(end))  # JSON knows no larger numbers


@pytest.mark.parametrize("path", ["/api/runs", "/api/traces", "/v1/traces"])
def test_json_with_times_out_of_all_bounds_is_kept_and_marked(
    store: SQLiteStore, client: httpx.Client, path: str
) -> None:
    own = {"trace_id": TRACE, "span_id": "b" * 16, "name": "n", "start_ns": -(2**63), "end_ns": 2**70}
    otlp = {"traceId": TRACE, "spanId": "b" * 16, "startTimeUnixNano": str(-(2**63)), "endTimeUnixNano": str(2**70)}
    bodies = {
        "/api/runs": [own],
        "/api/traces": {"runs": [own]},
        "/v1/traces": {"resourceSpans": [{"scopeSpans": [{"spans": [otlp]}]}]},
    }
    answer = client.post(path, json=bodies[path], headers={"content-type": JSON})
    assert (answer.status_code, "rejected" in answer.text) == (200, False)
    kept = store.trace(TRACE).root
    assert (kept.start_ns, kept.end_ns <= time.time_ns()) == (0, True)
    assert set(map(str, sent(kept).values())) == {str(-(2**63)), str(2**70)}


def test_what_comes_later_stands_above_a_clock_of_the_future(client: httpx.Client) -> None:
    now = time.time_ns()
    wrong = span("wrong", start_time_unix_nano=now + 10 * YEAR, end_time_unix_nano=now + 10 * YEAR)
    zone = span("zone", start_time_unix_nano=now + 2 * HOUR_NS, end_time_unix_nano=now + 2 * HOUR_NS)
    client.post("/v1/traces", content=request(wrong, zone), headers={"content-type": PROTOBUF})
    right = span("right", start_time_unix_nano=time.time_ns(), end_time_unix_nano=time.time_ns())
    client.post("/v1/traces", content=request(right), headers={"content-type": PROTOBUF})
    items = client.get("/api/traces").json()["items"]
    assert [one["name"] for one in items] == ["right", "zone", "wrong"]
    assert now - items[1]["start_ns"] < MAX_CLOCK_SKEW_NS  # the hour is right, the zone was not


def test_retention_by_age_reaches_a_clock_of_the_future(store: SQLiteStore, client: httpx.Client) -> None:
    body = request(span(start_time_unix_nano=2**63 - 1, end_time_unix_nano=2**63 - 1))
    client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
    assert store.prune(Retention(max_age_ns=2 * DAY_NS)) == 0
    assert store.prune(Retention(max_age_ns=0)) == 1


def test_retention_reaches_what_a_file_holds_of_the_future(store: SQLiteStore) -> None:
    store.append([run(start_ns=2**63 - 1, end_ns=2**63 - 1, project="p")])
    assert store.prune(Retention(max_age_ns=DAY_NS)) == 0
    assert store.prune(Retention(max_age_ns=0, project="q")) == 0
    assert store.prune(Retention(max_age_ns=0, project="p")) == 1


def test_a_vote_from_the_future_does_not_count_for_ever(store: SQLiteStore, client: httpx.Client) -> None:
    store.append([run(trace_id=TRACE)])
    vote = Feedback(target=Target(trace_id=TRACE), key="k", score=1, author="a", created_ns=2**63 - 1, source="human")
    assert client.post("/api/feedback", content=record_encoding.encode([vote])).status_code == 200
    store.add_feedback([Feedback(target=Target(trace_id=TRACE), key="k", score=0, author="b", source="human")])
    assert store.traces().items[0].feedback == {"k": 0}
    assert store.feedbacks(key="k").items[-1].metadata == {"spanwise.sent.created_ns": 2**63 - 1}


def test_an_event_and_an_open_run_are_taken_back_too(store: SQLiteStore, client: httpx.Client) -> None:
    values = [
        attribute("gen_ai.evaluation.name", "k"),
        attribute("gen_ai.evaluation.score.value", AnyValue(int_value=1)),
    ]
    record = {"timeUnixNano": str(2**63 - 1), "eventName": "gen_ai.evaluation.result", "traceId": TRACE}
    record["attributes"] = [
        {"key": one.key, "value": {"stringValue": "k"} if one.value.string_value else {"intValue": "1"}}
        for one in values
    ]
    client.post("/v1/logs", json={"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    client.post(
        "/api/running",
        content=record_encoding.encode([OpenRun(trace_id=TRACE, span_id="b" * 16, name="n", start_ns=2**63)]),
    )
    assert correct_time(time.time_ns()) <= time.time_ns()
    [kept], [running] = store.feedbacks(key="k"), store.running()
    assert max(kept.created_ns, running.start_ns) <= time.time_ns()
    assert correct_feedback_time(kept) is kept


STORED = [(2**63 - 1, 2**63 - 1), (0, 2**63 - 1), (2**63 - 1, 0), (0, 0)]
PAGES = [
    "/",
    "/?since=1h",
    "/?since=2200-01-01",
    "/?until=2262-04-11",
    "/traces?text=n",
    "/traces",
    "/traces?since=1h",
    "/traces?since=2200-01-01",
    "/traces?until=2262-04-11",
    "/sessions",
    "/sessions/s",
    "/rules",
]
PAGES += [f"/traces/{place:032x}" for place in range(1, 5)] + ["/api/traces", "/api/sessions", "/api/aggregate"]
PAGES += ["/api/aggregate?bucket_ns=60000000000", "/api/running", f"/charts?since_ns={-(2**63)}&until_ns={2**63 - 1}"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with SQLiteStore(tmp_path_factory.mktemp("clocks") / "a.db") as store, Server(store) as server:
        for place, (start, end) in enumerate(STORED, 1):
            store.append([run("n", trace_id=f"{place:032x}", start_ns=start, end_ns=end, inputs="n", session_id="s")])
        store.append([run("now", start_ns=time.time_ns(), end_ns=time.time_ns())])
        with httpx.Client(base_url=server.url) as client:
            yield client


@pytest.mark.process
@pytest.mark.parametrize("path", PAGES)
def test_no_page_breaks_over_what_a_file_holds_already(filled: httpx.Client, path: str) -> None:
    assert filled.get(path).status_code == 200


def test_charts_stay_with_the_traces_whose_clock_is_right(filled: httpx.Client) -> None:
    page = filled.get("/traces").text
    assert 'class="overview"' in page
    assert "2262" not in page.partition('class="overview"')[2].partition("</section>")[0]
