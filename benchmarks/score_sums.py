"""What do weighted sums cost? CPU time of a scored trace without and with them, and of the thread that applies them.

`python benchmarks/score_sums.py cost [--before TREE] [--pairs 12]` scores traces through the operations of a monitor:
decide, claim, finish. With `--before`, the root of an older checkout, it runs both in alternating pairs and prints the
difference with its 95 % interval. `one` is a single measurement, as JSON.

`python benchmarks/score_sums.py month [--traces 300000] [--spans 10] [--turns 5]` makes a file with 30 days of scored
traces, and prints the CPU time and the duration of weighted charts over them. `--keep FILE` keeps and reuses the file.

`python benchmarks/score_sums.py measures [--traces 300000]` stores a day of traces and an alert on their latency. It
prints the CPU time of looks at the alert: the first one, one after a restart, and later ones, per new trace.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tracer", "collector", "evaluators", "cli")
BATCH = 50  # traces per call of decide, claim and finish


def measure(traces: int, turns: int, keys: int) -> dict[str, float]:
    """Return microseconds of CPU per trace: to decide, claim and finish it, and to apply it to the sums."""
    from spanwise.collector.records import Claim, ClaimResult, Decision, DecisionBatch, Feedback, Rule, Run, Target
    from spanwise.collector.stores.sqlite import SQLiteStore

    try:
        from spanwise.collector.stores.sqlite.score_sums import background_sums, sum_tables

        background_sums.INTERVAL_SECONDS = 3_600.0
    except ImportError:
        sum_tables = None  # type: ignore[assignment]
    names = [f"key{number}" for number in range(keys)]
    start = 1_790_000_000 * 10**9
    runs = [
        Run(
            trace_id=f"{number:032x}",
            span_id=f"{number:016x}",
            name="answer",
            start_ns=start + number * 10**9,
            end_ns=start + number * 10**9 + 1000,
            status="ok",
            # turns are far apart, so that they are applied in different transactions
            session_id=f"session {number % (traces // turns)}" if turns > 1 else None,
        )
        for number in range(1, traces + 1)
    ]
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "spanwise.db") as store:
        store.save_rule(Rule(name="r", version="1", evaluators=tuple({"key": key} for key in names)))
        for at in range(0, traces, 500):
            store.append(runs[at : at + 500])
        heads = []
        cursor: str | None = None
        while (page := store.changes(cursor)).heads:
            heads += page.heads
            cursor = page.cursor
        time.sleep(2.5)  # the background thread indexes the texts
        began = time.process_time()
        after = None
        for at in range(0, traces, BATCH):
            chunk = heads[at : at + BATCH]
            fields: dict[str, Any] = {"rule": "r", "version": "1", "verdict": "waiting", "probability": 0.3}
            rows = tuple(
                Decision(target=Target(trace_id=one.trace_id), change=one.change, runs_change=one.runs_change, **fields)
                for one in chunk
            )
            upto = chunk[-1].cursor
            store.decide(DecisionBatch(project="default", rule="r", version="1", after=after, upto=upto, rows=rows))
            after = upto
            taken = store.claim("r", "1", "w", 60, limit=BATCH)
            store.finish(
                *(
                    ClaimResult(
                        claim=Claim(project="default", rule="r", version="1", target=one.target, number=one.claim),
                        verdict="scored",
                        states={key: {"state": "scored"} for key in names},
                        reported=tuple(names),
                        feedback=tuple(
                            Feedback(target=one.target, key=key, score=bool(one.claim % 7), rule="r", claim=one.claim)
                            for key in names
                        ),
                        read_change=one.runs_change,
                        attempts=1,
                    )
                    for one in taken
                )
            )
        finished = time.process_time()
        if sum_tables is not None:
            while store._file.write(lambda db: sum_tables.apply_changes(db, 500)):
                pass
        applied = time.process_time()
    return {"finish": (finished - began) / traces * 1e6, "apply": (applied - finished) / traces * 1e6}


DAY_NS = 86_400 * 10**9
FIRST_DAY_NS = 20_000 * DAY_NS
MODELS = ("a", "b", "c", "d", "e")


def build_month(path: Path, traces: int, spans: int, turns: int) -> None:
    """Write a file with 30 days of traces, all scored by one rule under two keys, at a rate of 0.3."""
    from spanwise.collector.records import Decision, DecisionBatch, Feedback, Rule, Run, Target
    from spanwise.collector.stores.sqlite import SQLiteStore
    from spanwise.collector.stores.sqlite.score_sums.sum_tables import register_grouping

    chance = random.Random(1)
    step = 30 * DAY_NS // traces
    with SQLiteStore(path) as store:
        store.save_rule(Rule(name="r", version="1", evaluators=({"key": "good"}, {"key": "tone"})))
        store._file.write(lambda db: register_grouping(db, "default", "r", "model"))
        after: str | None = None
        for at in range(0, traces, 500):
            ids = [f"{number:032x}" for number in range(at + 1, at + 501)]
            runs = []
            for number, id in enumerate(ids, at):
                start = FIRST_DAY_NS + number // turns * turns * step + number % turns * 300 * 10**9
                for span in range(spans):
                    parent = None if span == 0 else f"{number * spans + 1:016x}"
                    runs.append(
                        Run(
                            trace_id=id,
                            span_id=f"{number * spans + span + 1:016x}",
                            parent_id=parent,
                            name="answer" if span == 0 else "step",
                            kind="llm" if span == 1 else "span",
                            model=MODELS[number % 5] if span == 1 else None,
                            start_ns=start + span,
                            end_ns=start + 10**9,
                            status="ok",
                            session_id=f"session {number // turns}" if turns > 1 else None,
                        )
                    )
            store.append(runs)
            targets = [Target(trace_id=id) for id in ids]
            fields: dict[str, Any] = {"rule": "r", "version": "1", "verdict": "skipped", "probability": 0.3}
            rows = tuple(Decision(target=target, change=1, runs_change=1, **fields) for target in targets)
            upto = str(at + 500)
            store.decide(DecisionBatch(project="default", rule="r", version="1", after=after, upto=upto, rows=rows))
            after = upto
            store.add_feedback(
                [
                    Feedback(target=target, key=key, score=score, rule="r")
                    for target in targets
                    for key, score in (("good", chance.random() < 0.9), ("tone", round(chance.random(), 3)))
                ]
            )
        while store._file._db is not None and _count_changes(store):
            time.sleep(0.5)


def _count_changes(store: Any) -> int:
    with store._file.read() as reader:
        return int(reader.db.execute("SELECT count(*) FROM score_changes").fetchone()[0])


def measure_month(path: Path) -> None:
    """Print the cost of charts over the month."""
    from spanwise.collector.pages.rule_pages import make_charts
    from spanwise.collector.stores import estimate_over_time
    from spanwise.collector.stores.sqlite import SQLiteStore

    with SQLiteStore(path) as store:
        counts = store.count()
        [rule] = store.rules()
        print(f"{counts['spans']:,} spans, {counts['traces']:,} traces, {counts['feedbacks']:,} scores")
        time.sleep(5)
        since, until = FIRST_DAY_NS, FIRST_DAY_NS + 30 * DAY_NS
        times = {"since_ns": since, "until_ns": until}
        hour = DAY_NS // 24
        charts = {
            "30 points, one per day": lambda: estimate_over_time(store, rule, bucket_ns=DAY_NS, **times),
            "120 points, one per 6 hours": lambda: estimate_over_time(store, rule, bucket_ns=6 * hour, **times),
            "720 points, one per hour": lambda: estimate_over_time(store, rule, bucket_ns=hour, **times),
            "the whole month": lambda: estimate_over_time(store, rule, bucket_ns=30 * DAY_NS, **times),
            "by model, one per day": lambda: estimate_over_time(store, rule, bucket_ns=DAY_NS, by="model", **times),
            "aggregate, one per day": lambda: store.aggregate(bucket_ns=DAY_NS, **times),
            "charts of the rule's page": lambda: make_charts(store, rule, "30d", "", until - 1),
            "alert of 24 h, 24 blocks": lambda: store.score_sums(
                "r", key="good", since_ns=until - DAY_NS, until_ns=until, block_s=3600
            ),
        }
        for name, chart in charts.items():
            chart()
            cpu, wall = [], []
            for _ in range(7):
                began, started = time.process_time(), time.perf_counter()
                chart()
                cpu.append((time.process_time() - began) * 1e3)
                wall.append((time.perf_counter() - started) * 1e3)
            print(f"{name}: CPU {statistics.median(cpu):.1f} ms, duration {statistics.median(wall):.1f} ms")


def measure_measures(traces: int) -> None:
    """Print the CPU time of the sums of a measure of traces."""
    from spanwise.collector.records import Alert, Run
    from spanwise.collector.stores.sqlite import SQLiteStore

    hour = 3_600 * 10**9
    traces -= traces % 12_000  # whole batches in an hour
    start, spacing, per_hour = 500_000 * hour, 24 * hour // traces, traces // 24

    def make_runs(first: int, count: int) -> list[Run]:
        starts = (start + place * spacing for place in range(first, first + count))
        return [
            Run(trace_id=f"{at:032x}", span_id="1" * 16, name="answer", start_ns=at, end_ns=at + 10**9, status="ok")
            for at in starts
        ]

    def look(store: SQLiteStore, hours: int) -> float:
        before = time.process_time()
        window = {"since_ns": start + hours * hour, "until_ns": start + (24 + hours) * hour, "block_s": 3_600}
        sums = store.measure_sums("latency_ms > 8000", **window)  # type: ignore[arg-type]
        seconds = time.process_time() - before
        assert sum(each.n for each in sums) == traces
        return seconds

    def write(store: SQLiteStore, first: int, count: int) -> float:
        batches = [make_runs(at, 500) for at in range(first, first + count, 500)]
        before = time.process_time()
        for batch in batches:
            store.append(batch)
        return (time.process_time() - before) / count

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spanwise.db"
        with SQLiteStore(path) as store:
            write(store, 0, traces - per_hour)
            without = write(store, traces - per_hour, per_hour)
            store.save_alert(Alert(name="slow", measure="latency_ms > 8000", above=0.5))
            print(f"first look: {look(store, 0):.3f} s for {traces:,} traces")
        with SQLiteStore(path) as store:
            print(f"look after a restart: {1e3 * look(store, 0):.2f} ms")
            with_sums = write(store, traces, per_hour)
            seconds = look(store, 1)
            print(f"later look: {1e6 * seconds / per_hour:.2f} µs per new trace, {1e3 * seconds:.2f} ms")
            print(f"writing a trace: {1e6 * without:.1f} µs without the alert, {1e6 * with_sums:.1f} µs with it")


def run(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    """Measure a tree in a process of its own."""
    path = os.pathsep.join(str(tree / folder) for folder in FOLDERS)
    numbers = [f"--{name}={getattr(options, name)}" for name in ("traces", "turns", "keys")]
    command = [sys.executable, __file__, "one", *numbers]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def interval(values: list[float]) -> str:
    """Return the mean with its 95 % interval."""
    half = 2.2 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.1f} ± {half:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "one", "month", "measures"))
    parser.add_argument("--before", type=Path)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--traces", type=int)
    parser.add_argument("--spans", type=int, default=10)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--keys", type=int, default=1)
    options = parser.parse_args()
    options.traces = options.traces or (300_000 if options.what in ("month", "measures") else 3_000)
    if options.what == "measures":
        measure_measures(options.traces)
        return
    if options.what == "month":
        with tempfile.TemporaryDirectory() as folder:
            path = options.keep or Path(folder) / "spanwise.db"
            if not path.exists():
                build_month(path, options.traces, options.spans, options.turns)
            measure_month(path)
        return
    if options.what == "one":
        print(json.dumps(measure(options.traces, options.turns, options.keys)))
        return
    before, after = [], []
    for _ in range(options.pairs):
        if options.before is not None:
            before.append(run(options.before, options))
        after.append(run(ROOT, options))
    print(f"{options.traces} traces, sessions of {options.turns}, {options.keys} keys; microseconds of CPU per trace")
    for name in ("finish", "apply"):
        print(f"{name}: {interval([one[name] for one in after])}")
        if before:
            pairs = [new[name] - old[name] for old, new in zip(before, after, strict=True)]
            print(f"{name} before: {interval([one[name] for one in before])}; difference: {interval(pairs)}")


if __name__ == "__main__":
    main()
