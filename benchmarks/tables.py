"""Flat tables: what data frames and a copy for analysis cost.

python benchmarks/store.py --spans 100000 --keep runs.db
python benchmarks/tables.py runs.db                      CPU of `to_pandas`, and peak memory relative to the frame
python benchmarks/tables.py runs.db --copy analysis.db   CPU and peak memory of `analyze-copy`
"""

from __future__ import annotations

import argparse
import os
import resource
import threading
import time
from pathlib import Path

from spanwise.collector.import_export import write_analysis_copy
from spanwise.collector.stores.sqlite import SQLiteStore, open_snapshot

PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--copy", help="write a copy for analysis to this file")
    options = parser.parse_args()
    if options.copy:
        copy(options.store, options.copy)
    else:
        frames(options.store)


def frames(path: str) -> None:
    """Print the CPU time of each frame, its size, and the largest growth of the process's memory while it was made."""
    import pandas  # noqa: F401

    with SQLiteStore(path) as store:
        store.to_pandas("runs", project="nothing")  # imports what is needed
        for table in ("traces", "runs", "documents", "feedback"):
            with Growth() as growth:
                begun = time.process_time()
                frame = store.to_pandas(table)
                seconds = time.process_time() - begun
            size = int(frame.memory_usage(deep=True).sum())
            print(
                f"{table:9} {len(frame):9,} rows {seconds:6.2f} s CPU, frame {size / 1e6:6.1f} MB,"
                f" memory + {growth.bytes / 1e6:6.1f} MB = {growth.bytes / size:4.2f} x"
            )
            del frame


class Growth:
    """Largest growth of the resident memory within the block, looked up every 5 ms."""

    bytes = 0

    def __enter__(self) -> Growth:
        self._before, self._ended = resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.bytes = max(self.bytes, resident() - self._before)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def copy(path: str, target: str) -> None:
    """Print time, size and peak memory of a copy for analysis."""
    snapshot = open_snapshot(path)
    begun, cpu = time.perf_counter(), time.process_time()
    counts = write_analysis_copy(snapshot, target, force=True)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    snapshot.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = os.path.getsize(target) / 1e6
    print(f"{counts}: {seconds:.0f} s ({cpu:.0f} s CPU), {size:.0f} MB, peak memory {peak:.0f} MB")


if __name__ == "__main__":
    main()
