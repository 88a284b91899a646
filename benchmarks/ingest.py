"""How fast the collector takes spans in, and whether what it acknowledged is there.

    python benchmarks/ingest.py                 # 200,000 spans, 100 a request, 4 connections, protobuf
    python benchmarks/ingest.py --json          # the same as OTLP/JSON
    python benchmarks/ingest.py --traces 1      # requests of 5 spans
    python benchmarks/ingest.py --store big.db  # on top of what a file holds
    python benchmarks/ingest.py --share 0.5 --feedback 4   # at half the rate, while four processes write feedback
    python benchmarks/ingest.py --decoders 0 1 2 --rounds 5   # with processes that decode, in turn, and their ratios

Each trace is a question to a RAG application: chain, retriever with five documents, model call, tool, parser; 1.8 KB a
span, random ids. Requests are made before the clock starts, but for their ids and times. The load runs in this process, the
collector in one of its own, on the same cores. Feedback is written through the Python client, fifty at once and singly
in turn, each process as fast as it is answered; all of it is read back afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import Unavailable
from spanwise.collector.records import Feedback, Target

SPANS_PER_TRACE = 5
TEMPLATES = 16
SINCE, LASTS = (
    10**18,
    200_000_000,
)  # nanoseconds: the start of a request's first span as it is made, and how long each takes
WARM_UP = 40_000  # spans at full speed, by which a share of it is known
AT_ONCE, SINGLY = 50, 10  # feedbacks in a batch, then one by one


# --- requests -------------------------------------------------------------------------------------------------------


def vocabulary() -> list[str]:
    random_ = random.Random(1)
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in ("a", "e", "i", "ou")]
    return sorted({"".join(random_.choices(syllables, k=random_.randint(1, 4))) for _ in range(6000)})


def prose(random_: random.Random, words: list[str], length: int) -> str:
    """Text in which few words are frequent and many are rare, as in languages."""
    found: list[str] = []
    while sum(map(len, found)) + len(found) < length:
        found.append(words[int(len(words) * random_.random() ** 3)])
    return " ".join(found)[:length]


def trace(random_: random.Random, words: list[str], number: int, marker: str) -> list[dict]:
    """The five spans of one trace as OTLP/JSON, with placeholders of the right length for ids and times."""
    question, answer = f"{prose(random_, words, 120)} {marker}", prose(random_, words, 500)
    whose = {"session.id": f"sess-{random_.randint(0, 1999):05d}", "user.id": f"user-{random_.randint(0, 499):04d}"}
    model, given, made = random_.choice(["gpt-4o-mini", "gpt-4o", "llama-3.1-70b"]), random_.randint(300, 480), 120
    documents: dict[str, object] = {}
    for i in range(5):
        prefix = f"retrieval.documents.{i}.document"
        documents |= {
            f"{prefix}.id": f"doc-{random_.randint(0, 9999):05d}",
            f"{prefix}.content": prose(random_, words, 400),
        }
        documents |= {
            f"{prefix}.score": random_.random(),
            f"{prefix}.metadata": json.dumps({"page": random_.randint(1, 99)}),
        }
    text = {"input.mime_type": "text/plain", "output.mime_type": "text/plain"}
    chain = {"openinference.span.kind": "CHAIN", "input.value": question, "output.value": answer, **text, **whose}
    chain["metadata"] = json.dumps({"tenant": f"t{random_.randint(0, 19)}", "variant": random_.choice("AB")})
    call = {
        "openinference.span.kind": "LLM",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": given,
        "gen_ai.usage.output_tokens": made,
        "gen_ai.request.temperature": 0.2,
        "llm.invocation_parameters": json.dumps({"temperature": 0.2, "max_tokens": 512}),
        "input.value": json.dumps({"messages": [{"role": "user", "content": prose(random_, words, 1500)}]}),
        "input.mime_type": "application/json",
        "output.value": answer,
        "output.mime_type": "text/plain",
        **whose,
    }
    spans = [
        ("RagPipeline", None, chain),
        ("retrieve", 0, {"openinference.span.kind": "RETRIEVER", "input.value": question, **documents, **whose}),
        ("chat " + model, 0, call),
        (
            "lookup",
            0,
            {
                "openinference.span.kind": "TOOL",
                "tool.name": "lookup",
                "input.value": prose(random_, words, 200),
                **whose,
            },
        ),
        (
            "parse",
            0,
            {
                "openinference.span.kind": "CHAIN",
                "input.value": answer,
                "output.value": prose(random_, words, 200),
                **whose,
            },
        ),
    ]
    return [
        span(number, place, name, parent, attributes, bool(random_.random() < 0.02))
        for place, (name, parent, attributes) in enumerate(spans)
    ]


def span(number: int, place: int, name: str, parent: int | None, attributes: dict, failed: bool) -> dict:
    start = start_placeholder(number, place)
    found = {
        "traceId": trace_placeholder(number),
        "spanId": span_placeholder(number, place),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + LASTS),
        "status": {"code": 2 if failed else 1},
        "attributes": [{"key": key, "value": otlp_value(value)} for key, value in attributes.items()],
    }
    return found if parent is None else found | {"parentSpanId": span_placeholder(number, parent)}


def otlp_value(value: object) -> dict:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def trace_placeholder(number: int) -> str:
    return f"a7a7a7a7a7a7a7a7{number:016x}"


def span_placeholder(number: int, place: int) -> str:
    return f"b9b9b9b9{number:06x}{place:02x}"


def start_placeholder(number: int, place: int) -> int:
    return SINCE + number * 50_000_000 + place * 1_000_000


@dataclass
class Template:
    """A serialised request and where its ids are."""

    body: bytearray
    is_json: bool
    traces: int
    marker: str  # a word that stands once in each of its traces
    places: list[tuple[int, int, int]] = field(default_factory=list)  # (offset, length, index into fresh ids)
    times: list[tuple[int, int]] = field(default_factory=list)  # (offset, nanoseconds after the request's first span)

    def find(self) -> Template:
        wanted = [trace_placeholder(number) for number in range(self.traces)]
        wanted += [span_placeholder(n, place) for n in range(self.traces) for place in range(SPANS_PER_TRACE)]
        for index, placeholder in enumerate(wanted):
            needle = placeholder.encode() if self.is_json else bytes.fromhex(placeholder)
            offset = self.body.find(needle)
            while offset >= 0:
                self.places.append((offset, len(needle), index))
                offset = self.body.find(needle, offset + 1)
        starts = {start_placeholder(n, place) for n in range(self.traces) for place in range(SPANS_PER_TRACE)}
        for value in starts | {start + LASTS for start in starts}:
            offset = self.body.find(needle := self._time(value))
            while offset >= 0:
                self.times.append((offset, value - SINCE))
                offset = self.body.find(needle, offset + 1)
        assert len(self.times) == 2 * SPANS_PER_TRACE * self.traces, len(self.times)
        return self

    def _time(self, value: int) -> bytes:
        return str(value).encode() if self.is_json else value.to_bytes(8, "little")

    def fresh(self) -> tuple[bytes, str]:
        """A request with random ids, of this moment, and the first trace's id."""
        size = 16 * self.traces + 8 * SPANS_PER_TRACE * self.traces
        ids = os.urandom(size).hex().encode() if self.is_json else os.urandom(size)
        unit = 2 if self.is_json else 1
        for offset, length, index in self.places:
            start = unit * (16 * index if index < self.traces else 16 * self.traces + 8 * (index - self.traces))
            self.body[offset : offset + length] = ids[start : start + length]
        now = time.time_ns()
        for offset, after in self.times:
            made = self._time(now + after)
            self.body[offset : offset + len(made)] = made
        first = ids[: 16 * unit]
        return bytes(self.body), first.decode() if self.is_json else first.hex()


def templates(traces: int, is_json: bool) -> list[Template]:
    words, found = vocabulary(), []
    for seed in range(TEMPLATES):
        random_ = random.Random(seed)
        marker = f"marker{secrets.token_hex(6)}"
        spans = [one for n in range(traces) for one in trace(random_, words, n, marker)]
        resource = {
            "service.name": "rag",
            "openinference.project.name": "bench",
            "deployment.environment.name": "bench",
        }
        attributes = [{"key": key, "value": {"stringValue": value}} for key, value in resource.items()]
        whole = {
            "resourceSpans": [
                {"resource": {"attributes": attributes}, "scopeSpans": [{"scope": {"name": "bench"}, "spans": spans}]}
            ]
        }
        body = json.dumps(whole).encode() if is_json else to_protobuf(whole)
        found.append(Template(bytearray(body), is_json, traces, marker).find())
    return found


def to_protobuf(whole: dict) -> bytes:
    # protobuf's own JSON has ids in base64, OTLP's in hex
    for one in whole["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in one:
                one[key] = base64.b64encode(bytes.fromhex(one[key])).decode()
    return ParseDict(whole, ExportTraceServiceRequest()).SerializeToString()


# --- the collector --------------------------------------------------------------------------------------------------


class Collector:
    """`spanwise serve` as a process of its own."""

    def __init__(
        self, store: Path | str, arguments: Sequence[str] = (), python: str = sys.executable, patience: float = 60
    ) -> None:
        """`python` may be that of another checkout; `patience` in seconds is for a file that is migrated first."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [python, "-c", "from spanwise.cli import main; main()", "serve"]
        start = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), "--store", str(store), *arguments], stderr=subprocess.DEVNULL
        )
        while self._get("/readyz", None) is None:
            if self.process.poll() is not None or time.perf_counter() - start > patience:
                raise SystemExit("the collector did not start")
            time.sleep(0.01)
        self.ready_s = time.perf_counter() - start

    def _get(self, path: str, otherwise: object) -> object:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return json.load(answer)
        except OSError:
            return otherwise

    def get(self, path: str) -> dict:
        found = self._get(path, None)
        assert isinstance(found, dict), path
        return found

    def number(self, name: str) -> float:
        """One of the numbers at `/metrics`; 0 if this store does not have it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def tree(self) -> list[int]:
        """This process, those that it started, and those that they did."""
        found, new = [], [self.process.pid]
        while new:
            found += new
            new = [child for pid in new for child in children(pid)]
        return found

    def memory_mb(self) -> float:
        """Resident memory of all its processes; what they share counts once in each, so this errs upwards."""
        total = 0
        for pid in self.tree():
            with suppress(OSError, StopIteration):  # it has just ended
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        return total / 1024

    def cpu_s(self) -> float:
        """CPU seconds so far, of processes that have ended, too."""
        total = 0
        for pid in self.tree():
            with suppress(OSError):  # it has just ended: its parent has counted it
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(int(one) for one in fields[11:15])  # its own, and of the children it has waited for
        return total / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def children(pid: int) -> list[int]:
    """Processes that any thread of a process has started, and that go on."""
    with suppress(OSError):
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for one in threads for child in (one / "children").read_text().split()]
    return []


# --- the load -------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """Sends requests on several connections, one at a time on each."""

    port: int
    templates: list[Template]
    left: int
    pause: float = 0.0  # seconds from one request to the next, on whichever connection; 0: as fast as it is answered
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    markers: list[str] = field(default_factory=list)  # of the acknowledged requests
    acknowledged: list[str] = field(default_factory=list)  # the first trace of each acknowledged request

    async def run(self, connections: int) -> None:
        await asyncio.gather(*(self._connection(n) for n in range(connections)))

    async def _connection(self, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        kind = "application/json" if self.templates[0].is_json else "application/x-protobuf"
        begun, asked = time.perf_counter(), self.left
        while self.left > 0:
            self.left -= 1
            if self.pause:
                await asyncio.sleep(begun + (asked - self.left) * self.pause - time.perf_counter())
            template = self.templates[self.left % len(self.templates)]
            body, first = template.fresh()
            head = f"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            start = time.perf_counter()
            writer.write(head.encode() + body)
            status = await self._answer(reader)
            self.latencies.append(time.perf_counter() - start)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            if status == 200:
                self.acknowledged.append(first)
                self.markers.append(template.marker)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> int:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        await reader.readexactly(length)
        return int(head.split(" ", 2)[1])


@dataclass
class Seen:
    """What was seen of the collector while the load ran."""

    lags: list[float] = field(default_factory=list)  # seconds until what was just acknowledged can be read
    memory: list[tuple[int, float]] = field(default_factory=list)  # acknowledged requests so far, MB

    def memory_at(self, share: float) -> float:
        """MB when this share of the requests was acknowledged."""
        return next(mb for done, mb in self.memory if done >= share * self.memory[-1][0])


async def watched(collector: Collector, load: Load, connections: int, seen: Seen) -> None:
    """Run the load; meanwhile ask for what was just acknowledged, and look at the collector's memory."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.5)
            seen.memory.append((len(load.acknowledged), collector.memory_mb()))
            if load.acknowledged:
                seen.lags.append(await asyncio.to_thread(until_visible, collector, load.acknowledged[-1]))

    watcher = asyncio.create_task(watch())
    await load.run(connections)
    watcher.cancel()
    seen.memory.append((len(load.acknowledged), collector.memory_mb()))


def until_visible(collector: Collector, trace_id: str) -> float:
    """Seconds from now until a trace can be read."""
    start = time.perf_counter()
    while collector._get(f"/api/traces/{trace_id}", None) is None:
        time.sleep(0.005)
    return time.perf_counter() - start


def until_indexed(collector: Collector) -> float:
    """Seconds from now until no trace waits for the text index, by the collector's own numbers."""
    start = time.perf_counter()
    while collector.number("spanwise_store_text_index_waiting_traces") and time.perf_counter() - start < 120:
        time.sleep(0.2)
    return time.perf_counter() - start


# --- feedback beside it ---------------------------------------------------------------------------------------------


@dataclass
class Written:
    """What one process wrote: seconds per answer, and the ids that were acknowledged."""

    batches: list[float] = field(default_factory=list)
    singles: list[float] = field(default_factory=list)
    put_off: int = 0  # answers of 429 or 503
    ids: list[str] = field(default_factory=list)


def write_feedback(url: str, traces: list[str], number: int, ready: object, stop: object, out: object) -> None:
    """Write feedback until told to stop. A process of its own."""
    written, count = Written(), 0

    def made() -> Feedback:
        nonlocal count
        count += 1
        key, target = f"key{count // len(traces)}", Target(trace_id=traces[count * 7 % len(traces)])
        return Feedback(target=target, key=key, score=count % 100 / 100, evaluator=f"judge{number}", comment="because")

    with HTTPStore(url) as store:
        store.count()
        ready.wait()
        while not stop.is_set():
            written_at_once(store, [made() for _ in range(AT_ONCE)], written.batches, written)
            for _ in range(SINGLY):
                written_at_once(store, [made()], written.singles, written)
    out.put(written)


def written_at_once(store: HTTPStore, feedback: list[Feedback], latencies: list[float], written: Written) -> None:
    start = time.perf_counter()
    try:
        store.add_feedback(feedback)
    except Unavailable:
        written.put_off += 1
        return
    latencies.append(time.perf_counter() - start)
    written.ids += [one.id for one in feedback]


class Writers:
    """Processes that write feedback on stored traces while the load runs."""

    def __init__(self, collector: Collector, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._collector, self._stop, self._out = collector, context.Event(), context.Queue()
        traces = [one["trace_id"] for one in collector.get("/api/traces?limit=2000")["items"]]
        ready, url = context.Barrier(count + 1), f"http://127.0.0.1:{collector.port}"
        arguments = [(url, traces, number, ready, self._stop, self._out) for number in range(count)]
        self._processes = [context.Process(target=write_feedback, args=one) for one in arguments]
        for process in self._processes:
            process.start()
        ready.wait()
        self._start = time.perf_counter()

    def rows(self) -> dict[str, str]:
        """Ends them, reads everything back, and says what they saw."""
        self._stop.set()
        found: list[Written] = [self._out.get() for _ in self._processes]
        for process in self._processes:
            process.join()
        took = time.perf_counter() - self._start
        ids = [id for one in found for id in one.ids]
        with HTTPStore(f"http://127.0.0.1:{self._collector.port}") as store:
            page = store.feedbacks(limit=20_000)
            stored = {one.id for one in page}
            while page.next is not None:
                page = store.feedbacks(limit=20_000, cursor=page.next)
                stored |= {one.id for one in page}
        return {
            "feedback acknowledged": f"{len(ids):,} by {len(found)} processes, {len(ids) / took:,.0f} /s",
            f"feedback, {AT_ONCE} at once, p50 / p99 / max": spread([s for one in found for s in one.batches]),
            "feedback, one, p50 / p99 / max": spread([s for one in found for s in one.singles]),
            "feedback put off / lost": f"{sum(one.put_off for one in found)} requests / {len(set(ids) - stored)}",
        }


def spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return (
        " / ".join(f"{1000 * ordered[int(q * (len(ordered) - 1))]:.0f} ms" for q in (0.5, 0.99, 1)) if ordered else "-"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=200_000)
    parser.add_argument("--traces", type=int, default=20, help="per request, five spans each")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--store", type=Path, help="a file to add to; else a new one, removed afterwards")
    parser.add_argument("--share", type=float, help="of the full rate, which a first load finds out")
    parser.add_argument("--feedback", type=int, default=0, help="processes that write feedback meanwhile")
    parser.add_argument("--no-index", action="store_true", help="do not wait for the text index")
    parser.add_argument("--decoders", nargs="+", default=[], help="of `spanwise serve`, several to compare them")
    parser.add_argument("--rounds", type=int, default=3, help="of a comparison")
    parser.add_argument("serve", nargs="*", help="further arguments of `spanwise serve`, after --")
    asked = parser.parse_args()
    if len(asked.decoders) > 1:
        compare(asked)
        return
    asked.serve += [word for number in asked.decoders for word in ("--decoders", number)]
    with tempfile.TemporaryDirectory() as folder:
        for name, value in measure(asked, asked.store or Path(folder) / "spanwise.db").rows.items():
            print(f"{name:34} {value}")


@dataclass
class Measured:
    """A run: for people, and as spans a second, µs of CPU a span, p50 and p99 in ms, and MB."""

    rows: dict[str, str]
    numbers: dict[str, float]


def compare(asked: argparse.Namespace) -> None:
    """Runs with each number of decoders in turn, on new files; medians, and the medians of ratios to the first."""
    found: dict[str, list[dict[str, float]]] = {number: [] for number in asked.decoders}
    for turn in range(asked.rounds):
        for number in asked.decoders if turn % 2 == 0 else reversed(asked.decoders):
            with tempfile.TemporaryDirectory() as folder:
                one = argparse.Namespace(**{**vars(asked), "serve": [*asked.serve, "--decoders", number]})
                found[number].append(measure(one, Path(folder) / "spanwise.db").numbers)
    first = found[asked.decoders[0]]
    for name in first[0]:
        for number, runs in found.items():
            ratio = median(run[name] / before[name] for run, before in zip(runs, first, strict=True))
            print(f"{name:22} decoders {number:>4}: {median(run[name] for run in runs):9,.0f}  {ratio:.2f} ×")


def full_rate(collector: Collector, made: list[Template], connections: int) -> float:
    """Requests a second when each connection sends as fast as it is answered."""
    load = Load(collector.port, made, WARM_UP // (made[0].traces * SPANS_PER_TRACE))
    start = time.perf_counter()
    asyncio.run(load.run(connections))
    return len(load.latencies) / (time.perf_counter() - start)


def measure(asked: argparse.Namespace, store: Path | str) -> Measured:
    made = templates(asked.traces, asked.json)
    per_request = asked.traces * SPANS_PER_TRACE
    collector = Collector(store, asked.serve)
    try:
        idle, pause = collector.memory_mb(), 0.0
        if asked.share or asked.feedback:
            full = full_rate(collector, made, asked.connections)
            pause = 1 / (full * asked.share) if asked.share else 0.0
        writers = Writers(collector, asked.feedback) if asked.feedback else None
        before, cpu = collector.get("/api/count")["spans"], collector.cpu_s()
        load, seen = Load(collector.port, made, max(1, asked.spans // per_request), pause), Seen()
        start = time.perf_counter()
        asyncio.run(watched(collector, load, asked.connections, seen))
        acknowledged_s = time.perf_counter() - start
        spans = len(load.acknowledged) * per_request
        while collector.get("/api/count")["spans"] < before + spans and time.perf_counter() - start < 300:
            time.sleep(0.01)
        visible_s = time.perf_counter() - start
        missing = before + spans - collector.get("/api/count")["spans"]
        cpu = collector.cpu_s() - cpu
        further = writers.rows() if writers else {}
        behind, lag_s = collector.cpu_s(), collector.number("spanwise_store_text_index_lag_seconds")
        indexed_s = 0.0 if asked.no_index else until_indexed(collector)
        with_index = cpu + collector.cpu_s() - behind
        after = collector.memory_mb()
    finally:
        collector.stop()
    rows = {
        "spans acknowledged": f"{spans:,} in {acknowledged_s:.1f} s; answers {load.statuses}",
        "acknowledged and visible": f"{spans / visible_s:,.0f} spans/s, {len(load.latencies) / acknowledged_s:,.0f} requests/s",
        "missing": f"{missing}",
        "asked for": f"{asked.share:.0%} of {full * per_request:,.0f} spans/s"
        if pause
        else "as fast as it is answered",
        "acknowledgement p50 / p99 / max": spread(load.latencies),
        **further,
        "visible after acknowledgement": f"at most {1000 * max(seen.lags, default=0):.0f} ms ({len(seen.lags)} asked during the load)",
        "text index caught up after": f"{indexed_s:.1f} s; at the end of the load it was {lag_s:.1f} s behind",
        "collector's CPU": f"{1e6 * cpu / max(1, spans):.0f} µs a span during the load,"
        f" {1e6 * with_index / max(1, spans):.0f} until the text index has caught up",
        "memory idle / most": f"{idle:.0f} / {max(mb for _, mb in seen.memory):.0f} MB",
        "memory after 25, 50, 75, 100 %": " / ".join(f"{seen.memory_at(q):.0f}" for q in (0.25, 0.5, 0.75, 1))
        + f" MB, index caught up {after:.0f} MB",
        "ready after": f"{collector.ready_s:.2f} s",
        "request": f"{len(made[0].body) / per_request:,.0f} bytes a span, {per_request} spans",
    }
    if isinstance(store, Path):
        size = store.stat().st_size / (before + spans)
        rows["on disk"] = f"{size:,.0f} bytes a span (file of {before + spans:,})"
    ordered, memory = sorted(load.latencies), max(mb for _, mb in seen.memory)
    numbers = {"spans a second": spans / visible_s, "CPU a span, µs": 1e6 * cpu / max(1, spans)}
    numbers["with index, µs"] = 1e6 * with_index / max(1, spans)
    numbers |= {"p50, ms": 1000 * ordered[len(ordered) // 2], "p99, ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))]}
    return Measured(rows, numbers | {"memory at most, MB": memory, "memory idle, MB": idle})


if __name__ == "__main__":
    main()
