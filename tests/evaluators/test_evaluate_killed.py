"""An experiment that is killed at any moment and resumed has the same rows as one that ran through."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"
SCRIPT = """
import sys, time
from spanwise.collector import connect
from spanwise.evaluators import evaluate

EXAMPLES = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"} for n in range(200)]

def task(q):
    time.sleep(0.004)
    with open("asked.txt", "a") as asked:
        asked.write(q + "\\n")
    return "no" if q.endswith("7") else f"a {q.lower()}"

def length(outputs):
    return float(len(outputs))

evaluate(EXAMPLES, task, ["exact", length], name="killed", resume=True, concurrency=4, store="spanwise.db", progress=False)
"""


def started(folder):
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def killed(folder, after):
    """Start, let a few more runs happen, kill; the questions whose runs were stored by then."""
    process = started(folder)
    asked = folder / "asked.txt"
    before = len(asked.read_text().splitlines()) if asked.exists() else 0
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if asked.exists() and len(asked.read_text().splitlines()) >= before + after:
            break
        time.sleep(0.002)
    process.kill()
    process.wait()
    process.stderr.close()
    return stored(folder)


def stored(folder):
    with SQLiteStore(folder / "spanwise.db") as store:
        return {row.inputs["q"] for row in Experiment.load(store, "killed").rows()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_points_and_resume_give_the_rows_of_one_clean_run(tmp_path, seed):
    moments = random.Random(seed)
    asked = tmp_path / "asked.txt"
    for _ in range(4):
        there = killed(tmp_path, moments.randint(3, 45))
        already = len(asked.read_text().splitlines())
        done = killed(tmp_path, moments.randint(3, 10))
        assert there <= done
        assert there.isdisjoint(asked.read_text().splitlines()[already:])  # nothing stored is run again
    process = started(tmp_path)
    assert process.wait(240) == 0, process.stderr.read()
    process.stderr.close()
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        (record,) = store.experiments()
        rows = [(row.inputs["q"], row.outputs, dict(row.scores)) for row in Experiment.load(store, "killed").rows()]
    assert record.status == "finished"
    assert [question for question, _, _ in rows] == [f"Q{n}" for n in range(200)]
    assert all(scores == {"exact": float(not q.endswith("7")), "length": float(len(out))} for q, out, scores in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("sync", 3), ("async", 2)])
def test_kills_cost_neither_a_row_nor_what_tasks_say_of_their_runs(kind, kills):
    command = [sys.executable, KILLS, kind, "--kills", str(kills), "--examples", "80", "--seed", "5"]
    campaign = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert campaign.returncode == 0, campaign.stdout + campaign.stderr
    assert f"{kind}: " in campaign.stdout
