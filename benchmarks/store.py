"""The SQLite store alone: what a span costs, what it takes on disk, how long queries take.

python benchmarks/store.py                        100,000 spans
python benchmarks/store.py --spans 1000000        the budgets (some minutes)
python benchmarks/store.py --keep bench.db        keep the file, or measure queries on one that is there
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from traffic import NAMES, Traffic

from assay.collector.records import Feedback, Run, Target
from assay.collector.sqlite import SQLiteStore

STEP = 100_000
IN_FLIGHT = 8  # requests of 100 spans that wait for their commit at any time


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        path = Path(options.keep or f"{folder}/assay.db")
        with SQLiteStore(path) as store:
            traffic = Traffic(seed=store.count()["spans"] + 1)
            while (stored := store.count()["spans"]) < options.spans:
                _grow(store, traffic, stored, min(STEP, options.spans - stored))
            _disk(store, path)
            _queries(store, options.rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=STEP)
    parser.add_argument("--rounds", type=int, default=40, help="times that each query is asked")
    parser.add_argument("--keep", help="file to use and keep")
    return parser.parse_args()


def _grow(store: SQLiteStore, traffic: Traffic, stored: int, spans: int) -> None:
    """Write some more, in slices, so that the clock never runs while traffic is made up."""
    busy = wall = encoding = 0.0
    latencies: list[float] = []
    feedback: list[Feedback] = []
    for _ in range(0, spans, 20_000):
        requests = list(traffic.requests(min(20_000, spans)))
        encoding += _cpu(lambda requests=requests: [store.encoder.encode(runs) for runs in requests])
        begun = time.perf_counter()
        busy += _cpu(lambda requests=requests: _send(store, requests, latencies))
        wall += time.perf_counter() - begun
        feedback += [_judged(run) for runs in requests for run in runs if run.parent_id is None]
    begun = time.perf_counter()
    for start in range(0, len(feedback), 500):
        store.add_feedback(feedback[start : start + 500])
    judging = (time.perf_counter() - begun) / len(feedback)
    latencies.sort()
    print(
        f"{stored + spans:>9,} spans: {spans / wall:>7,.0f} /s, {busy / spans * 1e6:4.1f} us CPU a span (encoding"
        f" {encoding / spans * 1e6:4.1f}), ack p50 {_at(latencies, 0.5):4.0f} p99 {_at(latencies, 0.99):4.0f} ms,"
        f" feedback {judging * 1e6:3.0f} us each, RSS {_peak_mb():.0f} MB",
        flush=True,
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _send(store: SQLiteStore, requests: list[list[Run]], latencies: list[float]) -> None:
    slots = threading.Semaphore(IN_FLIGHT)
    futures = []
    for runs in requests:
        slots.acquire()
        begun = time.perf_counter()

        def done(_: Future[None], begun: float = begun) -> None:
            latencies.append(time.perf_counter() - begun)
            slots.release()

        futures.append(store.append_async(runs))
        futures[-1].add_done_callback(done)
    for future in futures:
        future.result()


def _judged(root: Run) -> Feedback:
    score = int(root.trace_id[:4], 16) / 0xFFFF
    return Feedback(target=Target(trace_id=root.trace_id), key="concise", score=score, evaluator="concise", version="1")


def _disk(store: SQLiteStore, path: Path) -> None:
    begun = time.perf_counter()
    while store.stats()["waiting_for_text_index"]:
        time.sleep(0.1)
    print(f"text index caught up {time.perf_counter() - begun:.1f} s after the last acknowledgement")
    store.checkpoint()
    spans = store.count()["spans"]
    print(f"{os.path.getsize(path) / spans:,.0f} bytes a span on disk, text index, feedback and indexes included")


def _queries(store: SQLiteStore, rounds: int) -> None:
    pick = random.Random(5)
    some = [one.trace_id for one in store.traces(limit=2000)]
    first, last = store.traces(limit=1).items[0].start_ns, 1_750_000_000 * 10**9
    words = [word for word in Traffic()._words if len(word) > 3]
    windows = iter(lambda: pick.randrange(min(first, last), max(first, last)), None)
    questions: dict[str, Callable[[], Any]] = {
        "latest 50": lambda: store.traces(limit=50),
        "name and an hour": lambda: _hour(store, pick, next(windows)),
        "feedback < 0.5": lambda: store.traces(feedback=("concise", "<", 0.5)),
        "feedback < 0.0001": lambda: store.traces(feedback=("concise", "<", 0.0001)),
        "feedback < 0.02 of a name": lambda: store.traces(feedback=("concise", "<", 0.02), name=pick.choice(NAMES)),
        "one trace": lambda: store.trace(pick.choice(some)),
        "words: a rare one": lambda: store.traces(text=pick.choice(words[-500:])),
        "words: a frequent one": lambda: store.traces(text=pick.choice(words[:20])),
        "words: two": lambda: store.traces(text=" ".join(pick.sample(words[:2000], 2))),
        "words: none": lambda: store.traces(text="absentword"),
        "session": lambda: store.traces(session=f"sess-{pick.randrange(2000):05d}"),
        "user and errors": lambda: store.traces(user=f"user-{pick.randrange(500):04d}", status="error"),
        "slow ones": lambda: store.traces(latency_ms=(">", 3399)),
        "any run's name": lambda: store.traces(any_name="lookup_order"),
        "metadata": lambda: store.traces(metadata={"tenant": "t7"}),
        "page 20": lambda: _deep(store),
        "sessions": lambda: store.sessions(limit=50),
        "aggregate by hour": lambda: store.aggregate(bucket_ns=3600 * 10**9),
        "aggregate by model": lambda: store.aggregate(group_by="model"),
        "menu of names": lambda: store.values("name"),
        "counts": store.count,
    }
    print(f"{'query':28} {'p50 ms':>8} {'p95 ms':>8} {'first':>8} {'rows':>6}")
    for name, ask in questions.items():
        print(f"{name:28} {' '.join(_timed(ask, rounds))}", flush=True)


def _hour(store: SQLiteStore, pick: random.Random, start: int) -> Any:
    return store.traces(name=pick.choice(NAMES), since_ns=start, until_ns=start + 3600 * 10**9)


def _deep(store: SQLiteStore) -> Any:
    page = store.traces(limit=50)
    for _ in range(19):
        page = store.traces(limit=50, cursor=page.next)
    return page


def _timed(ask: Callable[[], Any], rounds: int) -> Iterator[str]:
    taken, found = [], None
    for _ in range(rounds):
        begun = time.perf_counter()
        found = ask()
        taken.append(time.perf_counter() - begun)
        if sum(taken) > 20:
            break
    ordered = sorted(taken)
    rows = len(found) if hasattr(found, "__len__") else 1
    yield from (f"{_at(ordered, share):8.1f}" for share in (0.5, 0.95))
    yield f"{taken[0] * 1e3:8.1f} {rows:6}"


def _at(ordered: list[float], share: float) -> float:
    """Milliseconds."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3


def _cpu(action: Callable[[], object]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
