"""What dialects cost: on spans that are none of theirs, and on what their senders have sent, beside OpenInference.

    python benchmarks/dialects.py [--rounds 30]
    python benchmarks/dialects.py --stages     # what a span costs from the bytes of a request to rows, by stage

The spans are those that the tests replay (`tests/fixtures/dialects`), and two that no convention knows: a request of an
HTTP server, and a call under `@trace`. Each dialect is timed alone on a span that the ones before it have read, and of
all rounds the fastest counts, so that what else the machine does is left out. `foreign`: microseconds on a span of which
it takes nothing, on the average over all others' spans. `own`: on one of its senders', and that over OpenInference's own.

With `--stages`: CPU microseconds a span, of requests of 100 spans of a RAG application (as `ingest.py` sends them), of 100
spans under `@trace`, and of what each sender has sent. `parse` is the library's, `walk` makes plain values of it, `read`
are the dialects, `encode` makes rows. Each request is timed by itself, and of all rounds its fastest counts.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanwise.collector.dialects import Draft, RawSpan
from spanwise.collector.dialects.draft import is_applicable
from spanwise.collector.dialects.translation import DIALECTS, get_dialect_name
from spanwise.collector.ingest.otlp_signals import TRACES
from spanwise.collector.ingest.request_decoder import Codec, Limits, decode
from spanwise.collector.stores.sqlite import encode

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures" / "dialects"
sys.path.insert(0, str(FIXTURES))

from capture import load
from ingest import templates

BEFORE = ("spanwise", "openinference", "genai", "retrieval", "prices")  # what there was before the others
# Folders of fixtures, or files in them, by whose dialect reads them; those that are not there are left out
OWN = {
    "openinference": ("openinference", "openai_agents"),
    "langfuse": ("langfuse",),
    "langsmith": ("langsmith",),
    "mlflow": ("mlflow",),
    "traceloop": ("traceloop",),
    "laminar": ("laminar",),
    "vercel": ("vercel",),
    "logfire": ("logfire_sdk",),
    "pydantic_ai": ("pydantic_ai",),
    "haystack": ("haystack",),
    "genai": ("openai_v2", "pydantic_ai/version5"),
    "pydantic_evals": ("pydantic_evals/offline",),
}
HTTP = {
    "http.request.method": "GET",
    "http.route": "/answers/{id}",
    "http.response.status_code": 200,
    "url.path": "/answers/1",
    "url.scheme": "https",
    "server.address": "example.org",
    "server.port": 443,
    "client.address": "192.0.2.1",
    "user_agent.original": "curl/8",
    "network.protocol.version": "1.1",
}
CALL = {
    "openinference.span.kind": "CHAIN",
    "input.value": '{"question":"Where?"}',
    "input.mime_type": "application/json",
    "output.value": "There.",
    "spanwise.local_root": "2" * 16,
    "spanwise.spans_started": 1,
    "spanwise.spans_open": 0,
}


def raw(attributes: dict[str, Any], scope: str) -> RawSpan:
    """A span without a sender's fixture."""
    return RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes=attributes, scope=scope)


STRANGERS = {"http": [raw(HTTP, "opentelemetry.instrumentation.fastapi")], "@trace": [raw(CALL, "spanwise")]}


def spans(name: str) -> list[RawSpan]:
    """The spans of a folder of fixtures, or of one file, before any dialect."""
    files = sorted((FIXTURES / name).glob("*.jsonl.gz")) or [FIXTURES / f"{name}.jsonl.gz"]
    return [span for file in files if file.exists() for span in _of(file)]


def _of(file: Path) -> Iterator[RawSpan]:
    for codec, body in _requests(file):
        yield from decode(replace(codec, read=lambda span, fault: span), body, Limits()).items


def _requests(file: Path) -> Iterator[tuple[Codec[Any], bytes]]:
    for request in load(file):
        if not request.path.partition("?")[0].endswith("/v1/traces"):
            continue
        body = gzip.decompress(request.body) if request.headers.get("content-encoding") == "gzip" else request.body
        yield TRACES.json if "json" in request.headers.get("content-type", "") else TRACES.protobuf, body


def fastest(dialects: Sequence[Callable[[Draft], None]], sample: Sequence[RawSpan], rounds: int) -> list[list[float]]:
    """Seconds that each dialect takes on each span, at best."""
    best = [[float("inf")] * len(sample) for _ in dialects]
    clock = time.perf_counter
    for _ in range(rounds):
        for place, span in enumerate(sample):
            draft = Draft(span)
            for number, dialect in enumerate(dialects):
                start = clock()
                if is_applicable(dialect, draft.namespaces, span.scope):  # looked up in `read`, so this is dearer
                    dialect(draft)
                best[number][place] = min(best[number][place], clock() - start)
    return best


def overhead(rounds: int) -> float:
    """Seconds that looking at the clock takes, which are in all of these."""
    return fastest([lambda _: None], STRANGERS["http"], rounds * 100)[0][0]


def main(rounds: int) -> None:
    samples = STRANGERS | {name: [span for part in OWN[name] for span in spans(part)] for name in OWN}
    samples = {name: sample for name, sample in samples.items() if sample}
    empty = overhead(rounds)
    costs = {name: fastest(DIALECTS, sample, rounds) for name, sample in samples.items()}
    micros = {
        (dialect, name): max(0.0, fmean(taken[number]) - empty) * 1e6
        for name, taken in costs.items()
        for number, dialect in enumerate(map(get_dialect_name, DIALECTS))
    }
    own = micros["openinference", "openinference"]
    print(f"{'dialect':16}{'http':>8}{'@trace':>8}{'foreign':>9}{'own':>8}{'of OpenInference':>18}{'spans':>7}")
    for dialect in map(get_dialect_name, DIALECTS):
        mine = micros.get((dialect, dialect))
        foreign = fmean(micros[dialect, name] for name in samples if name != dialect)
        told = f"{mine:8.2f}{mine / own:18.2f}{len(samples[dialect]):7}" if mine is not None else ""
        print(f"{dialect:16}{micros[dialect, 'http']:8.2f}{micros[dialect, '@trace']:8.2f}{foreign:9.2f}{told}")
    for name in STRANGERS:
        added = sum(micros[dialect, name] for dialect in map(get_dialect_name, DIALECTS) if dialect not in BEFORE)
        print(f"those added, on a span of {name}: {added:.2f} us (budget 5)")


def requests(name: str) -> list[tuple[Codec[Any], bytes]]:
    """The requests of spans of a folder of fixtures, or of one file, each with how it is read."""
    files = sorted((FIXTURES / name).glob("*.jsonl.gz")) or [FIXTURES / f"{name}.jsonl.gz"]
    return [request for file in files if file.exists() for request in _requests(file)]


def traced() -> bytes:
    """A request of 100 spans under `@trace`."""
    whole = ExportTraceServiceRequest()
    scope = whole.resource_spans.add().scope_spans.add()
    scope.scope.name = "spanwise"
    for number in range(1, 101):
        span = scope.spans.add(trace_id=number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"), name="call")
        for key, value in CALL.items():
            field = "int_value" if isinstance(value, int) else "string_value"
            setattr(span.attributes.add(key=key).value, field, value)
    return whole.SerializeToString()


def stages(rounds: int) -> None:
    """Print what each stage costs, by sender."""
    rag = {
        f"rag, {name}": [(codec, bytes(one.body)) for one in templates(20, codec is TRACES.json)]
        for name, codec in (("protobuf", TRACES.protobuf), ("json", TRACES.json))
    }
    all_of_them = rag | {"@trace": [(TRACES.protobuf, traced())]} | {name: requests(name) for name in OWN}
    all_of_them["openinference"] = [request for part in OWN["openinference"] for request in requests(part)]
    print(f"{'sender':16}{'parse':>8}{'walk':>8}{'read':>8}{'encode':>8}{'all':>8}{'spans':>7}")
    for name, sent in all_of_them.items():
        count = sum(len(items) for codec, body in sent for _, _, items in codec.parse(body))
        if count:
            done = [sum(cpu(codec, body, rounds)[stage] for codec, body in sent) / count * 1e6 for stage in range(4)]
            parts = [done[0], *(after - before for before, after in pairwise(done)), done[-1]]
            print(f"{name:16}" + "".join(f"{part:8.2f}" for part in parts) + f"{count:7}")


def cpu(codec: Codec[Any], body: bytes, rounds: int) -> list[float]:
    """Seconds of CPU until a request is parsed, walked through, read and encoded, at best."""
    raw = replace(codec, read=lambda span, fault: span)
    todo: list[Callable[[], Any]] = [
        lambda: list(codec.parse(body)),
        lambda: decode(raw, body, Limits()),
        lambda: decode(codec, body, Limits()),
        lambda: encode(decode(codec, body, Limits()).items),
    ]
    best = [float("inf")] * len(todo)
    for _ in range(rounds):
        for stage, work in enumerate(todo):
            start = time.process_time()
            work()
            best[stage] = min(best[stage], time.process_time() - start)
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="times that each span is read")
    parser.add_argument("--stages", action="store_true", help="from bytes to rows, by stage")
    asked = parser.parse_args()
    (stages if asked.stages else main)(asked.rounds)
