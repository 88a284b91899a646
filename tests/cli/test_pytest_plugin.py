"""`@pytest.mark.spanwise(dataset=…)`: a test per example, evaluators as arguments, scores in an experiment.

One run in a process of its own, whose report and experiments most tests read: a process takes seconds to start.
"""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from spanwise.collector.records import Example
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment

pytest_plugins = ["pytester"]
INSTALLED = any(one.name == "spanwise" for one in entry_points(group="pytest11"))
PLUGIN = ["-p", "spanwise.cli.pytest_plugin"]
PLAIN = ["-p", "no:cacheprovider", "-W", "error"]
OPTIONS = [*PLUGIN, *PLAIN]
ALONE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
TESTS = """
import pytest

EXAMPLES = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"} for n in range(3)]

def length(outputs):
    return float(len(outputs))

@pytest.mark.spanwise(dataset=EXAMPLES, name="answers", evaluators=[length])
def test_answer(inputs, exact, length, tmp_path):
    answer = "no" if inputs["q"] == "Q2" else f"a {inputs['q'].lower()}"
    length(answer)
    assert exact(answer) == 1.0

@pytest.fixture
def judge():
    return "a fixture of its own"

@pytest.mark.spanwise("questions.jsonl", limit=1)
def test_file(example, reference_outputs, judge):
    assert (reference_outputs, judge) == ("Here", "a fixture of its own")
    raise KeyError(example.id)

def test_plain():
    pass
"""

MARKED = """
import pytest
from spanwise.evaluators import evaluator
from spanwise.tracer import current_run

def short(outputs, trace):
    return len(outputs) < 5 and trace.root.name == "test_marked"

@evaluator(summary=True)
def right(outputs, reference_outputs):
    return sum(map(str.__eq__, outputs, reference_outputs)) / len(outputs)

@pytest.mark.spanwise(dataset=[{"inputs": n, "reference_outputs": "2"} for n in range(4)], evaluators=["exact", short, right])
def test_marked(inputs, not_empty):
    if inputs == 0:
        return
    if inputs == 1:
        current_run().set_outputs("1")
    else:
        not_empty(str(inputs) if inputs == 2 else "more than 5")
"""

TRACED = """
import pytest
from spanwise.tracer import current_run, trace

@trace(kind="tool")
def send(to):
    return to

@pytest.mark.spanwise(dataset=[{"inputs": "ann"}], name="traced", evaluators=["latency", "not_empty"])
@trace(kind="agent", name="agent")
def test_traced(inputs):
    current_run().set_outputs(send(inputs))
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Other plugins that are installed only take time here."""
    monkeypatch.setenv(ALONE, "1")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What pytest says of the tests above, run in a process of its own, and the store of their experiments."""
    folder = tmp_path_factory.mktemp("tests")
    for name, text in {"it": TESTS, "marked": MARKED, "traced": TRACED}.items():
        (folder / f"test_{name}.py").write_text(text)
    questions = '{"id": "first", "question": "Where?", "expected": "Here"}\n{"q": "not read"}\n'
    (folder / "questions.jsonl").write_text(questions)
    env = {key: value for key, value in os.environ.items() if key != ALONE}
    options = PLAIN if INSTALLED else OPTIONS
    report = in_a_process(folder, *options, "--spanwise-store", str(folder / "a.db"), env=env)
    with SQLiteStore(folder / "a.db") as store:
        yield report, store


def in_a_process(folder, *arguments, env=None):
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env).stdout


@pytest.mark.process
def test_a_test_runs_once_per_example_and_its_scores_become_an_experiment(outcome):
    report, store = outcome
    assert "2 failed, 8 passed" in report
    assert "test_it.py::test_file[first]" in report
    summary = Experiment.load(store, "answers").summary()
    assert {key: (one.n, one.mean) for key, one in summary.items()} == {
        "length": (3, 4.0 - 2 / 3),
        "exact": (3, 2 / 3),
        "passed": (3, 2 / 3),
    }
    assert (summary.runs, summary.failed) == (3, 0)


@pytest.mark.process
def test_an_error_of_the_test_is_the_error_of_its_run(outcome):
    (row,) = Experiment.load(outcome[1], "test_file").rows()
    assert (row.error, row.scores) == ("KeyError: 'first'", {"passed": False})
    assert row.inputs == {"question": "Where?"}


@pytest.mark.process
def test_the_table_is_shown_at_the_end(outcome):
    assert "│ exact ↑ │ 3 │ 0.6667 │" in outcome[0]


@pytest.mark.process
def test_evaluators_of_the_mark_that_are_no_arguments_look_at_the_finished_run(outcome):
    experiment = Experiment.load(outcome[1], "test_marked")
    rows = {row.inputs: row for row in experiment.rows()}
    scores = {n: (row.scores["exact"], row.scores["short"]) for n, row in rows.items()}
    assert scores == {0: (None, None), 1: (0.0, True), 2: (1.0, True), 3: (0.0, False)}
    assert "set_outputs" in rows[0].feedback["exact"].comment
    assert rows[2].reference_outputs == "2"
    assert experiment.summary().overall["right"].score == 1 / 3


@pytest.mark.process
def test_a_traced_test_is_the_root_of_its_run(outcome):
    (row,) = Experiment.load(outcome[1], "traced").rows()
    assert [(run.name, run.kind) for run in row.trace.runs] == [("agent", "agent"), ("send", "tool")]
    assert (row.inputs, row.outputs, row.scores["not_empty"], row.trace.complete) == ("ann", "ann", True, True)


@pytest.mark.process
def test_nothing_of_spanwise_is_loaded_where_no_test_is_marked(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_light():\n    assert [m for m in sys.modules if m.startswith('spanwise.')] == ['spanwise.cli', 'spanwise.cli.pytest_plugin']\n"
    )
    assert "1 passed" in in_a_process(tmp_path, *OPTIONS)
    assert not (tmp_path / "spanwise.db").exists()


@pytest.mark.process
def test_a_mark_without_a_dataset_is_told(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.spanwise\ndef test_it():\n    pass\n")
    assert "needs a dataset" in pytester.runpytest_inprocess(*OPTIONS).stdout.str()


@pytest.mark.process
@pytest.mark.parametrize(("dataset", "said"), [("absent.csv", "there is no file"), ("absent", "there is no dataset")])
def test_a_dataset_that_is_not_there_is_said_without_our_insides(pytester, dataset, said):
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.spanwise('{dataset}')\ndef test_it(inputs): ...\n")
    report = pytester.runpytest_inprocess(*OPTIONS, "--spanwise-store", "tests.db").stdout.str()
    assert f"test_it: {said} '{dataset}'" in report
    assert "datasets/file_formats.py" not in report
    assert "store.py" not in report


@pytest.mark.process
def test_examples_of_a_test_are_kept_as_a_version_of_a_dataset(outcome):
    record = Experiment.load(outcome[1], "answers").record
    assert (record.dataset, record.dataset_version) == ("test_answer", 1)
    assert [example.inputs for example in outcome[1].examples("test_answer", 1)] == [{"q": f"Q{n}"} for n in range(3)]


@pytest.mark.process
def test_a_dataset_of_the_store_is_taken_at_the_version_that_is_asked_for(pytester):
    with SQLiteStore(pytester.path / "t.db") as store:
        for answer in ("A", "B"):
            store.save_examples("named", [Example(id="e", inputs="q", reference_outputs=answer)])
    pytester.makepyfile(test_it=NAMED)
    assert "2 passed" in pytester.runpytest_inprocess(*OPTIONS, "--spanwise-store", "t.db").stdout.str()
    with SQLiteStore(pytester.path / "t.db") as store:
        assert sorted((one.dataset, one.dataset_version) for one in store.experiments()) == [("named", 1), ("named", 2)]


NAMED = """
import pytest

@pytest.mark.spanwise("named@1")
def test_old(reference_outputs):
    assert reference_outputs == "A"

@pytest.mark.spanwise("named")
def test_new(reference_outputs):
    assert reference_outputs == "B"
"""


def marked(pytester, options, body, *arguments):
    """Run a test over the numbers from 0 to 9, marked with these options; pytest's result and the experiment."""
    pytester.makepyfile(
        f"import pytest\n\n@pytest.mark.spanwise([{{'inputs': n}} for n in range(10)], name='it', {options})\n"
        f"def test_it(inputs):\n    {body}\n"
    )
    result = pytester.runpytest_inprocess(*OPTIONS, "--spanwise-store", "t.db", *arguments)
    with SQLiteStore(pytester.path / "t.db") as store:
        return result, Experiment.load(store, "it") if store.experiments() else None


@pytest.mark.process
def test_repetitions_and_metadata_are_those_of_the_experiment(pytester):
    result, experiment = marked(pytester, "limit=2, repetitions=3, metadata={'prompt': 'v2'}", "pass", "-v")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*::test_it[[]*-3[]] PASSED*"])
    assert (experiment.record.metadata["prompt"], experiment.record.metadata["setup"]["repetitions"]) == ("v2", 3)
    assert experiment.summary()["passed"].flaky == 0


@pytest.mark.process
@pytest.mark.parametrize(("split", "runs"), [("'a'", 2), ("'b'", 2), ("['b', 'c']", 3)])
def test_a_split_is_any_of_those_of_an_example(pytester, split, runs):
    data = [{"inputs": "x", "splits": ["a", "b"]}, {"inputs": "y", "splits": ["b", "a"]}, {"inputs": "z", "split": "c"}]
    pytester.makepyfile(f"import pytest\n@pytest.mark.spanwise({data}, split={split})\ndef test_it(inputs): pass\n")
    report = pytester.runpytest_inprocess(*OPTIONS, "--spanwise-store", "t.db")
    assert report.parseoutcomes() == {"passed": runs}


@pytest.mark.process
@pytest.mark.parametrize(("share", "status"), [(0.9, 0), (0.95, 1), (1, 1)])
def test_a_share_of_the_asserts_may_fail(pytester, share, status):
    result, _ = marked(pytester, f"min_pass={share}", "assert inputs != 3, 'three'", "-rx")
    assert (result.ret, result.parseoutcomes()) == (status, {"passed": 9, "xfailed": 1})
    said = result.stdout.str()
    assert f"min_pass={share}: AssertionError: three" in said
    assert (f"it: 9 of 10 runs passed (90.0%), fewer than min_pass={share}" in said) == bool(status)


@pytest.mark.process
def test_what_is_no_assert_fails_the_test_whatever_share_may_fail(pytester):
    result, _ = marked(pytester, "min_pass=0.1", "1 / inputs")
    assert (result.ret, result.parseoutcomes()) == (1, {"passed": 9, "failed": 1})


@pytest.mark.process
def test_where_no_run_came_to_a_verdict_no_share_of_them_has_passed(pytester):
    result, _ = marked(pytester, "min_pass=0.1", "pytest.skip('away')")
    assert result.ret == 1
    assert "it: no run passed or failed, and min_pass=0.1" in result.stdout.str()


def test_an_experiment_that_was_cut_short_is_not_finished(pytester):
    _, experiment = marked(pytester, "", "assert inputs < 3", "-x")
    assert (experiment.record.status, experiment.summary().runs) == ("interrupted", 4)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("repetition=3", "has no option 'repetition' (did you mean 'repetitions'?); it takes dataset, name, "),
        ("repetitions=0", "repetitions must be a whole number of at least 1, got 0"),
        ("split=3", "split must be a name or a list of names, got 3"),
        ("split=['tset']", "the dataset has no examples in split ['tset']"),
        ("limit=True", "limit must be a whole number of at least 1, got True"),
        ("min_pass=90", "min_pass must be a share of all runs, above 0 and at most 1, got 90"),
        ("min_pass='most'", "got 'most'"),
        ("metadata=['x']", "metadata must be a dict, got ['x']"),
        ("evaluators=3", "evaluators must be a list of evaluators, got 3"),
        ("evaluators='exakt'", "did you mean 'exact'?"),
    ],
)
def test_what_a_mark_cannot_take_is_told_in_a_line(pytester, options, told):
    result, _ = marked(pytester, options, "pass")
    said = result.stdout.str()
    assert told in said
    assert "Error" not in said.replace("Interrupted: 1 error", "").replace("ERRORS", "").replace("ERROR ", "")


SHARED = """
import os

import pytest

@pytest.mark.spanwise([{"inputs": n, "reference_outputs": n} for n in range(12)], name="shared", min_pass=0.5)
def test_shared(inputs, exact):
    if os.environ.get("CRASH") and inputs == 5:
        os._exit(3)
    assert exact(inputs if inputs < 9 else "wrong")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("crash", "status", "runs"),
    [("", "finished", 12), pytest.param("yes", "interrupted", 11, marks=pytest.mark.slow)],
)
def test_workers_of_xdist_make_one_experiment(tmp_path, crash, status, runs):
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text(SHARED)
    env = {**os.environ, "CRASH": crash}
    report = in_a_process(tmp_path, "-n", "2", "-p", "xdist", *OPTIONS, "--spanwise-store", "t.db", env=env)
    assert report.count("= spanwise: shared =") == 1
    with SQLiteStore(tmp_path / "t.db") as store:
        (record,) = store.experiments()
        assert (record.status, record.dataset_version, store.count()["traces"]) == (status, 1, runs)
        assert Experiment.load(store, record.id).summary()["passed"].n == runs
    assert ("9 passed, 3 xfailed" if not crash else "1 failed") in report


JUDGED = """
import pytest
from spanwise.evaluators import judge
from spanwise.evaluators.testing import scripted

polite = judge("polite", "Is this answer polite?\\n{outputs}", judge=scripted(lambda ask: {"rationale": "-", "rating": "yes"}))
after = judge("after", "Is this answer short?\\n{outputs}", judge=lambda prompt: "no JSON")

@pytest.mark.spanwise(dataset=[{"inputs": n} for n in range(2)], evaluators=[polite, after], repetitions=2)
def test_judged(inputs, polite):
    assert polite("Please.") is True
"""


@pytest.mark.process
def test_judges_are_kept_with_the_tests_that_asked_them(pytester):
    pytester.makepyfile(test_it=JUDGED)
    report = pytester.runpytest_inprocess(*OPTIONS, "--spanwise-store", "t.db").stdout.str()
    assert "4 passed" in report
    with SQLiteStore(pytester.path / "t.db") as store:
        experiment = Experiment.load(store, "test_judged")
        links = {
            one.judge_trace_id for row in experiment.rows() for one in row.feedback.values() if one.key != "passed"
        }
        own = {one.trace_id for one in store.traces(kind="evaluator", limit=100)}
        assert links == own
        assert len(own) == 8
        assert (experiment.summary()["after"].failed, experiment.summary().judge_calls) == (4, 4 + 2 * 4)
        assert len(store.traces(limit=100)) == 4


@pytest.mark.process
def test_whoever_has_the_tracer_alone_can_run_tests(tmp_path) -> None:
    """None of the server's packages is there; the plugin is, in every run."""
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    missing = ("rich", "typer", "fastapi", "httpx", "numpy", "orjson")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({missing}))\nimport pytest; sys.exit(pytest.main({OPTIONS}))"
    )
    env = {**os.environ, ALONE: "1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


ALWAYS = """
import pytest
from spanwise.evaluators import evaluator
from spanwise.tracer import current_run

@evaluator(key="safe")
def safe(outputs): raise RuntimeError("the model of the gate is away")

@evaluator(key="some")
def some(outputs):
    if outputs: raise RuntimeError("only now and then")
    return 1.0

@pytest.mark.spanwise([{"inputs": n} for n in range(3)], name="gate", evaluators=[EVALUATORS])
def test_it(inputs): current_run().set_outputs(inputs)
"""


@pytest.mark.parametrize(("evaluators", "status"), [("safe, some", 1), ("some", 0)])
def test_an_evaluator_that_failed_on_every_run_fails_the_session(pytester, evaluators, status):
    pytester.makepyfile(test_it=ALWAYS.replace("EVALUATORS", evaluators))
    done = pytester.runpytest_inprocess(*OPTIONS, "--spanwise-store", "t.db")
    assert (done.ret, "3 passed" in done.stdout.str()) == (status, True)
    told = "gate: safe failed on every run that it evaluated (3): RuntimeError: the model of the gate is away"
    assert (told in done.stdout.str()) is bool(status)
