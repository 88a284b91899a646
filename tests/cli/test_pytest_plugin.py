"""`@pytest.mark.assay(dataset=…)`: a test per example, evaluators as arguments, scores in an experiment."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from assay.collector.stores.sqlite import SQLiteStore
from assay.evaluators import Experiment

INSTALLED = any(one.name == "assay" for one in entry_points(group="pytest11"))
PLUGIN = [] if INSTALLED else ["-p", "assay.cli.pytest_plugin"]
TESTS = """
import pytest

EXAMPLES = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"} for n in range(3)]

def length(outputs):
    return float(len(outputs))

@pytest.mark.assay(dataset=EXAMPLES, name="answers", evaluators=[length])
def test_answer(inputs, exact, length, tmp_path):
    answer = "no" if inputs["q"] == "Q2" else f"a {inputs['q'].lower()}"
    length(answer)
    assert exact(answer) == 1.0

@pytest.mark.assay("questions.jsonl", limit=1)
def test_file(example, reference_outputs):
    assert reference_outputs == "Here"
    raise KeyError(example.id)

def test_plain():
    pass
"""


@pytest.fixture
def run(tmp_path):
    """Run pytest on the tests above in a process of its own; its output."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "questions.jsonl").write_text(
        '{"id": "first", "question": "Where?", "expected": "Here"}\n{"q": "not read"}\n'
    )

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "-W", "error", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

    return run


def test_a_test_runs_once_per_example_and_its_scores_become_an_experiment(run, tmp_path):
    output = run("--assay-store", str(tmp_path / "a.db"))
    assert "2 failed, 3 passed" in output
    assert "test_it.py::test_file[first]" in output
    with SQLiteStore(tmp_path / "a.db") as store:
        summary = Experiment.load(store, "answers").summary()
        assert {key: (one.n, one.mean) for key, one in summary.items()} == {
            "length": (3, 4.0 - 2 / 3),
            "exact": (3, 2 / 3),
            "passed": (3, 2 / 3),
        }
        assert (summary.runs, summary.failed) == (3, 0)


def test_an_error_of_the_test_is_the_error_of_its_run(run, tmp_path):
    run("--assay-store", str(tmp_path / "a.db"), "-k", "test_file")
    with SQLiteStore(tmp_path / "a.db") as store:
        (row,) = Experiment.load(store, "test_file").rows()
        assert (row.error, row.scores) == ("KeyError: 'first'", {"passed": False})
        assert row.inputs == {"question": "Where?"}


def test_the_table_is_shown_at_the_end(run, tmp_path):
    assert "│ exact  │ 3 │ 0.6667 │" in run("--assay-store", str(tmp_path / "a.db"))


def test_nothing_of_assay_is_loaded_where_no_test_is_marked(run, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_light():\n    assert [m for m in sys.modules if m.startswith('assay.')] == ['assay.cli', 'assay.cli.pytest_plugin']\n"
    )
    assert "1 passed" in run()
    assert not (tmp_path / "assay.db").exists()


def test_a_mark_without_a_dataset_is_told(run, tmp_path):
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.assay\ndef test_it():\n    pass\n")
    assert "needs a dataset" in run()


@pytest.mark.parametrize(("dataset", "said"), [("absent.csv", "there is no file"), ("absent", "there is no dataset")])
def test_a_dataset_that_is_not_there_is_said_without_our_insides(run, tmp_path, dataset, said):
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n\n@pytest.mark.assay('{dataset}')\ndef test_it(inputs): ...\n"
    )
    output = run("--assay-store", "tests.db")
    assert f"test_it: {said} '{dataset}'" in output
    assert "datasets/_files.py" not in output
    assert "_store.py" not in output


MARKED = """
import pytest
from assay.evaluators import evaluator
from assay.tracer import current_run

def short(outputs, trace):
    return len(outputs) < 5 and trace.root.name == "test_it"

@evaluator(summary=True)
def right(outputs, reference_outputs):
    return sum(map(str.__eq__, outputs, reference_outputs)) / len(outputs)

@pytest.mark.assay(dataset=[{"inputs": n, "reference_outputs": "2"} for n in range(4)], evaluators=["exact", short, right])
def test_it(inputs, not_empty):
    if inputs == 0:
        return
    if inputs == 1:
        current_run().set_outputs("1")
    else:
        not_empty(str(inputs) if inputs == 2 else "more than 5")
"""


def test_evaluators_of_the_mark_that_are_no_arguments_look_at_the_finished_run(run, tmp_path):
    (tmp_path / "test_it.py").write_text(MARKED)
    run("--assay-store", str(tmp_path / "a.db"))
    with SQLiteStore(tmp_path / "a.db") as store:
        experiment = Experiment.load(store, "test_it")
        rows = {row.inputs: row for row in experiment.rows()}
        scores = {n: (row.scores["exact"], row.scores["short"]) for n, row in rows.items()}
        assert scores == {0: (None, None), 1: (0.0, True), 2: (1.0, True), 3: (0.0, False)}
        assert "set_outputs" in rows[0].feedback["exact"].comment
        assert rows[2].reference_outputs == "2"
        assert experiment.summary().overall["right"].score == 1 / 3
