"""Workers that are killed with SIGKILL right before or right after they enter a state of a decision."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evaluators.judge_server import serving
from evaluators.watched import decisions, until, whole
from integration.serving import environment
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors import Monitor, load
from spanwise.evaluators.monitors.rule_spending import budget_name

TRACES = 4
RULES = """
from pathlib import Path
from spanwise.evaluators import Judge, Skip, evaluator, judge, monitor

class Busy(Exception):
    status_code = 429

@evaluator
def chosen(outputs):
    match (Path({folder!r}) / "mode").read_text():
        case "skipped":
            raise Skip("nothing to score")
        case "failed":
            raise ValueError("it fails")
        case "throttled":
            raise Busy("slow down")
    return {score}

asked = Judge(model="m", base_url={url!r}, api_key="k", cache=False, price=(1, 1))
polite = judge("polite", "Is it polite?\\n{{outputs}}", scale=("yes", "no"), judge=asked)
monitor("r", evaluators=[chosen, polite], budget={{"calls_per_day": {calls}}}, retries=0, concurrency=2)
"""
VICTIM = """
import os, signal, sys
from spanwise.collector import connect
from spanwise.evaluators.monitors import Monitor, load

file, url, state, moment = sys.argv[1:]

class Killing:
    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    def around(self, entered, call):
        if entered and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        came = call()
        if (came if entered == "rows" else entered) and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return came

    def save_rule(self, *rules, **options):
        return self.around(state == "superseded", lambda: self.store.save_rule(*rules, **options))

    def decide(self, *decided):
        rows = [row for one in decided for row in one.rows]
        return self.around(state == "waiting" and rows, lambda: self.store.decide(*decided))

    def claim(self, *given, **options):
        return self.around(state == "running" and "rows", lambda: self.store.claim(*given, **options))

    def finish(self, *finishes):
        entered = any(one.verdict == state for one in finishes)
        return self.around(entered, lambda: self.store.finish(*finishes))

with connect(url) as store:
    monitor = Monitor(Killing(store), load(file), claim_s=1.0, activate=state == "superseded")
    print(monitor.holder, flush=True)
    monitor.run()
"""


def written(folder: Path, url: str, *, calls: int = 100, score: float = 1.0) -> Path:
    file = folder / "rules.py"
    file.write_text(RULES.format(folder=str(folder), url=url, calls=calls, score=score))
    return file


def killed(folder: Path, url: str, state: str, moment: str) -> str:
    """Run a worker until it kills itself; the name under which it held leases."""
    command = [sys.executable, "-c", VICTIM, str(folder / "rules.py"), url, state, moment]
    victim = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert victim.returncode == -signal.SIGKILL
    return victim.stdout.strip()


@contextmanager
def running(monitor: Monitor) -> Iterator[None]:
    thread = threading.Thread(target=monitor.run)
    thread.start()
    try:
        yield
    finally:
        monitor.stop()
        thread.join()


def decided_by(store: Store, monitor: Monitor) -> None:
    """Have a worker decide about all traces, and evaluate none."""
    monitor._start()
    until(lambda: (monitor._follower.step(), len(decisions(store)) == TRACES)[1])


STATES = ["waiting", "running", "throttled", "over_budget", "scored", "skipped", "failed", "superseded"]
KILLS = [(state, moment, True) for state in STATES for moment in ("before", "after")]
KILLS += [(state, moment, False) for state, moment, _ in KILLS if state not in ("waiting", "superseded")]


@pytest.mark.slow  # a process for each kill
@pytest.mark.parametrize(("state", "moment", "decides"), KILLS)
def test_a_kill_at_a_state_leaves_one_outcome_one_score_and_one_booking_per_call(
    store: Store, tmp_path: Path, state: str, moment: str, decides: bool
) -> None:
    chosen = state if state in ("skipped", "failed", "throttled") else "scored"
    (tmp_path / "mode").write_text(chosen)
    with serving(lambda request: json.dumps({"rationale": "short", "rating": "yes"})) as judge, Server(store) as server:
        file = written(tmp_path, judge.url, calls=1 if state == "over_budget" else 100)
        (first,) = load(file)
        store.save_rule(first.record, owner=file.as_posix())
        survivor = Monitor(store, [first], claim_s=1.0)
        if not decides:
            store.append([whole(number) for number in range(1, TRACES + 1)])
            decided_by(store, survivor)
        elif state == "superseded":
            store.append([whole(number) for number in range(1, TRACES + 1)])
            decided_by(store, survivor)
            survivor.close()
            (changed,) = load(written(tmp_path, judge.url, score=0.25))
            survivor = Monitor(store, [changed], claim_s=1.0, activate=True)
        else:
            store.append([whole(number) for number in range(1, TRACES + 1)])
        dead = killed(tmp_path, server.url, state, moment)
        if chosen == "throttled":
            (tmp_path / "mode").write_text("scored")
        if state == "over_budget":
            survivor._start()
            store.change_rule("r", settings={"budget": {"calls_per_day": 100}})
        survivor.take_over([dead])
        with running(survivor):
            until(lambda: ended(store), f"the end of all traces after a kill {moment} {state}")
        final = "scored" if chosen == "throttled" else chosen
        outcomes = Counter((one.target.trace_id, one.verdict) for one in decisions(store))
        assert set(outcomes.values()) == {1}
        assert len(outcomes) == TRACES
        assert {verdict for _, verdict in outcomes} == {"superseded" if state == "superseded" else final}
        given = Counter((one.target.trace_id, one.key) for one in store.feedbacks(limit=100).items)
        assert set(given.values()) <= {1}
        assert len(given) == (0 if state == "superseded" else 2 * TRACES)
        booked = sum(
            one.settled + one.reserved + one.unknown
            for one in store.booked(budget_name("default", "r", "calls_per_day"))
        )
        in_flight = 2  # calls that the victim had booked and not made
        assert len(judge.requests) <= booked <= len(judge.requests) + in_flight


def ended(store: Store) -> bool:
    found: list[Any] = decisions(store)
    return len(found) == TRACES and all(one.verdict in ("scored", "skipped", "failed", "superseded") for one in found)
