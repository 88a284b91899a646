"""A sweep that is killed at any moment and resumed has the same records as one that ran through, within its budget."""

import random
import subprocess
import sys
import time

import pytest

from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment

EXAMPLES, CELLS, BUDGET = 20, 4, 0.67  # dollars, at one cent per run: the last cell has seven runs
SCRIPT = f"""
import time
from spanwise.evaluators.analysis import sweep
from spanwise.tracer import current_run

EXAMPLES = [{{"inputs": {{"q": f"Q{{n}}"}}, "reference_outputs": f"q{{n}}"}} for n in range({EXAMPLES})]

def task(q, k):
    time.sleep(0.005)
    with open("asked.txt", "a") as asked:
        asked.write(q + "\\n")
    current_run().set_usage(cost=0.01, input_tokens=1)
    return "no" if q.endswith(str(k)) else q.lower()

sweep(EXAMPLES, task, {{"k": list(range({CELLS}))}}, ["exact"], max_usd={BUDGET}, resume=True, concurrency=1,
      store="spanwise.db", progress=False)
"""


def start(folder):
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def count_asked(folder):
    asked = folder / "asked.txt"
    return len(asked.read_text().splitlines()) if asked.exists() else 0


def kill_after(folder, runs, delay):
    """Start the sweep, and kill it `delay` seconds after so many more runs; return whether it was still running."""
    process = start(folder)
    wanted, deadline = count_asked(folder) + runs, time.monotonic() + 120
    while process.poll() is None and count_asked(folder) < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay)
    was_running = process.poll() is None
    process.kill()
    process.wait()
    process.stderr.close()
    return was_running


def finish(folder):
    process = start(folder)
    assert process.wait(120) == 0, process.stderr.read()
    process.stderr.close()


def read_records(folder):
    """Return the runs and scores by cell, and the cost of all runs."""
    with SQLiteStore(folder / "spanwise.db") as store:
        assert {record.status for record in store.experiments()} <= {"finished", "interrupted"}
        experiments = {record.name: Experiment.load(store, record.id) for record in store.experiments()}
        assert len(experiments) == len(store.experiments())  # each cell has one experiment
        rows = {
            name: [(row.inputs["q"], row.outputs, dict(row.scores)) for row in experiment.rows()]
            for name, experiment in experiments.items()
        }
        return rows, sum(experiment.summary().cost for experiment in experiments.values())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    finish(folder)
    return read_records(folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kills_within_cells_and_at_their_ends_change_no_record(tmp_path, uninterrupted, seed):
    moments = random.Random(seed)
    kills = 0
    # after a random number of runs; then at the end of a cell, after its last run or while it is closed
    for runs in (0, 1, moments.randint(2, 15), EXAMPLES, moments.randint(2, 15), EXAMPLES, moments.randint(2, 7)):
        kills += kill_after(tmp_path, runs, moments.uniform(0, 0.05))
    assert kills >= 5
    finish(tmp_path)
    records, cost = read_records(tmp_path)
    assert records == uninterrupted[0]
    assert [len(rows) for rows in records.values()][::-1] in ([20, 20, 20, 7], [7, 20, 20, 20])
    assert cost == pytest.approx(BUDGET)
    finish(tmp_path)  # resumed once more, it costs nothing
    assert read_records(tmp_path) == (records, pytest.approx(cost))
