"""An experiment with named evaluators, a fixture, native outputs and a composite is killed and resumed."""

import subprocess
import sys

import pytest

from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment

SCRIPT = """
import os, sys, time
from contextlib import contextmanager
from dataclasses import dataclass
from spanwise.evaluators import composite, evaluate

EXAMPLES = [
    {"inputs": {"q": f"Q{n}"}, "reference_outputs": {"text": f"a q{n}"}, "evaluators": ["quality"] if n % 2 else []}
    for n in range(60)
]

@dataclass
class Answer:
    text: str

@contextmanager
def folder(q):
    yield "a"

def task(q, fixture):
    with open("asked.txt", "a") as asked:
        asked.write(q + "\\n")
    if q == sys.argv[1]:
        time.sleep(0.5)  # for the runs before it to be stored
        os.kill(os.getpid(), 9)
    return Answer(f"{fixture} {q.lower()}")

def length(outputs: Answer):
    return len(outputs.text) / 10

def other(outputs):
    return 1.0

evaluate(EXAMPLES, task, ["exact", length, other, composite("quality", {"exact": 1, "length": 1})], fixture=folder,
         name="killed", resume=True, concurrency=1, store="spanwise.db", progress=False)
"""


@pytest.mark.process
def test_a_killed_experiment_is_complete_after_its_resume(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for stop_at in ("Q20", "Q45", "none"):
        ended = subprocess.run([sys.executable, "script.py", stop_at], cwd=tmp_path, capture_output=True, check=False)
        assert ended.returncode == (0 if stop_at == "none" else -9), ended.stderr
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        experiment = Experiment.load(store, "killed")
        summary = experiment.summary()
        rows = list(experiment.rows())
    assert {key: (row.n, row.skipped, row.failed) for key, row in summary.items()} == {
        "exact": (60, 0, 0),
        "length": (60, 0, 0),
        "other": (30, 0, 0),
        "quality": (60, 0, 0),
    }
    assert summary.partial == {"other": (30, 60)}
    assert all(row.scores["quality"] == (row.scores["exact"] + row.scores["length"]) / 2 for row in rows)
    assert len((tmp_path / "asked.txt").read_text().splitlines()) < 60 + 20
