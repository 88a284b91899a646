"""Ctrl-C in a terminal: the process ends soon, says how to go on, and what was done is stored."""

import signal
import subprocess
import sys

import pytest

from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment

SCRIPT = """
import asyncio, sys, time
from spanwise.evaluators import evaluate

def plain(q):
    print(q, flush=True)
    time.sleep(0.02)
    return q

async def waiting(q):
    print(q, flush=True)
    await asyncio.sleep(0.02)
    return q

task = waiting if sys.argv[1] == "async" else plain
evaluate([{"q": f"Q{n}"} for n in range(3000)], task, name="x", concurrency=2, store="spanwise.db")
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_ctrl_c(tmp_path, kind):
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "script.py", kind], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(12):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGINT
    assert "continue with evaluate(…, resume=" in said
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        experiment = Experiment.load(store, "x")
        assert experiment.record.status == "interrupted"
        assert experiment.summary().runs >= 10


@pytest.mark.process
def test_an_interrupted_command_says_its_own_flag(tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION)
    command = [sys.executable, "-c", "from spanwise.cli import main; main()", "eval", "check.py", "--store", "a.db"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert "continue with spanwise eval check.py --store a.db --resume\n" in said


EVALUATION = """
import time
dataset = [{"q": n} for n in range(3000)]
evaluators = []
def task(q):
    print(q, flush=True)
    time.sleep(0.02)
"""
