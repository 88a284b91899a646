"""A task that does not stop at its timeout: its run fails at its time, and nobody waits for it."""

import asyncio
import signal
import subprocess
import sys
import threading
import time

import pytest

from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, aevaluate, evaluate

DATA = [{"inputs": {"q": n}, "reference_outputs": n} for n in range(6)]
LONG = 60  # seconds; nobody waits for so long


async def swallows(q):
    """Goes on for ever, whatever it is told."""
    while q % 2:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            continue
    return q


async def late(q):
    """Swallows its cancellation once, and then returns."""
    try:
        await asyncio.sleep(LONG if q % 2 else 0)
    except asyncio.CancelledError:
        pass
    return q


def hangs(q):
    if q % 2:
        time.sleep(LONG)
    return q


def returns_what_swallows(q):
    return swallows(q)


async def streams(q):
    yield q
    if q % 2:
        await swallows(q)


@pytest.mark.process
@pytest.mark.parametrize("task", [swallows, late, hangs, returns_what_swallows])
def test_the_run_fails_at_its_time_and_the_others_go_on(store, task):
    began = time.monotonic()
    experiment = evaluate(DATA, task, ["exact"], timeout=0.5, concurrency=2, store=store, progress=False)
    assert time.monotonic() - began < LONG / 2
    summary = experiment.summary()
    assert (summary.runs, summary.failed, summary["exact"].n, summary["exact"].mean) == (6, 3, 3, 1.0)
    assert {row.error for row in experiment.rows()} == {None, "TimeoutError: the task took more than 0.5 s"}
    assert all(row.trace.root.duration_ns < LONG / 2 * 1e9 for row in experiment.rows())


@pytest.mark.process
@pytest.mark.parametrize(("task", "still"), [(swallows, 3), (late, 0), (hangs, 3), (streams, 3)])
def test_what_is_still_at_work_is_said(store, task, still):
    experiment = evaluate(DATA, task, timeout=0.5, store=store, progress=False)
    said = f"{still} tasks did not stop at their timeout and still run in this process"
    assert (said in str(experiment)) == bool(still)
    assert ("did not stop" in str(Experiment.load(store, experiment.id))) == bool(still)


@pytest.mark.process
def test_a_loop_of_the_callers_own_goes_on_and_closes(store):
    async def main():
        summary = (await aevaluate(DATA, swallows, timeout=0.5, store=store, progress=False)).summary()
        await asyncio.sleep(0)
        return summary.failed

    began = time.monotonic()
    assert asyncio.run(main()) == 3
    assert time.monotonic() - began < LONG / 2


def test_an_async_task_cleans_up_when_it_is_told(store):
    cleaned = []

    async def task(q):
        try:
            await asyncio.sleep(LONG)
        finally:
            await asyncio.sleep(0.001)
            cleaned.append(q)

    experiment = evaluate(DATA, task, timeout=0.05, store=store, progress=False)
    assert (sorted(cleaned), experiment.summary().failed) == (list(range(6)), 6)
    assert "did not stop" not in str(experiment)


@pytest.mark.parametrize("ends", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), KeyError("k")])
def test_whatever_a_bounded_task_raises_is_its_own_outcome(store, ends):
    async def task(q):
        if q == 3:
            raise ends
        return q

    summary = evaluate(DATA, task, timeout=60, store=store, progress=False).summary()
    assert (summary.runs, summary.failed) == (6, 1)


def test_a_bounded_task_sees_the_callers_loop_and_context(store):
    async def task(q):
        return threading.get_ident()

    async def main():
        experiment = await aevaluate(DATA[:1], task, timeout=60, store=store, progress=False)
        return threading.get_ident(), [row.outputs for row in experiment.rows()]

    here, outputs = asyncio.run(main())
    assert outputs == [here]


SCRIPT = """
import asyncio, sys
from spanwise.evaluators import evaluate

async def swallows(q):
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue

def awaited(q):
    return swallows(q)

async def judge(outputs):
    await swallows(0)

kind, bound = sys.argv[1], float(sys.argv[2]) or None
task = {"async": swallows, "awaited": awaited, "judge": lambda q: q}[kind]
judges = [judge] if kind == "judge" else []
evaluate([{"q": n} for n in range(4)], task, judges, name="x", timeout=bound, store="spanwise.db", progress=False)
"""


@pytest.mark.process
@pytest.mark.parametrize(("kind", "bound"), [("async", "0"), ("async", "60"), ("awaited", "0"), ("judge", "0")])
def test_one_ctrl_c_is_enough(tmp_path, kind, bound):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", kind, bound]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGINT
    assert "continue with evaluate(…, resume=" in said
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert store.experiment("x").status == "interrupted"
