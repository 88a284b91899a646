"""Decisions per second that worker processes lease and finish on PostgreSQL, with the server's default durability.

    python benchmarks/postgres_decisions.py                            # a private server in a temporary folder
    python benchmarks/postgres_decisions.py --workers 4 --at-once 1 10 --decisions 4000
    python benchmarks/postgres_decisions.py --url postgresql://user@host/database    # an empty database of your own

Each worker leases `--at-once` decisions and finishes them together, as monitors do with the jobs that end at the same
time: `plan_finish`, then `finish_leases`. Every decision must be finished exactly once, else the script fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from collector.postgres_server import running_server
from spanwise.collector.records import Claim, ClaimResult, Decision, DecisionBatch, Rule, Target
from spanwise.collector.stores.postgres import PostgresControl


def decide(url: str, count: int) -> float:
    """Record as many waiting decisions, 500 per batch, and return the seconds that this took."""
    control = PostgresControl(url)
    control.save_rules([Rule(name="r", version="1", evaluators=({"key": "k"},))], None, False, 0)
    began, cursor = time.perf_counter(), None
    for start in range(0, count, 500):
        rows = [
            Decision(
                rule="r",
                version="1",
                verdict="waiting",
                target=Target(trace_id=f"{number:032x}"),
                change=number + 1,
                runs_change=number + 1,
                probability=0.5,
                u=0.25,
                rate=0.5,
            )
            for number in range(start, min(count, start + 500))
        ]
        [recorded] = control.record_decisions(
            [DecisionBatch(project="default", rule="r", version="1", after=cursor, upto=str(start), rows=rows)]
        )
        assert recorded
        cursor = str(start)
    spent = time.perf_counter() - began
    control.close()
    return spent


def work(url: str, at_once: int, start, results) -> None:  # type: ignore[no-untyped-def]
    """Lease and finish until nothing is due; put the targets and the seconds of CPU into the queue of results."""
    control = PostgresControl(url)
    control.keys()
    start.wait()
    began = time.process_time()
    done: list[str] = []
    while leased := control.lease_decisions("r", "1", str(os.getpid()), 60.0, "default", at_once):
        finishes = [
            ClaimResult(
                claim=Claim(project="default", rule="r", version="1", target=one.target, number=one.claim),
                verdict="scored",
                states={"k": {"state": "scored", "cost": 0.001}},
                reported=("k",),
                inputs_hash="h" * 32,
                read_change=one.runs_change,
                cost=0.001,
            )
            for one in leased
        ]
        assert {plan.answer for plan in control.plan_finish(finishes)} == {None}
        assert set(control.finish_leases(finishes)) == {"finished"}
        done += [str(one.target.trace_id) for one in leased]
    control.close()
    results.put((done, time.process_time() - began))


def read_cpu(postmaster: int) -> float:
    """Seconds of CPU of a server: its own, those of its processes that have ended, and of those that run."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(postmaster)], capture_output=True, text=True).stdout
    ticks = 0
    for pid in (postmaster, *map(int, children.split())):
        with suppress(FileNotFoundError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15] if pid == postmaster else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(url: str, decisions: int, workers: int, at_once: int, postmaster: int | None = None) -> None:
    deciding = decide(url, decisions)
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    processes = [context.Process(target=work, args=(url, at_once, start, results)) for _ in range(workers)]
    for process in processes:
        process.start()
    time.sleep(3.0)  # until they have connected
    began, cpu_before = time.perf_counter(), read_cpu(postmaster) if postmaster else 0.0
    start.set()
    found = [results.get(timeout=600) for _ in processes]
    spent = time.perf_counter() - began
    for process in processes:
        process.join()
    server_cpu = read_cpu(postmaster) - cpu_before if postmaster else 0.0
    times = Counter(target for done, _ in found for target in done)
    assert len(times) == decisions, (len(times), decisions)
    assert set(times.values()) == {1}, "a decision was finished twice"
    cpu = sum(seconds for _, seconds in found)
    print(
        f"{workers} workers, {at_once} at once: {decisions / spent:,.0f} decisions/s leased and finished"
        f" ({cpu / decisions * 1e3:.2f} ms of the workers' CPU each, {server_cpu / decisions * 1e3:.2f} ms of the server's);"
        f" {decisions / deciding:,.0f}/s recorded"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=4_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--url", help="an empty database")
    asked = parser.parse_args()
    if asked.url:
        measure(asked.url, asked.decisions, asked.workers, asked.at_once[0])
        return
    with running_server() as server:
        for at_once in asked.at_once:
            measure(server.create_database(), asked.decisions, asked.workers, at_once, server.pid)


if __name__ == "__main__":
    main()
