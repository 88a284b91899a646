"""Forwarding to gRPC targets: `grpc://host:port`."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from collector.otlp import JSON, json_request, json_span, log_record, logs_request, request, span
from collector.test_forward import dropped, names_of, number, passing_on, send
from polling import until
from spanwise.collector.errors import Refused
from spanwise.collector.forward import Envelope, ForwardTarget, parse_targets
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

Step = Callable[[Any], bytes]


def fine(context: Any) -> bytes:
    return b""


def failing(code: grpc.StatusCode, details: str = "no", delay: float | None = None) -> Step:
    def step(context: Any) -> bytes:
        if delay is not None:
            info = RetryInfo(retry_delay=Duration(nanos=int(delay * 1e9)))
            context.set_trailing_metadata((("google.rpc.retryinfo-bin", info.SerializeToString()),))
        context.abort(code, details)
        return b""

    return step


class Target(grpc.GenericRpcHandler):  # type: ignore[misc]
    """OTLP receiver over gRPC. It gives the scripted answers first, then succeeds, and keeps the requests that it accepted."""

    def __init__(self, *script: Step) -> None:
        self.script = list(script)
        self.taken: list[tuple[str, dict[str, Any], bytes]] = []
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[self])
        self.url = f"grpc://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, details: Any) -> Any:
        def answer(body: bytes, context: Any) -> bytes:
            found = (self.script.pop(0) if self.script else fine)(context)
            self.taken.append((details.method, dict(details.invocation_metadata), body))
            return found

        return grpc.unary_unary_rpc_method_handler(answer)

    def names(self) -> list[str]:
        return [name for _, _, body in self.taken for name in names_of(body)]


@pytest.fixture
def target() -> Iterator[Callable[..., Target]]:
    made: list[Target] = []

    def make(*script: Step) -> Target:
        made.append(Target(*script))
        return made[-1]

    yield make
    for one in made:
        one.server.stop(0).wait()


@pytest.mark.parametrize(
    ("path", "body", "service"),
    [
        ("/v1/traces", request(span("a")), "trace.v1.TraceService"),
        ("/v1/logs", logs_request(log_record("", "", event_name="anything")), "logs.v1.LogsService"),
        ("/v1/metrics", b"\x0a\x02\x12\x00", "metrics.v1.MetricsService"),
    ],
)
def test_every_signal_is_forwarded(tmp_path, target, path, body, service):
    to = target()
    with passing_on(tmp_path, ForwardTarget("t0", to.url, {"authorization": "Basic theirs"})) as server:
        assert send(server, body, path).status_code == 200
        until(lambda: number(server, "spanwise_forwarded_total") == 1)
    [(method, metadata, content)] = to.taken
    assert method == f"/opentelemetry.proto.collector.{service}/Export"
    assert (content, metadata["authorization"], bool(metadata["spanwise-forwarded"])) == (body, "Basic theirs", True)


def test_json_is_converted(tmp_path, target):
    to = target()
    body = json.dumps(json_request(json_span("a", unknown=[1]))).encode()
    with passing_on(tmp_path, to.url) as server:
        assert send(server, body, kind=JSON).status_code == 200
        until(lambda: to.names() == ["a"])


@pytest.mark.parametrize(
    "body", [b"{", b'{"resourceSpans": 5}', b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}']
)
def test_json_that_cannot_be_converted(body: bytes) -> None:
    with pytest.raises(ValueError):
        Envelope("traces", True, (), body).to_protobuf()


def test_ids_survive_the_conversion() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    given = json_span("a", traceId="ab" * 16, spanId="cd" * 8, links=[{"traceId": "ef" * 16, "spanId": "01" * 8}])
    body = Envelope("traces", True, (), json.dumps(json_request(given)).encode()).to_protobuf()
    read = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans[0]
    assert (read.trace_id.hex(), read.span_id.hex(), read.links[0].trace_id.hex()) == ("ab" * 16, "cd" * 8, "ef" * 16)


@pytest.mark.process
@pytest.mark.parametrize(
    "step",
    [
        failing(grpc.StatusCode.UNAVAILABLE),
        failing(grpc.StatusCode.RESOURCE_EXHAUSTED, delay=0.01),
        failing(grpc.StatusCode.UNAUTHENTICATED),
        failing(grpc.StatusCode.INTERNAL),
    ],
)
def test_what_may_be_taken_later_is_sent_again(tmp_path, target, step):
    to = target(step, step)
    with passing_on(tmp_path, to.url) as server:
        assert send(server, request(span("a"))).status_code == 200
        until(lambda: to.names() == ["a"])
        assert number(server, "spanwise_forward_failures_total") == 2
        assert number(server, "spanwise_forward_dropped_total") == 0


def test_what_is_refused_for_good_is_dropped(tmp_path, target):
    to = target(failing(grpc.StatusCode.INVALID_ARGUMENT))
    with passing_on(tmp_path, to.url) as server:
        send(server, request(span("a")))
        until(lambda: dropped(server, "grpc_invalid_argument") == 1)
        send(server, request(span("b")))
        until(lambda: to.names() == ["b"])


def test_what_is_too_large_is_split(tmp_path, target):
    to = target(failing(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (5 vs. 4)"))
    with passing_on(tmp_path, to.url) as server:
        send(server, request(span("a"), span("b")))
        until(lambda: to.names() == ["a", "b"])
    assert len(to.taken) == 2


def test_rejected_spans_are_counted(tmp_path, target):
    told = ExportTraceServiceResponse(partial_success={"rejected_spans": 2}).SerializeToString()
    to = target(lambda context: told)
    with passing_on(tmp_path, to.url) as server:
        send(server, request(span()))
        until(lambda: number(server, "spanwise_forward_rejected_total") == 2)


@pytest.mark.process
def test_another_collector_receives_the_spans(tmp_path):
    with ExitStack() as stack:
        store = stack.enter_context(SQLiteStore(tmp_path / "b.db"))
        second = stack.enter_context(Server(store, grpc_port=0))
        first = stack.enter_context(passing_on(tmp_path, f"grpc://{(second.grpc_url or '').removeprefix('http://')}"))
        assert send(first, request(span("a"))).status_code == 200
        until(lambda: [trace.name for trace in store.traces()] == ["a"])


@pytest.mark.process
def test_a_collector_that_forwards_to_itself_does_not_loop(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with passing_on(tmp_path, f"grpc://127.0.0.1:{port}", grpc_port=port) as server:
        assert send(server, request(span("a"))).status_code == 200
        until(lambda: number(server, "spanwise_forward_loops_total") == 1)
        until(lambda: number(server, "spanwise_forwarded_total") == 1)


def test_an_address_without_a_listener_keeps_the_request(tmp_path):
    with passing_on(tmp_path, "grpc://127.0.0.1:1") as server:
        send(server, request(span("a")))
        until(lambda: number(server, 'spanwise_forward_failures_total{target="t0",reason="grpc_unavailable"}') >= 1)
        assert number(server, "spanwise_forward_waiting_bytes") > 0


def test_names_of_grpc_targets() -> None:
    first, second = parse_targets(
        ["grpc://tempo:4317", "far=grpcs://far.test"], {"SPANWISE_FORWARD_HEADERS_FAR": "k=v"}
    )
    assert (first.name, first.url, first.uses_grpc) == ("tempo", "grpc://tempo:4317", True)
    assert (second.name, second.uses_grpc, dict(second.headers)) == ("far", True, {"k": "v"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("grpc://host:4317/v1/traces", "omit"),
        ("grpc://host:4317/base", "omit the path from 'grpc://host:4317/base'"),
        ("grpc://", "is not the URL of an OTLP endpoint; expected https://host, grpc://host:4317"),
        ("grpc://user:secret@host", "the URL contains credentials"),
        ("grpc://host:0", "is not the URL"),
    ],
)
def test_what_is_no_grpc_target(given: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        parse_targets([given], {})
    assert "secret" not in str(caught.value)
