"""OpenTelemetry span exporters of the application: `configure(exporters=…)`, and OTEL_EXPORTER_OTLP_PROTOCOL=grpc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from polling import until
from spanwise.tracer import configuration, configure, current_run, flush, shutdown, stats, trace
from spanwise.tracer.configuration import resolve_settings
from spanwise.tracer.export import external_exporters

from .conftest import Sink


@trace(kind="tool")
def work(password: str = "hunter2") -> str:
    return "done"


class Scripted(SpanExporter):
    """An exporter that does what a test says, and keeps what it took."""

    def __init__(
        self, export: Callable[[], SpanExportResult] = lambda: SpanExportResult.SUCCESS, shutdown: Any = lambda: None
    ) -> None:
        self._export, self._shutdown = export, shutdown
        self.taken: list[ReadableSpan] = []
        self.is_shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._export()
        self.taken += spans
        return result

    def shutdown(self) -> None:
        self._shutdown()
        self.is_shut_down = True


@pytest.fixture
def hanging() -> Iterator[Scripted]:
    """An exporter that hangs until the test is over."""
    over = threading.Event()
    yield Scripted(lambda: (over.wait(60) and SpanExportResult.SUCCESS) or SpanExportResult.FAILURE)
    over.set()


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANWISE_URL", raising=False)


def test_spans_go_to_exporters_only_if_no_address_is_configured() -> None:
    memory = InMemorySpanExporter()
    configure(exporters=[memory])
    work()
    result = flush(60)
    assert (bool(result), result.delivered, stats().delivered) == (True, 1, 1)
    (span,) = memory.get_finished_spans()
    assert span.instrumentation_scope is not None
    assert (span.name, span.kind.name, span.status.status_code.name) == ("work", "INTERNAL", "OK")
    assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/gen-ai/1.42.0"
    attributes = dict(span.attributes or {})
    assert (attributes["gen_ai.tool.name"], attributes["input.value"]) == ("work", '{"password":"hunter2"}')
    assert span.resource.attributes["openinference.project.name"] == "default"


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_spans_go_to_both_if_an_address_is_configured(sink: Sink, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = InMemorySpanExporter()
    if by == "variable":
        monkeypatch.setenv("SPANWISE_URL", sink.url)
    configure(url=sink.url if by == "argument" else None, exporters=[memory])
    work()
    assert flush(60)
    assert (len(sink.spans()), len(memory.get_finished_spans())) == (1, 1)
    assert {a.key for a in sink.spans()[0].attributes}.isdisjoint(
        memory.get_finished_spans()[0].attributes or ()
    ) is False
    assert "gen_ai.tool.name" not in {a.key for a in sink.spans()[0].attributes}


def test_exporters_see_redacted_spans() -> None:
    memory = InMemorySpanExporter()
    configure(exporters=[memory], redact=["password", re.compile("do.e")])
    work()
    assert flush(60)
    (span,) = memory.get_finished_spans()
    assert "hunter2" not in span.to_json()
    assert "done" not in span.to_json()


def test_spans_of_a_joined_provider_go_to_exporters_once() -> None:
    memory = InMemorySpanExporter()
    configure(exporters=[memory], provider=TracerProvider())
    work()
    assert flush(60)
    assert [span.name for span in memory.get_finished_spans()] == ["work"]


def test_the_http_exporter_delivers(sink: Sink) -> None:
    configure(exporters=[OTLPSpanExporter(f"{sink.url}/v1/traces")])
    work()
    assert flush(60)
    (span,) = sink.spans()
    assert {a.key: a.value.string_value for a in span.attributes}["gen_ai.tool.call.result"] == "done"


def test_spans_that_wait_for_the_collector_are_passed_on_once(sink: Sink) -> None:
    sink.answer = lambda path, body: (503, {}, b"")
    memory = InMemorySpanExporter()
    configure(url=sink.url, exporters=[memory], spill_dir="off")
    work()
    assert not flush(5)
    sink.answer = lambda path, body: (200, {}, b"")
    assert until(lambda: flush(5))
    assert (len(sink.spans()), len(memory.get_finished_spans())) == (1, 1)


def fail() -> SpanExportResult:
    raise SystemExit("no")


@pytest.mark.parametrize(
    ("export", "cause"),
    [
        (lambda: SpanExportResult.FAILURE, "returned <SpanExportResult.FAILURE"),
        (lambda: None, "returned None"),
        (fail, "raised SystemExit: no"),
    ],
)
def test_an_exporter_that_fails(export: Any, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    memory = InMemorySpanExporter()
    configure(exporters=[Scripted(export), memory])
    work()
    assert flush(60).dropped == 1
    assert (stats().dropped, len(memory.get_finished_spans())) == ({"exporter_failed": 1}, 1)
    assert cause in caplog.text
    work()
    assert flush(60).dropped == 1


def test_a_hanging_exporter_does_not_stop_another(hanging: Scripted) -> None:
    memory = InMemorySpanExporter()
    configure(exporters=[hanging, memory])
    for _ in range(3):
        work()
        flush(0.05)
    until(lambda: len(memory.get_finished_spans()) == 3)
    assert (stats().queued, stats().dropped) == (3, {})


@pytest.mark.process
def test_a_hanging_exporter_is_given_up_at_shutdown(hanging: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_exporters, "EXIT_TIMEOUT", 0.1)
    memory = InMemorySpanExporter()
    configure(exporters=[hanging, memory])
    work()
    began = time.monotonic()
    shutdown()
    assert time.monotonic() - began < 5
    assert (len(memory.get_finished_spans()), stats().dropped, stats().queued) == (1, {"exporter_stuck": 1}, 0)


def test_an_exporter_that_hangs_in_shutdown_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_exporters, "EXIT_TIMEOUT", 0.1)
    over = threading.Event()
    exporter = Scripted(shutdown=lambda: over.wait(60))
    configure(exporters=[exporter])
    work()
    shutdown()
    assert (len(exporter.taken), stats().dropped) == (1, {})
    over.set()


def test_an_exporter_that_raises_in_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    configure(exporters=[Scripted(shutdown=lambda: 1 / 0)])
    work()
    shutdown()
    assert "shutdown() raised ZeroDivisionError" in caplog.text


def test_an_exporter_that_is_slower_than_its_queue(hanging: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_exporters, "MAX_PENDING_BYTES", 20_000)
    configure(exporters=[hanging])
    for _ in range(50):
        work()
    flush(0.05)
    until(lambda: 5 <= stats().queued <= 13)
    assert stats().dropped.keys() == {"exporter_full"}
    assert stats().queued + stats().dropped["exporter_full"] == 50


def test_a_second_configuration_shuts_down_only_what_it_does_not_use() -> None:
    first, second = Scripted(), Scripted()
    configure(exporters=[first, second])
    work()
    configure(exporters=[second])
    work()
    assert flush(60)
    assert (first.is_shut_down, second.is_shut_down) == (True, False)
    assert (len(first.taken), len(second.taken)) == (1, 2)


def test_feedback_needs_an_address(caplog: pytest.LogCaptureFixture) -> None:
    @trace
    def rated() -> None:
        current_run().feedback("good", True)

    configure(exporters=[InMemorySpanExporter()])
    rated()
    assert flush(60).dropped == 1
    assert stats().dropped == {"feedback_without_url": 1}
    assert "span exporters cannot send feedback, and no url is configured" in caplog.text


def test_an_exporter_may_be_made_in_its_own_thread() -> None:
    made: list[str] = []

    def make() -> SpanExporter:
        made.append(threading.current_thread().name)
        return InMemorySpanExporter()

    configure(exporters=[make])
    work()
    assert flush(60)
    assert made == ["spanwise-exporter"]


@pytest.mark.parametrize("wrong", [5, "http://a", None])
def test_what_is_no_exporter(wrong: Any) -> None:
    with pytest.raises(ValueError, match="exporters takes OpenTelemetry span exporters"):
        configure(exporters=[wrong])


class Receiver(grpc.GenericRpcHandler):  # type: ignore[misc]
    """OTLP over gRPC, in a thread."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[self])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details: Any) -> Any:
        def take(body: bytes, context: Any) -> bytes:
            self.bodies.append(body)
            return bytes(ExportTraceServiceResponse().SerializeToString())

        return grpc.unary_unary_rpc_method_handler(take)

    def names(self) -> list[str]:
        requests = map(ExportTraceServiceRequest.FromString, self.bodies)
        return [s.name for r in requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.stop(0).wait()


@pytest.mark.process
def test_grpc_by_opentelemetrys_variables(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    work()
    assert flush(60)
    assert receiver.names() == ["work"]
    assert b"gen_ai.tool.call.result" in receiver.bodies[0]


@pytest.mark.parametrize(
    ("arguments", "variables"), [({"url": "http://mine"}, {}), ({}, {"SPANWISE_URL": "http://mine"})]
)
def test_grpc_is_not_for_another_address(
    arguments: dict[str, str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **variables}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = resolve_settings(**arguments)
    assert (settings.url, settings.exporters, settings.delivers) == ("http://mine", (), True)


def test_grpc_without_its_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setattr(configuration, "is_grpc_available", lambda: False)
    settings = resolve_settings()
    assert (settings.exporters, settings.delivers) == ((), True)
    (record,) = caplog.records
    assert "pip install 'spanwise[otlp]'" in record.getMessage()
    assert "\n" not in record.getMessage()


HANG_AT_EXIT = """
import sys, time
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from spanwise.tracer import configure, trace
class Hanging(SpanExporter):
    def export(self, spans):
        while "export" in sys.argv:
            time.sleep(1)
        return SpanExportResult.SUCCESS
    def shutdown(self):
        while True:
            time.sleep(1)
@trace
def work(): pass
configure(exporters=[Hanging()])
work()
print("ended", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("where", ["export", "shutdown"])
def test_the_end_of_the_process_is_bounded(where: str) -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", HANG_AT_EXIT, where], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "ended\n")
    assert ("exporter_stuck" in ended.stderr) is (where == "export")
    assert time.monotonic() - began < 20


FORK = """
import os, sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from spanwise.tracer import configure, flush, shutdown, stats, trace
@trace
def work(name): return name
first, url = sys.argv[1:]
if url:
    configure(exporters=[OTLPSpanExporter(url)])
if first == "used":
    work("before")
    assert flush(30)
child = os.fork()
work("child" if child == 0 else "parent")
if child == 0:
    flush(10)
    shutdown()
    counted = stats()
    print(counted.delivered, counted.delivered + sum(counted.dropped.values()), flush=True)
    os._exit(0)
assert flush(30)
assert os.waitpid(child, 0)[1] == 0
"""


def run_fork(first: str, url: str = "", **variables: str) -> str:
    """Return how many spans the child has delivered, and how many it has counted."""
    environment = {**os.environ, **variables}
    ended = subprocess.run([sys.executable, "-c", FORK, first, url], env=environment, capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode().strip()


def read_outputs(sink: Sink) -> list[str]:
    return [{a.key: a.value.string_value for a in s.attributes}["output.value"] for s in sink.spans()]


@pytest.mark.process
def test_a_forked_child_exports_for_itself(sink: Sink) -> None:
    assert run_fork("used", f"{sink.url}/v1/traces") == "1 1"
    assert sorted(read_outputs(sink)) == ["before", "child", "parent"]


@pytest.mark.process
def test_a_forked_child_and_its_parent_export_at_the_same_time(sink: Sink) -> None:
    both = threading.Barrier(2)

    def answer(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if sink.requests:  # on one shared connection, the second request waits for the answer to the first
            both.wait(20)
        return 200, {}, b""

    sink.answer = answer
    assert run_fork("used", f"{sink.url}/v1/traces") == "1 1"
    assert sorted(read_outputs(sink)) == ["before", "child", "parent"]


def run_grpc_fork(first: str, receiver: Receiver) -> str:
    endpoint = f"http://127.0.0.1:{receiver.port}"
    return run_fork(first, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")


@pytest.mark.process
def test_a_child_exports_through_grpc_if_it_was_forked_before_the_first_export(receiver: Receiver) -> None:
    assert run_grpc_fork("unused", receiver) == "1 1"
    assert len(receiver.names()) == 2


@pytest.mark.process
def test_a_child_of_a_process_that_used_grpc_counts_its_span_and_does_not_use_grpc(receiver: Receiver) -> None:
    """The fork handlers of gRPC sometimes leave a child whose calls never return, or end it."""
    assert run_grpc_fork("used", receiver) == "0 1"
    assert len(receiver.names()) == 2
