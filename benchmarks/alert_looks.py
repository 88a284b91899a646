"""CPU time of the looks at alerts, without the sums that they read (see `score_sums.py`).

    python benchmarks/alert_looks.py                  # 100 alerts, 60,000 scored traces of 8 days
    python benchmarks/alert_looks.py --traces 200000

Half of the alerts have a window of 24 hours, the others one hour, `drop=`, or groups by model. Budget: 100 alerts take at
most 1 % of a core. A look is due 24 times per window, so the share of a core is the CPU time of a look, divided by the
time between two looks, summed up over all alerts.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from spanwise.collector.alert_policy import get_interval_ns
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.records import (
    Alert,
    Claim,
    ClaimResult,
    Decision,
    DecisionBatch,
    Feedback,
    Rule,
    Run,
    Target,
)
from spanwise.collector.stores.sqlite import SQLiteStore

HOUR_NS = 3_600_000_000_000
DAYS = 8
RULE = Rule(name="support", version="1", evaluators=({"function": "f", "source": "s"},))
KINDS = {
    "24 h, below": {"below": 0.5},
    "24 h, below, again": {"below": 0.4},
    "1 h, below": {"below": 0.5, "window_s": 3600.0},
    "24 h, drop": {"drop": 0.3},
    "24 h, by model": {"below": 0.5, "by": "model"},
}


def fill(store: SQLiteStore, count: int, now_ns: int) -> None:
    """Store traces that a rule has scored, evenly over eight days."""
    store.save_rule(RULE)
    token = store.acquire("decide support", "benchmark", 3600.0).token  # type: ignore[union-attr]
    choose = random.Random(1)
    for first in range(0, count, 500):
        starts = [now_ns - DAYS * 24 * HOUR_NS * (count - place) // count for place in range(first, first + 500)]
        runs = [
            Run(
                trace_id=f"{first + place + 1:032x}",
                span_id="1" * 16,
                name="answer",
                kind="llm",
                model=choose.choice(("small", "medium", "large")),
                start_ns=start,
                end_ns=start + 1_000_000,
            )
            for place, start in enumerate(starts)
        ]
        store.append(runs)
        rows = tuple(
            Decision(
                rule="support",
                version="1",
                target=Target(trace_id=run.trace_id),
                verdict="waiting",
                probability=choose.choice((1.0, 0.25)),
                change=10**9,
            )
            for run in runs
        )
        after = store.cursor("support", "1")
        upto = str(store.latest_change())
        store.decide(
            DecisionBatch(
                project="default", rule="support", version="1", after=after, upto=upto, rows=rows, token=token
            )
        )
        store.finish(*(finish(row, choose) for row in store.claim("support", "1", "benchmark", 600.0, limit=500)))


def finish(row: Decision, choose: random.Random) -> ClaimResult:
    claim = Claim(project="default", rule="support", version="1", target=row.target, number=row.claim)
    score = Feedback(target=row.target, key="good", score=float(choose.random() < 0.9), rule="support", claim=row.claim)
    return ClaimResult(
        claim=claim,
        verdict="scored",
        states={"good": {"state": "scored"}},
        reported=("good",),
        feedback=(score,),
        read_change=10**9,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=60_000)
    parser.add_argument("--alerts", type=int, default=100)
    args = parser.parse_args()
    now_ns = time.time_ns() // HOUR_NS * HOUR_NS
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "a.db") as store:
        each = args.alerts // len(KINDS)
        for kind, options in KINDS.items():
            store.save_alert(
                *(Alert(name=f"{kind} {n}", rule="support", key="good", **options) for n in range(each))  # type: ignore[arg-type]
            )
        fill(store, args.traces, now_ns)
        clock = now_ns
        runner = AlertRunner(store, now=lambda: clock)
        while runner.step():  # applies recorded changes to the sums
            clock += 150_000_000_000
            if clock > now_ns + HOUR_NS:
                break
        share = 0.0
        print("| alerts | CPU ms per look | share of a core, % |\n|---|---|---|")
        for kind in KINDS:
            for alert in store.alerts():
                store.change_alert(alert.name, enabled=alert.name.rstrip("0123456789 ") == kind)
            clock += HOUR_NS
            before = time.process_time()
            done = runner.step()
            seconds = (time.process_time() - before) / max(1, done)
            [interval_ns] = {get_interval_ns(alert) for alert in store.alerts() if alert.enabled}
            own = 100 * each * seconds / (interval_ns / 1e9)
            share += own
            print(f"| {each} × {kind} ({done} looks) | {1000 * seconds:.2f} | {own:.3f} |")
        print(f"| all | | {share:.3f} (budget 1) |")


if __name__ == "__main__":
    main()
