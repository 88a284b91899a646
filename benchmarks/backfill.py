"""Backfills under attack, and beside live traffic: python benchmarks/backfill.py kills|lag [--traces 10000] [--seed 1]

`kills` backfills traces by a rule with a judge, while collector, monitor or a worker is killed with SIGKILL, and the
backfill is paused and resumed. At the end each trace must have one score and one decision. Only a call that a kill
interrupted may be repeated, and it must have been booked. The same backfill again must call no judge. A further one is
cancelled halfway: no call may follow, and each call must have its score.

`lag` sends live traffic and measures the time from the acknowledgement of a trace to its score: alone and beside a
backfill, in turns. Exits with 1 if the 95th percentile grows by more than a fifth, or if anything else is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "evaluators"), str(TESTS / "integration"), str(Path(__file__).parent)]

from judge_server import Reply, Request, completion, serving
from monitor_kills import CLAIM, MONITOR, until
from serving import Process, environment
from watched import trace_id, whole

from spanwise.collector.client import HTTPStore
from spanwise.collector.records import iterate_pages
from spanwise.collector.statistics import percentile

RULES = """
import os, time
from spanwise.evaluators import Judge, evaluator, judge, monitor

@evaluator
def slow(outputs):
    time.sleep(0.1)
    return True

asked = Judge(model="m", base_url=os.environ["JUDGE"], cache=False, price=(1, 1), deadline=60)
polite = judge("polite", "Is it polite?\\n{outputs}", scale=("yes", "no"), judge=asked)
monitor("paid", evaluators=[polite], budget={"calls_per_day": 1_000_000}, pace=False, concurrency=16)
monitor("other", evaluators=[polite], budget={"calls_per_day": 1_000_000}, pace=False, concurrency=16)
monitor("free", evaluators=[slow], filter={"name": "live"}, sample_rate=1.0)
"""
HOUR = 3_600_000_000_000
MAX_GROWTH = 1.2


class Scene:
    """Collector, monitor with workers, and a judge that counts its calls by the number of the trace."""

    def __init__(self, folder: Path, judge_url: str, workers: int) -> None:
        self.folder, self._judge_url, self._workers = folder, judge_url, workers
        (folder / "rules.py").write_text(RULES)
        self.collector = Process(folder / "a.db")
        self.store = HTTPStore(self.collector.url)
        self.monitor: subprocess.Popen[bytes] | None = None

    def fill(self, count: int) -> None:
        """Store traces of the last day before the rules are in force."""
        begin = time.time_ns() - 20 * HOUR
        for start in range(1, count + 1, 500):
            numbers = range(start, min(start + 500, count + 1))
            times = {number: begin + number * 1_000_000_000 for number in numbers}
            self.store.append(
                [
                    whole(n, name="live", start_ns=at, end_ns=at + 1_000_000, outputs=f"<a{n}>")
                    for n, at in times.items()
                ]
            )

    def watch(self) -> None:
        """Start the monitor, and wait for its rules."""
        command = [sys.executable, "-c", MONITOR, str(self.folder / "rules.py"), self.collector.url]
        env = {**environment(), "JUDGE": self._judge_url}
        with open(self.folder / "monitor.log", "ab") as log:
            self.monitor = subprocess.Popen([*command, str(self._workers), str(CLAIM)], env=env, stderr=log)
        assert until(lambda: len(self.store.rules()) == 3), "the rules are not in force"

    def kill(self, what: str) -> None:
        """Kill a process, and start it again."""
        assert self.monitor is not None
        if what == "collector":
            self.collector.kill()
            self.collector = Process(self.folder / "a.db", self.collector.port)
        elif what == "monitor":
            self.monitor.kill()
            self.monitor.wait()
            self.watch()
        else:
            with suppress(psutil.Error, IndexError):
                random.choice(psutil.Process(self.monitor.pid).children()).kill()

    def change(self, id: str, state: str) -> None:
        """Change the state of a backfill, unless it has ended."""
        until(lambda: self._is_changed(id, state))

    def _is_changed(self, id: str, state: str) -> bool:
        return self.job(id).state == "done" or self.store.change_backfill(id, state).state == state

    def job(self, id: str) -> Any:
        """Return a backfill."""
        return next(one for one in self.store.backfills() if one.id == id)

    def end(self) -> None:
        """Stop all processes."""
        if self.monitor is not None:
            self.monitor.send_signal(signal.SIGTERM)
            self.monitor.wait(60)
        self.store.close()
        self.collector.stop()


def run_kills(traces: int, kills: int, workers: int, seed: int) -> list[str]:
    """Return what is wrong after a backfill with kills, a second one, and a cancelled one."""
    chance, calls, lock = random.Random(seed), Counter[int](), threading.Lock()

    def reply(request: Request) -> Any:
        number = int(re.search(r"<a(\d+)>", json.dumps(request.body, ensure_ascii=False)).group(1))  # type: ignore[union-attr]
        with lock:
            calls[number] += 1
        return Reply(body=completion(json.dumps({"rationale": "so it is", "rating": "yes"})), delay=0.005)

    wrong: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scene = Scene(folder, stack.enter_context(serving(reply)).url, workers)
        scene.fill(traces)
        scene.watch()
        options = {"since_ns": time.time_ns() - 24 * HOUR, "until_ns": time.time_ns()}
        first = scene.store.start_backfill("paid", id="first", **options)
        killed: Counter[str] = Counter()
        for turn in range(kills):
            aim = (turn + 1) * traces // (kills + 1)
            until(lambda aim=aim: sum(calls.values()) >= aim, 600)  # type: ignore[misc]
            killed[what := chance.choice(["collector", "monitor", "worker"])] += 1
            scene.kill(what)
            if turn % 3 == 2:
                wrong += _pause(scene, first.id, calls)
        done = until(lambda: scene.job(first.id).state == "done", 600)
        job = scene.job(first.id)
        wrong += [] if done else [f"the backfill is not done: {job}"]
        made = sum(calls.values())
        wrong += _check_scores(scene.store, "paid", set(range(1, traces + 1)))
        repeated = made - len(calls)
        booked = sum(one.settled + one.reserved + one.unknown for one in scene.store.booked())
        if len(calls) != traces or repeated > kills * 16 * workers or booked < made:
            wrong.append(f"{made} calls for {len(calls)} traces, {booked:g} booked")
        if not kills and repeated:
            wrong.append(f"{repeated} calls were repeated without a kill")
        again = scene.store.start_backfill("paid", id="again", **options)
        until(lambda: scene.job(again.id).state == "done", 300)
        if (scene.job(again.id).known, sum(calls.values())) != (traces, made):
            wrong.append(f"the second backfill knew {scene.job(again.id).known} results, calls {sum(calls.values())}")
        print(
            f"{traces} traces, killed {dict(killed)}: {made} calls, {repeated} repeated, {job.counts}, booked {booked:g}"
        )
        wrong += _cancel(scene, options, calls, traces)
        scene.end()
    return wrong


def _pause(scene: Scene, id: str, calls: Counter[int]) -> list[str]:
    """Pause a backfill, check that calls end, and resume it.

    Rows that were leased before are finished. A worker that has lost the collector may do so as long as its lease.
    """
    scene.change(id, "paused")
    before = -1
    while before != sum(calls.values()):
        before = sum(calls.values())
        time.sleep(CLAIM)
    time.sleep(2)
    after = sum(calls.values())
    scene.change(id, "running")
    return [f"{after - before} calls were made while the backfill was paused"] if after > before else []


def _cancel(scene: Scene, options: dict[str, int], calls: Counter[int], traces: int) -> list[str]:
    """Cancel a backfill of another rule halfway, and check that each call has its score, and none follows."""
    calls.clear()
    job = scene.store.start_backfill("other", id="cancelled", **options)
    until(lambda: len(calls) >= traces // 2, 600)
    scene.change(job.id, "cancelled")
    ended = until(lambda: not scene.job(job.id).waiting, 60)
    made = Counter(calls)
    time.sleep(2)
    found = scene.job(job.id)
    print(f"cancelled after {sum(made.values())} calls: {found.state}, {found.counts}")
    wrong = _check_scores(scene.store, "other", set(made))
    if not ended or calls != made or max(made.values()) > 1:
        wrong.append(f"after the cancellation: {sum(calls.values()) - sum(made.values())} more calls, {found.counts}")
    return wrong


def _check_scores(store: HTTPStore, rule: str, numbers: set[int]) -> list[str]:
    """Return what is wrong if not exactly these traces have one score and one decision of a rule."""
    scored = Counter(score.trace_id for score in iterate_pages(lambda cursor: store.weighted(rule, cursor=cursor)))
    decided = Counter(
        one.target.trace_id
        for one in iterate_pages(lambda cursor: store.decisions(rule=rule, verdict="scored", cursor=cursor))
    )
    wanted = Counter(trace_id(number) for number in numbers)
    return [
        f"rule {rule!r}: {sum(found.values())} {what} of {len(found)} traces, wanted {len(wanted)}"
        for what, found in (("scores", scored), ("decisions", decided))
        if found != wanted
    ]


def run_lag(traces: int, seconds: float, turns: int, rate: float) -> list[str]:
    """Return what is wrong with the lag of live traffic beside a backfill."""
    lags: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scene = Scene(folder, "http://127.0.0.1:9", workers=1)
        scene.fill(traces)
        scene.watch()
        options = {"since_ns": time.time_ns() - 24 * HOUR, "until_ns": time.time_ns() - HOUR}
        job = scene.store.start_backfill("free", id="beside", **options)
        number = traces
        for turn in range(2 * turns):
            is_beside = turn % 2 == 1
            scene.change(job.id, "running" if is_beside else "paused")
            time.sleep(4)
            sent: dict[str, int] = {}
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                number += 1
                scene.store.append([whole(number, name="live", outputs="new")])
                sent[trace_id(number)] = time.time_ns()
                time.sleep(random.expovariate(rate))
            until(lambda: scene.store.status()[0].behind == 0, 30)
            time.sleep(2)
            rows = scene.store.decisions(rule="free", verdict="scored", limit=1000)
            pages = iterate_pages(lambda cursor: scene.store.decisions(rule="free", verdict="scored", cursor=cursor))
            found = {one.target.trace_id: one.updated_ns for one in (pages if rows.next else rows)}
            lags[is_beside] += [(found[id] - at) / 1e9 for id, at in sent.items() if id in found]
        print(scene.job(job.id).state, scene.job(job.id).counts)
        scene.end()
    p95 = {beside: percentile(sorted(int(lag * 1e9) for lag in each), 95) / 1e9 for beside, each in lags.items()}
    p50 = {beside: percentile(sorted(int(lag * 1e9) for lag in each), 50) / 1e9 for beside, each in lags.items()}
    print(f"live traces: {len(lags[False])} alone, {len(lags[True])} beside a backfill")
    print(f"lag alone: median {p50[False]:.3f} s, p95 {p95[False]:.3f} s; beside: {p50[True]:.3f} s, {p95[True]:.3f} s")
    grown = p95[True] / p95[False]
    return [f"the 95th percentile of the lag has grown by {grown - 1:.0%}"] if grown > MAX_GROWTH else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "lag"))
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of live traffic in each turn")
    parser.add_argument("--turns", type=int, default=3, help="with and without a backfill")
    parser.add_argument("--rate", type=float, default=10.0, help="live traces per second")
    given = parser.parse_args()
    os.environ.setdefault("SPANWISE_SPILL_DIR", tempfile.mkdtemp())
    if given.what == "kills":
        faults = run_kills(given.traces, given.kills, given.workers, given.seed)
    else:
        faults = run_lag(given.traces, given.seconds, given.turns, given.rate)
    print("\n".join(faults[:20]) or "nothing lost, nothing doubled")
    sys.exit(int(bool(faults)))
