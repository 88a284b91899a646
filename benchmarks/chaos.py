"""Programs that fork, exec, are killed and end in all ways, beside a collector that does what it wants: is a span lost?

    python benchmarks/chaos.py [--rounds 500] [--seed 0] [--jobs 4]

A round runs one program, traced, that does a few things at random moments; its collector is up, down, hangs, or answers
503 or 429. Each process notes what it has traced, in a file, after the fact. Afterwards another process sends what lies
on disk to a collector that is up. A fault is a span that neither arrived nor was counted as dropped, one that arrived
twice, or a program that hangs. What SIGKILL, `os._exit` and `exec` cut off may be lost, and no more: the last half
second, or what came while a request had been waiting for its answer for less than a second; and as much more as the
machine was late with waking those that slept, which program and collector measure. Where it was, an answer may come
after the end of the process has stopped waiting for it, and its last spans twice: a collector of ours keeps them once.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MOODS = ("up", "up", "down", "hangs", "503", "429", "changes")
LONGEST = 20.0  # seconds that a program may take
_LAST = 1.0  # seconds before a kill in which spans may be lost with the process: the interval, on a busy machine
_LATE = 0.5  # seconds by which the machine may be late until an answer can come too late
_WAITING = 3.0  # the same where the collector hangs: a second until that is noticed, and a bit

PROGRAM = """
import atexit, os, random, signal, subprocess, sys, threading, time
from collections import deque
from spanwise.tracer import configure, flush, stats, trace
seed, notes = int(sys.argv[1]), sys.argv[2]
rng = random.Random(seed)
if rng.random() < 0.5:
    configure()

@trace
def work(name):
    if name.endswith("7"):
        raise ValueError(name)
    return name

@trace
def numbers(name):
    yield 1
    yield 2

late = deque(maxlen=100)
def beat():
    while True:
        before = time.monotonic()
        time.sleep(0.05)
        late.append(time.monotonic() - before - 0.05)

def beating():
    late.clear()
    threading.Thread(target=beat, daemon=True).start()

serial = 0
left_open = []
def some(most):
    global serial
    lines = []
    for _ in range(rng.randrange(most)):
        serial += 1
        name = f"{os.getpid()}-{serial}"
        kind = rng.random()
        try:
            if kind < 0.9:
                work(name)
            elif kind < 0.95:
                list(numbers(name))
            else:
                left_open.append(numbers(name)); next(left_open[-1])
                continue  # nobody says that it has ended
        except ValueError:
            pass
        lines.append(f"{name} {time.time()}\\n")
    with open(f"{notes}/{os.getpid()}", "a") as file:
        file.writelines(lines)

def dropped():
    with open(f"{notes}/{os.getpid()}.dropped", "w") as file:
        file.write(str(sum(stats().dropped.values())))

def end(how):
    if how == "raise":
        raise RuntimeError("the end")
    if how == "sys.exit":
        sys.exit(3)
    if how in ("SIGTERM", "SIGKILL"):
        os.kill(os.getpid(), getattr(signal, how)); time.sleep(30)
    if how == "_exit":
        os._exit(0)
    if how == "exec":
        os.execv("/bin/true", ["true"])

ENDS = ("falls off", "raise", "sys.exit", "SIGTERM", "SIGKILL", "_exit", "exec")
def life(depth):
    for _ in range(rng.randrange(1, 6)):
        some(rng.choice((5, 50, 1500)))
        what = rng.random()
        if what < 0.3 and depth < 2:
            fork(depth)
        elif what < 0.4:
            flush(rng.random())
        elif what < 0.5:
            subprocess.run(["/bin/true"])
        elif what < 0.6:
            thread = threading.Thread(target=some, args=(200,)); thread.start()
            if rng.random() < 0.5: fork(depth)
            thread.join()
        else:
            time.sleep(rng.random() * 0.7)

def fork(depth):
    global serial
    seed = rng.random()
    child = os.fork()
    if child:
        children.append(child)
        return
    beating()
    rng.seed(seed); children.clear(); left_open.clear(); serial = 0
    atexit.unregister(dropped); atexit.register(dropped)
    life(depth + 1)
    finish()

def finish():
    how = rng.choice(ENDS)
    with open(f"{notes}/{os.getpid()}.end", "w") as file:
        file.write(f"{how} {time.time()} {sum(tuple(late))}")
    for child in children:
        os.waitpid(child, 0)
    end(how)
    sys.exit(0)

children = []
atexit.register(dropped)
beating()
life(0)
finish()
"""
LAST = "from spanwise.tracer import configure, flush; configure(); print(bool(flush(15)))"
CUT_OFF = ("SIGKILL", "_exit", "exec")


class Collector:
    """Keeps the inputs of the spans it acknowledges, and answers by its mood."""

    def __init__(self, rng: random.Random) -> None:
        self.mood, self.kept = "up", Counter[str]()
        self._rng, self._lock = rng, threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = collector.status(body, self.connection)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients are killed here."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.late, self._closed = 0.0, False
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        """How late the machine is with waking who sleeps: the most of all times of five seconds."""
        last = deque[float](maxlen=100)
        while not self._closed:
            before = time.monotonic()
            time.sleep(0.05)
            last.append(time.monotonic() - before - 0.05)
            self.late = max(self.late, sum(last))

    def status(self, body: bytes, connection: socket.socket) -> int:
        """What is answered to a body, which is kept if that is 200, and somebody is there to hear it."""
        mood = self.mood if self.mood != "changes" else self._rng.choice(MOODS[:-1])
        if mood == "hangs":
            time.sleep(LONGEST)
            return 503
        if mood != "up":
            return 429 if mood == "429" else 503
        if _is_gone(connection):
            return 503
        names = list(_names(body))
        with self._lock:
            self.kept.update(names)
        return 200

    def close(self) -> None:
        """No more requests are taken."""
        self._closed = True
        self._server.shutdown()
        self._server.server_close()


def _is_gone(connection: socket.socket) -> bool:
    try:
        return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def _names(body: bytes) -> Iterator[str]:
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        for span in (span for scope in group.scope_spans for span in scope.spans):
            yield next(a.value.string_value for a in span.attributes if a.key == "input.value")[9:-2]


@dataclass
class Notes:
    """What the processes of a round say that they have done."""

    traced: dict[str, float] = field(default_factory=dict)  # span → when its process noted it
    ends: dict[str, tuple[str, float, float]] = field(default_factory=dict)  # process → how, when, how late things were
    dropped: int = 0

    @classmethod
    def read(cls, folder: Path) -> Notes:
        """From the files of the processes."""
        notes = cls()
        for file in folder.iterdir():
            text = file.read_text()
            if file.suffix == ".dropped":
                notes.dropped += int(text or 0)
            elif file.suffix == ".end":
                how, when, late = text.rsplit(" ", 2)
                notes.ends[file.stem] = how, float(when), float(late)
            else:
                notes.traced |= {name: float(when) for name, when in map(str.split, text.splitlines())}
        return notes

    def may_be_lost(self, name: str, mood: str, late: float) -> bool:
        """Whether its process was cut off right after."""
        how, when, later = self.ends.get(name.partition("-")[0], ("", 0.0, 0.0))
        last = _WAITING if mood in ("hangs", "changes") else _LAST
        return how in CUT_OFF and self.traced[name] > when - last - late - later

    def may_be_doubled(self, name: str, mood: str, late: float) -> bool:
        """Whether its process could wait in vain for an answer that came: the end of a process waits for 0.8 s.

        Under way is then what was traced last, or, where answers change, what is sent from the disk.
        """
        _, when, later = self.ends.get(name.partition("-")[0], ("", 0.0, 0.0))
        was_last = self.traced.get(name, when) >= when - _LAST - late - later
        return late + later > _LATE and (was_last or mood == "changes")


def round_of(seed: int) -> list[str]:
    """Run one program; returns its faults."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="spanwise-chaos-") as root, _collector(rng) as collector:
        notes, spool = Path(root, "notes"), Path(root, "spool")
        notes.mkdir()
        env = {**os.environ, "SPANWISE_URL": collector.url, "SPANWISE_SPILL_DIR": str(spool), "HOME": root}
        collector.mood = rng.choice(MOODS)
        mood, hung = collector.mood, not _ended([PROGRAM, str(seed), str(notes)], env)
        collector.mood = "up"
        hung = not _ended([LAST], env) or hung
        return _faults(Notes.read(notes), collector, hung, mood, spool, seed)


@contextmanager
def _collector(rng: random.Random) -> Iterator[Collector]:
    collector = Collector(rng)
    try:
        yield collector
    finally:
        collector.close()


def _ended(arguments: list[str], env: dict[str, str]) -> bool:
    """Whether a program ended in time; what it has started is ended with it."""
    with subprocess.Popen(
        [sys.executable, "-c", *arguments],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as program:
        try:
            program.wait(2 * LONGEST)
            return True
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, 9)
            return False


def _faults(notes: Notes, collector: Collector, hung: bool, mood: str, spool: Path, seed: int) -> list[str]:
    kept, late = collector.kept, collector.late
    missing = [name for name in notes.traced if name not in kept and not notes.may_be_lost(name, mood, late)]
    left = sorted(str(path.relative_to(spool)) for path in spool.glob("*/*.spool"))
    doubled = [name for name, times in kept.items() if times > 1 and not notes.may_be_doubled(name, mood, late)]
    said = {
        "hangs": hung,
        f"lost {len(missing)} of {len(notes.traced)} ({notes.dropped} counted): {missing[:3]}": len(missing)
        > notes.dropped,
        f"doubled {len(doubled)}: {doubled[:3]}": doubled,
        f"left on disk: {left}": left,
    }
    return [f"seed {seed}, {mood}, late {late:.1f}: {text} {notes.ends}" for text, is_so in said.items() if is_so]


def main(rounds: int, seed: int, jobs: int) -> int:
    """Run rounds, print faults; returns how many there were."""
    faults = 0
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(round_of, range(seed, seed + rounds)):
            faults += len(found)
            print(*found, sep="\n", end="\n" if found else "", flush=True)
    print(f"{rounds} rounds: {faults} faults")
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="rounds at a time: they wait, mostly")
    given = parser.parse_args()
    sys.exit(bool(main(given.rounds, given.seed, given.jobs)))
