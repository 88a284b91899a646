"""What `evaluate()` costs over the task itself: python benchmarks/evaluate.py [noop async sync stream set] [--n 1000]

noop: a plain task that returns at once and one exact-match evaluator, stored in SQLite; the budget is 250 µs each.
async, sync: a task of 50 ms, 50 at once, stored; the ideal for 1,000 examples is 1 s; the budgets are 1.1 and 1.15
times that. stream: 100,000 examples out of a generator; the budget is 400 MB of resident memory. set: the same with a
set-level evaluator (classification over all of them). "+rows" is the time with every row read once after the end. Every
kind runs in a process of its own, three times; the best counts, since everything else on the machine only adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SLEEP = 0.05
AT_ONCE = 50
KINDS = ("noop", "async", "sync", "stream", "set")
STREAMED = ("stream", "set")


def rows(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        q = f"What is the capital of country number {i}?"
        yield {"inputs": {"q": q}, "reference_outputs": f"answer {q}"}


def answer(q: str) -> str:
    return f"answer {q}"


async def slow(q: str) -> str:
    await asyncio.sleep(SLEEP)
    return answer(q)


def blocking(q: str) -> str:
    time.sleep(SLEEP)
    return answer(q)


def _parity(text: str) -> str:
    """A label, for there to be something to classify."""
    return "even" if len(text) % 2 == 0 else "odd"


LABELS: dict[str, Any] = {
    "outputs": lambda case: _parity(case.outputs),
    "reference_outputs": lambda case: _parity(case.reference_outputs),
}


TASKS: dict[str, Callable[[str], Any]] = {
    "noop": answer,
    "async": slow,
    "sync": blocking,
    "stream": answer,
    "set": answer,
}


def one(kind: str, n: int) -> None:
    """Run one kind in this process and print what it took as JSON."""
    from spanwise.collector.stores.sqlite import SQLiteStore
    from spanwise.evaluators import evaluate, get_evaluator

    data: Any = rows(n) if kind in STREAMED else list(rows(n))
    evaluators = [get_evaluator("exact")]
    if kind == "set":
        evaluators.append(get_evaluator("classification", map=LABELS))
    concurrency = AT_ONCE if kind in ("async", "sync") else 8
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "spanwise.db") as store:
        wall, cpu = time.perf_counter(), time.process_time()
        experiment = evaluate(data, TASKS[kind], evaluators, store=store, concurrency=concurrency, progress=False)
        ended = time.perf_counter()
        wall, cpu = ended - wall, time.process_time() - cpu
        listed = sum(1 for _ in experiment.rows()) if kind not in STREAMED else n
        read = wall + time.perf_counter() - ended
        assert listed == n
        row = experiment.summary()["exact"]
        assert (row.n, row.mean) == (n, 1.0), row
        assert store.count()["traces"] == n
        if kind == "set":
            assert experiment.summary().overall["classification_accuracy"].score == 1.0
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"wall": wall, "read": read, "cpu": cpu, "rss_mb": rss}))


def _ratio(seconds: float, n: int) -> str:
    return f"{seconds / (n * SLEEP / AT_ONCE):.3f}"


def measured(kind: str, n: int, times: int) -> dict[str, float]:
    """The best of several runs, each in a new process."""
    command = [sys.executable, __file__, "--one", kind, "--n", str(n)]
    found = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(times)
    ]
    return min(found, key=lambda one: float(one["wall"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--n", type=int, default=0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.one, given.n)
        return
    print(
        f"{'kind':8}{'examples':>10}{'wall s':>9}{'µs/example':>12}{'cpu µs':>9}{'x ideal':>9}{'+rows':>9}{'RSS MB':>8}"
    )
    for kind in given.kinds:
        n = given.n or (100_000 if kind in STREAMED else 1_000)
        best = measured(kind, n, 1 if kind in STREAMED else given.times)
        ideal, read = (_ratio(best[name], n) if kind in ("async", "sync") else "" for name in ("wall", "read"))
        each = best["wall"] / n * 1e6
        print(
            f"{kind:8}{n:>10}{best['wall']:>9.2f}{each:>12.0f}{best['cpu'] / n * 1e6:>9.0f}"
            f"{ideal:>9}{read:>9}{best['rss_mb']:>8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
