"""OTLP by gRPC: what it takes, whom it lets in, what it tells, and what those meet who mean it harm."""

from __future__ import annotations

import gzip
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from collector.making import run
from collector.otlp import attribute, log_record, logs_request, rejected, request, span
from integration.serving import ROOT, environment
from looped_cases import loop_over
from polling import until
from spanwise.collector.errors import Refused
from spanwise.collector.grpc import export_services
from spanwise.collector.grpc.export_services import _detect_encoding, _parse_peer
from spanwise.collector.grpc.listener import MAX_CONNECTIONS, MAX_MESSAGE_BYTES
from spanwise.collector.ingest import Limits
from spanwise.collector.records import Key
from spanwise.collector.security import ATTEMPT_BURST
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SECONDS = 60.0
TRACES, LOGS, METRICS = "trace.v1.TraceService", "logs.v1.LogsService", "metrics.v1.MetricsService"
KEYS = {"master": None, "sender": ("ingest",), "reader": ("read",)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as made:
        yield made


@pytest.fixture
def server(store: SQLiteStore) -> Iterator[Server]:
    with Server(store, grpc_port=0) as made:
        yield made


@pytest.fixture
def locked(store: SQLiteStore) -> Iterator[Server]:
    for name in ("sender", "reader"):
        store.save_key(Key(id=name, name=name, sha256=hashed(name), scopes=KEYS[name]))  # type: ignore[arg-type]
    store.save_key(Key(id="p", name="p", sha256=hashed("p"), project="p"))
    with Server(store, host="0.0.0.0", api_key="master", grpc_port=0) as made:
        yield made


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@contextmanager
def channel(server: Server | str, **options: Any) -> Iterator[grpc.Channel]:
    address = (server if isinstance(server, str) else server.grpc_url or "").removeprefix("http://")
    apart = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=apart, **options) as made:
        yield made


def send(server: Server | str, body: bytes, service: str = TRACES, metadata: Any = (), **options: Any) -> bytes:
    """The answer to a call. Raises `grpc.RpcError`."""
    with channel(server, **options) as made:
        call = made.unary_unary(f"/opentelemetry.proto.collector.{service}/Export")
        return bytes(call(body, metadata=metadata, timeout=SECONDS))


def refused(server: Server, body: bytes, service: str = TRACES, metadata: Any = ()) -> Any:
    """The error of a call."""
    with pytest.raises(grpc.RpcError) as raised:
        send(server, body, service, metadata)
    return raised.value


def test_a_key_that_is_sent_is_checked_on_loopback(server):
    body = request(span())
    wrong = refused(server, body, metadata=[("authorization", "Bearer nonsense")])
    server.store.save_key(Key(id="reader", name="reader", sha256=hashed("reader"), scopes=KEYS["reader"]))
    unfit = refused(server, body, metadata=[("authorization", "Bearer reader")])
    assert (wrong.code(), unfit.code()) == (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    assert send(server, body) == b""


# What it takes


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_spans_are_stored_when_the_call_is_answered(server, compression):
    body = request(span("a", attributes=[attribute("input.value", "hi " * 30)]))
    assert send(server, body, compression=compression) == b""
    assert [(one.name, one.inputs) for one in server.store.traces()] == [("a", "hi " * 30)]


def test_log_records_and_metrics(server):
    server.store.append([kept := run()])
    said = log_record(kept.trace_id, kept.span_id, event_name="gen_ai.evaluation.result")
    said.attributes.extend(
        [attribute("gen_ai.evaluation.name", "good"), attribute("gen_ai.evaluation.score.label", "yes")]
    )
    assert send(server, logs_request(said), LOGS) == b""
    assert [one.key for one in server.store.feedbacks()] == ["good"]
    metrics = ExportMetricsServiceRequest()
    metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="a")
    assert send(server, metrics.SerializeToString(), METRICS) == b""
    assert 'spanwise_passed_over_total{signal="metrics"} 1' in httpx.get(f"{server.url}/metrics").text


def test_a_bad_span_is_told_in_partial_success(server):
    count, why = rejected(send(server, request(span("good"), span(trace_id=b""))))
    assert (count, server.store.count()["spans"]) == (1, 1)
    assert "not 16 bytes" in why


def test_what_is_no_request_is_an_invalid_argument(server):
    error = refused(server, b"\xff\xff")
    assert (error.code(), error.trailing_metadata()) == (grpc.StatusCode.INVALID_ARGUMENT, ())
    assert "not an OTLP request" in error.details()


def test_another_service_is_not_there(server):
    assert refused(server, b"", "profiles.v1.ProfilesService").code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_call_without_a_message_is_refused_and_one_with_two_is_answered_after_the_first(server):
    with channel(server) as made:
        call = made.stream_unary(f"/opentelemetry.proto.collector.{TRACES}/Export")
        with pytest.raises(grpc.RpcError, match="the call contains no message"):
            call(iter(()), timeout=SECONDS)
        assert call(iter([request(span()), request(span())]), timeout=SECONDS) == b""
    assert server.store.count()["spans"] == 1


@pytest.mark.process
def test_calls_are_counted_by_their_status(server):
    send(server, request(span()))
    refused(server, b"\xff\xff")
    numbers = httpx.get(f"{server.url}/metrics").text
    assert 'spanwise_grpc_calls_total{signal="traces",code="OK"} 1' in numbers
    assert 'spanwise_grpc_calls_total{signal="traces",code="INVALID_ARGUMENT"} 1' in numbers


@loop_over(
    ("start", "encoding"),
    [
        (gzip.compress(b"", mtime=0), b"gzip"),
        (zlib.compress(b"", 9), b"deflate"),
        (zlib.compress(b"", 1), b"deflate"),
        (b"", None),
        (b"x", None),
        (request(span()), None),
        (b"\x0a\x00", None),
        (b"xx", None),
    ],
)
def test_how_a_message_is_compressed_is_told_by_how_it_begins(start, encoding):
    assert _detect_encoding(start).get(b"content-encoding") == encoding


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:47", "127.0.0.1"), ("ipv6:%5B::1%5D:47", "::1"), ("unix:/x", ""), ("", "")],
)
def test_the_address_of_a_peer(peer, address):
    assert _parse_peer(peer) == address


# Whom it lets in


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", "Bearer sender"),
        ("authorization", "sender"),
        ("x-api-key", "sender"),
        ("api_key", "sender"),
        ("authorization", "Basic eDpzZW5kZXI="),
        ("x-api-key", "master"),
    ],
)
def test_a_key_in_any_spelling(locked, name, value):
    assert send(locked, request(span()), metadata=((name, value),)) == b""


@pytest.mark.parametrize(
    ("key", "code"),
    [(None, "UNAUTHENTICATED"), ("wrong", "UNAUTHENTICATED"), ("reader", "PERMISSION_DENIED")],
)
def test_no_key_a_wrong_one_and_one_that_may_not_send(locked, key, code):
    error = refused(locked, request(span()), metadata=(("x-api-key", key),) if key else ())
    assert error.code().name == code
    assert locked.store.count()["spans"] == 0


@pytest.mark.process
def test_who_tries_keys_is_told_when_to_come_again(locked):
    master = (("x-api-key", "master"),)
    send(locked, request(span()), metadata=master)
    errors = [refused(locked, b"", metadata=(("x-api-key", f"wrong{number}"),)) for number in range(ATTEMPT_BURST + 1)]
    assert errors[-1].code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 0 < retry_of(errors[-1]).retry_delay.ToTimedelta().total_seconds() <= 1
    assert send(locked, request(span()), metadata=master) == b""  # who was right from there goes on


def retry_of(error: Any) -> RetryInfo:
    found = RetryInfo()
    metadata = dict(error.trailing_metadata())
    [packed] = Status.FromString(metadata["grpc-status-details-bin"]).details
    assert packed.Unpack(found)
    assert metadata["google.rpc.retryinfo-bin"] == found.SerializeToString()
    return found


def test_a_key_of_a_project_stays_inside_it(locked):
    locked.store.append([theirs := run(project="q")])
    body = request(span("mine"), span("theirs", trace_id=bytes.fromhex(theirs.trace_id)))
    count, why = rejected(send(locked, body, metadata=(("x-api-key", "p"),)))
    assert (count, theirs.trace_id in why) == (1, True)
    assert [one.name for one in locked.store.traces(project="p")] == ["mine"]


@pytest.mark.parametrize(("sender", "fine"), [("203.0.113.7", False), ("127.0.0.1", True)])
def test_a_proxy_on_this_machine_lets_nobody_in_from_elsewhere(server, sender, fine):
    metadata = (("x-forwarded-for", sender),)
    if fine:
        assert send(server, request(span()), metadata=metadata) == b""
    else:
        assert refused(server, request(span()), metadata=metadata).code() == grpc.StatusCode.PERMISSION_DENIED


# Its port


@pytest.mark.process
def test_a_port_that_was_asked_for_and_is_taken_is_refused(store):
    with socket.create_server(("127.0.0.1", 0)) as busy, pytest.raises(Refused, match="--grpc-port"):
        Server(store, grpc_port=busy.getsockname()[1])


@pytest.mark.process
def test_a_usual_port_that_is_taken_is_told_and_http_goes_on(store):
    with (
        socket.create_server(("127.0.0.1", 0)) as busy,
        Server(store, grpc_port=busy.getsockname()[1], grpc_required=False) as made,
    ):
        assert (made.grpc_url, "is in use by" in made.without_grpc) == (None, True)
        assert httpx.get(f"{made.url}/readyz").status_code == 200


def test_a_second_server_does_not_share_the_port(server, tmp_path):
    assert server.grpc_url is not None
    with SQLiteStore(tmp_path / "b.db") as other, pytest.raises(Refused, match="--grpc-port"):
        Server(other, grpc_port=int(server.grpc_url.rpartition(":")[2]))


def test_a_port_that_is_taken_between_looking_and_binding_ends_the_start(store):
    made = Server(store, grpc_port=0)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        made._server.grpc.port = busy.getsockname()[1]  # type: ignore[union-attr]
        with pytest.raises(Refused, match="gRPC cannot bind"):
            made.__enter__()


def test_nobody_speaks_grpc_unless_asked_to(store):
    with Server(store) as made:
        assert (made.grpc_url, made.without_grpc) == (None, "")


# Who means it harm


@pytest.mark.process
def test_a_message_is_bounded_before_and_after_it_is_inflated(server):
    for body in (b"\x0a" * (MAX_MESSAGE_BYTES + 1), gzip.compress(bytes(64 * 1024 * 1024), 1)):
        error = refused(server, body)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.trailing_metadata() == ()  # it would be no smaller later
    assert send(server, request(span())) == b""


def test_too_much_at_once_is_told_when_to_come_again(store):
    with Server(store, grpc_port=0, limits=Limits(pending_bytes=1000)) as made:
        error = refused(made, request(span(attributes=[attribute("a", "x" * 2000)])))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_of(error).retry_delay.seconds >= 1
        assert send(made, request(span())) == b""


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """One of HTTP/2's."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def literal(name: str, value: str) -> bytes:
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
HEAD = b"".join(
    literal(*pair)
    for pair in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/opentelemetry.proto.collector.{TRACES}/Export"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
)
HALF = frame(1, 4, 1, HEAD) + frame(0, 0, 1, b"\x00\x00\x00\x10\x00" + b"\x0a" * 100)


def raw(server: Server, held: ExitStack, content: bytes) -> socket.socket:
    assert server.grpc_url is not None
    made = held.enter_context(socket.create_connection(("127.0.0.1", int(server.grpc_url.rpartition(":")[2])), 30))
    made.sendall(content)
    return made


def number(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=SECONDS).text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


@pytest.mark.process
def test_half_messages_make_room_for_whole_ones(server):
    with ExitStack() as held:
        for _ in range(export_services.MAX_CONCURRENT_READS):
            raw(server, held, PREFACE + HALF)
        until(lambda: number(server, "spanwise_grpc_calls ") == export_services.MAX_CONCURRENT_READS)
        assert send(server, request(span())) == b""
        until(lambda: number(server, 'spanwise_requests_refused_total{signal="traces",reason="stalled"}') >= 1)


def test_more_connections_than_may_be_do_not_touch_http(server):
    with ExitStack() as held:
        for _ in range(MAX_CONNECTIONS + 30):
            with suppress(OSError):  # those beyond are cut off
                raw(server, held, PREFACE)
        assert httpx.get(f"{server.url}/readyz", timeout=SECONDS).status_code == 200
    until(lambda: _delivers(server))


def _delivers(server: Server) -> bool:
    try:
        return send(server, request(span())) == b""
    except grpc.RpcError:
        return False


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        bytes(range(256)) * 20,
        PREFACE + frame(0, 0, 0, b"x" * 100),
        PREFACE + frame(1, 4, 1, HEAD) + frame(0, 1, 1, b"\x01\xff\xff\xff\xff" + b"a" * 50),
        PREFACE + frame(6, 0, 0, b"12345678") * 1000,
        PREFACE + frame(1, 0, 1, b""),
    ],
)
def test_what_is_no_grpc_harms_nobody(server, content):
    with ExitStack() as held:
        raw(server, held, content)
        assert send(server, request(span())) == b""


def test_a_sender_that_goes_away_is_forgotten(server):
    with ExitStack() as held:
        raw(server, held, PREFACE + HALF)
        until(lambda: number(server, "spanwise_grpc_calls ") == 1)
    until(lambda: number(server, "spanwise_grpc_calls ") == 0)


# How it ends


class Slow:
    """A store that keeps feedback waiting until it is told."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store, self.begun, self.go = store, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def add_feedback(self, *args: Any) -> Any:
        self.begun.set()
        assert self.go.wait(SECONDS)
        return self.store.add_feedback(*args)


@pytest.mark.process
def test_a_call_under_way_is_answered_before_the_end(store):
    said = log_record("1" * 32, "2" * 16, event_name="gen_ai.evaluation.result")
    said.attributes.extend([attribute("gen_ai.evaluation.name", "a"), attribute("gen_ai.evaluation.score.label", "b")])
    answers: list[bytes] = []
    slow = Slow(store)
    with Server(slow, grpc_port=0) as made:  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: answers.append(send(made, logs_request(said), LOGS)))
        thread.start()
        assert slow.begun.wait(SECONDS)
        threading.Timer(0.3, slow.go.set).start()
    thread.join(SECONDS)
    assert answers == [b""]


SERVE = """
import os, sys
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
with SQLiteStore(sys.argv[1]) as store, Server(store, grpc_port=0) as server:
    if sys.argv[2:] == ["fork"]:
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    print(server.grpc_url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own, and where it speaks gRPC."""
    # Python 3.12 and later warn of any fork beside threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SERVE, str(path), *arguments]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), cwd=ROOT, **pipes) as made:
        try:
            assert made.stdout is not None
            yield made, made.stdout.readline().strip()
        finally:
            made.kill()


@pytest.mark.process
def test_what_was_acknowledged_survives_a_kill(tmp_path):
    with process(tmp_path / "a.db") as (server, address):
        acknowledged = [send(address, request(span())) for _ in range(20)]
        server.send_signal(signal.SIGKILL)
        server.wait(SECONDS)
    with SQLiteStore(tmp_path / "a.db") as store:
        assert store.count()["spans"] == len(acknowledged) == 20


@pytest.mark.process
def test_a_process_that_forks_goes_on_answering(tmp_path):
    with process(tmp_path / "a.db", "fork") as (server, address):
        assert send(address, request(span())) == b""
        told = server.communicate("", timeout=SECONDS)[1]
    assert (server.returncode, told) == (0, "")


@pytest.mark.process
def test_grpc_is_loaded_only_where_it_is_served(tmp_path):
    program = (
        "import sys; from spanwise.collector.server import Server; from spanwise.collector.stores.sqlite import SQLiteStore\n"
        "with SQLiteStore(sys.argv[1]) as store, Server(store): print('grpc' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.db")]
    ran = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (ran.stdout, os.path.exists(tmp_path / "a.db")) == ("False\n", True)
