"""What a small request costs, stage by stage, and what a receiver that does nothing but keep its bytes would take.

    python benchmarks/small.py stages             # CPU of a request of 5 spans, by stage
    python benchmarks/small.py raw --pairs 5      # beside a bare receiver, at 4, 8 and 32 connections
    python benchmarks/small.py feedback           # CPU of the writer for a feedback that comes alone

The bare receiver is uvicorn as the collector runs it, with an ASGI application that reads a body and has a thread put
it into SQLite as one row: the same log, `synchronous=FULL`, all that waits in one commit, nothing parsed. What it takes
more than the collector is what could be gained without changing server, language or promise. Servers run in a process
of their own, the load in this one, on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import multiprocessing
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from ingest import Load, templates

from spanwise.collector.api import SecurityMiddleware, bypass_framework, create_app
from spanwise.collector.ingest.otlp_signals import TRACES
from spanwise.collector.ingest.request_decoder import Limits, decode
from spanwise.collector.records import Feedback, Target
from spanwise.collector.server import Server, _bind_socket, _uvicorn_config, _UvicornServer
from spanwise.collector.stores.sqlite import SQLiteStore, encode
from spanwise.collector.stores.sqlite.database.group_commit import WriteJob

T = TypeVar("T")
WARM_UP, ROUNDS, SAMPLES = 400, 5, 2000
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/x-protobuf")]


# --- servers --------------------------------------------------------------------------------------------------------


class Bare:
    """uvicorn with an application that answers every body, after a row of it is durable if `keeps`."""

    def __init__(self, folder: str, keeps: bool) -> None:
        self._folder, self._keeps = folder, keeps
        self._socket = _bind_socket("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self._server = _UvicornServer(_uvicorn_config(self))
        self._ready, self._end = threading.Condition(), False
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if self._keeps:
            future = asyncio.get_running_loop().create_future()
            with self._ready:
                self._waiting.append((body, future))
                self._ready.notify()
            await future
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def _write(self) -> None:
        db = sqlite3.connect(f"{self._folder}/bare.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE bodies (body)"):
            db.execute(statement)
        while jobs := self._taken():
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO bodies VALUES (?)", [(body,) for body, _ in jobs])
            db.execute("COMMIT")
            jobs[0][1].get_loop().call_soon_threadsafe(_settle, [future for _, future in jobs])
        db.close()

    def _taken(self) -> list[tuple[bytes, asyncio.Future[None]]]:
        with self._ready:
            self._ready.wait_for(lambda: self._waiting or self._end)
            taken, self._waiting = self._waiting, []
            return taken

    def __enter__(self) -> Bare:
        started = threading.Event()
        self._server.on_start = started.set
        run = lambda: self._server.run(sockets=[self._socket])  # noqa: E731
        self._threads = [
            threading.Thread(target=run, name="server"),
            threading.Thread(target=self._write, name="writer"),
        ]
        for thread in self._threads:
            thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._threads[0].join()
        with self._ready:
            self._end = True
            self._ready.notify()
        self._threads[1].join()
        self._socket.close()


def _settle(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def threads() -> dict[str, float]:
    """CPU microseconds of each thread of this process, by the last part of its name; and commits, as 'commits'."""
    found: dict[str, float] = {}
    for one in threading.enumerate():
        path = Path(f"/proc/self/task/{one.native_id}/schedstat")
        found[one.name.removeprefix("spanwise-")] = int(path.read_text().split()[0]) / 1000 if path.exists() else 0.0
    return found


def serving(kind: str, folder: str, pipe: Pipe) -> None:
    """A server in a process of its own, which says what its threads have used whenever it is asked."""
    if kind == "collector":
        with SQLiteStore(Path(folder) / "spanwise.db") as store, Server(store) as server:
            told(pipe, server.port, lambda: {**threads(), "commits": store.health()["commits"]})
        return
    with Bare(folder, keeps=kind == "bare") as bare:
        told(pipe, bare.port, threads)


def told(pipe: Pipe, port: int, figures: Callable[[], dict[str, float]]) -> None:
    pipe.send(port)
    while pipe.recv():
        pipe.send(figures())


@contextmanager
def served(kind: str) -> Iterator[tuple[int, Callable[[], dict[str, float]]]]:
    """A port, and what asks for the figures of who answers there."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()

    def asked() -> dict[str, float]:
        ours.send(True)
        found: dict[str, float] = ours.recv()
        return found

    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=serving, args=(kind, folder, theirs))
        process.start()
        yield ours.recv(), asked
        ours.send(False)
        process.join()


def measured(kind: str, connections: int, requests: int) -> dict[str, float]:
    """Requests a second, and CPU of each thread in microseconds a request."""
    made = templates(1, False)
    with served(kind) as (port, figures):
        asyncio.run(Load(port, made, WARM_UP).run(connections))
        before, load = figures(), Load(port, made, requests)
        start = time.perf_counter()
        asyncio.run(load.run(connections))
        rate = requests / (time.perf_counter() - start)
        after = figures()
    if load.statuses != {200: requests}:
        raise SystemExit(f"{kind} answered {load.statuses}")
    return {"rate": rate, **{name: (after[name] - before.get(name, 0)) / requests for name in after}}


# --- stages ---------------------------------------------------------------------------------------------------------


def cpu(work: Callable[[T], object], given: Sequence[T]) -> float:
    """CPU microseconds of each, the best of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time_ns()
        for one in given:
            work(one)
        times.append((time.thread_time_ns() - start) / 1000 / len(given))
    return min(times)


def application(store: SQLiteStore) -> Any:
    """What uvicorn is given: the guard, and OTLP's routes behind it."""
    app = create_app(store)
    return SecurityMiddleware(
        bypass_framework(app), app.state.scopes, app.state.authenticator, app.state.browser_sessions
    )


def answered(app: Any, body: bytes) -> Any:
    """One request to an ASGI application."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_: Any) -> None:
        pass

    headers = [*HEADERS, (b"content-length", b"%d" % len(body))]
    return app({"type": "http", "path": "/v1/traces", "method": "POST", "headers": headers}, receive, send)


def empty(store: SQLiteStore) -> float:
    """A request without spans: guard, headers, body, metrics, answer, and no store."""
    app = application(store)

    async def many(_: int) -> None:
        for _ in range(SAMPLES):
            await answered(app, b"")

    return cpu(lambda one: asyncio.run(many(one)), [0]) / SAMPLES


def statements(store: SQLiteStore, bodies: Sequence[bytes], company: int) -> float:
    """The writer's statements for one request of a commit of so many."""
    batches, spent = [encode(decode(TRACES.protobuf, body, Limits()).items) for body in bodies], [0]
    file = store._file

    def write(some: Sequence[Any]) -> Callable[[sqlite3.Connection], None]:
        def action(_: sqlite3.Connection) -> None:
            start = time.thread_time_ns()
            file.appender.write(some)
            spent[0] += time.thread_time_ns() - start

        return action

    for start in range(0, len(batches), company):
        file.put(WriteJob(weight=64, action=write(batches[start : start + company]))).result()
    return spent[0] / 1000 / len(batches)


def stages(asked: argparse.Namespace) -> None:
    """One line for each stage of a request of five spans."""
    made, connections = templates(1, False), asked.connections[:2][-1]
    bodies = [made[number % len(made)].fresh()[0] for number in range(SAMPLES)]
    whole, bare = (
        measured("collector", connections, asked.requests),
        measured("silent", connections, 20_000),
    )
    company = max(1, round(1 / whole["commits"]))
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "a.db") as store:
        codec, limits = TRACES.protobuf, Limits()
        parsed = cpu(lambda body: list(codec.parse(body)), bodies)
        decoded = [decode(codec, body, limits) for body in bodies]
        loop = {
            "uvicorn, httptools, uvloop (answers at once)": bare["server"],
            "guard, headers, body, metrics, answer": empty(store),
            "protobuf parsed": parsed,
            "values, dialects, runs": cpu(lambda body: decode(codec, body, limits), bodies) - parsed,
            "rows encoded": cpu(lambda one: encode(one.items), decoded),
        }
        written = statements(store, bodies, company)
    packed = [gzip.compress(body) for body in bodies]
    loop["hand-over, wake-ups, contention, cold caches (the rest)"] = whole["server"] - sum(loop.values())
    rows = {
        **{f"loop: {name}": value for name, value in loop.items()},
        "loop, all of it": whole["server"],
        f"writer: statements, {company} requests a commit": written,
        "writer: BEGIN, COMMIT, fsync, waiting, settling (the rest)": whole["writer"] - written,
        "writer, all of it": whole["writer"],
        "text index and housekeeping": whole.get("behind", 0.0),
        "(with gzip: inflating, in the loop)": cpu(lambda body: zlib.decompressobj(31).decompress(body), packed),
    }
    print(f"{connections} connections: {whole['rate']:,.0f} requests/s; CPU µs a request of 5 spans\n")
    for name, value in rows.items():
        print(f"{name:66} {value:7.1f}")


# --- a single feedback ------------------------------------------------------------------------------------------------


def feedback(asked: argparse.Namespace) -> None:
    """A score of another trace each, alone in its commit: what the writer's thread computes, COMMIT and fsync included."""
    made, rounds = templates(20, False), max(1, asked.requests // 1000)
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "a.db") as store:
        for number in range(50):
            for run in [decode(TRACES.protobuf, made[number % len(made)].fresh()[0], Limits()).items]:
                store.append(run)
        traces = [one.trace_id for one in store.traces(limit=1000)]
        figures = []
        for key in (f"key {number}" for number in range(rounds)):
            before = threads()["writer"]
            for trace_id in traces:
                store.add_feedback([Feedback(target=Target(trace_id=trace_id), key=key, score=0.5)])
            figures.append((threads()["writer"] - before) / len(traces))
    least = min(figures)
    print(
        f"one feedback: {least:.0f} µs of the writer, {median(figures):.0f} in the middle of {rounds} rounds (budget 400)"
    )


# --- beside a bare receiver -----------------------------------------------------------------------------------------


def raw(asked: argparse.Namespace) -> None:
    """Rates and CPU of both, in alternating pairs."""
    print(f"{'connections':12} {'collector':>10} {'bare':>10} {'ratio':>6}   {'loop':>6} {'writer':>6}  µs, of bare")
    for connections in asked.connections:
        ours: list[dict[str, float]] = []
        bare: list[dict[str, float]] = []
        for number in range(asked.pairs):
            order = [("collector", ours), ("bare", bare)]
            for kind, found in order if number % 2 else reversed(order):
                found.append(measured(kind, connections, asked.requests))
        ratio = median(a["rate"] / b["rate"] for a, b in zip(ours, bare, strict=True))
        rates = [median(one["rate"] for one in runs) for runs in (ours, bare)]
        used = [f"{median(one[name] for one in ours):6.0f}" for name in ("server", "writer")]
        less = [f"{median(one[name] for one in bare):.0f}" for name in ("server", "writer")]
        print(
            f"{connections:<12} {rates[0]:10,.0f} {rates[1]:10,.0f} {ratio:6.2f}   {' '.join(used)}  {', '.join(less)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("stages", "raw", "feedback"))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument(
        "--connections", type=int, nargs="+", default=[4, 8, 32], help="raw; stages: the second of them"
    )
    asked = parser.parse_args()
    {"stages": stages, "raw": raw, "feedback": feedback}[asked.part](asked)


if __name__ == "__main__":
    main()
