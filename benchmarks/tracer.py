"""What a traced call costs its caller, next to a hand-written decorator on the raw OpenTelemetry SDK.

    python benchmarks/tracer.py [calls|unsampled|import|memory|lag] [--quick]

`calls`: CPU time of the calling thread per call, the bare call subtracted; both in one process, in alternating blocks,
both exporting OTLP/HTTP to a collector in another process that accepts everything. The ratio is the median over pairs.
`unsampled`: a call that head sampling leaves out, over one that it takes.
`import`: a fresh process, bare interpreter subtracted. `memory`: resident memory over 1,000,000 calls.
`lag`: how long an event loop stands still while a traced coroutine takes and returns large values.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

os.environ["SPANWISE_SPILL_DIR"] = "off"

TEXT = ("The quick brown fox jumps over the lazy dog. " * 228)[:10_000]
PASSAGE = ("Retrieval augmented generation grounds an answer in documents. " * 8)[:500]
SMALL_IN = {
    "question": "What is the capital of France, and since when?",
    "user_id": "user-123456",
    "top_k": 5,
    "session": "sess-abcdef-0123456789",
    "temperature": 0.2,
    "stream": False,
    "tags": ["prod", "eu-west-1"],
}
SMALL_OUT = {
    "answer": "Paris, since 987 or so, with gaps.",
    "model": "gpt-x-mini",
    "finish_reason": "stop",
    "score": 0.93,
    "usage": {"prompt_tokens": 123, "completion_tokens": 17},
    "cached": False,
}
BUDGET = {"sync": 0.6, "async": 0.6, "nested": 0.6, "10 KB": 0.6, "documents": 0.6, "generator": 1.0}

Decorate = Callable[..., Callable[..., Any]]


def workloads(deco: Decorate) -> dict[str, tuple[Callable[[], Any], int]]:
    """Name → (one call, calls per block)."""
    small = deco(lambda x: SMALL_OUT, "sync")

    async def small_async(x: Any) -> Any:
        return SMALL_OUT

    traced_async = deco(small_async, "async")

    def root(x: Any) -> Any:
        for _ in range(5):
            found = small(x)
        return found

    nested = deco(root, "sync")
    big = deco(lambda text: TEXT, "sync")
    retrieve = deco(
        lambda x: [{"id": f"doc-{k}", "text": PASSAGE, "score": 0.5, "metadata": {"page": k}} for k in range(10)],
        "retriever",
    )
    tokens = ["token "] * 100

    def stream(x: Any) -> Any:
        yield from tokens

    generator = deco(stream, "gen")
    return {
        "sync": (lambda: small(SMALL_IN), 400),
        "async": (lambda: traced_async(SMALL_IN), 400),
        "nested": (lambda: nested(SMALL_IN), 80),
        "10 KB": (lambda: big(TEXT), 200),
        "documents": (lambda: retrieve(SMALL_IN), 200),
        "generator": (lambda: list(generator(SMALL_IN)), 60),
    }


def raw_decorator(url: str) -> tuple[Decorate, Callable[[], Any]]:
    """The minimal decorator that one would write by hand on the OpenTelemetry SDK."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url + "/v1/traces")))
    tracer = provider.get_tracer("bench")

    def deco(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        name = function.__name__
        if kind == "async":

            @functools.wraps(function)
            async def traced_async(x: Any) -> Any:
                with tracer.start_as_current_span(name) as span:
                    span.set_attribute("input", json.dumps(x))
                    result = await function(x)
                    span.set_attribute("output", json.dumps(result))
                    return result

            return traced_async
        if kind == "gen":

            @functools.wraps(function)
            def traced_generator(x: Any) -> Any:
                with tracer.start_as_current_span(name) as span:
                    span.set_attribute("input", json.dumps(x))
                    items = []
                    for item in function(x):
                        items.append(item)
                        yield item
                    span.set_attribute("output", json.dumps(items))

            return traced_generator

        @functools.wraps(function)
        def traced(x: Any) -> Any:
            with tracer.start_as_current_span(name) as span:
                span.set_attribute("input", json.dumps(x))
                result = function(x)
                span.set_attribute("output", json.dumps(result))
                return result

        return traced

    return deco, provider.force_flush


def our_decorator(url: str) -> tuple[Decorate, Callable[[], Any]]:
    from spanwise.tracer import configure, flush, trace

    configure(url=url)

    def deco(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        return trace(kind="retriever")(function) if kind == "retriever" else trace(function)

    return deco, flush


def cpu_per_call(call: Callable[[], Any], n: int) -> float:
    """CPU seconds of this thread per call."""

    async def many() -> float:
        start = time.thread_time()
        for _ in range(n):
            await call()
        return time.thread_time() - start

    probe = call()
    if isinstance(probe, Awaitable):
        asyncio.run(_close(probe))
        return asyncio.run(many()) / n
    start = time.thread_time()
    for _ in range(n):
        call()
    return (time.thread_time() - start) / n


async def _close(awaitable: Awaitable[Any]) -> None:
    await awaitable


def compare_calls(pairs: int) -> None:
    with Collector() as url:
        raw, flush_raw = raw_decorator(url)
        ours, flush_ours = our_decorator(url)
        sides = {
            "bare": (workloads(lambda f, kind: f), lambda: None),
            "raw": (workloads(raw), flush_raw),
            "ours": (workloads(ours), flush_ours),
        }
        print(f"{'call':>10} {'raw µs':>8} {'ours µs':>8} {'ratio':>6} {'spread':>13} {'budget':>7}")
        for name in sides["bare"][0]:
            _one(name, sides, pairs)


def _one(name: str, sides: Any, pairs: int) -> None:
    found: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(pairs + 1):
        order = list(sides) if i % 2 else list(sides)[::-1]
        for side in order:
            work, flush = sides[side]
            call, n = work[name]
            cost = cpu_per_call(call, n if i else 20)
            if i:
                found[side].append(cost)
            flush()
            gc.collect()
    ratios = sorted((o - b) / (r - b) for o, r, b in zip(found["ours"], found["raw"], found["bare"], strict=True))
    bare, raw, ours = (statistics.median(found[s]) * 1e6 for s in ("bare", "raw", "ours"))
    low, high = ratios[len(ratios) // 4], ratios[-len(ratios) // 4 - 1]
    budget = f"{BUDGET[name]:.2f}" if name in BUDGET else "-"
    spread = f"{low:.2f}–{high:.2f}"
    print(f"{name:>10} {raw - bare:8.1f} {ours - bare:8.1f} {statistics.median(ratios):6.2f} {spread:>13} {budget:>7}")


def compare_unsampled(pairs: int) -> None:
    """A call that head sampling leaves out, over one that it takes, in alternating blocks."""
    from spanwise.tracer import configure, flush, process_runtime, trace

    with Collector() as url:
        runtimes = {}
        for rate in (1.0, 0.0):
            configure(url=url, sample_rate=rate)
            runtimes[rate] = process_runtime.replace_runtime(None)
        calls = workloads(lambda function, kind: trace(function))
        for name in ("sync", "async", "nested"):
            found: dict[float, list[float]] = {rate: [] for rate in runtimes}
            for i in range(pairs + 1):
                for rate in sorted(runtimes, reverse=bool(i % 2)):
                    process_runtime.replace_runtime(runtimes[rate])
                    cost = cpu_per_call(*calls[name])
                    if i:
                        found[rate].append(cost)
                    flush()
                    gc.collect()
            ratio = statistics.median(o / s for o, s in zip(found[0.0], found[1.0], strict=True))
            sampled, left_out = (statistics.median(found[rate]) * 1e6 for rate in (1.0, 0.0))
            print(f"{name:>10} sampled {sampled:6.1f} µs, left out {left_out:6.1f} µs, ratio {ratio:.2f} (budget 1.00)")


RAW_IMPORT = (
    "from opentelemetry.sdk.trace import TracerProvider; from opentelemetry.sdk.trace.export import BatchSpanProcessor;"
    " from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter"
)


def compare_imports(pairs: int) -> None:
    """Seconds inside a fresh process, alternating."""
    code = "import time; t=time.perf_counter(); {}; print(time.perf_counter()-t)"
    found: dict[str, list[float]] = {"raw": [], "ours": []}
    for _ in range(pairs):
        for side, statement in (("raw", RAW_IMPORT), ("ours", "import spanwise.tracer")):
            out = subprocess.run([sys.executable, "-c", code.format(statement)], capture_output=True, check=True)
            found[side].append(float(out.stdout))
    ratio = statistics.median(o / r for o, r in zip(found["ours"], found["raw"], strict=True))
    raw, ours = (statistics.median(found[side]) * 1e3 for side in ("raw", "ours"))
    print(f"import: raw {raw:.0f} ms, ours {ours:.0f} ms, ratio {ratio:.2f} (budget 1.30)")


def memory(calls: int) -> None:
    """Resident memory while a loop makes calls as fast as delivery follows."""
    import psutil

    process = psutil.Process()
    with Collector() as url:
        deco, flush = our_decorator(url)
        call, _ = workloads(deco)["sync"]
        for done in range(0, calls + 1, calls // 10):
            if done:
                for i in range(calls // 10):
                    call()
                    if i % 10_000 == 0:
                        flush()
            flush()
            print(f"{done:>9,} calls: {process.memory_info().rss / 1e6:7.1f} MB", flush=True)


def loop_lag() -> None:
    """The longest time that an event loop stood still around one traced call, bare call subtracted."""
    from spanwise.tracer import trace

    with Collector() as url:
        our_decorator(url)

        async def take(value: Any) -> Any:
            return value

        traced = trace(take)
        print(f"{'value':>28} {'lag ms':>8}")
        for name, value in large_values().items():
            lags = [asyncio.run(_lag(traced, value)) for _ in range(5)]
            print(f"{name:>28} {statistics.median(lags) * 1e3:8.1f}", flush=True)


async def _lag(call: Callable[[Any], Awaitable[Any]], value: Any) -> float:
    worst = 0.0
    done = False

    async def probe() -> None:
        nonlocal worst
        while not done:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - start - 0.001)

    task = asyncio.create_task(probe())
    await asyncio.sleep(0.05)
    worst = 0.0
    await call(value)
    await asyncio.sleep(0.01)
    done = True
    await task
    return worst


def large_values() -> dict[str, Any]:
    import dataclasses

    @dataclasses.dataclass
    class Point:
        x: float
        label: str

    return {
        "small": SMALL_IN,
        "1 MiB of text": "word " * 210_000,
        "50 MiB of text": "word " * 10_500_000,
        "50 MiB in 1,000 texts": ["word " * 10_500] * 1000,
        "1,000,000 numbers": list(range(1_000_000)),
        "20,000 numbers": list(range(19_000)),
        "20,000 dataclasses": [Point(1.0, "a")] * 20_000,
        "1,000,000 dataclasses": [Point(1.0, "a")] * 1_000_000,
    }


class Collector:
    """A collector in another process that accepts everything."""

    def __enter__(self) -> str:
        command = [sys.executable, __file__, "collector"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()


def serve() -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="?", default="all", choices=["all", "calls", "unsampled", "import", "memory", "lag", "collector"]
    )
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.what == "collector":
        return serve()
    if args.what in ("all", "calls"):
        compare_calls(7 if args.quick else 31)
    if args.what in ("all", "unsampled"):
        compare_unsampled(7 if args.quick else 31)
    if args.what in ("all", "import"):
        compare_imports(5 if args.quick else 21)
    if args.what in ("all", "lag"):
        loop_lag()
    if args.what in ("all", "memory"):
        memory(100_000 if args.quick else 1_000_000)
    return None


if __name__ == "__main__":
    main()
