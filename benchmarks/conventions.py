"""What conventions cost: bytes per span next to the raw OpenTelemetry exporter, and CPU of the delivery thread.

    python benchmarks/conventions.py [bytes|cpu|all] [--rounds N]

`bytes`: uncompressed bytes of one request with 500 spans of a kind, divided by those of OpenTelemetry's own encoder for
spans that carry the same contents: for the compact form, the kind, the inputs and the outputs under the names `kind`,
`input` and `output`; for a convention, its attributes without Spanwise's own.
`cpu`: CPU seconds of the delivery thread per span of an application of all kinds, in alternating rounds. The ratio is
that of both conventions to the cheaper one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ["SPANWISE_SPILL_DIR"] = "off"

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_raw
from opentelemetry.sdk.trace import ReadableSpan

from spanwise.tracer import configure, current_run, flush, process_runtime, session, trace
from spanwise.tracer.export.span_encoding import Conventions, encode_spans
from spanwise.tracer.testing import capture_spans
from tracer import PASSAGE, SMALL_IN, SMALL_OUT, Collector

SETS = {"compact": (), "openinference": ("openinference",), "gen_ai": ("gen_ai",), "both": ("openinference", "gen_ai")}
MESSAGES = [
    {"role": "system", "content": "Answer from the passages only. " * 8},
    {"role": "user", "content": "What is the capital of France, and since when?"},
]
REPLY = {
    "id": "chatcmpl-0123456789",
    "model": "gpt-4o-2024-08-06",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": PASSAGE}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 123, "completion_tokens": 117, "total_tokens": 240},
}


@trace
def step(question: Any) -> Any:
    return SMALL_OUT


@trace(kind="tool")
def tool(city: str, unit: str) -> Any:
    return {"celsius": 20, "sky": "clear", "source": "station-4"}


@trace(kind="retriever")
def search(query: str) -> Any:
    return [{"id": f"doc-{k}", "content": PASSAGE, "score": 0.5, "metadata": {"page": k}} for k in range(5)]


@trace(kind="llm")
def model(messages: Any, temperature: float) -> Any:
    current_run().set_model("gpt-4o")
    current_run().set_usage(123, 117, cost=0.001)
    return REPLY


@trace(kind="agent")
def agent(question: str) -> str:
    for _ in range(3):
        step(SMALL_IN)
    tool("Paris", "celsius")
    search(question)
    model(MESSAGES, 0.2)
    return PASSAGE


CALLS: dict[str, Callable[[], Any]] = {
    "chain": lambda: step(SMALL_IN),
    "tool": lambda: tool("Paris", "celsius"),
    "retriever": lambda: search("What is the capital of France?"),
    "llm": lambda: model(MESSAGES, 0.2),
    "agent with 6 runs": lambda: agent("What is the capital of France?"),
}


def raw_span(span: ReadableSpan, attributes: dict[str, Any]) -> ReadableSpan:
    """Return the span as the raw SDK would have recorded it."""
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=attributes,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


RENAMED = {"openinference.span.kind": "kind", "input.value": "input", "output.value": "output"}


def compare_bytes() -> None:
    print(f"{'span':>18} {'form':>14} {'raw':>8} {'ours':>8} {'ratio':>6}")
    for name, call in CALLS.items():
        with capture_spans() as captured:
            for _ in range(500 // (7 if "agent" in name else 1)):
                call()
            recorded = list(captured.spans)
        for form, conventions in SETS.items():
            written = Conventions(conventions)
            ours = len(encode_spans(recorded, written)) / len(recorded)
            raw = []
            for span in map(written.readable, recorded):
                kept = {k: v for k, v in (span.attributes or {}).items() if not k.startswith("spanwise.spans.")}
                raw.append(
                    raw_span(span, {RENAMED.get(k, k): v for k, v in kept.items()} if form == "compact" else kept)
                )
            theirs = len(encode_raw(raw).SerializeToString()) / len(recorded)
            print(f"{name:>18} {form:>14} {theirs:8.1f} {ours:8.1f} {ours / theirs:6.3f}")


def delivery_cpu(make: Callable[[], Any], count: int) -> float:
    """Return the CPU seconds of the delivery thread for `count` calls."""
    make()
    flush()
    (thread,) = [each for each in threading.enumerate() if each.name == "spanwise-delivery"]
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    before = time.clock_gettime(clock)
    for _ in range(count):
        make()
    flush()
    return time.clock_gettime(clock) - before


def compare_cpu(rounds: int) -> None:
    def make() -> None:
        with session("s-1"):
            agent("What is the capital of France?")

    found: dict[str, list[float]] = {form: [] for form in SETS}
    with Collector() as url:
        for number in range(rounds):
            for form in list(SETS) if number % 2 else list(SETS)[::-1]:
                configure(url=url, conventions=SETS[form], export_interval=3600)  # type: ignore[arg-type]
                found[form].append(delivery_cpu(make, 200) / 1400)
                process_runtime.replace_runtime(None).delivery.close()  # type: ignore[union-attr]
    for form, seconds in found.items():
        print(f"{form:>14} {statistics.median(seconds) * 1e6:6.1f} µs per span")
    for form in ("openinference", "gen_ai"):
        print(f"both / {form}: {_interval(b / o for b, o in zip(found['both'], found[form], strict=True))}")


def _interval(ratios: Iterable[float]) -> str:
    ordered = sorted(ratios)
    mean, error = statistics.fmean(ordered), statistics.stdev(ordered) / len(ordered) ** 0.5
    return f"{mean:.3f} (95 % interval {mean - 2.26 * error:.3f} to {mean + 2.26 * error:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["all", "bytes", "cpu"])
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    if args.what in ("all", "bytes"):
        compare_bytes()
    if args.what in ("all", "cpu"):
        compare_cpu(args.rounds)


if __name__ == "__main__":
    main()
