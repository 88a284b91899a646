"""Evaluators that end their process, or hold it up: they fail alone, and other rules go on. Real processes."""

import threading
import time

import pytest

from assay.collector.server import Server
from assay.collector.stores.sqlite import SQLiteStore
from assay.evaluators.monitors import Plan, Supervisor
from evaluators.watched import span, trace_id, whole

RULES = """
import ctypes, os, re, signal
from assay.evaluators import evaluator, monitor

@evaluator
def fine(outputs):
    return True

@evaluator
def bad(outputs):
    if outputs == "a1":
        {deed}
    return True

monitor("fine", evaluators=[fine], timeout=2)
monitor("bad", evaluators=[bad], timeout=2, retries=1)
"""
DEADLINE = 60
ENDS = {"segfault": "ctypes.string_at(0)", "regex": 're.match("(a+)+$", "a" * 60 + "b")'}
FAILS = """
        bytearray(4 << 30)
    if outputs == "a2":
        while True: pass
    if outputs == "a3":
        raise SystemExit(3)
    if outputs == "a4":
        raise KeyboardInterrupt"""


def watched(folder, deed, runs, done):
    """What is decided once `done` says so of the decisions, by rule and number of the trace; and what was told."""
    (folder / "rules.py").write_text(RULES.format(deed=deed))
    told, shown, stop = [], [], threading.Event()
    with SQLiteStore(folder / "a.db") as store, Server(store) as server:
        plan = Plan(file=folder / "rules.py", url=server.url, memory=1 << 30, grace=2.0, claim=1.5)
        thread = threading.Thread(target=lambda: Supervisor(plan, told.append, shown.append).run(stop))
        thread.start()
        try:
            deadline = time.monotonic() + DEADLINE
            while len(store.rules()) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            store.append(runs)
            while not done(found := decided(store)) and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            stop.set()
            thread.join()
    return found, told


def decided(store):
    return {(one.rule, int(one.target.trace_id or "0", 16)): one for one in store.decisions()}


def all_over(found):
    return len(found) == 10 and all(one.verdict in ("scored", "failed", "skipped") for one in found.values())


@pytest.mark.slow  # three workers die
@pytest.mark.parametrize("end", ENDS)
def test_what_ends_three_workers_is_failed_and_all_else_is_scored(end, tmp_path):
    found, told = watched(tmp_path, ENDS[end], [whole(number) for number in range(1, 6)], all_over)
    verdicts = {name: one.verdict for name, one in found.items()}
    assert verdicts.pop(("bad", 1)) == "failed"
    assert "ended the worker" in found["bad", 1].reason
    assert set(verdicts.values()) == {"scored"}
    assert f"it held rule 'bad' on trace {trace_id(1)}" in told[-1]


def test_what_evaluators_do_to_themselves_is_their_failure(tmp_path):
    found, told = watched(tmp_path, FAILS, [whole(number) for number in range(1, 6)], all_over)
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
    found, told = watched(tmp_path, "return False", runs, all_over)
    assert {one.verdict for name, one in found.items() if name[1] != 1} == {"scored"}
    assert [found[rule, 1].verdict for rule in ("bad", "fine")] == ["skipped", "skipped"]
    assert "bytes" in found["bad", 1].reason
    assert told == []
