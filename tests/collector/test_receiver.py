"""`/v1/traces` over a real server and a real file: what is kept, what is answered."""

from __future__ import annotations

import gzip
import json
import math
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from collector.otlp import (
    JSON,
    PROTOBUF,
    attribute,
    json_request,
    json_span,
    nested,
    rejected,
    request,
    request_nested,
    span,
)
from spanwise.collector.ingest import Limits
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

LIMITS = Limits(request_bytes=2 * 1024 * 1024, value_bytes=1024 * 1024, spans=500)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStore]:
    path: Path = tmp_path_factory.mktemp("receiver") / "spanwise.db"
    with SQLiteStore(path) as store:
        yield store


@pytest.fixture(scope="module")
def client(kept: SQLiteStore) -> Iterator[httpx.Client]:
    with Server(kept, limits=LIMITS) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def send(client: httpx.Client, body: bytes, content_type: str | None = PROTOBUF, **headers: str) -> httpx.Response:
    given = {} if content_type is None else {"content-type": content_type}
    return client.post("/v1/traces", content=body, headers=given | headers)


def names(kept: SQLiteStore, *trace_ids: bytes) -> list[str]:
    return [trace.root.name for trace in kept.many([one.hex() for one in trace_ids])]


@pytest.mark.process
def test_protobuf_is_kept_and_visible_when_it_is_acknowledged(client, kept):
    one = span("answer", attributes=[attribute("input.value", "hi"), attribute("k", AnyValue(int_value=0))])
    response = send(client, request(one))
    assert (response.status_code, response.content, response.headers["content-type"]) == (200, b"", PROTOBUF)
    root = kept.trace(one.trace_id.hex()).root
    assert (root.name, root.inputs, root.attributes, root.end_ns - root.start_ns) == ("answer", "hi", {"k": 0}, 5)


def test_every_kind_of_value_in_protobuf(client, kept):
    pairs = AnyValue()
    pairs.kvlist_value.values.append(attribute("a", "b"))
    values = {"text": "", "yes": True, "no": False, "int": -(2**63), "float": 0.5, "bytes": b"\x00\xff"}
    fields = {
        "text": "string_value",
        "yes": "bool_value",
        "no": "bool_value",
        "int": "int_value",
        "float": "double_value",
        "bytes": "bytes_value",
    }
    given = [attribute(key, AnyValue(**{fields[key]: value})) for key, value in values.items()]
    one = span(
        attributes=[*given, attribute("list", nested(2)), attribute("map", pairs), attribute("none", AnyValue())]
    )
    assert send(client, request(one)).status_code == 200
    found = kept.trace(one.trace_id.hex()).root.attributes
    assert found == values | {"bytes": "AP8=", "list": [[1]], "map": {"a": "b"}, "none": None}


def test_every_kind_of_value_in_json(client, kept):
    values = [
        ("text", {"stringValue": ""}, ""),
        ("yes", {"boolValue": True}, True),
        ("no", {"boolValue": False}, False),
        ("int", {"intValue": "-9223372036854775808"}, -(2**63)),
        ("number", {"intValue": 7}, 7),
        ("float", {"doubleValue": 0.5}, 0.5),
        ("nan", {"doubleValue": "NaN"}, "NaN"),
        ("bytes", {"bytesValue": "AP8="}, "AP8="),
        ("list", {"arrayValue": {"values": [{"intValue": 1}, {}]}}, [1, None]),
        ("none", {}, None),
        ("null", None, None),
        ("map", {"kvlistValue": {"values": [{"key": "a", "value": {"stringValue": "b"}}]}}, {"a": "b"}),
    ]
    one = json_span(attributes=[{"key": key, "value": value} for key, value, _ in values])
    response = send(client, json.dumps(json_request(one)).encode(), JSON)
    assert (response.status_code, response.json(), response.headers["content-type"]) == (200, {}, JSON)
    assert kept.trace(one["traceId"].lower()).root.attributes == {key: value for key, _, value in values}


@pytest.mark.parametrize("kind", [3, "SPAN_KIND_CLIENT"])
@pytest.mark.parametrize("code", [2, "STATUS_CODE_ERROR"])
def test_enums_in_json_are_numbers_or_names(client, kept, kind, code):
    one = json_span(kind=kind, status={"code": code, "message": "no"}, unknownField={"deep": [1]})
    assert send(client, json.dumps(json_request(one)).encode(), "application/json; charset=utf-8").status_code == 200
    root = kept.trace(one["traceId"].lower()).root
    assert (root.status, root.error, root.attributes) == ("error", "no", {"otel.span.kind": "client"})


def test_events_and_links_in_both_encodings(client, kept):
    one = span(events=[{"name": "e", "time_unix_nano": 7, "attributes": [attribute("a", "b")]}])
    one.links.add(trace_id=b"\1" * 16, span_id=b"\2" * 8)
    two = json_span(
        events=[{"name": "e", "timeUnixNano": "7", "attributes": [{"key": "a", "value": {"stringValue": "b"}}]}],
        links=[{"traceId": "01" * 16, "spanId": "02" * 8}],
    )
    assert send(client, request(one)).status_code == 200
    assert send(client, json.dumps(json_request(two)).encode(), JSON).status_code == 200
    first, second = kept.trace(one.trace_id.hex()).root, kept.trace(two["traceId"].lower()).root
    assert (first.events, first.links) == (second.events, second.links)
    assert (first.events[0].attributes, first.links[0].span_id) == ({"a": "b"}, "02" * 8)


@pytest.mark.parametrize(
    ("encoding", "squeeze"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
def test_compressed_bodies(client, kept, encoding, squeeze):
    one = span(encoding)
    assert send(client, squeeze(request(one)), **{"content-encoding": encoding}).status_code == 200
    assert names(kept, one.trace_id) == [encoding]


def test_a_gzip_body_of_several_members(client, kept):
    one = span("members")
    body = request(one)
    assert (
        send(client, gzip.compress(body[:9]) + gzip.compress(body[9:]), **{"content-encoding": "gzip"}).status_code
        == 200
    )
    assert names(kept, one.trace_id) == ["members"]


GOOD = request(span())


def bomb() -> bytes:
    """1 GB of zeros in one gzip stream, whose end nobody reads: pieces that stand for themselves, 100 times."""
    squeezer = zlib.compressobj(9, wbits=31)
    first, again = (squeezer.compress(bytes(10**7)) + squeezer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + 99 * again


@pytest.mark.process
@pytest.mark.parametrize(
    ("status", "body", "content_type", "headers"),
    [
        (400, b"\xff" * 50, PROTOBUF, {}),
        (400, GOOD[:-5], PROTOBUF, {}),
        (400, b"\x0a\x80", PROTOBUF, {}),
        (400, gzip.compress(GOOD, mtime=0)[:-9], PROTOBUF, {"content-encoding": "gzip"}),
        (400, zlib.compress(GOOD)[:-9], PROTOBUF, {"content-encoding": "deflate"}),
        (400, GOOD, PROTOBUF, {"content-encoding": "gzip"}),
        (400, b"", PROTOBUF, {"content-encoding": "gzip"}),
        (400, b"", JSON, {}),
        (400, b"{", JSON, {}),
        (400, b"[]", JSON, {}),
        (400, b'{"resourceSpans": 5}', JSON, {}),
        (400, b"[" * 100_000, JSON, {}),
        (400, b'{"resourceSpans":' * 5_000, JSON, {}),
        (400, b"\xff\xfe", JSON, {}),
        (413, bomb(), PROTOBUF, {"content-encoding": "gzip"}),
        (413, bytes(64 * 1024 * 1024), PROTOBUF, {}),
        (413, request(*[span() for _ in range(501)]), PROTOBUF, {}),
        (415, GOOD, "text/plain", {}),
        (415, GOOD, None, {}),
        (415, GOOD, PROTOBUF, {"content-encoding": "br"}),
    ],
)
def test_what_can_never_work_is_answered_in_its_own_encoding(client, status, body, content_type, headers):
    response = send(client, body, content_type, **headers)
    assert response.status_code == status
    assert "retry-after" not in response.headers
    assert response.headers["content-type"] == (PROTOBUF if content_type == PROTOBUF else JSON)
    if content_type == PROTOBUF:
        assert Status.FromString(response.content).message
    else:
        assert response.json()["message"]
    assert send(client, request(span())).status_code == 200  # the server lives


def test_a_body_of_unknown_length_is_given_up_at_the_bound(client):
    response = client.post(
        "/v1/traces", content=(bytes(65536) for _ in range(1000)), headers={"content-type": PROTOBUF}
    )
    assert response.status_code == 413


def test_nothing_to_keep_is_fine(client):
    assert send(client, b"").status_code == 200
    assert send(client, b"{}", JSON).status_code == 200
    assert send(client, GOOD, PROTOBUF + "; charset=utf-8").status_code == 200


def test_only_post(client):
    response = client.get("/v1/traces")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def non_utf8() -> bytes:
    return request(span("NAME")).replace(b"NAME", b"\xff\xfe\xff\xfe")


BAD = {
    "zero trace id": (request(span(trace_id=bytes(16))), "trace id '0000"),
    "zero span id": (request(span(span_id=bytes(8))), "span id '0000"),
    "no ids": (request(span(trace_id=b"", span_id=b"")), "trace id ''"),
    "short id": (request(span(trace_id=b"1234567")), "trace id '31323334353637'"),
    "short parent id": (request(span(parent_span_id=b"123")), "parent span id '313233'"),
    "nested 40 deep": (request_nested(40), "deeper than 32"),
    "nested 200 deep": (request_nested(200), "cannot be parsed"),
    "10,001 attributes": (
        request(span(attributes=[attribute(f"a{i}", "v") for i in range(10_001)])),
        "10,001 attributes",
    ),
    "a long text": (request(span(attributes=[attribute("a", "x" * 1_100_000)])), "1,100,000 bytes"),
    "not UTF-8": (non_utf8(), "cannot be parsed"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_bad_span_is_told_and_the_good_one_beside_it_is_kept(client, kept, case):
    bad, told = BAD[case]
    good = span("good")
    # Two serialised messages one after the other are one message with the fields of both
    response = send(client, bad + request(good))
    assert response.status_code == 200
    count, reason = rejected(response.content)
    assert count == 1
    assert told in reason
    assert names(kept, good.trace_id) == ["good"]


def deep(depth: int) -> dict:
    value: dict = {"intValue": 1}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
    return value


WRITTEN = {
    "half a pair": (r'{"stringValue": "cut \ud83d"}', "cut \ufffd"),
    "the other half": (r'{"stringValue": "\uDE00, \\\\ud83d"}', "\ufffd, \\\\ud83d"),
    "a whole pair": (r'{"stringValue": "\ud83d\ude00 \ud83d"}', "😀 \ufffd"),
    "NaN": ('{"doubleValue": NaN}', "NaN"),
    "infinite": ('{"doubleValue": -Infinity}', "-Infinity"),
    "words": ('{"stringValue": "NaN \\" Infinity"}', 'NaN " Infinity'),
}


@pytest.mark.parametrize("case", sorted(WRITTEN))
def test_what_programs_write_though_json_forbids_it_is_kept(client, kept, case):
    written, read = WRITTEN[case]
    one, other = json_span(attributes=[{"key": "a", "value": "HERE"}]), json_span(kind=[])
    body = json.dumps(json_request(one, other)).replace('"HERE"', written).encode()
    response = send(client, body, JSON)
    assert (response.status_code, response.json()["partialSuccess"]["rejectedSpans"]) == (200, "1")
    assert kept.trace(one["traceId"].lower()).root.attributes == {"a": read}


def test_mending_takes_time_in_proportion_to_the_body(client):
    assert send(client, b'"' + b'\\"' * 900_000, JSON).status_code == 400


JSON_BAD = {
    "zero trace id": ({"traceId": "0" * 32}, "trace id '0000"),
    "not hex": ({"traceId": "zz" * 16}, "is not hexadecimal"),
    "no ids": ({"traceId": None, "spanId": None}, "trace id ''"),
    "base64 id": ({"spanId": "q83vEjRWeJA="}, "is not hexadecimal"),
    "wrong type": ({"name": 5}, "Expected `str | null`, got `int`"),
    "wrong nested type": ({"attributes": [{"key": "a", "value": {"intValue": [1]}}]}, "cannot be parsed"),
    "time of no number": ({"endTimeUnixNano": "soon"}, "'soon' is not an integer"),
    "int beyond 64 bits": (
        {"attributes": [{"key": "a", "value": {"intValue": str(2**63)}}]},
        "does not fit into 64 bits",
    ),
    "nested 40 deep": ({"attributes": [{"key": "a", "value": deep(40)}]}, "deeper than 32"),
    "nested 200 deep": ({"attributes": [{"key": "a", "value": deep(200)}]}, ""),
    "a span that is none": (None, "cannot be parsed"),
}


@pytest.mark.parametrize("case", sorted(JSON_BAD))
def test_a_bad_span_in_json_is_told_and_the_good_one_beside_it_is_kept(client, kept, case):
    fields, told = JSON_BAD[case]
    good = json_span("good")
    response = send(
        client, json.dumps(json_request([] if fields is None else json_span(**fields), good)).encode(), JSON
    )
    assert response.status_code == 200
    partial = response.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert told in partial["errorMessage"]
    assert kept.trace(good["traceId"].lower()).root.name == "good"


def test_a_request_of_bad_spans_alone_is_partial_success_if_it_could_be_read(client):
    response = send(client, request(span(trace_id=bytes(16)), span(trace_id=bytes(16))))
    assert (response.status_code, rejected(response.content)[0]) == (200, 2)


ODD = {
    "NUL in the name": {"name": "a\x00b"},
    "times of zero": {"start_time_unix_nano": 0, "end_time_unix_nano": 0},
    "an end before its start": {"end_time_unix_nano": 1},
    "10,000 attributes": {"attributes": [attribute(f"a{i}", "v") for i in range(10_000)]},
    "NaN and Infinity": {
        "attributes": [
            attribute("a", AnyValue(double_value=math.nan)),
            attribute("b", AnyValue(double_value=-math.inf)),
        ]
    },
    "clashing keys": {"attributes": [attribute(key, "v") for key in ("", "a", "a.b", "a.b.c", "a")]},
    "wrong types": {
        "attributes": [
            attribute("llm.token_count.prompt", nested(3)),
            attribute("retrieval.documents.999999999.document.content", "x"),
            attribute("metadata", AnyValue(int_value=1)),
        ]
    },
    "unknown enum": {"kind": 77, "status": {"code": 9}},
    "no name": {"name": ""},
}


@pytest.mark.process
@pytest.mark.parametrize("case", sorted(ODD))
def test_odd_spans_are_kept(client, kept, case):
    one = span(**ODD[case])
    response = send(client, request(one))
    assert (response.status_code, response.content) == (200, b"")
    root = kept.trace(one.trace_id.hex()).root
    assert root.start_ns == one.start_time_unix_nano
    assert client.get(f"/api/traces/{root.trace_id}").status_code == 200
    assert client.get(f"/traces/{root.trace_id}").status_code == 200


def test_the_same_span_twice_is_kept_once(client, kept):
    one = span("twice")
    assert {send(client, request(one, one)).status_code, send(client, request(one)).status_code} == {200}
    assert len(kept.trace(one.trace_id.hex()).runs) == 1


def test_too_many_bytes_at_once_are_told_to_come_later(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store, Server(store, limits=Limits(pending_bytes=10)) as server:
        response = httpx.post(f"{server.url}/v1/traces", content=request(span()), headers={"content-type": PROTOBUF})
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert Status.FromString(response.content).code == 8


@pytest.mark.process
@pytest.mark.parametrize("path", ["/v1/traces", "/api/feedback"])
def test_a_body_that_stalls_is_given_up(tmp_path, path):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {PROTOBUF}\r\ncontent-length: 100\r\n\r\n"
    with SQLiteStore(tmp_path / "a.db") as store, Server(store, limits=Limits(stall_seconds=0.05)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stalled:
            stalled.sendall(head.encode() + b"half")
            answer = stalled.recv(1000).lower()
        assert answer.startswith(b"http/1.1 503")
        assert b"retry-after: 1" in answer
        assert "spanwise_pending_bytes 0" in httpx.get(f"{server.url}/metrics", timeout=60).text


def test_the_numbers_of_what_happened(tmp_path):
    with (
        SQLiteStore(tmp_path / "a.db") as store,
        Server(store) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        send(client, request(span(), span(), span(trace_id=bytes(16)), span(end_time_unix_nano=2**64 - 1)))
        send(client, b"\xff")
        numbers = client.get("/metrics").text.splitlines()
    assert 'spanwise_received_total{signal="traces"} 4' in numbers
    assert 'spanwise_stored_total{signal="traces"} 3' in numbers  # a time that cannot be is no reason to refuse
    assert 'spanwise_refused_total{signal="traces",reason="ids"} 1' in numbers
    assert 'spanwise_requests_refused_total{signal="traces",reason="malformed"} 1' in numbers
    assert "spanwise_acknowledgement_seconds_count 1" in numbers
    assert "spanwise_pending_bytes 0" in numbers
