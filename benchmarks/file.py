"""The database's file: pages of which size, an older one brought up to date, much deleted beside traffic, a long run.

    python benchmarks/file.py pages big.db                # copies with pages of 4, 8 and 16 KB, in alternating rounds
    python benchmarks/file.py migrate old.db              # a copy in one go, and one that is killed again and again
    python benchmarks/file.py delete big.db               # half of its traces, beside 1,000 spans/s
    python benchmarks/file.py steady big.db --minutes 15  # 1,000 spans/s and queries: memory, the log

`big.db` and `old.db` come from `store.py --spans 1000000 --keep`, of this checkout or of an older one; they are only
read. BENCH_DIR names a folder with room for copies.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from ingest import Collector, Load, spread, templates
from store import START
from traffic import Traffic

from spanwise.collector.client import HTTPStore
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database_file import Backend, DatabaseFile
from spanwise.collector.stores.sqlite.store import SQLiteTraces

SIZES = (4096, 8192, 16384)
AT_ONCE = 1_000  # spans a commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pages", "migrate", "delete", "steady"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spans", type=int, default=20_000, help="appended a round")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        if options.what == "pages":
            pages(options.file, Path(folder), options.rounds, options.spans)
        elif options.what == "migrate":
            migrate(options.file, Path(folder), options.kills)
        elif options.what == "delete":
            delete(copied(options.file, Path(folder)))
        else:
            steady(copied(options.file, Path(folder)), options.minutes)


def copied(source: Path, folder: Path) -> Path:
    return Path(shutil.copyfile(source, folder / "spanwise.db"))


# --- pages ----------------------------------------------------------------------------------------------------------


class Paged:
    """A copy with pages of one size, written to without anything behind the writer, each commit's log counted."""

    def __init__(self, source: Path, folder: Path, size: int) -> None:
        self.path = folder / f"{size}.db"
        shutil.copyfile(source, self.path)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
            db.execute(f"PRAGMA page_size = {size}")
            db.execute("VACUUM")
        self.bytes = self.path.stat().st_size
        self.figures: dict[str, list[float]] = {}

    def round(self, spans: int, seed: int) -> None:
        file = DatabaseFile(self.path)
        try:
            file.writer.alone(lambda db: db.execute("PRAGMA wal_autocheckpoint = 0").fetchall())
            traces = SQLiteTraces(file)
            runs = [run for request in Traffic(seed, START + seed * 10**15).requests(spans, AT_ONCE) for run in request]
            roots = [run.trace_id for run in runs if run.parent_id is None]
            for start in range(0, len(runs), AT_ONCE):
                self.measured("append", partial(traces.append, runs[start : start + AT_ONCE]), AT_ONCE)
            for trace_id in roots[:200]:
                one = Feedback(target=Target(trace_id=trace_id), key="concise", score=0.5, evaluator="concise")
                self.measured("one feedback", partial(traces.add_feedback, [one]), 1)
            some = [Feedback(target=Target(trace_id=id), key="correct", score=0.5) for id in roots[200:1200]]
            self.measured("1,000 feedbacks", partial(traces.add_feedback, some), len(some))
            self.questions(traces)
        finally:
            file.close()

    def measured(self, name: str, do: Callable[[], object], count: int) -> None:
        """CPU time and log of something in microseconds and bytes, each of `count`."""
        log = str(self.path) + "-wal"
        with closing(sqlite3.connect(self.path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        cpu = time.process_time()
        do()
        cpu = time.process_time() - cpu
        self.note(f"{name}: CPU, us", cpu / count * 1e6)
        self.note(f"{name}: log, bytes", os.path.getsize(log) / count)

    def questions(self, traces: Backend) -> None:
        assert isinstance(traces, SQLiteTraces)
        week = START + 7 * 86_400 * 10**9
        asked: dict[str, Callable[[], object]] = {
            "latest 50": lambda: traces.traces(until_ns=week),
            "name and feedback": lambda: traces.traces(name="RagPipeline", until_ns=week, limit=200),
            "a trace": lambda: traces.trace(next(iter(traces.traces(until_ns=week, limit=1))).trace_id),
            "words": lambda: traces.traces(text="alme*", limit=50),
            "aggregate of a day": lambda: traces.aggregate(since_ns=week - 86_400 * 10**9, until_ns=week),
        }
        for name, ask in asked.items():
            for _ in range(5):
                cpu = time.process_time()
                ask()
                self.note(f"{name}: CPU, ms", (time.process_time() - cpu) * 1e3)

    def note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


def pages(source: Path, folder: Path, rounds: int, spans: int) -> None:
    copies = [Paged(source, folder, size) for size in SIZES]
    for number in range(rounds):
        for copy in copies[number % 3 :] + copies[: number % 3]:
            copy.round(spans, seed=10**6 + number)
    print(f"{'pages of':28}" + "".join(f"{size // 1024:>9} KB" for size in SIZES))
    print(f"{'the file, MB':28}" + "".join(f"{copy.bytes / 1e6:>12,.0f}" for copy in copies))
    for name in copies[0].figures:
        print(f"{name:28}" + "".join(f"{median(copy.figures[name]):>12,.2f}" for copy in copies))


# --- an older file --------------------------------------------------------------------------------------------------

OPEN = "import sys; from spanwise.collector.stores.sqlite import SQLiteStore; SQLiteStore(sys.argv[1]).close()"


def migrate(source: Path, folder: Path, kills: int) -> None:
    path = copied(source, folder)
    seconds, whole = opened(folder, source)
    random_ = random.Random(1)
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", OPEN, str(path)], stderr=subprocess.DEVNULL)
        time.sleep(random_.uniform(0.2, seconds))
        process.kill()
        process.wait()
    with SQLiteStore(path) as store, SQLiteStore(whole) as other:
        until_counted(store)
        until_counted(other)  # hours read from rows give exact percentiles, and means with other last digits
        print(f"killed {kills} times, then opened: {store.check() or 'sound'}")
        same = all(answers(store)[name] == answer for name, answer in answers(other).items())
        print("the same answers as in one go" if same else "OTHER ANSWERS than in one go")


def opened(folder: Path, source: Path) -> tuple[float, Path]:
    """Seconds, and a copy that was brought up to date in one go."""
    path = folder / "whole.db"
    shutil.copyfile(source, path)
    began, before = time.perf_counter(), version(path)
    SQLiteStore(path).close()
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"from version {before} to {version(path)}: {took:.1f} s, {peak:.0f} MB of memory")
    return took, path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def until_counted(store: SQLiteStore) -> None:
    """Wait until the hourly sums of an older file have been made behind the writer."""
    while True:
        with store._file.read() as reader:
            if not reader.db.execute("SELECT count(*) FROM sums_hours WHERE state = 1").fetchone()[0]:
                return
        time.sleep(0.1)


def answers(store: SQLiteStore) -> dict[str, object]:
    return {
        "counts": store.count(),
        "latest": list(store.traces(limit=200)),
        "by name": store.aggregate(group_by="name"),
        "by day": store.aggregate(bucket_ns=86_400 * 10**9),
        "scores": list(store.feedbacks(key="concise", limit=200)),
        "words": list(store.traces(text="alme*", limit=200)),
        "values": store.values("model"),
    }


# --- beside traffic -------------------------------------------------------------------------------------------------

TRACES, PAUSE = 4, 0.02  # a request of 20 spans every 20 ms
ALONE = 30.0  # seconds of traffic with nothing beside it
GIVEN_UP = {"variant": "A"}  # half of all traces; no index serves it
QUERIES = (
    "/api/traces?limit=50",
    "/api/traces?limit=50&name=RagPipeline",
    "/api/traces?limit=50&text=alme*",
    "/api/sessions?limit=50",
    "/api/feedback?limit=100",
    "/api/aggregate?bucket_ns=86400000000000",
    "/api/count",
    "/api/traces?limit=20&metadata.tenant=t3",
)


class Beside:
    """Traffic in a thread of its own, until it is told to end."""

    def __init__(self, port: int) -> None:
        self.load = Load(port, templates(TRACES, False), left=10**9, pause=PAUSE)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.load.run(4)))
        self._thread.start()

    def end(self) -> list[float]:
        """Seconds until each request was acknowledged."""
        self.load.left = 0
        self._thread.join()
        print(f"    {len(self.load.latencies) * 5 * TRACES:,} spans, answers {self.load.statuses}", flush=True)
        return self.load.latencies


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


def delete(path: Path) -> None:
    subprocess.run([sys.executable, "-c", OPEN, str(path)], check=True)
    collector = Collector(path, [])
    try:
        before, found = alone(collector.port), [0.0]
        beside, began, cpu = Beside(collector.port), time.perf_counter(), collector.cpu_s()
        with HTTPStore(f"http://127.0.0.1:{collector.port}") as store, watching(collector, found):
            gone = store.delete(metadata=GIVEN_UP)
        took, cpu = time.perf_counter() - began, collector.cpu_s() - cpu
        during = beside.end()
        after = alone(collector.port)
    finally:
        collector.stop()
    print(
        f"{gone:,} traces deleted in {took:.1f} s, collector's CPU {cpu / gone * 1e6:.0f} us a trace, traffic included"
    )
    for name, seconds in (("before", before), ("meanwhile", during), ("after", after)):
        print(f"acknowledged {name:10} p50 / p99 / max {spread(seconds)}")
    print(f"the log at most {max(found) / 1e6:.0f} MB")
    ratio = p99(during) / p99(before + after)
    print(f"p99 meanwhile, of the p99 alone: {ratio:.2f} {'holds' if ratio <= 3 else 'MISSES'} (budget 3)")


def alone(port: int) -> list[float]:
    beside = Beside(port)
    time.sleep(ALONE)
    return beside.end()


@contextmanager
def watching(collector: Collector, found: list[float]) -> Iterator[None]:
    """Looks at the log's bytes every second."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            found.append(collector.number("spanwise_store_log_bytes"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def steady(path: Path, minutes: float) -> None:
    subprocess.run([sys.executable, "-c", OPEN, str(path)], check=True)  # an older one is not brought up to date below
    collector, logs, memory = Collector(path, []), [0.0], list[float]()
    answered, refused, done = 0, 0, threading.Event()  # refused: for some minutes after a migration hours are summed up

    def ask() -> None:
        nonlocal answered, refused
        for query in itertools.cycle(QUERIES):
            if done.wait(0.1):
                return
            if collector._get(query, None) is None:
                refused += 1
            else:
                answered += 1

    try:
        idle = collector.memory_mb()
        beside, asking = Beside(collector.port), threading.Thread(target=ask)
        asking.start()
        with watching(collector, logs):
            for _ in range(int(minutes * 12)):
                time.sleep(5.0)
                memory.append(collector.memory_mb())
        done.set()
        asking.join()
        seconds = beside.end()
    finally:
        collector.stop()
    quarters = [median(memory[len(memory) * n // 4 : len(memory) * (n + 1) // 4]) for n in range(4)]
    print(f"ready after {collector.ready_s:.2f} s, idle {idle:.0f} MB (budgets 1.5 s, 120 MB)")
    print(
        f"{minutes:g} minutes, {answered:,} queries answered, {refused} put off; acknowledged p50 / p99 / max {spread(seconds)}"
    )
    print(f"memory by quarters {' / '.join(f'{mb:.0f}' for mb in quarters)} MB, at most {max(memory):.0f}")
    flat = quarters[3] <= 1.1 * quarters[1]
    print(f"last quarter's of the second's: {quarters[3] / quarters[1]:.2f} {'flat' if flat else 'GROWS'} (budget 1.1)")
    most = max(logs) / 2**20
    print(f"the log at most {most:.0f} MB {'holds' if most <= 64 else 'MISSES'} (budget 64)")


if __name__ == "__main__":
    main()
