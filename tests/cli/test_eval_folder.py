"""`spanwise eval FOLDER`: which files are evaluations, and what several of them come to."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest

from cli.evaluations import EVALUATION, Command, fail_if, last
from looped_cases import loop_over
from spanwise.collector import connect

OTHER_KEY = EVALUATION + "evaluators = ['not_empty']\n"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def evals(command: Command) -> Path:
    """A folder with two evaluations: `exact` in one, `not_empty` in a subfolder."""
    command.write(name="evals/first.py")
    command.write(OTHER_KEY, name="evals/more/second.py")
    return command.folder / "evals"


# --- discovery


def evaluated(command: Command, folder: Path) -> list[str]:
    """Return the names of the evaluations of a folder, in the order of their lines."""
    return re.findall(r"^(\w+): (?:passed|broken set-up)", command.run(folder)[1], re.MULTILINE)


def test_all_evaluations_of_a_folder_are_found_in_order(command: Command, evals: Path) -> None:
    (evals / "zero.py").write_text("dataset, evaluators = [], []")
    (evals / "alpha.py").write_text("from first import dataset\nevaluators: list = []\n")
    assert evaluated(command, evals) == ["alpha", "first", "zero", "second"]


@pytest.mark.process
@loop_over(
    "text",
    [
        "dataset = []",
        "evaluators = []",
        "def f():\n    dataset = evaluators = []",
        "class A:\n    dataset = evaluators = []",
        "dataset: list\nevaluators: list",
        "print(dataset, evaluators)",
        "",
        "not python at all",
    ],
)
def test_other_files_are_passed_over_without_importing_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    command = Command(tmp_path)
    command.write(name="evals/evaluation.py")
    command.write(f"{text}\n1 / 0 if True else None\n" if "not" not in text else text, name="evals/other.py")
    with caplog.at_level(logging.DEBUG, "spanwise.cli"):
        status, said = command.run(tmp_path / "evals")
    assert (status, "\nother: " in said) == (0, False)
    assert "other.py is not an evaluation: it does not define " in caplog.text


@pytest.mark.process
@loop_over(
    "text",
    [
        "if True:\n    dataset = []\nelse:\n    dataset = [1]\nevaluators = []",
        "with open('x') as dataset:\n    evaluators = []",
        "try:\n    import x as dataset\nexcept ImportError:\n    dataset = 1\nfrom y import evaluators",
        "def dataset(): ...\nclass evaluators: ...",
        "for dataset in []: evaluators = 1",
        "dataset = [\nevaluators = 1",  # a syntax error, which its import reports
    ],
)
def test_names_may_be_bound_in_any_statement_of_the_top_level(tmp_path: Path, text: str) -> None:
    command = Command(tmp_path)
    command.write(text, name="evals/evaluation.py")
    assert evaluated(command, tmp_path / "evals") == ["evaluation"]


def test_hidden_folders_and_virtual_environments_are_skipped(command: Command, evals: Path) -> None:
    for folder in (".git", "__pycache__", "env"):
        command.write(name=f"evals/{folder}/third.py")
    (evals / "env" / "pyvenv.cfg").write_text("")
    assert evaluated(command, evals) == ["first", "second"]


def test_a_folder_without_evaluations_is_refused(command: Command) -> None:
    (command.folder / "empty").mkdir()
    status, said = command.run(command.folder / "empty")
    assert (status, "defines dataset and evaluators; name another folder or file" in said) == (3, True)


def test_two_files_of_one_name_are_refused(command: Command, evals: Path) -> None:
    command.write(name="evals/more/first.py")
    status, said = command.run(evals)
    assert (status, "have the same name 'first'" in said, command.store.exists()) == (3, True, False)


def test_helpers_of_one_name_in_two_folders_are_refused(command: Command, evals: Path) -> None:
    for folder in (evals, evals / "more"):
        (folder / "helper_of_gates.py").write_text("")
        for file in folder.glob("*d.py" if folder.name == "more" else "*t.py"):
            file.write_text(f"import helper_of_gates\n{file.read_text()}")
    status, said = command.run(evals)
    assert (status, "has the same name, and one process can import only one of them" in said) == (3, True)


def test_a_path_that_does_not_exist_is_refused(command: Command) -> None:
    assert command.run(command.folder / "nowhere")[0] == 3


# --- results


def test_each_file_is_an_experiment_and_has_a_line(command: Command, evals: Path) -> None:
    status, said = command.run(evals)
    assert (status, said.strip().splitlines()[-2:]) == (0, ["first: passed", "second: passed"])
    with connect(command.store) as store:
        assert {record.name for record in store.experiments()} == {"first", "second"}


def test_a_file_that_cannot_be_imported_breaks_the_set_up_but_the_others_run(command: Command, evals: Path) -> None:
    command.write("import no_such_module\n" + EVALUATION, name="evals/broken.py")
    status, said = command.run(evals)
    assert status == 3
    assert "ModuleNotFoundError: No module named 'no_such_module'" in said
    lines = said.strip().splitlines()[-3:]
    assert lines[0].startswith("broken: broken set-up: ")
    assert lines[1:] == ["first: passed", "second: passed"]


@loop_over("code", ["0", "2", "'bye'"])
def test_a_file_that_exits_when_it_is_imported_has_not_passed(tmp_path: Path, code: str) -> None:
    status, said = Command(tmp_path).check(text=f"import sys\nsys.exit({code})\n")
    assert (status, f"called sys.exit({code}) when it was imported" in said) == (3, True)


@pytest.mark.parametrize(
    ("rights", "unpriced", "status"), [((20, 20), (), 0), ((20, 20), (3,), 2), ((10, 20), (3,), 1), ((20, 10), (), 1)]
)
def test_the_exit_code_is_the_worst(
    command: Command, rights: tuple[int, int], unpriced: tuple[int, ...], status: int
) -> None:
    command.write(name="evals/a.py", RIGHT=rights[0])
    command.write(name="evals/b.py", RIGHT=rights[1], UNPRICED=unpriced)
    assert command.run(command.folder / "evals", *fail_if("exact.mean < 0.8", "cost.sum > 2usd"))[0] == status


def test_a_dataset_that_exits_has_not_passed(command: Command) -> None:
    text = (
        EVALUATION + "def generate():\n    yield {'inputs': {'q': 1}}\n    raise SystemExit(0)\ndataset = generate()\n"
    )
    status, said = command.check(text=text)
    assert (status, "spanwise: SystemExit: 0" in said) == (3, True)


def test_a_dataset_that_is_missing_breaks_one_evaluation_only(command: Command, evals: Path) -> None:
    command.write("dataset = 'nowhere'\nevaluators = ['exact']\n", name="evals/lost.py")
    status, said = command.run(evals)
    assert (status, "first: passed" in said, "lost: broken set-up: there is no dataset 'nowhere'" in said) == (
        3,
        True,
        True,
    )


@pytest.mark.process
def test_a_baseline_that_is_missing_breaks_one_evaluation_only(command: Command, evals: Path) -> None:
    command.run(evals / "first.py")
    status, said = command.run(evals, "--baseline", "latest")
    assert (status, "first: passed" in said) == (3, True)
    assert "second: broken set-up: --baseline latest: there is no finished experiment 'second'" in said


# --- keys


def test_a_file_that_does_not_report_the_key_ignores_it(command: Command, evals: Path) -> None:
    status, said = command.run(evals, *fail_if("exact.mean < 0.8", "not_empty.mean < 0.8"))
    assert (status, said.count("no evaluator declares")) == (0, 0)


def test_an_expression_of_one_file_fails_the_command(command: Command, evals: Path) -> None:
    command.write(name="evals/first.py", RIGHT=10)
    status, said = command.run(evals, *fail_if("exact.mean < 0.8"))
    assert (status, said.strip().splitlines()[-2:]) == (
        1,
        ["first: failed: exact.mean is 0.5, which is < 0.8", "second: passed"],
    )


@pytest.mark.process
def test_bounds_of_one_file_are_ignored_by_the_others(command: Command, evals: Path) -> None:
    assert command.run(evals, "--fail-under", "exact=0.8")[0] == 0


def test_a_key_that_no_file_reports_is_refused_before_anything_runs(command: Command, evals: Path) -> None:
    status, said = command.run(evals, *fail_if("helpful.mean < 0.8"))
    assert (status, "known keys: exact, not_empty, task_ok" in said, command.store.exists()) == (3, True, False)


@pytest.mark.process
def test_a_key_that_could_have_been_reported_but_was_not_fails(command: Command, evals: Path) -> None:
    command.write(EVALUATION + "def mine(outputs): return 1.0\nevaluators = [mine]\n", name="evals/first.py")
    status, said = command.run(evals, *fail_if("unheard-of.mean < 0.8"))
    assert (status, "no evaluation has reported this key" in said) == (1, True)


def test_a_measure_counts_in_every_file(command: Command, evals: Path) -> None:
    status, said = command.run(evals, *fail_if("cost.sum > 1usd"))
    assert (status, said.count("cost.sum is 2usd, which is > 1usd")) == (1, 4)


def test_one_name_for_several_experiments_is_refused(command: Command, evals: Path) -> None:
    status, said = command.run(evals, "--name", "mine")
    assert (status, "--name 'mine' names one experiment" in said) == (3, True)


@pytest.mark.process
def test_the_command_that_runs_one_example_names_its_file(command: Command, evals: Path) -> None:
    command.write(EVALUATION + "def task(q): return 1 // q\n", name="evals/first.py")
    status, said = command.run(evals)
    assert (status, f"again: spanwise eval {evals / 'first.py'} --store" in said) == (1, True)
    assert last(said) == "second: passed"


@pytest.mark.process
def test_a_file_that_was_edited_within_the_same_second_runs_in_its_new_form(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    text = (
        "dataset = [{{'inputs': 1, 'reference_outputs': '{}'}}]\nevaluators = ['exact']\ntask = lambda inputs: 'ONE'\n"
    )
    statuses = []
    for reference in ("ONE", "TWO"):
        path = command.write(text.format(reference))
        os.utime(path, (1_000_000_000, 1_000_000_000))
        statuses.append(command.run(path, "--fail-under", "exact=1")[0])
    assert statuses == [0, 1]
