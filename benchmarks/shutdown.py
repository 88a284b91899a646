"""Processes that end in five ways while they trace: does each end in time, and is every span sent, spooled or counted?

    python benchmarks/shutdown.py [--starts 200] [--seed 0] [--jobs 4] [--way sigterm]

Per way (`sigterm`, `shutdown`, `exit`, `configure`, `fork`) so many programs are started. In each, one to eight threads
trace calls, generators, coroutines of asyncio and finalizers at random. The collector answers, refuses connections,
hangs, or restarts; half of the programs have a spool. Each thread writes how many calls have ended to a file that is
mapped into memory, and so is the tracer's own count of drops: both survive the process.

Faults: a program that takes longer than `LIMIT` to end; a span that has ended and was neither sent, spooled nor counted
as dropped; more counted drops than missing spans; with a spool, a drop of a span that ended before the tracer was
closed. A call that is in progress when the process dies may be on either
side, one for each thread that traces. Without a spool, an answer that comes after the end of the wait for it counts
twice, as dropped and as sent: these are printed, and no fault.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanwise.tracer.export import disk_spool

WAYS = ("sigterm", "shutdown", "exit", "configure", "fork")
COLLECTORS = ("answers", "refuses", "hangs", "restarts")
LIMIT = 8.0  # seconds that the end may take on a busy machine: sending ends after 5
SLOTS = 64  # of 8 bytes in the file of a process: 32 for ended calls, by thread; 16 for late drops; 16 for other drops

PROGRAM = """
import asyncio, itertools, mmap, os, random, signal, struct, sys, threading, time
from collections import Counter
way, seed, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = random.Random(seed)

def begin_process():
    global memory, slots, drops, pid
    pid = os.getpid()
    with open(f"{folder}/{pid}", "w+b") as file:
        file.truncate(64 * 8)
        memory = mmap.mmap(file.fileno(), 64 * 8)
    slots, drops = itertools.count(0), itertools.count(32)

begin_process()
os.register_at_fork(after_in_child=begin_process)  # before the tracer's, which makes new counts
from spanwise.tracer import configure, flush, shutdown, trace
from spanwise.tracer.export import batch_exporter, delivery_lifecycle

class Drops(Counter):
    "Counted drops, in the file of the process."
    def __init__(self):
        super().__init__()
        self.memory, self.slot = memory, next(drops)
    def __setitem__(self, reason, count):
        super().__setitem__(reason, count)
        late = self.get("closed", 0)
        struct.pack_into("q", self.memory, 8 * self.slot, late)
        struct.pack_into("q", self.memory, 8 * (self.slot + 16), sum(self.values()) - late)

class Tally(batch_exporter.DeliveryCounts):
    def __init__(self):
        super().__init__()
        self.dropped = Drops()

class Queue(delivery_lifecycle.SpanQueue):
    def __init__(self):
        super().__init__()
        self.dropped = Drops()

batch_exporter.DeliveryCounts, delivery_lifecycle.SpanQueue = Tally, Queue

@trace
def work(name): return name

@trace
def numbers(name):
    yield 1
    yield 2

@trace
async def coroutine(name): await asyncio.sleep(0.0005)

class Finalized:
    def __init__(self, name): self.name, self.me = name, self
    def __del__(self): work(self.name)

def call(name, kind):
    if kind == "call": work(name)
    elif kind == "generator": list(numbers(name))
    elif kind == "closed generator":
        opened = numbers(name)
        next(opened)
        opened.close()
    else:
        Finalized(name).me = None  # ends at once

def run(slot, kinds, pause):
    for n in itertools.count(1):
        call(f"{pid}-{slot}-{n}", kinds[n % len(kinds)])
        struct.pack_into("q", memory, 8 * slot, n)
        time.sleep(pause)

async def tasks(slot):
    for n in itertools.count(1):
        await asyncio.gather(coroutine(f"{pid}-{slot}-{n}"), asyncio.sleep(0))
        struct.pack_into("q", memory, 8 * slot, n)

def trace_in_threads(threads):
    for _ in range(threads):
        slot, kind = next(slots), rng.random()
        kinds = rng.sample(["call", "generator", "closed generator", "finalizer"], rng.randrange(1, 5))
        target, arguments = (run, (slot, kinds, rng.choice([0, 0.0005, 0.005]))) if kind < 0.75 else (
            asyncio.run, (tasks(slot),))
        threading.Thread(target=target, args=arguments, daemon=True).start()

def some_calls(most):
    slot = next(slots)
    for n in range(1, rng.randrange(1, most) + 1):
        work(f"{pid}-{slot}-{n}")
        struct.pack_into("q", memory, 8 * slot, n)

def wait():
    # Not one long sleep: Python runs no handler for a signal that comes right before the system call.
    while True: time.sleep(0.05)

def say(text):
    os.write(1, (text + "\\n").encode())

configure()
last = Finalized("teardown")  # traces when modules are torn down
trace_in_threads(threads := rng.randrange(1, 9))
time.sleep(rng.random())
if way == "exit": some_calls(1000)
say(f"ready {threads}")
if way == "sigterm":
    if rng.random() < 0.5: some_calls(2000)
    wait()
elif way == "shutdown":
    ends = [threading.Thread(target=shutdown) for _ in range(rng.randrange(0, 3))]
    for end in ends: end.start()
    shutdown()
    for end in ends: end.join()
    say("ended")
    time.sleep(0.05)
    os._exit(0)
elif way == "exit":
    sys.exit(0)
elif way == "configure":
    for _ in range(rng.randrange(1, 4)):
        configure(project=f"p{rng.random()}")
        time.sleep(rng.random() * 0.1)
    shutdown()
    say("ended")
    os._exit(0)
else:
    children = []
    for _ in range(rng.randrange(1, 4)):
        child = os.fork()
        if child == 0:
            rng.seed(os.getpid())
            trace_in_threads(rng.randrange(0, 3))
            some_calls(500)
            how = rng.choice(["exit", "shutdown", "term"])
            if how == "term": os.kill(os.getpid(), signal.SIGTERM); wait()
            if how == "shutdown": shutdown(); os._exit(0)
            sys.exit(0)
        children.append(child)
    for child in children: os.waitpid(child, 0)
    sys.exit(0)
"""


class Collector:
    """Keeps the names of the spans that it acknowledges; answers, refuses, hangs or restarts."""

    def __init__(self, kind: str) -> None:
        self.names = set[str]()
        self._kind, self._end = kind, threading.Event()
        self._server: ThreadingHTTPServer | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        if kind != "refuses":
            self._open()
        if kind == "restarts":
            threading.Thread(target=self._restart, daemon=True).start()

    def close(self) -> None:
        """End, with all connections."""
        self._end.set()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _open(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.close_connection = not collector._took(self.server, self.path, body, self.connection)
                if not self.close_connection:
                    self.send_response(200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = allow_reuse_address = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients end here without waiting."""

        for _ in range(100):
            with suppress(OSError):  # another program has the port, for a moment
                self._server = Server(("127.0.0.1", self._port), Handler)
                break
            time.sleep(0.05)
        assert self._server is not None
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _restart(self) -> None:
        rng = random.Random(self._port)
        while not self._end.wait(0.1 + rng.random() * 0.4):
            server, self._server = self._server, None
            if server is not None:
                server.shutdown()
                server.server_close()
            if self._end.wait(0.1 + rng.random() * 0.4):
                return
            self._open()

    def _took(self, server: Any, path: str, body: bytes, connection: socket.socket) -> bool:
        """Whether a request is to be answered: not while it hangs, nor where its server or its sender is gone."""
        if self._kind == "hangs":
            self._end.wait(60)
        if server is not self._server or _is_gone(connection):
            return False
        if path == "/v1/traces":
            self.names.update(names(body))
        return True


def _is_gone(connection: socket.socket) -> bool:
    try:
        return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def names(body: bytes) -> Iterator[str]:
    """The names that the spans of a request were called with."""
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        for span in (span for scope in group.scope_spans for span in scope.spans):
            for attribute in span.attributes:
                if attribute.key == "input.value":
                    yield orjson.loads(attribute.value.string_value)["name"]


def spooled(folder: Path) -> set[str]:
    """The names of the spans that wait on disk."""
    found = set[str]()
    for segment in folder.glob("*/*.spool"):
        with segment.open("rb") as file:
            for record in disk_spool.read_records(file.fileno()):
                found.update(names(record.body or b"") if record.path == disk_spool.TRACES_PATH else ())
    return found


@dataclass
class Outcome:
    """What became of one start."""

    way: str
    collector: str
    has_spool: bool
    seconds: float = 0.0  # from the order to end to the end
    ended: int = 0
    sent: int = 0
    spooled: int = 0
    dropped: int = 0
    twice: int = 0
    faults: list[str] = field(default_factory=list)


def start(way: str, seed: int) -> Outcome:
    """Start one program and account for its spans."""
    rng = random.Random(f"{way} {seed}")
    outcome = Outcome(way, rng.choice(COLLECTORS), rng.random() < 0.5)
    with tempfile.TemporaryDirectory(prefix="spanwise-shutdown-") as root, _collector(outcome.collector) as collector:
        counts, spool = Path(root, "counts"), Path(root, "spool")
        counts.mkdir()
        where = str(spool) if outcome.has_spool else "off"
        env = {**os.environ, "SPANWISE_URL": collector.url, "SPANWISE_SPILL_DIR": where, "HOME": root}
        threads = _run(outcome, [sys.executable, "-c", PROGRAM, way, str(seed), str(counts)], env)
        _account(outcome, counts, collector.names, spooled(spool), threads)
    return outcome


@contextmanager
def _collector(kind: str) -> Iterator[Collector]:
    collector = Collector(kind)
    try:
        yield collector
    finally:
        collector.close()


def _run(outcome: Outcome, command: list[str], env: dict[str, str]) -> int:
    """Run a program to its end and note how long that takes; returns how many threads trace in it."""
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        ready = program.stdout.readline().split()
        began = time.monotonic()
        if outcome.way == "sigterm":
            program.terminate()
        try:
            _, errors = program.communicate(timeout=LIMIT if outcome.way != "fork" else 3 * LIMIT)
        except subprocess.TimeoutExpired:
            outcome.faults.append("did not end in time")
            os.killpg(program.pid, signal.SIGKILL)
            _, errors = program.communicate()
        outcome.seconds = time.monotonic() - began
    if len(ready) != 2 or "Traceback" in errors:
        outcome.faults.append(f"failed: {errors[-500:]}")
        return 0
    return int(ready[1])


def _account(outcome: Outcome, counts: Path, sent: set[str], waiting: set[str], threads: int) -> None:
    ended, processes, early = set[str](), 0, 0
    for file in counts.iterdir():
        values = struct.unpack(f"{SLOTS}q", file.read_bytes())
        ended |= {f"{file.name}-{slot}-{n}" for slot in range(32) for n in range(1, values[slot] + 1)}
        outcome.dropped += sum(values[32:])
        early += sum(values[48:])
        processes += 1
    missing = len(ended - sent - waiting)
    outcome.ended, outcome.sent, outcome.spooled = len(ended), len(sent & ended), len(waiting & ended - sent)
    in_progress = threads + 4 * (processes - 1) + 2  # of each thread one call, and what ends with the process
    if missing > outcome.dropped + (in_progress if outcome.way in ("sigterm", "exit", "fork") else 0):
        outcome.faults.append(f"{missing} of {len(ended)} missing, {outcome.dropped} counted")
    if early and outcome.has_spool:
        outcome.faults.append(f"{early} dropped in spite of the spool")
    outcome.twice = max(0, outcome.dropped - missing - in_progress)
    if outcome.twice and outcome.has_spool:
        outcome.faults.append(f"{missing} of {len(ended)} missing, but {outcome.dropped} counted")


def main(starts: int, seed: int, jobs: int, ways: tuple[str, ...]) -> int:
    """Start the programs and print a line for each way; returns the number of faults."""
    faults = 0
    for way in ways:
        with ThreadPoolExecutor(jobs) as pool:
            outcomes = list(pool.map(lambda n: start(way, n), range(seed, seed + starts)))  # noqa: B023
        for number, outcome in enumerate(outcomes, seed):
            for fault in outcome.faults:
                faults += 1
                spool = "a" if outcome.has_spool else "no"
                print(f"  {way} {number}, collector {outcome.collector}, {spool} spool: {fault}", flush=True)
        _print(way, outcomes)
    print(f"{len(ways) * starts} starts: {faults} faults")
    return faults


def _print(way: str, outcomes: list[Outcome]) -> None:
    sums = {key: sum(getattr(o, key) for o in outcomes) for key in ("ended", "sent", "spooled", "dropped", "twice")}
    print(f"{way:10}{len(outcomes)} starts;", ", ".join(f"{count:,} {key}" for key, count in sums.items()))
    seconds = defaultdict[str, list[float]](list)
    for outcome in outcomes:
        seconds[outcome.collector].append(outcome.seconds)
    longest = (f"{kind} {sorted(took)[len(took) // 2]:.2f} ({max(took):.2f})" for kind, took in sorted(seconds.items()))
    print("          seconds to the end, median (longest):", ", ".join(longest), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="programs at a time")
    parser.add_argument("--way", choices=WAYS, action="append")
    given = parser.parse_args()
    sys.exit(bool(main(given.starts, given.seed, given.jobs, tuple(given.way or WAYS))))
