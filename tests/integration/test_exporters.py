"""The exporters of OpenTelemetry itself deliver to the collector."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GRPCSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from spanwise.collector.ingest import Limits
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SCRIPT = """
const { BasicTracerProvider, SimpleSpanProcessor } = require("@opentelemetry/sdk-trace-base");
const provider = new BasicTracerProvider({ spanProcessors: ["http", "proto", "grpc"].map(kind => {
  const { OTLPTraceExporter } = require(`@opentelemetry/exporter-trace-otlp-${kind}`);
  const exporter = new OTLPTraceExporter(kind === "grpc" ? { url: process.env.GRPC } : {});
  const original = exporter.export.bind(exporter);
  return new SimpleSpanProcessor({
    export: (spans, done) => spans[0].name.endsWith(kind) ? original(spans, done) : done({ code: 0 }),
    shutdown: () => exporter.shutdown(), forceFlush: () => exporter.forceFlush?.() ?? Promise.resolve(),
  });
}) });
const tracer = provider.getTracer("from-node", "1.0");
for (const kind of ["http", "proto", "grpc"]) {
  const span = tracer.startSpan("answer-" + kind, { kind: 2 });
  span.setAttributes({ "input.value": "hi", count: 7, share: 0.5, yes: true, list: ["a", "b"] });
  span.addEvent("thought", { deep: "yes" });
  span.recordException(new TypeError("no"));
  span.setStatus({ code: 2, message: "broke" });
  span.end();
}
provider.forceFlush().then(() => provider.shutdown());
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.mark.process
@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_the_python_exporter(store: SQLiteStore, compression: Compression) -> None:
    with Server(store) as server:
        provider = TracerProvider()
        exporter = OTLPSpanExporter(f"{server.url}/v1/traces", compression=compression)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        with provider.get_tracer("lib").start_as_current_span("outer", attributes={"input.value": "hi"}) as outer:
            provider.get_tracer("lib").start_span("inner").end()
        provider.shutdown()
    trace = store.trace(f"{outer.get_span_context().trace_id:032x}")
    assert (trace.root.name, trace.root.inputs, [run.name for run in trace.runs]) == ("outer", "hi", ["outer", "inner"])


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_the_python_exporter_by_grpc(store: SQLiteStore, compression: grpc.Compression) -> None:
    with Server(store, host="0.0.0.0", api_key="key", grpc_port=0) as server:
        provider = TracerProvider()
        exporter = GRPCSpanExporter(server.grpc_url, headers={"authorization": "Bearer key"}, compression=compression)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        with provider.get_tracer("lib").start_as_current_span("outer", attributes={"input.value": "hi"}) as outer:
            provider.get_tracer("lib").start_span("inner").end()
        provider.shutdown()
    trace = store.trace(f"{outer.get_span_context().trace_id:032x}")
    assert (trace.root.name, trace.root.inputs, [run.name for run in trace.runs]) == ("outer", "hi", ["outer", "inner"])


@pytest.mark.process
def test_the_python_exporter_by_grpc_comes_again_when_it_is_told_to(store: SQLiteStore) -> None:
    """Bodies of others take all the room for a moment: it is refused with the time to come again, then kept."""
    with Server(store, grpc_port=0, limits=Limits(pending_bytes=60_000)) as server:
        pending = server._receiver.pending
        pending.size = 60_000
        made_room = threading.Timer(0.5, setattr, (pending, "size", 0))
        made_room.start()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(GRPCSpanExporter(server.grpc_url, timeout=60)))
        provider.get_tracer("lib").start_span("patient").end()
        provider.shutdown()
        made_room.join()
    assert [one.name for one in store.traces()] == ["patient"]


def test_the_python_exporter_with_no_configuration(store: SQLiteStore, usual_port: int) -> None:
    """On 4318, where it sends when nobody tells it where, as others do."""
    try:
        server = Server(store, port=usual_port)
    except Exception as error:
        pytest.skip(f"port 4318 of this machine is taken: {error}")
    with server:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
        provider.get_tracer("lib").start_span("plain").end()
        provider.shutdown()
    assert "plain" in [one.name for one in store.traces()]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed: the exporters for Node are not tried")
def test_the_exporters_for_node(store: SQLiteStore, tmp_path: Path) -> None:
    packages = ["sdk-trace-base", *(f"exporter-trace-otlp-{kind}" for kind in ("http", "proto", "grpc"))]
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(tmp_path),
        *(f"@opentelemetry/{one}" for one in packages),
    ]
    try:
        subprocess.run([*command, "@opentelemetry/api"], capture_output=True, text=True, timeout=120, check=True)
    except subprocess.SubprocessError as error:  # there may be no way to its registry
        pytest.skip(f"npm cannot install the exporters: {error}")
    (tmp_path / "send.js").write_text(SCRIPT)
    with Server(store, grpc_port=0) as server:
        environment = {"PATH": str(Path(shutil.which("node") or "").parent), "OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
        environment["GRPC"] = server.grpc_url or ""
        sent = subprocess.run(
            ["node", "send.js"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
    assert sent.returncode == 0, sent.stderr
    assert sorted(one.name for one in store.traces()) == ["answer-grpc", "answer-http", "answer-proto"]
    for summary in store.traces():
        root = store.trace(summary.trace_id).root
        assert (root.status, root.error, root.inputs) == ("error", "TypeError: no", "hi")
        assert [event.name for event in root.events] == ["thought", "exception"]
        found = {name: root.attributes[name] for name in ("count", "share", "yes", "list", "otel.scope.name")}
        assert found == {"count": 7, "share": 0.5, "yes": True, "list": ["a", "b"], "otel.scope.name": "from-node"}
        assert json.dumps(root.resource)
