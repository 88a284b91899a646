"""The SQLite store alone: what a span costs, and what it takes on disk.

python benchmarks/store.py                                  100,000 spans
python benchmarks/store.py --spans 1000000 --keep big.db    fill a file (some minutes), or fill one further up

Files for `queries.py`, and for `ingest.py --store`: a trace every six seconds, so that a million spans are a fortnight.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from traffic import Traffic

from spanwise.collector.records import Feedback, Run, Target
from spanwise.collector.stores.sqlite import Batch, SQLiteStore, encode

STEP, SLICE = 100_000, 20_000
START, GAP = 1_750_000_000 * 10**9, 6 * 10**9  # nanoseconds
IN_FLIGHT = 8  # requests of 100 spans that wait for their commit at any time


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        path = Path(options.keep or f"{folder}/spanwise.db")
        with SQLiteStore(path) as store:
            while (stored := store.count()["spans"]) < options.spans:
                _grow(store, stored, min(STEP, options.spans - stored))
            _disk(store, path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=STEP)
    parser.add_argument("--keep", help="file to fill and keep")
    return parser.parse_args()


def _grow(store: SQLiteStore, stored: int, spans: int) -> None:
    """Write some more, in slices, so that the clock never runs while traffic is made up."""
    busy = wall = encoding = 0.0
    latencies: list[float] = []
    feedback: list[Feedback] = []
    traffic = Traffic(seed=stored + 1, start_ns=START + stored // 5 * GAP, gap_ns=GAP)
    for start in range(0, spans, SLICE):
        requests = list(traffic.requests(min(SLICE, spans - start)))
        begun = time.process_time()
        batches = [encode(runs) for runs in requests]
        encoding += time.process_time() - begun
        begun, cpu = time.perf_counter(), time.process_time()
        _send(store, batches, latencies)
        busy, wall = busy + time.process_time() - cpu, wall + time.perf_counter() - begun
        feedback += [one for runs in requests for run in runs if run.parent_id is None for one in _judged(run)]
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


def _send(store: SQLiteStore, batches: list[Batch], latencies: list[float]) -> None:
    slots = threading.Semaphore(IN_FLIGHT)
    futures = []
    for batch in batches:
        slots.acquire()
        begun = time.perf_counter()

        def done(_: Future[None], begun: float = begun) -> None:
            latencies.append(time.perf_counter() - begun)
            slots.release()

        futures.append(store.write(batch))
        futures[-1].add_done_callback(done)
    for future in futures:
        future.result()


def _judged(root: Run) -> Iterator[Feedback]:
    """A score on every trace; on every fifth also a person's word, on every fifth a judge's, which may fail or skip."""
    target, chance = Target(trace_id=root.trace_id), int(root.trace_id[:4], 16) / 0xFFFF
    yield Feedback(target=target, key="concise", score=chance, evaluator="concise", version="1")
    if root.trace_id[-1] in "048":
        yield Feedback(target=target, key="thumbs_up", score=chance > 0.3, author="ann", source="human")
    if root.trace_id[-1] in "159":
        outcome, error = ("error", "Timeout: no answer") if chance < 0.05 else ("score", None)
        outcome = "skip" if chance > 0.9 else outcome
        score = chance if outcome == "score" else None
        yield Feedback(target=target, key="correct", score=score, outcome=outcome, error=error, source="model")


def _disk(store: SQLiteStore, path: Path) -> None:
    begun = time.perf_counter()
    while store.stats()["waiting_for_text_index"]:
        time.sleep(0.1)
    print(f"text index caught up {time.perf_counter() - begun:.1f} s after the last acknowledgement")
    store.checkpoint()
    spans = store.count()["spans"]
    print(f"{os.path.getsize(path) / spans:,.0f} bytes a span on disk, text index, feedback and indexes included")


def _at(ordered: list[float], share: float) -> float:
    """Milliseconds."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3


if __name__ == "__main__":
    main()
