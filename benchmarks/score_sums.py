"""What do weighted sums cost? CPU time of a scored trace without and with them, and of the thread that applies them.

`python benchmarks/score_sums.py cost [--before TREE] [--pairs 12]` scores traces through the operations of a monitor:
decide, claim, finish. With `--before`, the root of an older checkout, it runs both in alternating pairs and prints the
difference with its 95 % interval. `one` is a single measurement, as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
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
            start_ns=start + number * 10**6,
            end_ns=start + number * 10**6 + 1000,
            status="ok",
            session_id=f"session {number // turns}" if turns > 1 else None,
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
    parser.add_argument("what", choices=("cost", "one"))
    parser.add_argument("--before", type=Path)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--traces", type=int, default=3_000)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--keys", type=int, default=1)
    options = parser.parse_args()
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
        pairs = [new["finish"] - old["finish"] for old, new in zip(before, after, strict=True)]
        print(f"finish before: {interval([one['finish'] for one in before])}; difference: {interval(pairs)}")


if __name__ == "__main__":
    main()
