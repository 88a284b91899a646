"""OTLP by gRPC beside OTLP by HTTP (protobuf), into collectors of their own, in rounds that alternate.

    python benchmarks/wire.py                # 40,000 spans a round, 100 a request, 4 connections, 5 rounds
    python benchmarks/wire.py --traces 1     # requests of 5 spans

Requests are those of `ingest.py`. The load runs in this process, on the same cores as the collector; a client of gRPC
costs it more than writing HTTP to a socket does, so that the collector's CPU a span stands beside the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import tempfile
import time
from pathlib import Path

import grpc.aio
from ingest import SPANS_PER_TRACE, Collector, Load, Template, templates

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


async def by_grpc(port: int, made: list[Template], requests: int, connections: int) -> int:
    """Send as fast as it is answered; how many requests were acknowledged."""
    left, acknowledged = requests, 0

    async def connection(number: int) -> None:
        nonlocal left, acknowledged
        options = [("grpc.use_local_subchannel_pool", 1)]  # else all channels share one connection
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            export = channel.unary_unary(EXPORT)
            while left > 0:
                left -= 1
                await export(made[left % len(made)].fresh()[0])
                acknowledged += 1

    await asyncio.gather(*(connection(number) for number in range(connections)))
    return acknowledged


async def by_http(port: int, made: list[Template], requests: int, connections: int) -> int:
    """The same by HTTP."""
    load = Load(port, made, requests)
    await load.run(connections)
    return load.statuses.get(200, 0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def round_of(kind: str, asked: argparse.Namespace, made: list[Template]) -> tuple[float, float]:
    """Spans a second, and the collector's microseconds of CPU a span."""
    per_request = asked.traces * SPANS_PER_TRACE
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        collector = Collector(Path(folder, "spanwise.db"), ["--grpc-port", str(port)])
        try:
            send, to = (by_grpc, port) if kind == "gRPC" else (by_http, collector.port)
            asyncio.run(send(to, made, 20, asked.connections))  # what is loaded and made once
            cpu, start = collector.cpu_s(), time.perf_counter()
            requests = asyncio.run(send(to, made, asked.spans // per_request, asked.connections))
            took = time.perf_counter() - start
            spans = requests * per_request
            stored = collector.get("/api/count")["spans"]
            assert stored == spans + 20 * per_request, (stored, spans)
            return spans / took, 1e6 * (collector.cpu_s() - cpu) / spans
        finally:
            collector.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=40_000)
    parser.add_argument("--traces", type=int, default=20, help="per request, five spans each")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    made = templates(asked.traces, False)
    found: dict[str, list[tuple[float, float]]] = {"HTTP": [], "gRPC": []}
    for number in range(asked.rounds):
        for kind in sorted(found, reverse=bool(number % 2)):
            found[kind].append(round_of(kind, asked, made))
            print(f"{kind}  {found[kind][-1][0]:8,.0f} spans/s  {found[kind][-1][1]:6.0f} µs of CPU a span")
    rate, cpu = (
        statistics.median(g[i] / h[i] for g, h in zip(found["gRPC"], found["HTTP"], strict=True)) for i in (0, 1)
    )
    print(f"gRPC over HTTP, median of {asked.rounds} pairs: {rate:.2f} of the rate, {cpu:.2f} of the CPU a span")


if __name__ == "__main__":
    main()
