"""Passing on what comes in: as it came, once it is here, at least once, whatever the targets do."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from collector.making import run
from collector.otlp import JSON, PROTOBUF, attribute, json_request, json_span, log_record, logs_request, request, span
from integration.serving import ROOT, environment
from looped_cases import loop_over
from polling import until
from spanwise.collector.errors import Refused
from spanwise.collector.forward import (
    Envelope,
    FeedbackForwarder,
    Forwarder,
    ForwardTarget,
    join_envelopes,
    parse_targets,
    unpack_envelope,
)
from spanwise.collector.records import Key
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer import instrument, uninstrument
from spanwise.tracer.testing import capture_spans

SECONDS = 60.0
Answer = tuple[int, dict[str, str], bytes]
FINE: Answer = (200, {}, b"")


class Endpoint:
    """An OTLP endpoint that answers by a script, then always well, and keeps what it took."""

    def __init__(self, *script: Answer | Callable[[bytes], Answer], port: int = 0) -> None:
        self.script, self.asked, self.taken = list(script), 0, list[tuple[str, dict[str, str], bytes]]()
        self.open, self._lock = threading.Event(), threading.Lock()  # an answer may wait for `open`
        self.server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        with self._lock:
            self.asked += 1
            step = self.script.pop(0) if self.script else FINE
        found = step(body) if callable(step) else step
        if 200 <= found[0] < 300:
            self.taken.append((path, headers, body))
        return found

    def names(self) -> list[str]:
        """The spans of what was taken in protobuf, in order."""
        return [name for _, _, body in self.taken for name in names_of(body)]

    def close(self) -> None:
        self.open.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(SECONDS)


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, told, answer = endpoint.answer(self.path, headers, body)
            self.send_response(status)
            for name, value in {"content-length": str(len(answer)), **told}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def names_of(body: bytes) -> list[str]:
    found = ExportTraceServiceRequest.FromString(body)
    return [one.name for resource in found.resource_spans for scope in resource.scope_spans for one in scope.spans]


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    made: list[Endpoint] = []

    def make(*script: Any, port: int = 0) -> Endpoint:
        made.append(Endpoint(*script, port=port))
        return made[-1]

    yield make
    for one in made:
        one.close()


@contextmanager
def passing_on(folder: Path, *to: ForwardTarget | str, most_bytes: int = 2**20, **options: Any) -> Iterator[Server]:
    """A server that passes on to these."""
    named = [ForwardTarget(f"t{number}", one) if isinstance(one, str) else one for number, one in enumerate(to)]
    forwarder = Forwarder(named, folder / "forward", most_bytes, longest_pause=0.5)
    with SQLiteStore(folder / "a.db") as store, Server(store, forward=forwarder, **options) as made:
        yield made


def send(server: Server, body: bytes, path: str = "/v1/traces", kind: str = PROTOBUF, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{server.url}{path}"
    return httpx.post(url, content=body, headers={"content-type": kind, **named}, timeout=SECONDS)


def number(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=SECONDS).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def dropped(server: Server, reason: str) -> float:
    return number(server, f'spanwise_forward_dropped_total{{target="t0",reason="{reason}"}}')


# As it came


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/v1/traces", PROTOBUF, request(span("a"))),
        ("/v1/traces", JSON, json.dumps(json_request(json_span("a", unknown=[1]))).encode()),
        ("/v1/logs", PROTOBUF, logs_request(log_record("", "", event_name="anything"))),
        ("/v1/logs", JSON, b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "x"}}]}]}]}'),
        ("/v1/metrics", PROTOBUF, b"\x0a\x02\x12\x00"),
        ("/v1/metrics", JSON, b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "a"}]}]}]}'),
    ],
)
def test_every_signal_is_passed_on_byte_by_byte(tmp_path, endpoint, path, kind, body):
    to = endpoint()
    with passing_on(tmp_path, to.url + "/base") as server:
        assert send(server, body, path, kind).status_code == 200
        until(lambda: to.taken)
        until(lambda: number(server, "spanwise_forwarded_total") == 1)
    [(where, headers, content)] = to.taken
    assert (where, headers["content-type"], content) == (f"/base{path}", kind, body)


@pytest.mark.process
def test_an_instrumentation_of_httpx_does_not_trace_what_is_passed_on(tmp_path, endpoint):
    to = endpoint()
    with capture_spans() as spans, passing_on(tmp_path, to.url) as server:
        instrument("httpx")
        try:
            send(server, request(span("a")))
            until(lambda: to.taken)
        finally:
            uninstrument("httpx")
    assert spans.names() == ["POST"]  # the test's own request
    assert "traceparent" not in {name.lower() for name in to.taken[0][1]}


@pytest.mark.process
def test_what_comes_by_grpc_is_passed_on_too(tmp_path, endpoint):
    to = endpoint()
    with passing_on(tmp_path, to.url, grpc_port=0) as server:
        with grpc.insecure_channel((server.grpc_url or "")[7:], compression=grpc.Compression.Gzip) as channel:
            call = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
            call(request(span("a", attributes=[attribute("a", "x" * 5000)])), timeout=SECONDS)
        until(lambda: to.names() == ["a"])


def test_the_targets_own_headers_go_with_it_and_none_of_the_senders(tmp_path, endpoint):
    to = endpoint()
    target = ForwardTarget("t0", to.url, {"authorization": "Basic theirs"})
    with passing_on(tmp_path, target, host="0.0.0.0", api_key="ours") as server:
        sent = {"authorization": "Bearer ours", "cookie": "ours", "baggage": "ours"}
        assert send(server, request(span()), **sent).status_code == 200
        until(lambda: to.taken)
    headers = to.taken[0][1]
    assert headers["authorization"] == "Basic theirs"
    assert "ours" not in str(headers)
    assert b"ours" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))


def test_what_is_refused_here_is_not_passed_on(tmp_path, endpoint):
    to = endpoint()
    with passing_on(tmp_path, to.url) as server:
        assert send(server, b"\xff\xff").status_code == 400
        assert send(server, request(span("good"))).status_code == 200
        until(lambda: to.taken)
    assert to.names() == ["good"]


def test_order_is_kept_and_what_waits_goes_together(tmp_path, endpoint):
    def wait(body: bytes) -> Answer:
        assert to.open.wait(SECONDS)
        return FINE

    to = endpoint(wait)
    with passing_on(tmp_path, to.url) as server:
        sent = [f"{number}" for number in range(20)]
        for name in sent:
            assert send(server, request(span(name))).status_code == 200  # nobody waits for the target
        to.open.set()
        until(lambda: len(to.names()) >= 20)
        assert number(server, "spanwise_forwarded_total") <= 20
    assert (to.names(), to.asked < 10) == (sent, True)


# What targets do


def lasting(status: int, times: int = 2, **headers: str) -> list[Answer]:
    return [(status, {name.replace("_", "-"): value for name, value in headers.items()}, b"no")] * times


@pytest.mark.process
@pytest.mark.parametrize(
    "script",
    [lasting(429, retry_after="0"), lasting(503), lasting(500), lasting(401), lasting(302, location="http://x.test")],
)
def test_what_may_be_taken_later_is_sent_again(tmp_path, endpoint, script):
    to = endpoint(*script)
    with passing_on(tmp_path, to.url) as server:
        assert send(server, request(span("a"))).status_code == 200
        until(lambda: to.names() == ["a"])
        assert number(server, "spanwise_forward_failures_total") == 2
        assert number(server, "spanwise_forward_dropped_total") == 0


@pytest.mark.slow  # waits grow from try to try, ten times
def test_a_request_on_which_a_target_always_fails_holds_up_others_for_a_while_only(tmp_path, endpoint):
    to = endpoint(*lasting(500, times=10))
    with passing_on(tmp_path, to.url) as server:
        send(server, request(span("poison")))
        until(lambda: to.asked)
        send(server, request(span("b")))
        until(lambda: dropped(server, "http_500") == 1)
        until(lambda: number(server, "spanwise_forwarded_total") == 1)
    assert set(to.names()) == {"b"}


@pytest.mark.slow  # waits grow from try to try, twelve times
def test_a_target_that_fails_on_everything_loses_nothing(tmp_path, endpoint):
    to = endpoint(*lasting(500, times=12))
    with passing_on(tmp_path, to.url) as server:
        for name in "abc":
            send(server, request(span(name)))
        until(lambda: number(server, "spanwise_forwarded_total") == 3)
        assert number(server, "spanwise_forward_dropped_total") == 0
    assert to.names() == ["a", "b", "c"]


def test_what_is_refused_for_good_is_dropped_counted_and_told_once(tmp_path, endpoint, caplog):
    to = endpoint(*lasting(400, times=3))
    with caplog.at_level(logging.WARNING, "spanwise.collector"), passing_on(tmp_path, to.url) as server:
        for name in "abc":
            send(server, request(span(name)))
            until(lambda: dropped(server, "http_400") == "abc".index(name) + 1)  # noqa: B023
        send(server, request(span("d")))
        until(lambda: to.names() == ["d"])
    told = [record.getMessage() for record in caplog.records]
    assert told == ["forwarding to 't0' dropped requests: 1 http_400"]


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_what_is_too_large_is_sent_in_parts_and_a_span_alone_is_given_up(tmp_path, endpoint, kind):
    def small(body: bytes) -> Answer:
        return FINE if len(body) < 3000 and b"huge" not in body else (413, {}, b"")

    to = endpoint(*[small] * 100)
    with passing_on(tmp_path, to.url) as server:
        if kind == JSON:
            spans = [json_span(name + "x" * 500) for name in ("a", "b", "huge", *"cdefgh")]
            send(server, json.dumps(json_request(*spans)).encode(), kind=JSON)
        else:
            send(server, request(*(span(name + "x" * 500) for name in ("a", "b", "huge", *"cdefgh"))))
        until(lambda: dropped(server, "http_413") == 1)
        until(lambda: sum(body.count(b"xxxxx" * 100) for _, _, body in to.taken) == 8)
    assert not any(b"huge" in body for _, _, body in to.taken)


def test_one_target_that_hangs_delays_neither_senders_nor_the_others(tmp_path, endpoint):
    def wait(body: bytes) -> Answer:
        hangs.open.wait(SECONDS)
        return FINE

    hangs, fine = endpoint(wait), endpoint()
    with passing_on(tmp_path, hangs.url, fine.url) as server:
        for name in "abc":
            assert send(server, request(span(name))).status_code == 200
        until(lambda: fine.names() == ["a", "b", "c"])
        assert hangs.taken == []
        hangs.open.set()
        until(lambda: hangs.names() == ["a", "b", "c"])


def test_what_a_target_rejects_is_counted(tmp_path, endpoint):
    told = ExportTraceServiceResponse(partial_success={"rejected_spans": 2}).SerializeToString()
    to = endpoint(
        (200, {}, told), (200, {}, b'{"partialSuccess": {"rejectedSpans": "3"}}'), (200, {}, b"\xff" * 100_000)
    )
    with passing_on(tmp_path, to.url) as server:
        send(server, request(span()))
        until(lambda: number(server, "spanwise_forward_rejected_total") == 2)
        send(server, json.dumps(json_request(json_span())).encode(), kind=JSON)
        until(lambda: number(server, "spanwise_forward_rejected_total") == 5)
        send(server, request(span()))
        until(lambda: number(server, "spanwise_forwarded_total") == 3)


# What happens here


def free_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        return int(free.server_address[1])


def test_a_target_that_is_away_gets_it_after_a_restart(tmp_path, endpoint, caplog):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with caplog.at_level(logging.WARNING, "spanwise.collector"), passing_on(tmp_path, url) as server:
        assert send(server, request(span("a"))).status_code == 200
        until(lambda: number(server, "spanwise_forward_failures_total"))
        assert number(server, "spanwise_forward_waiting_bytes") > 0
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["forwarding to 't0' (http"]
    to = endpoint(port=port)
    with passing_on(tmp_path, url) as server:
        until(lambda: to.names() == ["a"])
        until(lambda: number(server, "spanwise_forward_waiting_bytes") == 0)


@pytest.mark.process
def test_what_has_no_room_on_disk_is_dropped_the_oldest_first(tmp_path, endpoint):
    def wait(body: bytes) -> Answer:
        to.open.wait(10 * SECONDS)  # until it may: all that comes before may take a while
        return FINE

    to = endpoint(wait)
    with passing_on(tmp_path, to.url, most_bytes=100_000) as server:
        for name in range(60):
            send(server, request(span(f"{name}", attributes=[attribute("a", "x" * 5000)])))
        lost = dropped(server, "disk_full")
        assert lost > 20
        assert number(server, "spanwise_forward_waiting_bytes") < 130_000
        to.open.set()
        until(lambda: "59" in to.names())
        assert len(to.names()) == 60 - lost


def test_a_disk_that_cannot_be_written_costs_the_sender_nothing(tmp_path, endpoint):
    to = endpoint()
    (tmp_path / "forward").write_text("a file where the folder is to be")
    with passing_on(tmp_path, to.url) as server:
        assert send(server, request(span())).status_code == 200
        assert (dropped(server, "disk"), server.store.count()["spans"]) == (1, 1)


@pytest.mark.process
def test_what_is_torn_or_none_of_ours_is_counted_and_the_rest_is_sent(tmp_path, endpoint):
    port = free_port()
    with passing_on(tmp_path, f"http://127.0.0.1:{port}") as server:
        for name in "ab":
            send(server, request(span(name)))
            until(lambda: number(server, "spanwise_forward_failures_total"))
    [*_, last] = sorted(tmp_path.rglob("*.spool"))
    last.write_bytes(last.read_bytes()[:-1])
    (last.parent / "notes.txt").write_text("somebody's")
    to = endpoint(port=port)
    with passing_on(tmp_path, to.url) as server:
        until(lambda: dropped(server, "torn") == 1)
        send(server, request(span("c")))
        until(lambda: "c" in to.names())
    assert to.names() in (["a", "c"], ["c"])


@pytest.mark.process
def test_two_collectors_that_pass_on_to_each_other_do_so_once(tmp_path):
    with ExitStack() as held:
        (tmp_path / "b").mkdir()
        port = free_port()
        a = held.enter_context(passing_on(tmp_path, f"http://127.0.0.1:{port}"))
        b = held.enter_context(passing_on(tmp_path / "b", a.url, port=port))
        send(a, request(span("x")))
        until(lambda: number(a, "spanwise_forward_loops_total") == 1)
        until(lambda: number(b, "spanwise_forwarded_total") == 1)
        assert (number(a, "spanwise_forwarded_total"), number(b, "spanwise_forward_loops_total")) == (1, 0)
        assert [store.count()["spans"] for store in (a.store, b.store)] == [1, 1]


def test_what_has_passed_through_many_goes_no_further(tmp_path, endpoint):
    to = endpoint()
    with passing_on(tmp_path, to.url) as server:
        assert send(server, request(span("far")), spanwise_forwarded=",".join("abcdefgh")).status_code == 200
        assert number(server, "spanwise_forward_loops_total") == 1
        send(server, request(span("near")), spanwise_forwarded="a, b")
        until(lambda: to.names() == ["near"])
    assert to.taken[0][1]["spanwise-forwarded"].startswith("a,b,")


# Keys of one project


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_of_a_projects_key_only_what_was_accepted_is_passed_on(tmp_path, endpoint, kind):
    to = endpoint()
    with passing_on(tmp_path, to.url, host="0.0.0.0", api_key="master") as server:
        server.store.save_key(Key(id="p", name="p", sha256=hashlib.sha256(b"p").hexdigest(), project="p"))
        server.store.append([theirs := run(project="q")])
        if kind == JSON:
            spans = [json_span("mine"), json_span("theirs", traceId=theirs.trace_id.upper())]
            body = json.dumps(json_request(*spans)).encode()
        else:
            body = request(span("mine"), span("theirs", trace_id=bytes.fromhex(theirs.trace_id)))
        assert send(server, body, kind=kind, x_api_key="p").status_code == 200
        until(lambda: to.taken)
    assert (b"mine" in to.taken[0][2], b"theirs" in to.taken[0][2]) == (True, False)


def test_feedback_on_anothers_trace_is_not_passed_on(tmp_path, endpoint):
    to = endpoint()
    with passing_on(tmp_path, to.url, host="0.0.0.0", api_key="master") as server:
        server.store.save_key(Key(id="p", name="p", sha256=hashlib.sha256(b"p").hexdigest(), project="p"))
        server.store.append([mine := run(project="p"), theirs := run(project="q")])
        send(
            server,
            logs_request(*(judged(one.trace_id, one.span_id) for one in (mine, theirs))),
            "/v1/logs",
            x_api_key="p",
        )
        until(lambda: to.taken)
    assert (bytes.fromhex(mine.trace_id) in to.taken[0][2], bytes.fromhex(theirs.trace_id) in to.taken[0][2]) == (
        True,
        False,
    )


def judged(trace_id: str, span_id: str) -> Any:
    found = log_record(trace_id, span_id, event_name="gen_ai.evaluation.result")
    found.attributes.extend([attribute("gen_ai.evaluation.name", "a"), attribute("gen_ai.evaluation.score.label", "b")])
    return found


# Targets


def test_targets_have_names_and_their_headers_come_from_the_environment():
    given = ["https://a.test/otel/", "my-b=http://127.0.0.1:4318"]
    found = parse_targets(given, {"SPANWISE_FORWARD_HEADERS_MY_B": "Authorization=Basic%20eA==, x-y = z,"})
    assert [(one.name, one.url) for one in found] == [
        ("a.test", "https://a.test/otel"),
        ("my-b", "http://127.0.0.1:4318"),
    ]
    assert [one.headers for one in found] == [{}, {"authorization": "Basic eA==", "x-y": "z"}]
    assert "Basic" not in repr(found)


@loop_over(
    ("given", "told"),
    [
        (["nowhere"], "is not the URL of an OTLP endpoint"),
        (["ftp://a.test"], "is not the URL of an OTLP endpoint"),
        (["http://a.test:x"], "is not the URL of an OTLP endpoint"),
        (["http://[::1"], "is not the URL of an OTLP endpoint"),
        (["http://a.test?key=1"], "is not the URL of an OTLP endpoint"),
        (["http://a.test/v1/traces"], "omit /v1/"),
        (["http://me:secret@a.test"], "SPANWISE_FORWARD_HEADERS_"),
        (["http://me:secret@a.test:99999"], "SPANWISE_FORWARD_HEADERS_"),
        (["me:secret@a.test"], "SPANWISE_FORWARD_HEADERS_"),
        (["http://me:secret@[::1"], "SPANWISE_FORWARD_HEADERS_"),
        (["http://me:se/secret@a.test:x"], "SPANWISE_FORWARD_HEADERS_"),
        (["http://a.test?key=secret"], "is not the URL of an OTLP endpoint"),
        (["http://a.test#secret"], "is not the URL of an OTLP endpoint"),
        (["http://a b.test"], "is not the URL of an OTLP endpoint"),
        (["http://a\n.test"], "is not the URL of an OTLP endpoint"),
        (["http://a.test", "http://a.test/b"], "duplicate target name 'a.test'"),
        (["b=http://a.test"], "SPANWISE_FORWARD_HEADERS_B: header 1 must be name=value"),
    ],
)
def test_what_is_no_target_is_refused_and_no_secret_is_told(given: Sequence[str], told):
    with pytest.raises(Refused, match=told) as refused:
        parse_targets(given, {"SPANWISE_FORWARD_HEADERS_B": "secret"})
    assert "secret" not in str(refused.value)


def test_a_server_does_not_send_to_itself(tmp_path):
    port = free_port()
    with (
        pytest.raises(Refused, match="address of this server"),
        passing_on(tmp_path, f"http://localhost:{port}/", port=port),
    ):
        pass


def test_what_waits_for_a_target_that_is_not_named_any_more_is_found(tmp_path):
    with passing_on(tmp_path, f"http://127.0.0.1:{free_port()}") as server:
        send(server, request(span()))
        until(lambda: number(server, "spanwise_forward_failures_total"))
    [left] = Forwarder([], tmp_path / "forward").left()
    assert left.startswith("t0-")
    for folder in (tmp_path / "forward", tmp_path / "forward" / left):
        assert os.stat(folder).st_mode & 0o077 == 0


# Letters


def test_a_letter_is_read_as_it_was_written_and_nothing_else_is():
    letter = Envelope("logs", True, ("a", "b"), b"{}\n\n")
    assert unpack_envelope(letter.packed()) == letter
    for record in (b"", b"\n", b"[]\nx", b'["else",true,[]]\nx', b'["logs",true,[]]'):
        with pytest.raises(ValueError, match="not a forwarded request"):
            unpack_envelope(record)


def test_letters_in_protobuf_follow_each_other():
    parts = [Envelope("traces", False, (), request(span(name))) for name in "abc"]
    assert names_of(join_envelopes(parts).body) == ["a", "b", "c"]


@pytest.mark.parametrize("body", [b"\xff", b"[]", b'{"resourceSpans": 5}'])
def test_what_cannot_be_parted_is_told(body):
    with pytest.raises(ValueError, match="cannot be parsed as a whole"):
        Envelope("traces", not body.startswith(b"\xff"), (), body).halves()


def test_one_item_cannot_be_parted():
    assert Envelope("traces", False, (), request(span())).halves() == []


# As a command

COMMAND = [sys.executable, "-c", "from spanwise.cli import main; main()", "serve"]


@contextmanager
def command(*arguments: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    """`spanwise serve` as a process, whose words come on stderr."""
    line = [*COMMAND, *map(str, arguments)]
    with subprocess.Popen(line, env={**environment(), **env}, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=SECONDS).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow  # two processes begin
def test_what_was_acknowledged_before_a_kill_is_passed_on(tmp_path, endpoint):
    port, target = free_port(), free_port()
    arguments = ["--port", port, "--grpc-port", 0, "--store", tmp_path / "a.db"]
    arguments += ["--forward", f"x=http://127.0.0.1:{target}"]
    with command(*arguments) as process:
        until(lambda: answers(port))
        for name in "abc":
            url = f"http://127.0.0.1:{port}/v1/traces"
            sent = httpx.post(url, content=request(span(name)), headers={"content-type": PROTOBUF}, timeout=SECONDS)
            assert sent.status_code == 200
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    to = endpoint(port=target)
    with command(*arguments, SPANWISE_FORWARD_HEADERS_X="authorization=Bearer%20key") as process:
        until(lambda: to.names() == ["a", "b", "c"])
        process.terminate()
        told = process.communicate(timeout=SECONDS)[1]
    assert "  accepts OTLP over gRPC\n" in told
    assert f"forwards to x: http://127.0.0.1:{target}" in told
    assert to.taken[0][1]["authorization"] == "Bearer key"
    assert process.returncode == 0


@pytest.mark.slow
def test_the_end_waits_once_for_all_targets_that_hang(tmp_path):
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
        hanging = [
            ForwardTarget(f"t{one.getsockname()[1]}", f"http://127.0.0.1:{one.getsockname()[1]}") for one in listening
        ]
        store = stack.enter_context(SQLiteStore(tmp_path / "a.db"))
        passing, telling = Forwarder(hanging, tmp_path / "spool"), FeedbackForwarder(hanging)
        server = Server(store, forward=passing, feedback_to=telling).__enter__()
        send(server, request(span()))
        store.feedback(run().trace_id, "good", 1)
        ending = threading.Thread(target=server.__exit__, args=(None, None, None))
        ending.start()
        ending.join(30)  # one after the other they would take 80 s
        assert not ending.is_alive()
