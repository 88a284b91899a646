"""What a span costs in the store of a collector: ClickHouse beside SQLite, in turn, on the same cores.

    python benchmarks/clickhouse_ingest.py                  # 20,000 spans, three rounds
    python benchmarks/clickhouse_ingest.py --spans 100000 --rounds 1
    python benchmarks/clickhouse_ingest.py --server --rounds 5        # through `spanwise serve`, as senders see it

The runs are made before the clock starts. They are appended in requests of 100, without waiting for each, as the server
does. Printed are the CPU of this process per span (encoding, queue, writer), that of the engine's process, spans per
second until all are acknowledged, and bytes on disk per span once everything is merged. SQLite has no process of its own,
and indexes texts afterwards; its CPU is read once its full-text index has caught up.

With `--server`, `benchmarks/ingest.py` sends requests of 100 spans over 64 connections to a collector in a process of its
own. The load, the collector and the engine share the cores. Then the CPU includes decoding.

The engine is that of the tests (`tests/collector/clickhouse_server.py`), or the server in `SPANWISE_TEST_CLICKHOUSE`,
whose CPU is then unknown.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from statistics import median
from typing import Any

import ingest
from traffic import Traffic

from spanwise.collector.stores.clickhouse import ClickHouseTraces
from spanwise.collector.stores.sqlite import SQLiteStore

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from collector.clickhouse_server import ClickHouseServer

IN_FLIGHT = 100  # requests that are not acknowledged yet


def append_all(store: Any, requests: list[Any]) -> float:
    """Append all requests, and return the seconds until the last is acknowledged."""
    began, waiting = time.perf_counter(), deque[Future[None]]()
    for runs in requests:
        if len(waiting) == IN_FLIGHT:
            waiting.popleft().result()
        waiting.append(store.append_async(runs))
    for future in waiting:
        future.result()
    return time.perf_counter() - began


def engine_seconds(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_sqlite(requests: list[Any], spans: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "spanwise.db") as store:
        cpu = time.process_time()
        seconds = append_all(store, requests)
        while store.health()["text_index_waiting_traces"]:
            time.sleep(0.05)
        cpu = time.process_time() - cpu
        store.checkpoint()
        size = os.path.getsize(Path(folder) / "spanwise.db")
    return {"collector": cpu / spans * 1e6, "rate": spans / seconds, "bytes": size / spans}


def measure_clickhouse(server: ClickHouseServer, requests: list[Any], spans: int) -> dict[str, float]:
    with server.database() as url:
        store = ClickHouseTraces(url)
        cpu, engine = time.process_time(), engine_seconds(server.pid) if server.can_be_killed else 0.0
        seconds = append_all(store, requests)
        cpu = time.process_time() - cpu
        engine = engine_seconds(server.pid) - engine if server.can_be_killed else 0.0
        assert store.count()["spans"] == spans
        store.vacuum()
        size = store._db.count_bytes()
        writes = store.health()["writes"]
        store.close()
    return {
        "collector": cpu / spans * 1e6,
        "engine": engine / spans * 1e6,
        "rate": spans / seconds,
        "bytes": size / spans,
        "rows": spans / writes,
    }


def measure_server(server: ClickHouseServer, kind: str, spans: int) -> dict[str, float]:
    """Measure a collector in a process of its own, on a new SQLite file or a new ClickHouse database."""
    with tempfile.TemporaryDirectory() as folder, server.database() as url:
        on_file = kind == "sqlite"
        options = [] if on_file else ["--control", f"{folder}/control.db"]
        asked = argparse.Namespace(
            spans=spans, traces=20, connections=64, json=False, share=None, feedback=0, no_index=False, serve=options
        )
        engine = engine_seconds(server.pid)
        numbers = ingest.measure(asked, Path(folder) / "spanwise.db" if on_file else url).numbers
        engine = 0.0 if on_file else engine_seconds(server.pid) - engine
    return {
        "collector": numbers["with index, µs"],
        "engine": engine / spans * 1e6,
        "rate": numbers["spans a second"],
        "bytes": 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", action="store_true", help="through `spanwise serve`")
    options = parser.parse_args()
    server, found = ClickHouseServer(), dict[str, list[dict[str, float]]]()
    try:
        for turn in range(options.rounds):
            if options.server:
                for name in ("sqlite", "clickhouse") if turn % 2 == 0 else ("clickhouse", "sqlite"):
                    found.setdefault(name, []).append(measure_server(server, name, options.spans))
                continue
            requests = list(Traffic(turn + 1).requests(options.spans))
            found.setdefault("sqlite", []).append(measure_sqlite(requests, options.spans))
            found.setdefault("clickhouse", []).append(measure_clickhouse(server, requests, options.spans))
    finally:
        server.stop()
    print(f"{options.spans:,} spans, median of {options.rounds} rounds")
    for name, rounds in found.items():
        medians = {field: median(one[field] for one in rounds) for field in rounds[0]}
        print(
            f"{name:>10}: collector {medians['collector']:6.1f} µs of CPU a span, engine {medians.get('engine', 0):6.1f},"
            f" {medians['rate']:8,.0f} spans/s, {medians['bytes']:6.0f} bytes a span,"
            f" {medians.get('rows', 0):6,.0f} spans a write"
        )
    ratios = [new["rate"] / old["rate"] for old, new in zip(found["sqlite"], found["clickhouse"], strict=True)]
    print(f"clickhouse / sqlite: {median(ratios):.2f} × spans/s ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
