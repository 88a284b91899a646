"""What tests of PostgreSQL run in other processes. Each function returns what the test compares."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spanwise.collector.errors import StoreError, Unavailable
from spanwise.collector.records import Booking, Claim, ClaimResult, Decision, Example, QueueItem, Rule, Target
from spanwise.collector.stores.postgres import PostgresControl

Job = Callable[..., Any]
# Processes are forks of one that has imported what they need and has neither threads nor connections
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["psycopg", "spanwise.collector.stores.postgres"])


def run_together(job: Job, url: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Run a job in as many processes, which begin when all are ready, and return their results."""
    ready, results = CONTEXT.Barrier(len(arguments)), CONTEXT.Queue()
    processes = [CONTEXT.Process(target=_run, args=(job, url, one, ready, results)) for one in arguments]
    for process in processes:
        process.start()
    try:
        found = [results.get(timeout=120) for _ in processes]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    for _, error, _ in found:
        assert error is None, error
    return [result for _, _, result in sorted(found, key=lambda one: one[0])]


def _run(job: Job, url: str, arguments: tuple[Any, ...], ready: Any, results: Any) -> None:
    try:
        ready.wait(60)
        results.put((arguments, None, job(url, *arguments)))
    except BaseException as error:
        results.put((arguments, f"{type(error).__name__}: {error}", None))


def start(job: Job, url: str, *arguments: Any) -> multiprocessing.process.BaseProcess:
    """Start a job alone. The test kills it, or waits for its end."""
    process = CONTEXT.Process(target=job, args=(url, *arguments))
    process.start()
    return process


def open_store(url: str, number: int) -> str:
    control = PostgresControl(url)
    control.close()
    return control.where


def book(url: str, number: int) -> tuple[int, int]:
    """Book 1 of the same budgets until the limits are reached; settle every third booking at half."""
    control, accepted, settled = PostgresControl(url), 0, 0
    for at in range(60):
        names = (f"{number}-{at}", f"{number}-{at}-other")
        budgets = ("shared", "other") if number % 2 else ("other", "shared")
        bookings = [
            Booking(id=id, budget=name, amount=1.0, limit=100.0) for id, name in zip(names, budgets, strict=True)
        ]
        results = control.book(*bookings)
        accepted += results[budgets.index("shared")]
        if at % 3 == 0 and results[budgets.index("shared")]:
            control.settle({names[budgets.index("shared")]: 0.5})
            settled += 1
    control.close()
    return accepted, settled


def finish_of(one: Decision) -> ClaimResult:
    return ClaimResult(
        claim=Claim(project=one.project, rule=one.rule, version=one.version, target=one.target, number=one.claim),
        verdict="scored",
        states={"k": {"state": "scored"}},
        reported=("k",),
        inputs_hash="h",
        read_change=one.runs_change,
    )


def lease_and_finish(url: str, number: int, limit: int) -> list[tuple[str, int, str]]:
    """Lease until nothing is due; return each target with its lease number and the answer to its finish."""
    control, done = PostgresControl(url), []
    while leased := control.lease_decisions("r", "1", f"worker {number}", 60.0, "default", limit):
        answers = control.finish_leases([finish_of(one) for one in leased])
        done += [(str(one.target.trace_id), one.claim, answer) for one, answer in zip(leased, answers, strict=True)]
    control.close()
    return done


def lease_again_and_again(url: str, number: int, path: str) -> None:
    """Lease the same decisions for no time. Write each number to the file while the transaction holds the row."""
    control = PostgresControl(url)
    write = control._postgres.write

    def logged(action: Callable[[Any], Any]) -> Any:
        def noted(db: Any) -> Any:
            result = action(db)
            with open(path, "a") as file:
                file.write("".join(f"{one.target.trace_id} {one.claim}\n" for one in result))
            return result

        return write(noted)

    control._postgres.write = logged  # type: ignore[method-assign,assignment]
    for _ in range(40):
        control.lease_decisions("r", "1", f"worker {number}", 0.0, "default", 3)


def take_turns(url: str, number: int, path: str) -> None:
    """Acquire and release one lease, and write its token to the file while holding it."""
    control = PostgresControl(url)
    for _ in range(25):
        while (lease := control.acquire("turn", f"holder {number}", 30.0)) is None:
            time.sleep(0.001)
        with open(path, "a") as file:
            file.write(f"{lease.token}\n")
        assert control.release("turn", f"holder {number}")


def save_examples(url: str, number: int) -> list[int]:
    control = PostgresControl(url)
    return [
        control.save_examples(
            "d", [Example(id=f"{number}-{at}", inputs=at), Example(id="both", inputs=[number, at])]
        ).version
        for at in range(10)
    ]


def save_or_delete_examples(url: str, number: int) -> None:
    control = PostgresControl(url)
    for at in range(15):
        if number == 0:
            control.delete_dataset("d")
        else:
            control.save_examples("d", [Example(id=f"{number}-{at}", inputs=at)])


def save_rules(url: str, number: int) -> None:
    """Load a rules file again and again; all processes have the same, with other versions."""
    control = PostgresControl(url)
    for at in range(10):
        versions = [f"{number}-{at}", f"{number}-{at}"]
        rules = [
            Rule(name=name, version=version, evaluators=({"key": "k"},), owner="file")
            for name, version in zip(("a", "b"), versions, strict=True)
        ]
        control.save_rules(rules if number % 2 else rules[::-1], "file", True, number * 100 + at)


def decide_in_steps(url: str, number: int) -> int:
    """Move the rule's cursor as often as this process is the first; return how often that was."""
    from collector.test_postgres import decision_batch

    control, recorded = PostgresControl(url), 0
    for _ in range(30):
        cursor = control.cursor("r", "1", project="default")
        upto = str(int(cursor or 0) + 1)
        recorded += control.record_decisions(
            [decision_batch(Target(trace_id=f"{number}-{upto}"), after=cursor, upto=upto)]
        )[0]
    return recorded


def enqueue(url: str, number: int) -> None:
    control = PostgresControl(url)
    control.enqueue([QueueItem(queue="q", target=Target(trace_id=f"t{at}")) for at in range(20)])


def hold_a_lease(url: str, path: str) -> None:
    """Lease one decision, report its number, and hang."""
    control = PostgresControl(url)
    [one] = control.lease_decisions("r", "1", "killed", 1.0, "default", 1)
    Path(path).write_text(f"{one.claim}")
    time.sleep(600)


def hang_in_a_transaction(url: str, path: str) -> None:
    """Change rows of a lease and of a decision, and hang before the commit."""
    control = PostgresControl(url)

    def action(db: Any) -> None:
        db.execute("UPDATE decisions SET holder = 'nobody', claim = 9")
        Path(path).write_text("changed")
        time.sleep(600)

    control._postgres.write(action)


def work_through_failures(url: str, number: int, path: str) -> list[str]:
    """Lease and finish until the file exists, whatever fails meanwhile; return the targets whose finish was acknowledged."""
    control, finished = None, []
    while not os.path.exists(path):
        try:
            control = control or PostgresControl(url)
            for one in control.lease_decisions("r", "1", f"worker {number}", 2.0, "default", 4):
                answers = control.finish_leases([finish_of(one)])
                finished += [str(one.target.trace_id) for answer in answers if answer == "finished"]
        except Unavailable:
            time.sleep(0.05)
    return finished


def decide_through_failures(url: str, number: int, path: str) -> list[str]:
    """Record decisions one by one until the file exists; return the targets whose record was acknowledged."""
    from collector.test_postgres import decision_batch

    control, cursor, recorded, at = None, None, [], 0
    while not os.path.exists(path):
        try:
            control = control or PostgresControl(url)
            batch = decision_batch(Target(trace_id=f"t{at}"), after=cursor, upto=str(at))
            if control.record_decisions([batch]) == [True]:
                recorded.append(f"t{at}")
                cursor, at = str(at), at + 1
        except Unavailable:
            time.sleep(0.05)
        except StoreError as error:
            raise AssertionError(error) from error
    return recorded
