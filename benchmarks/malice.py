"""Not how fast: whether the collector goes on for those who mean well while others do their worst.

    python benchmarks/malice.py                          # ten minutes without malice, then ten with it
    python benchmarks/malice.py --seconds 60 --calm 30
    python benchmarks/malice.py --alone                  # each attack by itself on a fresh server: what it costs in memory
    python benchmarks/malice.py --each --seconds 20      # each attack beside senders: what it costs these, and in memory
    python benchmarks/malice.py --only bombs --seconds 30
    python benchmarks/malice.py --seconds 60 --aside     # a third run, in which another server is attacked

Senders send 500 spans a second, in requests of 20, to `spanwise serve` behind a key; beside them, from a process of their
own and in an order that the seed decides, come bombs, bodies all at once, heads and bodies that never end, wrong keys,
hostile hosts, questions without measure, spans that lie, and noise. Told is what was answered to whom, and:

- no answer is a 5xx but 503, and that says when to come again;
- every span that was acknowledged is there;
- p99 of the senders' requests (from the first try to the acknowledgement) beside that of the run without malice, and
  with `--aside` also beside that of a run in which the attacks go to another server on the same machine: that is what
  the attackers, and the work of refusing them, take from the senders by using the processors;
- the peak of the memory of the server and the processes that decode for it, and whether it grows: what each has for
  itself, and once what is mapped of files, as these are the same (interpreter and libraries).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import median

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from spanwise.collector.stores.sqlite import SQLiteStore

KEY = "a key that nobody guesses"
RATE, A_REQUEST, A_TRACE = 500, 20, 5  # spans a second, in a request, in a trace
CONNECTIONS = 8
PATIENCE = 60.0  # seconds, after which a sender gives up; nothing is lost by it, but it is told
PEAK, SLOWER = 400, 3.0  # MB; times
OFTEN = 3.0  # seconds between two steps of an attack that is looked at alone, at most
PROTOBUF, JSON = "application/x-protobuf", "application/json"


# --- the server -----------------------------------------------------------------------------------------------------


class Server:
    """`spanwise serve` on a file, behind a key."""

    def __init__(self, file: Path, decoders: str = "auto") -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        command = "from spanwise.cli import main; main()"
        arguments = [
            "serve",
            "--host",
            "0.0.0.0",
            "--port",
            str(self.port),
            "--store",
            str(file),
            "--decoders",
            decoders,
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPANWISE_", "OTEL_"))}
        self.log = file.with_suffix(".log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, *arguments], env=environment | {"SPANWISE_API_KEY": KEY}, stderr=self.log
        )
        self._until_ready()

    def _until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as asked:
                asked.settimeout(5)
                asked.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                if b" 200 " in asked.recv(100):
                    return
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended: {Path(self.log.name).read_text()}")
            time.sleep(0.05)
        raise SystemExit("the server was not ready within a minute")

    def memory(self) -> float:
        """MB that it takes now with the processes that help it; files that all of them map count once."""
        found = [resident(pid) for pid in tree(self.process.pid)]
        return sum(own for own, _ in found) + max(mapped for _, mapped in found)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(120)
        self.log.close()


def tree(pid: int) -> list[int]:
    """A process and those that it has started."""
    found = [pid]
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def resident(pid: int) -> tuple[float, float]:
    """MB of memory of its own, and of what it maps of files."""
    found = {"RssAnon": 0.0, "RssShmem": 0.0, "RssFile": 0.0}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) / 1024
    return found["RssAnon"] + found["RssShmem"], found["RssFile"]


class Peak:
    """The most memory of a server's processes together, looked at twenty times a second."""

    def __init__(self, server: Server) -> None:
        self.server, self.most, self._end = server, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            self.most = max(self.most, self.server.memory())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def serving(file: Path, decoders: str = "auto") -> Iterator[Server]:
    server = Server(file, decoders)
    try:
        yield server
    finally:
        server.stop()


# --- one exchange, by hand: what no client would send ---------------------------------------------------------------


def head(
    path: str, size: int, kind: str = PROTOBUF, *, method: str = "POST", key: str | None = KEY, **more: str
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-type: {kind}", f"content-length: {size}"]
    lines += [f"authorization: Bearer {key}"] if key else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer, whose body is read; 0 if the connection ended."""
    try:
        told = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        return 0, {}
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in told[1:])}
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readexactly(int(headers.get("content-length", 0)))
    return int(told[0].split()[1]), headers


async def once(port: int, wire: bytes, seconds: float = 60) -> tuple[int, dict[str, str]]:
    """Send bytes on a connection of their own; the answer to them."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            try:
                with suppress(ConnectionError):
                    writer.write(wire)
                    await writer.drain()
                return await answer(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0, {}


# --- those who mean well --------------------------------------------------------------------------------------------


@dataclass
class Sent:
    """What the senders saw. `acknowledged` are trace ids, all of whose spans were."""

    acknowledged: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    given_up: int = 0


@cache
def words() -> str:
    pick = random.Random(1)
    return " ".join(f"{pick.getrandbits(24):x}" for _ in range(150_000))


def good_request(pick: random.Random, traces: int = A_REQUEST // A_TRACE, text: int = 600) -> tuple[bytes, list[str]]:
    whole, ids = ExportTraceServiceRequest(), []
    spans = whole.resource_spans.add().scope_spans.add().spans
    for _ in range(traces):
        trace_id, now = pick.randbytes(16), time.time_ns()
        ids.append(trace_id.hex())
        root = pick.randbytes(8)
        for place in range(A_TRACE):
            made = spans.add(trace_id=trace_id, span_id=root if place == 0 else pick.randbytes(8), name=f"step {place}")
            made.parent_span_id = root if place else b""
            made.start_time_unix_nano, made.end_time_unix_nano = now + place, now + place + 10**6
            begin = pick.randrange(len(words()) - text)
            made.attributes.append(
                KeyValue(key="input.value", value=AnyValue(string_value=words()[begin : begin + text]))
            )
    return whole.SerializeToString(), ids


async def sender(port: int, number: int, until: float, seed: int, sent: Sent) -> None:
    """Every so often a request, on a connection that is kept, as an exporter does; again after a 429 or 503."""
    pick, pause = random.Random(seed * 1000 + number), A_REQUEST * CONNECTIONS / RATE
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    begin = time.monotonic() + pause * number / CONNECTIONS
    while (now := time.monotonic()) < until:
        await asyncio.sleep(max(0.0, begin - now))
        begin = max(begin + pause, time.monotonic() - 5)
        body, ids = good_request(pick)
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE:
            try:
                async with asyncio.timeout(PATIENCE):
                    if writer is None:
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(head("/v1/traces", len(body)) + body)
                    assert reader is not None
                    status, headers = await answer(reader)
            except (OSError, TimeoutError):
                status, headers = 0, {}
            sent.statuses[status] += 1
            if status == 200:
                sent.seconds.append(time.monotonic() - started)
                sent.acknowledged += ids
                break
            judge(sent.bad, "sender", status, headers, honest=True)
            if writer is not None and status == 0:
                writer.close()
                writer = None
            await asyncio.sleep(float(headers.get("retry-after", 0.2)))
        else:
            sent.given_up += 1
    if writer is not None:
        writer.close()


def judge(bad: Counter[str], who: str, status: int, headers: dict[str, str], *, honest: bool = False) -> None:
    """Note an answer that no server should give: to an honest sender nothing but 200, "later", or an end."""
    if honest and 300 <= status < 500 and status != 429:
        bad[f"{who}: {status}"] += 1
    if status >= 500 and not (status == 503 and headers.get("retry-after", "").isdigit()):
        bad[f"{who}: {status}"] += 1


# --- those who do not -----------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    made = b""
    while number > 127:
        number, made = number >> 7, made + bytes([number & 127 | 128])
    return made + bytes([number])


def wrapped(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def in_request(span_fields: bytes) -> bytes:
    ids = wrapped(1, os.urandom(16)) + wrapped(2, os.urandom(8))
    return wrapped(1, wrapped(2, wrapped(2, ids + span_fields)))


@cache
def bombs() -> list[bytes]:
    """Little on the wire, much in memory; each as a request."""
    many = 10_000_000
    empties = b"\x0a\x00"
    bodies = {
        "groups": (PROTOBUF, empties * 15_000_000),
        "scopes": (PROTOBUF, wrapped(1, b"\x12\x00" * many)),
        "spans": (PROTOBUF, wrapped(1, wrapped(2, b"\x12\x00" * many))),
        "attributes": (PROTOBUF, in_request(b"\x4a\x00" * many)),
        "events": (PROTOBUF, in_request(b"\x5a\x00" * many)),
        "list": (PROTOBUF, in_request(wrapped(9, wrapped(2, wrapped(5, empties * many))))),
        "map": (PROTOBUF, in_request(wrapped(9, wrapped(2, wrapped(6, empties * many))))),
        "json groups": (JSON, b'{"resourceSpans":[' + b"{}," * many + b"{}]}"),
        "json spans": (JSON, b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"{}," * many + b"{}]}]}]}"),
        "json braces": (JSON, b'{"resourceSpans":[{"x":"' + b"{" * 3 * many + b'"}]}'),
        "deep": (JSON, b"[" * 3 * many),
    }
    made = []
    for kind, body in bodies.values():
        small = gzip.compress(body, 6)
        made.append(head("/v1/traces", len(small), kind, content_encoding="gzip") + small)
    squeezer, small = zlib.compressobj(9, zlib.DEFLATED, 31), b""
    for _ in range(1024):  # a GiB of zeros
        small += squeezer.compress(bytes(2**20))
    small += squeezer.flush()
    made.append(head("/v1/traces", len(small), content_encoding="gzip") + small)
    runs = gzip.compress(b"[" + b"[[]]," * 5_000_000 + b"0]")
    return [*made, head("/api/runs", len(runs), JSON, content_encoding="gzip") + runs]


@cache
def large_request(seed: int, size: int = 15_000_000) -> bytes:
    body, pick = b"", random.Random(seed)
    while len(body) < size:
        body += good_request(pick, 200, 2000)[0]
    return head("/v1/traces", len(body)) + body


@cache
def much_feedback() -> bytes:
    row = {"target": {"trace_id": "a" * 32}, "key": "k", "score": 1}
    body = b"[" + b",".join([json.dumps(row).encode()] * 400_000) + b"]"
    return head("/api/feedback", len(body), JSON) + body


@dataclass
class Attack:
    """How often a second it comes, and what it does: a step answers with the statuses that it saw."""

    name: str
    every: float
    step: Callable[[int, random.Random], Awaitable[list[tuple[int, dict[str, str]]]]]


async def bomb(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    return [await once(port, pick.choice(bombs()))]


async def at_once(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    return await asyncio.gather(*(once(port, large_request(number), 120) for number in range(8)))


async def slow_heads(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    """Fifty heads, a byte now and then, as long as the server lets them."""

    async def one() -> None:
        with suppress(OSError, TimeoutError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for letter in head("/v1/traces", 10)[:-2]:
                    writer.write(bytes([letter]))
                    await writer.drain()
                    await asyncio.sleep(pick.uniform(0.5, 2))
            finally:
                writer.close()

    await asyncio.gather(*(one() for _ in range(50)))
    return []


async def half_bodies(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    """Bodies of which half comes, and then nothing, or the end."""

    async def one() -> None:
        with suppress(OSError, TimeoutError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head("/v1/traces", 1_000_000) + bytes(pick.randrange(500_000)))
            await writer.drain()
            await asyncio.sleep(pick.choice((0, 0, 5, 40)))
            writer.close()

    await asyncio.gather(*(one() for _ in range(10)))
    return []


async def unread(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    """Questions whose answers are not read."""
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head("/api/traces?limit=1000", 0, method="GET") * 5)
        await writer.drain()
        await asyncio.sleep(20)
        writer.close()
    return []


async def wrong_keys(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    tries = (head("/api/count", 0, method="GET", key=f"guess {pick.getrandbits(32)}") for _ in range(20))
    return [await once(port, wire) for wire in tries]


HOSTS = ("127.evil.test", "127.0.0.1.nip.io", "evil.test", "[::1", "localhost.evil.test:80", "\x00", "[::ffff:1.2.3.4]")


async def hosts(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    name = pick.choice(HOSTS)
    asked = head("/api/traces", 0, method="GET", key=None).replace(b"host: localhost", b"host: " + name.encode())
    written = head("/api/feedback", 2, JSON, origin=f"http://{name}") + b"[]"
    return [await once(port, asked), await once(port, written)]


QUESTIONS = (
    "/api/traces?limit=1000000",
    "/api/feedback?limit=1000000",
    "/api/traces?limit=99999999999999999999",
    "/api/traces?limit=1000",
    "/api/traces?error=" + "+".join(["word"] * 2000),
    "/api/traces?" + "&".join(f"tags=t{number}" for number in range(1500)),
    "/api/traces?" + "&".join(f"missing=k{number}" for number in range(90)),
    "/api/traces?text=" + "%20".join(["a*"] * 90),
    "/api/aggregate?bucket_ns=1&newest=all",
    "/api/aggregate?group_by=user&bucket_ns=1000&newest=all",
    "/?since=1w",
    "/traces?since=1w",
    "/charts",
    "/healthz",
    "/docs",
    "/openapi.json",
    "/api/traces?cursor=" + "x" * 1000,
    "/../../etc/passwd",
    "/traces/" + "A" * 32,
)


async def questions(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    return await asyncio.gather(*(once(port, head(pick.choice(QUESTIONS), 0, method="GET")) for _ in range(4)))


def lying_span(pick: random.Random) -> bytes:
    whole = ExportTraceServiceRequest()
    made = (
        whole.resource_spans.add().scope_spans.add().spans.add(trace_id=pick.randbytes(16), span_id=pick.randbytes(8))
    )
    made.name = pick.choice(("\x1b]0;owned\x07", "<script>alert(1)</script>", "\u202e", "x" * 1_000_000, "\x00", "a"))
    made.start_time_unix_nano = pick.choice((0, 2**63 - 1, 2**64 - 1, time.time_ns() + 10**18, time.time_ns()))
    made.end_time_unix_nano = pick.choice((0, 2**63 - 1, 2**64 - 1, time.time_ns()))
    made.parent_span_id = pick.choice((b"", made.span_id, pick.randbytes(8)))
    value = AnyValue(double_value=float("nan"))
    for _ in range(pick.choice((1, 31, 33, 40))):
        outer = AnyValue()
        outer.array_value.values.append(value)
        value = outer
    made.attributes.append(KeyValue(key=pick.choice(("input.value", "session.id", "\x00", "k" * 10_000)), value=value))
    return whole.SerializeToString()


def lying_run(pick: random.Random) -> bytes:
    run = {"trace_id": pick.randbytes(16).hex().upper(), "span_id": pick.randbytes(8).hex(), "name": "n"}
    run["start_ns"] = pick.choice((2**70, -(2**63), 0, 2**63 - 1))  # type: ignore[assignment]
    run["usage"] = {"input_tokens": pick.choice((-5, 2**80, 7))}  # type: ignore[assignment]
    run["cost"] = pick.choice((-1e308, 1e308, 0.1))  # type: ignore[assignment]
    return json.dumps([run]).encode()


async def lies(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    span, run = lying_span(pick), lying_run(pick)
    return [
        await once(port, head("/v1/traces", len(span)) + span),
        await once(port, head("/api/runs", len(run), JSON) + run),
    ]


def noises(pick: random.Random) -> list[bytes]:
    body = good_request(pick)[0]
    return [
        pick.randbytes(1000),
        head("/v1/traces", len(body))[:-4] + b"\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n" + body,
        b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        head("/healthz", 0, method="GET") * 500,
        head("/v1/traces", 5, transfer_encoding="chunked") + b"0\r\n\r\nGET /api/keys HTTP/1.1\r\n\r\n",
        head("/v1/traces", len(body) + 10) + body,
        head("/v1/traces", len(body), "text/plain") + body,
        head("/v1/nothing", len(body)) + body,
        head("/v1/traces", len(body), content_encoding="gzip") + body,
        head("/v1/traces", len(body)) + pick.randbytes(len(body)),
        head("/v1/traces", 5, JSON) + b"{nope",
        head("/v1/traces", 2**40),
        head("/api/keys", 5, JSON, method=pick.choice(("PUT", "DELETE", "BREW"))) + b"{nope",
        head("/v1/logs", len(body)) + body,
    ]


async def noise(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    return [await once(port, pick.choice(noises(pick)), 10)]


async def feedback(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    return [await once(port, much_feedback(), 120)]


async def come_and_go(port: int, pick: random.Random) -> list[tuple[int, dict[str, str]]]:
    """Connections that say nothing."""
    opened = []
    for _ in range(100):
        with suppress(OSError):
            opened.append((await asyncio.open_connection("127.0.0.1", port))[1])
    await asyncio.sleep(1)
    for writer in opened:
        writer.close()
    return []


ATTACKS = (
    Attack("bombs", 2, bomb),
    Attack("bodies at once", 30, at_once),
    Attack("slow heads", 10, slow_heads),
    Attack("half bodies", 5, half_bodies),
    Attack("unread answers", 5, unread),
    Attack("wrong keys", 2, wrong_keys),
    Attack("hosts", 1, hosts),
    Attack("questions", 2, questions),
    Attack("lies", 0.5, lies),
    Attack("noise", 0.3, noise),
    Attack("much feedback", 40, feedback),
    Attack("come and go", 5, come_and_go),
)


@dataclass
class Harm:
    """What the attackers saw."""

    steps: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)


async def attacker(attack: Attack, port: int, until: float, seed: int, harm: Harm) -> None:
    pick = random.Random(f"{seed} {attack.name}")
    under_way = set[asyncio.Task[None]]()

    async def step() -> None:
        for status, headers in await attack.step(port, pick):
            harm.statuses[attack.name, status] += 1
            judge(harm.bad, attack.name, status, headers)

    while time.monotonic() < until:
        await asyncio.sleep(pick.uniform(0.5, 1.5) * attack.every)
        if len(under_way) < 10:
            harm.steps[attack.name] += 1
            task = asyncio.ensure_future(step())
            under_way.add(task)
            task.add_done_callback(under_way.discard)
    for task in list(under_way):
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)


def prepare() -> None:
    """Make what takes long to make."""
    bombs(), much_feedback(), [large_request(number) for number in range(8)]


async def attacked(port: int, seconds: float, seed: int, only: str, often: float = float("inf")) -> Harm:
    """`often`: seconds between two steps of an attack, at most."""
    harm, until = Harm(), time.monotonic() + seconds
    chosen = [replace(attack, every=min(attack.every, often)) for attack in ATTACKS if only in attack.name]
    await asyncio.gather(*(attacker(attack, port, until, seed, harm) for attack in chosen))
    return harm


# --- a run ----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of a run. Memory in MB: at rest before it, each second, and the peak."""

    sent: Sent
    harm: Harm
    at_rest: float
    samples: list[float]
    peak: float
    lost: int
    alive: bool  # the server, at the end

    @property
    def bad(self) -> Counter[str]:
        return self.sent.bad + self.harm.bad

    @property
    def p99(self) -> float:
        ordered = sorted(self.sent.seconds)
        return ordered[int(len(ordered) * 0.99)] if ordered else float("inf")

    @property
    def growth(self) -> float:
        """The last quarter's median memory over the second's."""
        quarter = len(self.samples) // 4
        return median(self.samples[-quarter:]) / median(self.samples[quarter : 2 * quarter]) if quarter else 1.0


def run(
    file: Path,
    seconds: float,
    seed: int,
    malice: bool = True,
    only: str = "",
    aside: bool = False,
    decoders: str = "auto",
    often: float = float("inf"),
) -> Outcome:
    """Senders, and attackers if there is to be malice, against a fresh server on a file; `aside` these have another.

    `often` limits the seconds between two steps of an attack.
    """
    with (
        serving(file, decoders) as server,
        serving(file.with_suffix(".aside"), decoders) if aside else nullcontext(server) as target,
        Peak(server) as peak,
    ):
        at_rest = server.memory()
        samples = list[float]()
        with multiprocessing.get_context("spawn").Pool(1) as attackers:
            harm = None
            if malice:
                attackers.apply(prepare)
                harm = attackers.apply_async(_attack, (target.port, seconds, seed, only, often))
            sent = asyncio.run(_send(server, seconds, seed, samples))
            hurt = harm.get(seconds + 300) if harm else Harm()
        alive = server.process.poll() is None
    return Outcome(sent, hurt, at_rest, samples, peak.most, lost(file, sent.acknowledged), alive)


def _attack(port: int, seconds: float, seed: int, only: str, often: float = float("inf")) -> Harm:
    return asyncio.run(attacked(port, seconds, seed, only, often))


async def _send(server: Server, seconds: float, seed: int, samples: list[float]) -> Sent:
    sent, until = Sent(), time.monotonic() + seconds

    async def watch() -> None:
        while True:
            samples.append(server.memory())
            await asyncio.sleep(1)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(sender(server.port, number, until, seed, sent) for number in range(CONNECTIONS)))
    watching.cancel()
    return sent


def lost(file: Path, acknowledged: list[str]) -> int:
    """How many spans were acknowledged and are not in the file."""
    missing = 0
    with SQLiteStore(file) as store:
        for start in range(0, len(acknowledged), 500):
            some = tuple(acknowledged[start : start + 500])
            found = store.traces(trace_ids=some, limit=500)
            there = {trace.trace_id: min(trace.span_count, A_TRACE) for trace in found}
            missing += sum(A_TRACE - there.get(trace_id, 0) for trace_id in some)
    return missing


# --- the command ----------------------------------------------------------------------------------------------------


def show(outcome: Outcome, title: str) -> None:
    sent = outcome.sent
    print(f"\n{title}: {len(sent.acknowledged) * A_TRACE:,} spans acknowledged, {outcome.lost:,} of them lost")
    ordered = sorted(sent.seconds) or [0.0]
    print(f"  p50 {median(ordered) * 1000:.0f} ms, p99 {outcome.p99 * 1000:.0f} ms, most {ordered[-1] * 1000:.0f} ms")
    print(f"  answers to senders: {dict(sent.statuses)}, given up {sent.given_up}")
    print(f"  memory: {outcome.at_rest:.0f} MB at rest, peak {outcome.peak:.0f} MB, growth {outcome.growth:.2f}")
    for name in sorted(outcome.harm.steps):
        found = {status: count for (who, status), count in sorted(outcome.harm.statuses.items()) if who == name}
        print(f"  {name}: {outcome.harm.steps[name]} times, answered {found or 'with nothing'}")
    if outcome.bad:
        print(f"  WRONG: {dict(outcome.bad)}")


def alone(folder: Path, seed: int, only: str, decoders: str) -> None:
    """What each attack costs by itself: the peak of a fresh server's memory after some steps of it."""
    print(f"{'attack':20s} {'rest':>6s} {'peak':>6s}  answers")
    for attack in ATTACKS:
        if only in attack.name:
            with serving(folder / f"{attack.name.replace(' ', '-')}.db", decoders) as server, Peak(server) as peak:
                rest, pick = server.memory(), random.Random(seed)
                seen = Counter[int]()
                for wire in bombs() if attack.step is bomb else [None]:
                    step = [once(server.port, wire)] if wire else [attack.step(server.port, pick) for _ in range(3)]
                    for found in asyncio.run(_all(step)):
                        seen.update([found[0]] if isinstance(found, tuple) else [status for status, _ in found])
                print(f"{attack.name:20s} {rest:6.0f} {peak.most:6.0f}  {dict(seen)}", flush=True)


def each(folder: Path, seconds: float, seed: int, only: str, decoders: str) -> None:
    """What each attack costs honest senders: alone beside them, on a fresh server, after as many seconds of calm."""
    print(f"{'attack':20s} {'calm p99':>9s} {'p99':>6s} {'ratio':>6s} {'most':>6s} {'rest':>6s} {'peak':>6s}")
    for attack in ATTACKS:
        if only in attack.name:
            with serving(folder / f"{attack.name.replace(' ', '-')}.db", decoders) as server, Peak(server) as peak:
                rest, found = server.memory(), []
                with multiprocessing.get_context("spawn").Pool(1) as attackers:
                    attackers.apply(prepare)
                    for often in (0.0, OFTEN):
                        args = server.port, seconds, seed, attack.name, often
                        harm = attackers.apply_async(_attack, args) if often else None
                        found.append(sorted(asyncio.run(_send(server, seconds, seed, [])).seconds))
                    assert harm is not None
                    harm.get(seconds + 300)
            calm, with_it = (ordered[int(len(ordered) * 0.99)] * 1000 for ordered in found)
            row = f"{calm:9.0f} {with_it:6.0f} {with_it / calm:6.1f} {found[1][-1] * 1000:6.0f}"
            print(f"{attack.name:20s} {row} {rest:6.0f} {peak.most:6.0f}", flush=True)


async def _all(work: list[Awaitable[object]]) -> list[object]:
    return list(await asyncio.gather(*work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--calm", type=float, help="seconds of the run without malice (as many)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--aside", action="store_true", help="a run, too, in which another server is attacked")
    parser.add_argument("--decoders", default="auto", help="as of `spanwise serve`")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.alone:
            return alone(folder, asked.seed, asked.only, asked.decoders)
        if asked.each:
            return each(folder, asked.seconds, asked.seed, asked.only, asked.decoders)
        make = partial(run, seed=asked.seed, only=asked.only, decoders=asked.decoders)
        calm = make(folder / "calm.db", asked.calm or asked.seconds, malice=False)
        show(calm, "without malice")
        if asked.aside:
            aside = make(folder / "aside.db", asked.seconds, aside=True)
            show(aside, "with malice against another server")
        malice = make(folder / "malice.db", asked.seconds)
        show(malice, "with malice")
    verdicts = {
        "no 5xx but 503 with Retry-After, and nothing but that or 429 to honest senders": not malice.bad
        and not calm.bad,
        f"the server lives, and {malice.sent.given_up} requests of honest senders were given up": malice.alive
        and calm.alive
        and not malice.sent.given_up,
        "no acknowledged span lost": not malice.lost and not calm.lost,
        f"p99 {malice.p99 / calm.p99:.1f} × (at most {SLOWER:g})": malice.p99 <= SLOWER * calm.p99,
        f"peak {malice.peak:.0f} MB (at most {PEAK})": malice.peak <= PEAK,
        f"memory flat ({malice.growth:.2f})": malice.growth <= 1.25,
    }
    print()
    if asked.aside:
        print(f"     p99 {malice.p99 / aside.p99:.1f} × that beside malice against another server")
    for what, holds in verdicts.items():
        print(f"{'ok  ' if holds else 'FAIL'} {what}")
    sys.exit(not all(verdicts.values()))


if __name__ == "__main__":
    main()
