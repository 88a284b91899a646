"""What the feed of changes costs: CPU time a head, by what is asked of it.

    python benchmarks/feed.py                     # 20,000 traces of 3 spans, a fifth of them with feedback
    python benchmarks/feed.py --traces 200000

Heads are read in slices of 1,000, in the process that holds the file, so that one thread's CPU time is all there is.
Beside each figure stands what the same machine needs for a thousand turns of an empty loop, now: compare ratios.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Run, Target
from spanwise.collector.statistics import get_sampling_position
from spanwise.collector.stores.sqlite import SQLiteStore

ASKED: dict[str, tuple[Filter, ...]] = {
    "heads alone": (),
    "a name": (Filter(name="answer"),),
    "errors and a score": (Filter(status="error"), Filter(feedback=(("good", "<", 0.5),))),
    "metadata and a kind below": (Filter(metadata={"tenant": "t7"}, any_kind="retriever"),),
    "a word that is in all": (Filter(text="refund"),),
    "a word that is in none": (Filter(text="absent"),),
}


def trace(number: int) -> list[Run]:
    """A root with two runs below it."""
    root = secrets.token_hex(16)
    ids = [secrets.token_hex(8) for _ in range(3)]
    start = 1_750_000_000_000_000_000 + number * 1_000_000
    counts = {"spanwise.local_root": ids[0], "spanwise.spans.started": 3, "spanwise.spans.open": 0}
    said = {"inputs": {"question": f"where is my refund {number}"}, "metadata": {"tenant": f"t{number % 50}"}}
    own = Run(trace_id=root, span_id=ids[0], name="answer", start_ns=start, end_ns=start + 9, attributes=counts, **said)
    kinds = ("retriever", "llm")
    below = {"trace_id": root, "parent_id": ids[0], "start_ns": start, "end_ns": start + 5}
    return [own, *(Run(span_id=id, name=kind, kind=kind, **below) for id, kind in zip(ids[1:], kinds, strict=True))]


def fill(store: SQLiteStore, traces: int) -> None:
    """Write traces and votes, and wait for the text index."""
    for first in range(0, traces, 1000):
        made = [trace(number) for number in range(first, min(first + 1000, traces))]
        votes = [Feedback(target=Target(trace_id=runs[0].trace_id), key="good", score=0.0) for runs in made[::5]]
        store.append([run for runs in made for run in runs], votes)
    while store.health()["text_index_waiting_traces"]:
        time.sleep(0.1)


def a_head(store: SQLiteStore, filters: Sequence[Filter]) -> float:
    """Microseconds of CPU time, of the best of three walks."""
    walks = []
    for _ in range(3):
        began, after, heads = time.thread_time(), None, 0
        while (slice := store.changes(after, limit=1000, filters=filters)).heads:
            after, heads = slice.cursor, heads + len(slice.heads)
        walks.append((time.thread_time() - began) / heads * 1e6)
    return min(walks)


def a_loop() -> float:
    """Microseconds of a thousand empty turns, of the best of 20."""
    turns = []
    for _ in range(20):
        began = time.thread_time()
        for _ in range(10_000):
            pass
        turns.append((time.thread_time() - began) * 1e5)
    return min(turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "spanwise.db") as store:
        fill(store, given.traces)
        for name, filters in ASKED.items():
            print(f"{name:28} {a_head(store, filters):6.2f} us a head   1,000 turns {a_loop():6.2f} us")
    ids = [secrets.token_hex(16) for _ in range(100_000)]
    began = time.thread_time()
    for id in ids:
        get_sampling_position(id)
    print(f"{'where a trace lies (u)':28} {(time.thread_time() - began) * 10:6.2f} us a trace")


if __name__ == "__main__":
    main()
