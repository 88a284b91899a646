"""CPU of sorted first pages: the last day of a fortnight with a million traces, in every order.

python benchmarks/store.py --spans 600000 --keep big.db     a file of 120,000 traces (some minutes)
python benchmarks/sorting.py big.db                         copies it, with each trace eight times, then measures

The copies have summaries and scores of their own, and share their root's span. A page has 50 traces; its summaries are read, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing

from spanwise.collector.filters import Filter
from spanwise.collector.stores.sqlite.database.connections import READER_CACHE_KB, Reader
from spanwise.collector.stores.sqlite.query.trace_queries import TraceQueries

DAY, BUDGET, ROUNDS = 86_400 * 10**9, 100.0, 20
FIRST_START, TRACES = 1_750_000_000 * 10**9, 1_000_000
ORDERS = (
    *("-start", "start", "-latency_ms", "latency_ms", "-cost", "tokens", "errors", "runs"),
    *("-feedback.concise", "feedback.concise", "-feedback.thumbs_up", "-feedback.correct", "feedback.unknown"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="file that store.py has filled")
    source = parser.parse_args().file
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        path = f"{folder}/sorted.db"
        for suffix in ("", "-wal"):
            if os.path.exists(source + suffix):
                shutil.copy(source + suffix, path + suffix)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            _multiply(db)
            db.execute(f"PRAGMA cache_size = -{READER_CACHE_KB}")
            db.create_function("store_now", 0, time.time_ns)
            _measure(db)


def _multiply(db: sqlite3.Connection) -> None:
    """Spread the traces over a fortnight, and copy them until there are about a million."""
    [count] = db.execute("SELECT count(*) FROM traces").fetchone()
    copies = max(1, TRACES // count)
    gap, slice = 14 * DAY // (count * copies), 14 * DAY // copies
    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN")
    db.execute("DROP TRIGGER trace_start_moved")
    begin = f"{FIRST_START} + id * {gap}"
    db.execute(f"UPDATE traces SET end_ns = end_ns - start_ns + {begin}, start_ns = {begin}, change = NULL")
    for number in range(1, copies):
        key, later, hexadecimal = number * 10**7, number * slice, "lower(hex(randomblob(16)))"
        changed = {"id": f"id + {key}", "trace_id": hexadecimal, "change": "NULL"}
        changed |= {name: f"{name} + {later}" for name in ("start_ns", "end_ns")}
        _copy(db, "traces", changed, "id < 10000000")
        score = "CASE key WHEN 'concise' THEN abs(random() % 1000000) / 1e6 ELSE score END"
        changed = {"id": hexadecimal, "trace": f"trace + {key}", "trace_id": "NULL", "score": score}
        _copy(db, "feedback", changed, "trace < 10000000")
    db.execute("COMMIT")


def _copy(db: sqlite3.Connection, table: str, changed: dict[str, str], where: str) -> None:
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    values = ",".join(changed.get(name, name) for name in names)
    db.execute(f"INSERT INTO {table} ({','.join(names)}) SELECT {values} FROM {table} WHERE {where}")


def _measure(db: sqlite3.Connection) -> None:
    count, last = db.execute("SELECT count(*), max(start_ns) FROM traces").fetchone()
    day = Filter(since_ns=last - DAY, experiment="")
    [of_day] = db.execute("SELECT count(*) FROM traces WHERE start_ns >= ?", (day.since_ns,)).fetchone()
    print(
        f"{count:,} traces, {of_day:,} in the last day; CPU of a page in ms: median, 95th percentile (budget {BUDGET:.0f})"
    )
    reader = Reader(db)
    for label, filter in (("a day", day), ("all, of which the newest 100,000 are sorted", Filter())):
        for order in ORDERS:
            times = sorted(_time(reader, filter, order) for _ in range(ROUNDS))
            median, high = times[ROUNDS // 2], times[ROUNDS * 95 // 100]
            print(f"{order:22} {label:45} {median:6.1f} {high:6.1f}{'' if high <= BUDGET else '  over'}", flush=True)


def _time(reader: Reader, filter: Filter, order: str) -> float:
    begun = time.process_time()
    page = TraceQueries().list_traces(reader, filter, 50, None, order)
    assert len(page) == 50
    return (time.process_time() - begun) * 1e3


if __name__ == "__main__":
    main()
