"""Evaluators that end their process, or hold it up: they fail alone, and other rules go on. Real processes."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from evaluators.watched import span, trace_id, whole
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators.monitors import Supervisor, WorkerPlan

RULES = """
import ctypes, os, signal
from spanwise.evaluators import evaluator, monitor

@evaluator
def fine(outputs):
    return True

@evaluator
def bad(outputs):
    if outputs == "a1":
        {deed}
    return True

monitor("fine", evaluators=[fine], timeout=60)
monitor("bad", evaluators=[bad], timeout=2, retries=1)
"""
DEADLINE = 120
FAILS = """
        bytearray(4 << 30)
    if outputs == "a2":
        while True: pass
    if outputs == "a3":
        raise SystemExit(3)
    if outputs == "a4":
        raise KeyboardInterrupt"""


@contextmanager
def watching(folder, rules, **plan):
    """A store with a supervised monitor, and what is told."""
    (folder / "rules.py").write_text(rules)
    told, stop = [], threading.Event()
    with SQLiteStore(folder / "a.db") as store, Server(store) as server:
        made = WorkerPlan(file=folder / "rules.py", url=server.url, **plan)
        thread = threading.Thread(target=lambda: Supervisor(made, told.append).run(stop))
        thread.start()
        try:
            yield store, told
        finally:
            stop.set()
            thread.join()


def until(what):
    deadline = time.monotonic() + DEADLINE
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def watched(folder, deed, runs):
    """What is decided of five traces by two rules, by rule and number of the trace; and what was told."""
    with watching(folder, RULES.format(deed=deed), memory=1 << 30, grace=60.0, claim=1.5) as (store, told):
        until(lambda: len(store.rules()) == 2)
        store.append(runs)
        until(lambda: all_over(decided(store)))
        return decided(store), told


def decided(store):
    return {(one.rule, int(one.target.trace_id or "0", 16)): one for one in store.decisions()}


def all_over(found):
    return len(found) == 10 and all(one.verdict in ("scored", "failed", "skipped") for one in found.values())


@pytest.mark.slow  # three workers die
def test_what_ends_three_workers_is_failed_and_all_else_is_scored(tmp_path):
    found, told = watched(tmp_path, "ctypes.string_at(0)", [whole(number) for number in range(1, 6)])
    verdicts = {name: one.verdict for name, one in found.items()}
    assert verdicts.pop(("bad", 1)) == "failed"
    assert "ended the worker" in found["bad", 1].reason
    assert set(verdicts.values()) == {"scored"}
    [death] = [line for line in told if f"it held rule 'bad' on trace {trace_id(1)}" in line][-1:]
    assert "in bad, rules.py:12" in death


@pytest.mark.slow  # a worker begins, and waits for one that hangs
def test_what_evaluators_do_to_themselves_is_their_failure(tmp_path):
    found, told = watched(tmp_path, FAILS, [whole(number) for number in range(1, 6)])
    errors = ["MemoryError", "more than 2 s", "SystemExit", "KeyboardInterrupt"]
    for number, error in enumerate(errors, 1):
        assert found["bad", number].verdict == "failed"
        assert error in str(found["bad", number].states)
    assert {one.verdict for name, one in found.items() if name not in [("bad", n) for n in range(1, 5)]} == {"scored"}
    assert told == []


@pytest.mark.slow  # 12 MB are written
def test_a_trace_of_20_000_spans_is_skipped_with_its_size_and_all_else_is_scored(tmp_path):
    runs = [span(1, place, 1, outputs="x" * 600) for place in range(2, 20_001)]
    runs += [whole(1, started=20_000), *(whole(number) for number in range(2, 6))]
    found, told = watched(tmp_path, "return False", runs)
    assert {one.verdict for name, one in found.items() if name[1] != 1} == {"scored"}
    assert [found[rule, 1].verdict for rule in ("bad", "fine")] == ["skipped", "skipped"]
    assert "bytes" in found["bad", 1].reason
    assert told == []


STALLING = """
import os, pathlib, time
from spanwise.evaluators import evaluator, monitor

here = pathlib.Path(__file__).parent

@evaluator
def stalls(outputs):
    try:
        (here / "pid").touch(exist_ok=False)
    except FileExistsError:
        return "second"
    (here / "pid").write_text(str(os.getpid()))
    while not (here / "go").exists():
        time.sleep(0.05)
    return "first"

monitor("stalls", evaluators=[stalls])
"""


@pytest.mark.slow  # a claim has to pass, and a report to come
def test_a_late_finish_of_a_worker_that_was_stopped_beyond_its_claim_is_refused(tmp_path):
    with watching(tmp_path, STALLING, workers=2, claim=4.0) as (store, _):
        until(store.rules)
        store.append([whole(1)])
        pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        os.kill(pid, signal.SIGSTOP)
        until(lambda: [one.verdict for one in store.decisions()] == ["scored"])
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        until(lambda: sum(worker.data["refused"] for worker in store.status()[0].workers) == 1)
        assert [one.label for one in store.feedbacks()] == ["second"]
