"""More spans at once than can be delivered meanwhile: does each arrive, and how fast is delivery? Beside the raw SDK.

    python benchmarks/bursts.py [--spans 200000] [--children 100000]

`loop`: small traced calls as fast as they go. `children`: the same under one root. Each in a process of its own, with
OpenTelemetry's SDK, batch processor and exporter, and with ours; the collector, in this process, keeps what it is sent
and counts different spans afterwards, and what lies on the disk. `delivery`: spans per second of CPU of the delivery
thread, from the queue to the acknowledgement.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanwise.tracer.export import disk_spool

RAW = """
import json, sys, time
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
tracer = provider.get_tracer("bench")
def work(n):
    with tracer.start_as_current_span("work") as span:
        span.set_attribute("input", json.dumps({"n": n}))
        span.set_attribute("output", json.dumps(n))
root = tracer.start_as_current_span
flush = provider.force_flush
"""
OURS = """
import json, sys, time
from spanwise.tracer import configure, flush, span as root, trace
configure()
@trace
def work(n): return n
"""
BURST = """
from contextlib import nullcontext
began, cpu = time.monotonic(), time.process_time()
with root("root") if sys.argv[1] == "children" else nullcontext():
    for n in range(int(sys.argv[2])): work(n)
traced = time.monotonic() - began
flush()
print(json.dumps({"traced": traced, "all": time.monotonic() - began, "cpu": time.process_time() - cpu}))
"""
DELIVERY = """
import threading
work(0); flush()
thread = next(t for t in threading.enumerate() if t.name == "spanwise-delivery")
clock = time.pthread_getcpuclockid(thread.ident)
began = time.clock_gettime(clock)
for _ in range(int(sys.argv[2]) // 10000):
    for n in range(10000): work(n)
    flush()
print(json.dumps({"cpu": time.clock_gettime(clock) - began}))
"""


class Collector(ThreadingHTTPServer):
    """Keeps request bodies."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Collector

    def do_POST(self) -> None:
        """Keep a body."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def ids(bodies: list[bytes]) -> list[bytes]:
    """Of all spans in some requests."""
    scopes = [
        s for body in bodies for r in ExportTraceServiceRequest.FromString(body).resource_spans for s in r.scope_spans
    ]
    return [span.span_id for scope in scopes for span in scope.spans]


def on_disk(spool: Path) -> list[bytes]:
    """The bodies that wait."""
    found: list[bytes] = []
    for segment in spool.glob("*/*.spool"):
        with segment.open("rb") as file:
            found += [record.body or b"" for record in disk_spool.read_records(file.fileno())]
    return found


def run(program: str, kind: str, spans: int) -> dict[str, Any]:
    """Figures of one program, with how many spans have arrived, how many twice, and how many wait on the disk."""
    collector = Collector()
    with tempfile.TemporaryDirectory(prefix="spanwise-bursts-") as folder:
        env = {**os.environ, "SPANWISE_URL": collector.url, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        command = [sys.executable, "-c", program, kind, str(spans)]
        done = subprocess.run(command, env={**env, "SPANWISE_SPILL_DIR": folder}, capture_output=True, check=True)
        waiting = set(ids(on_disk(Path(folder))))
    collector.shutdown()
    collector.server_close()
    arrived = ids(collector.bodies)
    figures: dict[str, Any] = json.loads(done.stdout)
    counts = {"arrived": len(set(arrived)), "twice": len(arrived) - len(set(arrived))}
    return {**figures, **counts, "waiting": len(waiting - set(arrived))}


def main(spans: int, children: int) -> None:
    """Print a line for each."""
    for kind, count in (("loop", spans), ("children", children)):
        for side, program in (("raw", RAW), ("ours", OURS)):
            f = run(program + BURST, kind, count)
            print(
                f"{kind:8} {side:4} {count:8,} calls in {f['traced']:5.1f} s, delivered after {f['all']:5.1f} s, CPU {f['cpu']:5.1f} s:"
                f" {f['arrived']:,} arrived, {f['twice']} twice, {f['waiting']} on disk"
            )
    f = run(OURS + DELIVERY, "loop", 50_000)
    print(f"delivery: {50_000 / f['cpu']:,.0f} spans per second of CPU")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=200_000)
    parser.add_argument("--children", type=int, default=100_000)
    given = parser.parse_args()
    main(given.spans, given.children)
