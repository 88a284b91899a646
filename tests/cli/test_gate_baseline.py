"""`spanwise eval --baseline`: which experiment is compared with, and what its comparison decides."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.evaluations import EVALUATION, Command, fail_if, last
from spanwise.collector import connect
from spanwise.collector.records import Experiment as Record


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def repository(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in a git repository with one commit on `main`."""
    monkeypatch.chdir(command.folder)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    (command.folder / "prompt.txt").write_text("one")
    git("init", "-q", "-b", "main")
    git("add", "prompt.txt")
    commit()
    return command


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit() -> str:
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "a change")
    return git("rev-parse", "HEAD")


def records(command: Command) -> list[Record]:
    with connect(command.store) as store:
        return store.experiments()


# --- which experiment


def test_latest_is_the_newest_finished_experiment_of_the_name(command: Command) -> None:
    command.check()
    command.check(RIGHT=10)
    command.run(command.write(name="other.py"))
    status, said = command.check("--baseline", "latest")
    newest = records(command)[2]
    assert status == 0
    assert f"baseline: check ({newest.id[:8]}) of " in said
    assert "the newest of 2 finished experiments of this name" in said


def test_a_baseline_is_named_by_its_name_or_id(command: Command) -> None:
    command.run(command.write(name="other.py"))
    (other,) = records(command)
    for name in ("other", other.id, other.id[:8]):
        status, said = command.check("--baseline", name)
        assert (status, f"baseline: other ({other.id[:8]})" in said) == (0, True)


@pytest.mark.parametrize("wanted", ["latest", "git:HEAD"])
def test_without_an_experiment_of_the_name_nothing_runs_and_the_others_are_named(
    repository: Command, wanted: str
) -> None:
    repository.run(repository.write(name="other.py"))
    status, said = repository.check("--baseline", wanted)
    assert status == 3
    assert f"--baseline {wanted}: there is no finished experiment 'check' in {repository.store}" in said
    assert "name one of: other" in said
    assert len(records(repository)) == 1


def test_an_unknown_name_is_refused_with_those_that_exist(command: Command) -> None:
    command.check()
    status, said = command.check("--baseline", "chekc")
    assert (status, "--baseline chekc: there is no such experiment; known are: check" in said) == (3, True)


def test_an_empty_baseline_is_refused(command: Command) -> None:
    assert command.check("--baseline", " ")[0] == 3


def test_interrupted_experiments_and_those_of_single_examples_are_no_baselines(command: Command) -> None:
    command.check()
    first = records(command)[0]
    command.check(max_usd=0.3)
    assert records(command)[0].status == "interrupted"
    with connect(command.store) as store:
        example = store.examples(first.dataset, first.dataset_version)[0].id
    command.check("--only", example)
    assert records(command)[0].name == "check-only"
    assert f"baseline: check ({first.id[:8]})" in command.check("--baseline", "latest")[1]
    status, said = command.check("--baseline", "check-only")
    assert (status, "covers only some examples (--only); a baseline must be a finished run" in said) == (3, True)


def test_experiments_of_other_projects_are_not_the_latest(command: Command) -> None:
    command.check()
    (first,) = records(command)
    with connect(command.store) as store:
        store.save_experiment(replace(first, project="bank"))
    assert command.check("--baseline", "latest")[0] == 3


def test_an_experiment_that_is_resumed_is_not_its_own_baseline(command: Command) -> None:
    command.check()
    first = records(command)[0]
    command.check(max_usd=0.3)
    status, said = command.check("--baseline", "latest", "--resume")
    assert (status, f"baseline: check ({first.id[:8]})" in said, len(records(command))) == (0, True, 2)


# --- git


def test_a_revision_selects_the_experiment_of_its_commit(repository: Command) -> None:
    repository.check()
    (at_main,) = records(repository)
    git("checkout", "-q", "-b", "change")
    commit()
    repository.check()
    status, said = repository.check("--baseline", "git:main")
    assert status == 0
    assert f"baseline: check ({at_main.id[:8]})" in said
    assert f"the only finished experiment at commit {git('rev-parse', 'main')[:8]}" in said


def test_runs_without_uncommitted_changes_are_preferred_and_all_are_counted(repository: Command) -> None:
    repository.check()
    (clean,) = records(repository)
    (repository.folder / "prompt.txt").write_text("two")
    repository.check()
    said = repository.check("--baseline", "git:main")[1]
    assert f"baseline: check ({clean.id[:8]})" in said
    assert "the newest without uncommitted changes of 2 finished experiments at commit" in said
    assert "(1 with uncommitted changes)" in said


def test_a_commit_without_an_experiment_is_refused_with_those_that_have_one(repository: Command) -> None:
    repository.check()
    earlier, now = git("rev-parse", "HEAD"), commit()
    status, said = repository.check("--baseline", "git:main")
    assert (status, len(records(repository))) == (3, 1)
    assert f"no finished experiment 'check' at commit {now[:8]}" in said
    assert f"commits with one: {earlier[:8]} (" in said


@pytest.mark.parametrize("revision", ["nope", "", "--help", "HEAD; touch hacked", "\x00"])
def test_a_revision_that_git_does_not_know_is_refused(repository: Command, revision: str) -> None:
    repository.check()
    status, said = repository.check("--baseline", f"git:{revision}")
    assert (status, "--baseline git:" in said) == (3, True)
    assert not (repository.folder / "hacked").exists()


# --- the dataset


def test_an_unchanged_dataset_is_said_to_be_unchanged(command: Command) -> None:
    command.check()
    dataset = records(command)[0].dataset
    said = command.check("--baseline", "latest")[1]
    assert f"the dataset has not changed since the baseline: {dataset}@1" in said


def test_a_baseline_of_another_dataset_version_is_said_to_be_one(command: Command) -> None:
    lines = [f'{{"id": "e{n}", "inputs": {{"q": {n}}}, "reference_outputs": "a{n}"}}\n' for n in range(21)]
    text = EVALUATION + f"dataset = {str(command.folder / 'numbers.jsonl')!r}\n"
    (command.folder / "numbers.jsonl").write_text("".join(lines[:20]))
    command.check(text=text)
    (command.folder / "numbers.jsonl").write_text("".join(lines))
    status, said = command.check("--baseline", "latest", text=text, RIGHT=21)
    assert status == 0
    assert "the dataset has changed since the baseline: it was numbers@1 and is numbers@2" in said


# --- conclusions


def test_the_comparison_is_shown_after_the_summary(command: Command) -> None:
    command.check()
    said = command.check("--baseline", "latest", RIGHT=14)[1]
    assert said.index("p95") < said.index("worse: exact") < said.index("Regressions")


def test_with_json_stdout_has_only_rows(command: Command) -> None:
    command.check()
    said = command.check("--baseline", "latest", "--json", RIGHT=14)[1]
    assert "Regressions" not in said


def test_a_worse_key_fails(command: Command) -> None:
    command.check()
    status, said = command.check("--baseline", "latest", *fail_if("exact worse"), RIGHT=14)
    assert (status, last(said).startswith("exact is worse. −0.3 over 20 pairs")) == (1, True)


def test_a_better_key_is_not_worse(command: Command) -> None:
    command.check(RIGHT=14)
    assert command.check("--baseline", "latest", *fail_if("exact worse"))[0] == 0
    status, said = command.check("--baseline", records(command)[1].id, *fail_if("exact better"))
    assert (status, last(said).startswith("exact is better.")) == (1, True)


def test_identical_experiments_are_neither_better_nor_worse(command: Command) -> None:
    command.check()
    status, said = command.check("--baseline", "latest", *fail_if("exact worse"))
    assert (status, last(said).startswith("cannot decide 'exact worse': exact is inconclusive.")) == (2, True)
    assert command.check("--baseline", "latest", "--inconclusive", "pass", *fail_if("exact worse"))[0] == 0
    assert command.check("--baseline", "latest", *fail_if("exact inconclusive"))[0] == 1


def test_a_margin_makes_identical_experiments_equivalent(command: Command) -> None:
    command.check()
    arguments = ["--baseline", "latest", "--margin", "exact=0.3"]
    assert command.check(*arguments, *fail_if("exact worse"))[0] == 0
    status, said = command.check(*arguments, *fail_if("exact equivalent"))
    assert (status, last(said).startswith("exact is equivalent.")) == (1, True)


def test_a_file_may_define_margin_and_primary(command: Command) -> None:
    command.check()
    arguments = ["--baseline", "latest", *fail_if("exact worse")]
    assert command.check(*arguments, margin={"exact": 0.3}, primary=["exact"])[0] == 0
    status, said = command.check(*arguments, margin={"exact": 0.3}, primary=["exakt"])
    assert (status, "primary 'exakt': no evaluator reports this key (did you mean 'exact'?)" in said) == (3, True)
    status, said = command.check(*arguments, margin=0.3)
    assert (status, "margin must be a dict such as {'exact': 0.02}, got 0.3" in said) == (3, True)


def test_keys_that_are_not_primary_are_exploratory(command: Command) -> None:
    text = EVALUATION + "evaluators = ['exact', 'not_empty']\n"
    command.check(text=text)
    said = command.check("--baseline", "latest", "--primary", "not_empty", text=text, RIGHT=14)[1]
    assert "inconclusive: not_empty" in said


def test_one_pair_decides_nothing(command: Command) -> None:
    command.check("--limit", "1")
    assert command.check("--baseline", "latest", "--limit", "1", *fail_if("exact worse"), RIGHT=0)[0] == 2


def test_a_key_that_the_baseline_does_not_have_decides_nothing(command: Command) -> None:
    command.check()
    text = EVALUATION + "evaluators = ['exact', 'not_empty']\n"
    status, said = command.check("--baseline", "latest", *fail_if("not_empty worse"), text=text)
    assert (status, "No example has a score in both experiments (0 and 20 in one)" in last(said)) == (2, True)


def test_a_key_that_only_the_baseline_has_fails(command: Command) -> None:
    text = EVALUATION + "def mine(outputs): return 1.0 if RIGHT else None\nevaluators = [mine]\n"
    command.check(text=text)
    status, said = command.check("--baseline", "latest", *fail_if("mine worse"), text=text, RIGHT=0)
    assert (status, last(said).startswith("mine has no score: 20 skipped")) == (1, True)


def test_an_undirected_word_is_also_true_of_better_and_worse(command: Command) -> None:
    command.check()
    for word, status in {"lower": 1, "higher": 0, "worse": 1}.items():
        first = records(command)[-1].id
        assert command.check("--baseline", first, *fail_if(f"exact {word}"), RIGHT=14)[0] == status


def test_measures_have_conclusions_too(command: Command) -> None:
    command.check(UNPRICED=tuple(range(20)))
    status, said = command.check("--baseline", "latest", *fail_if("cost worse"), UNPRICED=tuple(range(20)))
    assert (status, last(said)) == (2, "cannot decide 'cost worse': neither experiment has a known cost")


def test_task_ok_has_conclusions_also_if_no_task_failed(command: Command) -> None:
    command.check()
    arguments = ["--baseline", "latest", *fail_if("task_ok worse")]
    status, said = command.check(*arguments)
    assert (status, "task_ok is inconclusive." in last(said)) == (2, True)
    assert command.check(*arguments, "--margin", "task_ok=0.3")[0] == 0
    failing = EVALUATION + "def task(q): return f'a{q}' if q < 10 else 1 // 0\n"
    status, said = command.check(*arguments, "--allow-failed", "100%", text=failing)
    assert (status, last(said).startswith("task_ok is worse. −0.5 over 20 pairs")) == (1, True)


def test_a_score_of_the_whole_set_has_no_conclusion(command: Command) -> None:
    text = EVALUATION + "def whole(outputs: list): return 1.0\nsummary_evaluators = [whole]\n"
    command.check(text=text)
    status, said = command.check("--baseline", "latest", *fail_if("whole worse"), text=text)
    assert (status, "has one score for the whole set, and no pairs to compare; use --fail-if 'whole.mean" in said) == (
        3,
        True,
    )


def test_labels_without_good_ones_decide_nothing(command: Command) -> None:
    text = EVALUATION + "def tone(outputs): return 'kind' if RIGHT else 'rude'\nevaluators = [tone]\n"
    command.check(text=text)
    status, said = command.check("--baseline", "latest", *fail_if("tone worse"), text=text, RIGHT=0)
    assert (status, "20 of 20 examples changed their label" in last(said)) == (2, True)


def test_a_dry_run_checks_the_baseline_too(command: Command) -> None:
    assert command.check("--baseline", "latest", "--dry-run")[0] == 3


def test_the_baseline_is_resolved_before_the_first_run(command: Command, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    text = EVALUATION + f"def task(q): open({str(ran)!r}, 'w')\n"
    assert command.check("--baseline", "latest", text=text)[0] == 3
    assert not ran.exists()


def test_an_experiment_cannot_be_its_own_baseline(command: Command) -> None:
    command.check()
    other: Any = records(command)[0]
    with connect(command.store) as store:
        store.save_experiment(replace(other, name="older"))
    status, said = command.check("--name", "older", "--resume", "--baseline", other.id)
    assert (status, "there is no such experiment" in said) == (3, True)
