"""What senders of OTLP do beside the specification's letter, and what its other signals get."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from assay.collector.server import Server
from assay.collector.stores.sqlite import SQLiteStore
from collector.otlp import (
    JSON,
    PROTOBUF,
    json_request,
    json_span,
    log_record,
    logs_request,
    rejected_logs,
    request,
    span,
)


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as made:
        yield made


def send(server: Server, path: str, content: bytes, kind: str = PROTOBUF, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{server.url}{path}", content=content, headers={"content-type": kind, **named}, timeout=60)


def number(server: Server, name: str) -> str | None:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next((line.rpartition(" ")[2] for line in lines if line.startswith(name)), None)


def test_a_slash_at_the_end_changes_nothing(server):
    assert send(server, "/v1/traces/", request(span())).status_code == 200
    assert send(server, "/v1/logs/", logs_request()).status_code == 200
    assert server.store.count()["traces"] == 1


@pytest.mark.parametrize("name", ["x-gzip", "X-GZIP"])
def test_gzip_by_its_old_name(server, name):
    assert send(server, "/v1/traces", gzip.compress(request(span())), content_encoding=name).status_code == 200
    assert server.store.count()["traces"] == 1


def test_plain_log_records_are_accepted_counted_and_not_kept(server):
    plain = logs_request(log_record("", "", event_name="something.else"), log_record("", ""))
    answer = send(server, "/v1/logs", plain)
    assert (answer.status_code, rejected_logs(answer.content)) == (200, (0, ""))
    assert number(server, 'assay_passed_over_total{signal="logs"}') == "2"
    assert number(server, 'assay_refused_total{signal="logs"') is None


METRICS = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "a"}, {"name": "b"}]}]}]}


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_metrics_are_accepted_counted_and_dropped(server, kind):
    whole = ExportMetricsServiceRequest()
    metrics = whole.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="a"), metrics.add(name="b")
    body = whole.SerializeToString() if kind == PROTOBUF else json.dumps(METRICS).encode()
    answer = send(server, "/v1/metrics", body, kind)
    assert (answer.status_code, answer.content) == (200, b"" if kind == PROTOBUF else b"{}")
    assert number(server, 'assay_received_total{signal="metrics"}') == "2"
    assert number(server, 'assay_passed_over_total{signal="metrics"}') == "2"


@pytest.mark.parametrize(("body", "kind"), [(b"\xff\xff", PROTOBUF), (b"{nope", JSON), (b"\x0a\x05", PROTOBUF)])
def test_what_are_no_metrics_is_refused(server, body, kind):
    assert send(server, "/v1/metrics", body, kind).status_code == 400


SNAKE = {"resource_spans": [{"scope_spans": [{"spans": [{"trace_id": "1" * 32, "span_id": "1" * 16}]}]}]}


def test_protobufs_names_in_json_are_told(server):
    answer = send(server, "/v1/traces", json.dumps(SNAKE).encode(), JSON)
    assert answer.status_code == 400
    assert "'resource_spans' is 'resourceSpans'" in answer.json()["message"]


@pytest.mark.parametrize(
    ("part", "told"),
    [({"scope_spans": []}, "'scope_spans' is 'scopeSpans'"), ({"scopeSpans": [{"spans": []}]}, None), ({}, None)],
)
def test_protobufs_names_further_in(server, part, told):
    answer = send(server, "/v1/traces", json.dumps({"resourceSpans": [part]}).encode(), JSON)
    assert answer.status_code == (400 if told else 200)
    assert told is None or told in answer.json()["message"]


def test_a_field_that_is_passed_over_is_told_beside_what_is_kept(server):
    body = json.dumps(json_request(json_span(start_time_unix_nano="5"))).encode()
    partial = send(server, "/v1/traces", body, JSON).json()["partialSuccess"]
    assert "'start_time_unix_nano' is 'startTimeUnixNano'" in partial["errorMessage"]
    assert "rejectedSpans" not in partial  # it was kept
    assert server.store.count()["traces"] == 1


def test_protobufs_names_within_texts_are_nobodys_fields(server):
    texts = ['{"trace_id": "x"}', '"start_time_unix_nano":', "resource_spans"]
    attributes = [{"key": "span_id", "value": {"stringValue": text}} for text in texts]
    answer = send(server, "/v1/traces", json.dumps(json_request(json_span(attributes=attributes))).encode(), JSON)
    assert answer.json() == {}


def test_what_is_not_there_is_told_in_the_senders_encoding(server):
    answer = send(server, "/v1/profiles", b"")
    assert (answer.status_code, answer.headers["content-type"]) == (404, PROTOBUF)
    status = Status.FromString(answer.content)
    assert status.code == 5
    assert "/v1/profiles" in status.message
    assert send(server, "/v1/profiles", b"{}", JSON).json()["code"] == 5
