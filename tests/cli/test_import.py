"""`spanwise import`: what it prints, writes and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spanwise.cli.app import app
from spanwise.collector import connect

PRODUCTS = Path(__file__).parents[1] / "fixtures" / "products"
EXPORT, LOG = PRODUCTS / "openai_evals", PRODUCTS / "inspect" / "capitals.eval"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments), "--store", "spanwise.db"])

    return call


@pytest.mark.process
def test_an_eval_is_imported_and_its_file_runs(run, tmp_path):
    done = run("import", "openai-evals", EXPORT, "--eval-file", "capitals.py")
    assert done.exit_code == 0, done.output
    assert "imported 16 graders, 4 examples, 2 experiments, 8 runs, 119 scores" in done.stdout
    assert "grader 'combined': 7 of 7 scores are reproduced" in done.stdout
    text = Path("capitals.py").read_text()
    assert '# Grader "short" runs Python code' in text
    Path("capitals.py").write_text(f"{text}\n\ndef task(inputs):\n    return 'Lima is the capital of Peru'\n")
    program = "import sys; sys.path[:0] = ['.']; import capitals; print(len(capitals.evaluators), capitals.dataset)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["16", "capitals"]
    listed = run("experiments", "list")
    assert "capitals gpt-5-mini" in listed.stdout


@pytest.mark.process
def test_json_has_the_report_and_the_digests_of_code(run):
    done = run("import", "openai-evals", EXPORT, "--json")
    report = json.loads(done.stdout)
    assert (report["imported"]["runs"], report["left_out"], list(report["unconfirmed"])) == (
        8,
        {"graders": 1},
        ["short"],
    )
    confirmed = run("import", "openai-evals", EXPORT, "--json", "--confirm-code", report["unconfirmed"]["short"])
    assert json.loads(confirmed.stdout)["left_out"] == {}


def test_a_log_of_inspect_is_imported_and_exported(run):
    done = run("import", "inspect", LOG, "--name", "mine")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[:2] == [
        "imported 3 examples, 1 experiments, 6 runs, 16 scores",
        "dataset: mine@1",
    ]
    exported = run("experiments", "export", "capitals", "again.eval")
    assert exported.stdout.splitlines() == ["6 runs in again.eval"]
    assert run("import", "inspect", "again.eval", "--name", "mine").exit_code == 0
    with connect("spanwise.db") as store:
        assert [dataset.version for dataset in store.datasets()] == [1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("openai-evals", "missing.json"), "there is no file or folder 'missing.json'"),
        (("openai-evals", EXPORT, "--save", "x"), "--save is for evals that are downloaded"),
        (("openai-evals", EXPORT, "--eval-file", "taken.py"), "'taken.py' already exists"),
        (("openai-evals", LOG), "unknown extension of 'capitals.eval'"),
        (("inspect", "missing.eval"), "there is no file 'missing.eval'"),
        (("inspect", EXPORT / "eval.json"), "eval.json is no log of Inspect"),
    ],
)
def test_mistakes_are_refused_before_a_store_is_written(run, arguments, reason):
    Path("taken.py").write_text("")
    done = run("import", *arguments)
    assert done.exit_code != 0
    assert reason in str(done.exception)
