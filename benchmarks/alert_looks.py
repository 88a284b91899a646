"""CPU time of the looks at alerts, without the sums that they read (see `score_sums.py`), and their delay.

    python benchmarks/alert_looks.py                  # CPU: 100 alerts, 60,000 scored traces of 8 days
    python benchmarks/alert_looks.py --traces 200000
    python benchmarks/alert_looks.py due              # delay: `spanwise serve --monitor`, 100 alerts, traffic
    python benchmarks/alert_looks.py due --firing     # all alerts on scores fire, at the same look
    python benchmarks/alert_looks.py due --undecided  # scoring cannot keep up with the traffic

The delay is the time from the end of a window to the moment at which a client sees the look. Budget: 60 s, unless traces
are undecided. A look then waits for up to ten minutes, and passes over the looks that become due in between.

Half of the alerts have a window of 24 hours, the others one hour, `drop=`, or groups by model. Budget: 100 alerts take at
most 1 % of a core. A look is due 24 times per window, so the share of a core is the CPU time of a look, divided by the
time between two looks, summed up over all alerts.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from monitor import Served, until

from spanwise.collector.alert_policy import get_interval_ns
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.client import HTTPStore
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


HISTORY_S = 3 * 3600  # age of the oldest traces
FULL_MODELS = ("small", "medium", "large")
DUE_KINDS = {
    "1 h, below": {"rule": "bench", "key": "short", "below": 0.2, "window_s": 3600.0},
    "1 h, by model": {"rule": "bench", "key": "short", "below": 0.2, "window_s": 3600.0, "by": "model"},
    "1 h, drop": {"rule": "bench", "key": "short", "drop": 0.1, "window_s": 3600.0},
    "1 h, measure": {"measure": "latency_ms > 8000", "above": 0.5, "window_s": 3600.0},
    "lag": {"rule": "bench", "measure": "lag_s", "above": 60.0},
}


class Sender(threading.Thread):
    """Traces that start now, at an even pace."""

    def __init__(self, url: str, rate: float) -> None:
        super().__init__(daemon=True)
        self._url, self._rate, self.stopped, self._choose = url, rate, threading.Event(), random.Random(2)

    def run(self) -> None:
        with HTTPStore(self._url) as store:
            while not self.stopped.wait(0.5):
                now_ns = time.time_ns()
                store.append([make_run(self._choose, now_ns) for _ in range(int(self._rate / 2))])


def make_run(choose: random.Random, start_ns: int) -> Run:
    return Run(
        trace_id=f"{choose.getrandbits(127) + 1:032x}",
        span_id="1" * 16,
        name="answer",
        kind="llm",
        model=choose.choice(FULL_MODELS),
        project="bench",
        start_ns=start_ns,
        end_ns=start_ns + 1_000_000,
        outputs="x" * (1 if choose.random() < 0.9 else 600),
        attributes={"otel.trace_state": "ot=th:0"},
    )


def measure_delays(alerts: int, traces: int, rate: float, minutes: float, *, firing: bool, undecided: bool) -> None:
    """Print the delay of the looks of each kind of alert, seen through the API of a server with a monitor."""
    rule = "evaluators=[short], quiet=0, since='1d'"
    if undecided:
        rule = "evaluators=[slow], quiet=0, concurrency=1"
    with tempfile.TemporaryDirectory() as name:
        folder, choose, now_ns = Path(name), random.Random(1), time.time_ns()
        with SQLiteStore(folder / "spanwise.db") as store:
            starts = [now_ns - HISTORY_S * 10**9 * (traces - place) // traces for place in range(traces)]
            for first in range(0, traces, 500):
                store.append([make_run(choose, start) for start in starts[first : first + 500]])
        served = Served(folder, rule)
        if not undecided:
            until(lambda: served.counts().get("scored", 0) >= traces, 600)
        kinds = {}
        for kind, options in DUE_KINDS.items():
            if firing and options.get("key"):
                options = {**options, "above": 0.2, "below": None, "drop": None, "to": ("log",)}
            for number in range(alerts // len(DUE_KINDS)):
                kinds[f"{kind} {number}"] = kind
                served.store.save_alert(Alert(name=f"{kind} {number}", project="bench", **options))  # type: ignore[arg-type]
        sender = Sender(served.url, rate)
        sender.start()
        looked: dict[str, int] = {}
        delays: dict[str, list[float]] = defaultdict(list)
        passed: dict[str, int] = defaultdict(int)
        begun_ns = time.time_ns()
        while time.time_ns() - begun_ns < minutes * 60e9:
            for alert in served.store.alerts():
                before = looked.get(alert.name)
                if alert.looked_ns and alert.looked_ns != before:
                    looked[alert.name] = alert.looked_ns
                    if alert.looked_ns > begun_ns:  # the first look of a new alert is due at once
                        delays[kinds[alert.name]].append((time.time_ns() - alert.looked_ns) / 1e9)
                        passed[kinds[alert.name]] += int(
                            (alert.looked_ns - (before or 0)) // get_interval_ns(alert) > 1 and bool(before)
                        )
            time.sleep(0.25)
        sender.stopped.set()
        statuses = [group.status for group in served.store.alert_groups()]
        served.close()
    print("| alerts | looks | delay s, median | largest | passed over |\n|---|---|---|---|---|")
    for kind in DUE_KINDS:
        found = sorted(delays[kind]) or [float("nan")]
        print(f"| {kind} | {len(delays[kind])} | {found[len(found) // 2]:.1f} | {found[-1]:.1f} | {passed[kind]} |")
    print({status: statuses.count(status) for status in set(statuses)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["cpu", "due"], default="cpu")
    parser.add_argument("--traces", type=int, default=60_000)
    parser.add_argument("--alerts", type=int, default=100)
    parser.add_argument("--rate", type=float, default=50.0, help="traces per second while delays are measured")
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--firing", action="store_true")
    parser.add_argument("--undecided", action="store_true")
    args = parser.parse_args()
    if args.what == "due":
        measure_delays(args.alerts, args.traces, args.rate, args.minutes, firing=args.firing, undecided=args.undecided)
    else:
        measure_cpu(args.traces, args.alerts)


def measure_cpu(traces: int, alerts: int) -> None:
    """Print the CPU time of a look of each kind of alert."""
    now_ns = time.time_ns() // HOUR_NS * HOUR_NS
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "a.db") as store:
        each = alerts // len(KINDS)
        for kind, options in KINDS.items():
            store.save_alert(
                *(Alert(name=f"{kind} {n}", rule="support", key="good", **options) for n in range(each))  # type: ignore[arg-type]
            )
        fill(store, traces, now_ns)
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
