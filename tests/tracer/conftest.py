"""Fixtures of the tracer's tests: spans in memory, and a real OTLP/HTTP collector in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanwise.tracer import internal_errors, process_runtime
from spanwise.tracer.export import delivery_lifecycle, disk_spool, span_queue
from spanwise.tracer.testing import traced  # noqa: F401


@pytest.fixture
def only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivery begins no round by itself, however late the machine is with a flush: that then counts all there is."""
    monkeypatch.setenv("SPANWISE_EXPORT_INTERVAL", "1000")


class Sink:
    """A collector that keeps request bodies, and answers what it is told to."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answer: Callable[[str, bytes], tuple[int, dict[str, str], bytes]] = lambda path, body: (200, {}, b"")
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def spans(self) -> list[Any]:
        """Every span of every request answered so far, in protobuf."""
        spans = []
        for path, _, body in list(self.requests):
            if path == "/v1/traces":
                message = ExportTraceServiceRequest.FromString(body)
                spans += [s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans]
        return spans

    def logs(self) -> list[Any]:
        """Every log record received."""
        bodies = [body for path, _, body in list(self.requests) if path == "/v1/logs"]
        resources = [r for body in bodies for r in ExportLogsServiceRequest.FromString(body).resource_logs]
        return [record for r in resources for scope in r.scope_logs for record in scope.log_records]

    def bytes(self) -> bytes:
        """Everything that came over the wire."""
        return b"".join(body for _, _, body in list(self.requests))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone before its answer is what some tests are about."""


def _handler(sink: Sink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, answer = sink.answer(self.path, body)
            if status == 200:
                sink.requests.append((self.path, dict(self.headers), body))
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(answer)

        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture
def sink() -> Iterator[Sink]:
    collector = Sink()
    yield collector
    collector.close()


@pytest.fixture(autouse=True)
def own_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """Each test has its own set-up, spills into its own directory, and sees our own errors raised."""
    monkeypatch.setenv("SPANWISE_SPILL_DIR", str(tmp_path / "spill"))
    previous = process_runtime.replace_runtime(None)
    if previous is not None:
        previous.delivery.close(0.2)  # what tests elsewhere have left in its queue is no business of these
    monkeypatch.setattr(delivery_lifecycle, "_live", {})
    # an earlier test may have delivered to the same address: fixed ones, or a port that is free again
    span_queue.forget_accounts()
    internal_errors.reset_errors()
    disk_spool.forget_after_fork()  # what other tests have left on disk
    internal_errors.strict = True
    yield
    internal_errors.strict = False
    made = process_runtime.replace_runtime(None)
    if made is not None:
        made.delivery.close(0.2)
    disk_spool.forget_after_fork()


def somewhere(sink: Sink, folder: Path) -> set[bytes]:
    """Ids of the spans that have arrived or wait below a spool directory: a busy machine decides which of the two."""
    waiting = [ExportTraceServiceRequest.FromString(body) for path, body, _ in spooled(folder) if path == "/v1/traces"]
    scopes = [scope for message in waiting for resource in message.resource_spans for scope in resource.scope_spans]
    return {s.span_id for s in sink.spans()} | {s.span_id for scope in scopes for s in scope.spans}


def spooled(folder: Path) -> list[tuple[str, bytes, int]]:
    """What waits below a spool directory: path, body and number of items of each request."""
    waiting = []
    for segment in sorted(folder.glob("*/*.spool")):
        with segment.open("rb") as file:
            waiting += [(it.path, it.body or b"", it.count) for it in disk_spool.read_records(file.fileno())]
    return waiting


def until(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Wait for something to become true; fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError("it did not become true in time")
