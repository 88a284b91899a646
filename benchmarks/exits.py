"""How long the end of a process takes with a collector that hangs, one that refuses connections, and one that answers.

    python benchmarks/exits.py [--rounds 3]

A program traces some calls and measures the time from its last one to the end of its exit handlers. Of each case the
longest time, and what lies on the disk (or has arrived) afterwards: all of it, each span once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanwise.tracer.export import disk_spool

SPANS = (0, 1, 1_000, 40_000, 200_000)
PROGRAM = """
import atexit, sys, time
began = 0.0
atexit.register(lambda: print(time.monotonic() - began))  # registered first, so that it runs last
from spanwise.tracer import configure, trace
configure()
@trace
def work(n): return n
for n in range(int(sys.argv[1])): work(n)
began = time.monotonic()
"""


class Collector(ThreadingHTTPServer):
    """Counts the spans that it acknowledges; hangs or refuses connections if it is told to."""

    daemon_threads = True

    def __init__(self, mode: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode, self.ids = mode, list[bytes]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        if mode == "refuses":
            self.server_close()
            return
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients end here without waiting."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Collector

    def do_POST(self) -> None:
        """Take a request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.mode == "hangs":
            time.sleep(60)
        self.server.ids += ids(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def ids(body: bytes) -> list[bytes]:
    """The ids of a request's spans."""
    scopes = [scope for r in ExportTraceServiceRequest.FromString(body).resource_spans for scope in r.scope_spans]
    return [span.span_id for scope in scopes for span in scope.spans]


def on_disk(spool: Path) -> list[bytes]:
    """The ids of the spans that wait."""
    found: list[bytes] = []
    for segment in spool.glob("*/*.spool"):
        with segment.open("rb") as file:
            found += [each for record in disk_spool.read_records(file.fileno()) for each in ids(record.body or b"")]
    return found


def once(spans: int, mode: str) -> tuple[float, int, int]:
    """Run the program; returns its delay in seconds, and how many spans are somewhere, all and different ones."""
    collector = Collector(mode)
    with tempfile.TemporaryDirectory(prefix="spanwise-exits-") as folder:
        env = {**os.environ, "SPANWISE_URL": collector.url, "SPANWISE_SPILL_DIR": folder}
        command = [sys.executable, "-c", PROGRAM, str(spans)]
        done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=120)
        found = collector.ids + on_disk(Path(folder))
    if mode != "refuses":
        collector.shutdown()
    collector.server_close()
    return float(done.stdout), len(found), len(set(found))


def main(rounds: int) -> None:
    """Print a line for each case."""
    for mode in ("hangs", "refuses", "answers"):
        for spans in SPANS:
            delays, found, different = zip(*(once(spans, mode) for _ in range(rounds)), strict=True)
            assert set(found) == set(different) == {spans}, (found, different)
            print(f"{mode:8}{spans:8,} spans: {max(delays):5.2f} s, every span is there once", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args().rounds)
