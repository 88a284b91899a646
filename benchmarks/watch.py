"""What it costs to look, at each commit, whether the file is still the one that was opened and nobody else has written.

python benchmarks/watch.py    commits of 1 and of 100 spans, one after the other; the share that looking takes of each
"""

from __future__ import annotations

import secrets
import tempfile
import time
from statistics import median

from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.file_lock import FileWatch

COMMITS = 300


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(f"{folder}/spanwise.db") as store:
        for spans in (1, 100):
            commit, looking = _measure(store, spans)
            print(f"{spans:4} spans: commit {commit:8.1f} us, looking {looking:5.1f} us, {looking / commit:.2%}")


def _measure(store: SQLiteStore, spans: int) -> tuple[float, float]:
    """Medians in microseconds: of a commit, and of what the watch does in one."""
    watch, commits, looks = store._file.writer._watch, [], []
    for _ in range(COMMITS):
        runs = [_run() for _ in range(spans)]
        started = time.perf_counter_ns()
        store.append(runs)
        commits.append((time.perf_counter_ns() - started) / 1000)
        looks.append(store._file.write(lambda _: _look(watch)))
    return median(commits), median(looks)


def _look(watch: FileWatch) -> float:
    started = time.perf_counter_ns()
    watch.check_before_write()
    watch.check_after_commit()
    return (time.perf_counter_ns() - started) / 1000


def _run() -> Run:
    now = time.time_ns()
    return Run(trace_id=secrets.token_hex(16), span_id=secrets.token_hex(8), name="x", start_ns=now, end_ns=now + 1)


if __name__ == "__main__":
    main()
