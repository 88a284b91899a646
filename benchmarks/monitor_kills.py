"""Whether every trace is judged once, whatever is killed: python benchmarks/monitor_kills.py [--kills 50] [--seed 1]

Traces come in while a collector, a monitor or one of its workers is killed with SIGKILL at random moments and begun
again; then for some seconds the judge answers 429 while they still come in. Then all of it may come to its end, and of
every trace that was acknowledged and every rule it is asked: sampled and settled ones have exactly one result per key,
all others a verdict with its reason. The judge's calls are counted where they arrive: never more than the budget, and what a crash repeats is
among those that were booked. Exits with 1 and what is wrong if something is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "evaluators"), str(TESTS / "integration")]  # "evaluators" is a module beside this one

from judge_server import Reply, Request, completion, error, serving
from serving import Process, environment, free_port
from watched import span, trace_id, whole

from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import StoreError

RULES = """
import os, time
from spanwise.evaluators import Judge, evaluator, judge, monitor

@evaluator
def fine(outputs):
    time.sleep(0.02)
    return True

@evaluator
def documents(trace):
    return len(trace.runs)

asked = Judge(model="m", base_url=os.environ["JUDGE"], cache=False, price=(1, 1), deadline=20)
polite = judge("polite", "Is it polite?\\n{outputs}", scale=("yes", "no"), judge=asked)
monitor("free", evaluators=[fine, documents], sample_rate=0.5)
monitor("paid", evaluators=[polite], sample_rate=0.5, budget={"calls_per_day": int(os.environ["CALLS"])}, pace=False)
"""
MONITOR = """
import sys, signal, threading
from pathlib import Path
from spanwise.evaluators.monitors import WorkerPlan, Supervisor
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
plan = WorkerPlan(file=Path(sys.argv[1]), url=sys.argv[2], workers=int(sys.argv[3]), claim=float(sys.argv[4]))
Supervisor(plan, lambda line: print(line, file=sys.stderr, flush=True)).run(stop, patient=True)
"""
KEYS = {"free": ["fine", "documents"], "paid": ["polite"]}
CLAIM = 8.0  # seconds, not 30: so long nobody takes up what a dead worker held
FINAL = ("scored", "skipped", "failed")
COMPUTED = ("filtered", "sampled_out")


@dataclass
class Scene:
    """What is under attack, and what it was given."""

    folder: Path
    workers: int
    calls: int
    judge_url: str
    acknowledged: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Collector, monitor, load."""
        self.port = free_port()
        self.collector = Process(self.folder / "a.db", self.port)
        (self.folder / "rules.py").write_text(RULES)
        self.monitor = self._monitor()
        self._over = threading.Event()
        self._load = threading.Thread(target=self._send)
        with self.store() as store:
            until(lambda: len(store.rules()) == 2)
        self._load.start()

    def store(self) -> HTTPStore:
        """As a client sees it."""
        return HTTPStore(f"http://127.0.0.1:{self.port}")

    def _monitor(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-c",
            MONITOR,
            str(self.folder / "rules.py"),
            self.collector.url,
            str(self.workers),
            str(CLAIM),
        ]
        env = {**environment(), "JUDGE": self.judge_url, "CALLS": str(self.calls)}
        with open(self.folder / "monitor.log", "ab") as log:
            return subprocess.Popen(command, env=env, stderr=log)

    def _send(self) -> None:
        """Traces of two spans, the second a second part; until acknowledged, each."""
        number = 0
        with self.store() as store:
            while not self._over.wait(0.02):
                number += 1
                for runs in ([span(number, 2, 1, kind="retriever")], [whole(number, started=2)]):
                    while True:
                        with suppress(StoreError, OSError):
                            store.append(runs)
                            break
                        time.sleep(0.1)
                self.acknowledged.append(number)

    def kill(self, what: str) -> None:
        """With SIGKILL, and begin it again."""
        if what == "collector":
            self.collector.kill()
            self.collector = Process(self.folder / "a.db", self.port)
        elif what == "monitor":
            self.monitor.kill()
            self.monitor.wait()
            self.monitor = self._monitor()
        else:
            with suppress(psutil.Error, IndexError):
                random.choice(psutil.Process(self.monitor.pid).children()).kill()

    def quiet(self) -> None:
        """No more load."""
        self._over.set()
        self._load.join()

    def end(self) -> None:
        self.monitor.send_signal(signal.SIGTERM)
        self.monitor.wait(60)
        self.collector.stop()


def until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(StoreError, OSError):
            if found := what():
                return found
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)


def over(store: HTTPStore) -> bool:
    """Whether nothing is left to do."""
    states = store.status()
    left = ("waiting", "running", "throttled")
    return bool(states) and all(one.behind == 0 and not any(one.counts.get(v) for v in left) for one in states)


def at_rest(store: HTTPStore, number: int) -> list[Any]:
    """Why each rule did what it did, unless one runs: what there is no money for is offered again now and then."""
    whys = store.why(trace_id(number))
    return [] if any(why.verdict == "running" for why in whys) else whys


def wrong_with(store: HTTPStore, number: int, verdicts: Counter[str]) -> list[str]:
    """What is not as it should be with one trace."""
    given = Counter((one.rule, one.key) for one in store.trace(trace_id(number)).feedback if one.rule)
    wrong, whys = [], until(lambda: at_rest(store, number), 30.0) or store.why(trace_id(number))
    for why in whys:
        name = why.rule.name
        verdicts[f"{name}: {why.verdict}{f' ({why.reason:.60})' if why.verdict == 'failed' else ''}"] += 1
        wanted = 1 if why.verdict in FINAL else 0
        counts = {key: given[name, key] for key in KEYS[name]}
        if set(counts.values()) != {wanted} or not why.reason or why.verdict not in (*FINAL, *COMPUTED, "over_budget"):
            wrong.append(f"trace {number}, rule {name!r}: {why.verdict} ({why.reason}), results {counts}")
    if len(whys) < 2:
        wrong.append(f"trace {number} is not explained by both rules")
    return wrong


def campaign(kills: int, seed: int, workers: int, calls: int, refusing: float, pause: float) -> int:
    chance, refused_until, asked = random.Random(seed), [0.0], Counter[str]()
    lock = threading.Lock()

    def reply(request: Request) -> Any:
        with lock:
            if time.monotonic() < refused_until[0]:
                asked["refused"] += 1
                return error(429, "slow down", headers={"Retry-After": "1"})
            asked["answered"] += 1
        return Reply(body=_completion(), delay=chance.random() * 0.2)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(reply))
        scene = Scene(folder, workers, calls, server.url)
        scene.begin()
        killed: Counter[str] = Counter()
        for _ in range(kills):
            time.sleep(pause * chance.uniform(0.2, 1.8))
            killed[what := chance.choice(["collector", "monitor", "worker"])] += 1
            scene.kill(what)
        refused_until[0] = time.monotonic() + refusing
        time.sleep(refusing)
        scene.quiet()
        with scene.store() as store:
            done = until(lambda: over(store), 300)
            verdicts: Counter[str] = Counter()
            wrong = [] if done else [f"not done: {[one.counts for one in store.status()]}"]
            for each in scene.acknowledged:
                wrong += wrong_with(store, each, verdicts)
            booked = {one.budget: (one.settled, one.reserved, one.unknown) for one in store.booked()}
            wrong += _money(booked, asked, calls)
            spend = {
                (one.project, one.rule): (one.settled, one.reserved, one.unknown)
                for one in store.spend(by=("project", "rule"))
            }
            own, usd = spend["default", "paid"], booked["default/paid/usd"]
            if round(own[0], 2) != round(usd[0], 2) or round(sum(own), 2) != round(sum(usd), 2):  # to the cent
                wrong.append(f"the spend of rule 'paid' is {own}, its bookings are {usd}")
        scene.end()
        told = (folder / "monitor.log").read_text()
    print(f"{len(scene.acknowledged)} traces, killed {dict(killed)}; {dict(sorted(verdicts.items()))}")
    print(f"the judge: {dict(asked)}; booked (settled, reserved, cost unknown) {booked}")
    print(f"deaths told: {told.count('ended: killed')}")
    print("\n".join(wrong[:20]) or "nothing lost, nothing doubled, the budget held")
    return int(bool(wrong))


def _money(booked: dict[str, tuple[float, float, float]], asked: Counter[str], calls: int) -> list[str]:
    """A call is booked before it is made; what was refused cost nothing."""
    taken = sum(sum(amounts) for budget, amounts in booked.items() if budget.endswith("/calls_per_day"))
    wrong = [f"{asked['answered']} calls were answered, the budget allows {calls}"] if asked["answered"] > calls else []
    if asked["answered"] > taken:
        wrong.append(f"{asked['answered']} calls were answered, and {taken:g} booked")
    return wrong


def _completion() -> dict[str, Any]:
    return completion(json.dumps({"rationale": "so it is", "rating": "yes"}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=100_000, help="of the judge a day")
    parser.add_argument("--refusing", type=float, default=60.0, help="seconds for which the judge answers 429")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between two kills")
    given = parser.parse_args()
    os.environ.setdefault("SPANWISE_SPILL_DIR", tempfile.mkdtemp())
    sys.exit(campaign(given.kills, given.seed, given.workers, given.calls, given.refusing, given.pause))
