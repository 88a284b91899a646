"""Reports of `spanwise eval` for CI: JUnit XML and Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.evaluations import EVALUATION, Command, fail_if
from looped_cases import loop_over
from spanwise.collector import connect

HOSTILE = (
    "</td><script>alert(1)</script> \x00\x1b[2J\x0b\ud800 ]]> &amp; \"'`|\n# @admin [x](http://evil.example) \uffff"
)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def junit(command: Command, *arguments: str, **constants: object) -> ElementTree.Element:
    command.check("--junit", str(command.folder / "junit.xml"), *arguments, **constants)  # type: ignore[arg-type]
    return ElementTree.parse(command.folder / "junit.xml").getroot()


def markdown(command: Command, *arguments: str, **constants: object) -> str:
    command.check("--markdown", str(command.folder / "gate.md"), *arguments, **constants)  # type: ignore[arg-type]
    return (command.folder / "gate.md").read_text()


# --- JUnit


def test_each_requirement_is_a_test_case(command: Command) -> None:
    root = junit(command, "--fail-under", "exact=0.5", *fail_if("exact.mean < 0.8"))
    (suite,) = root
    assert (root.tag, suite.tag, suite.get("name")) == ("testsuites", "testsuite", "check")
    assert [case.get("name") for case in suite.findall("testcase")] == [
        "--fail-under exact=0.5",
        "--fail-if exact.mean < 0.8",
        "failed runs (--allow-failed 0)",
    ]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "0",
        "errors": "0",
        "skipped": "0",
    }


def test_failures_have_their_reason(command: Command) -> None:
    root = junit(command, *fail_if("exact.mean < 0.8"), RIGHT=14)
    (failure,) = root.iter("failure")
    assert (failure.get("message"), root.get("failures")) == ("exact.mean is 0.7, which is < 0.8", "1")


def test_failed_runs_are_a_failure(command: Command) -> None:
    root = junit(command, text=EVALUATION + "def task(q): return 1 // q\n")
    (failure,) = root.iter("failure")
    assert "1 of 20 runs failed (the task 1 times, as with ZeroDivisionError" in str(failure.text)


def test_undecided_requirements_are_errors_of_that_type(command: Command) -> None:
    root = junit(command, *fail_if("cost.sum > 2usd"), UNPRICED=(3,))
    (error,) = root.iter("error")
    assert (error.get("type"), root.get("errors"), root.get("failures")) == ("undecided", "1", "0")


def test_requirements_that_a_file_ignores_are_skipped(command: Command) -> None:
    command.write(name="evals/a.py")
    command.write(EVALUATION + "evaluators = ['not_empty']\n", name="evals/b.py")
    file = command.folder / "junit.xml"
    command.run(command.folder / "evals", "--junit", str(file), *fail_if("exact.mean < 0.8"))
    root = ElementTree.parse(file).getroot()
    (skipped,) = root.iter("skipped")
    assert ([suite.get("name") for suite in root], skipped.get("message")) == (
        ["a", "b"],
        "this evaluation does not report 'exact'",
    )


@loop_over(
    "arguments, reason",
    [
        (["--fail-if", "exact.mean < nan"], "must be a finite number"),
        (["--baseline", "latest"], "there is no finished experiment"),
        (["--fail-if", "nokey.mean < 1"], "no evaluator reports this key"),
    ],
)
def test_reports_are_written_if_the_set_up_is_broken(tmp_path: Path, arguments: list[str], reason: str) -> None:
    (error,) = junit(Command(tmp_path), *arguments).iter("error")
    assert (error.get("type"), reason in str(error.get("message"))) == ("broken", True)
    text = markdown(Command(tmp_path), *arguments)
    assert text.startswith("## check: broken set-up\n")
    assert reason in text.replace("\\", "")


def test_a_file_that_cannot_be_imported_is_in_the_reports(command: Command) -> None:
    (error,) = junit(command, text="1 / 0\n").iter("error")
    assert "could not be imported" in str(error.get("message"))


def test_a_report_of_an_earlier_run_does_not_stay_while_runs_are_going_on(command: Command) -> None:
    file = command.folder / "deep" / "junit.xml"
    file.parent.mkdir()
    file.write_text("green")
    task = f"def task(q): return 'stale' if Path({str(file)!r}).read_text() else f'a{{q}}'"
    text = f"{EVALUATION}\nfrom pathlib import Path\n{task}\n"
    assert command.check("--junit", str(file), *fail_if("exact.mean < 1"), text=text)[0] == 0
    assert ElementTree.parse(file).getroot().get("failures") == "0"


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(command: Command) -> None:
    status, said = command.check("--junit", str(command.folder))
    assert (status, "cannot be written" in said, command.store.exists()) == (3, True, False)


def test_hostile_texts_leave_the_xml_well_formed(command: Command) -> None:
    root = junit(command, "--name", HOSTILE.replace("\ud800", ""))
    kept = re.sub("[\x00\x1b\x0b\ud800\uffff]", "", HOSTILE)
    assert [suite.get("name") for suite in root] == [kept]
    (error,) = junit(command, *fail_if(HOSTILE)).iter("error")
    assert "</td><script>alert(1)</script>" in str(error.get("message"))


# --- Markdown


def test_the_conclusion_comes_first_then_the_requirements_then_the_comparison(command: Command) -> None:
    command.check()
    text = markdown(command, "--baseline", "latest", *fail_if("exact worse"), RIGHT=14)
    assert text.startswith("## check: failed\n")
    places = [text.index(part) for part in ("| --fail-if exact worse | failed |", "worse: exact", "#### Regressions")]
    assert places == sorted(places)
    assert "the dataset has not changed since the baseline" in text


def test_several_evaluations_have_an_overview(command: Command) -> None:
    command.write(name="evals/a.py")
    command.write(name="evals/b.py", RIGHT=10)
    file = command.folder / "gate.md"
    command.run(command.folder / "evals", "--markdown", str(file), *fail_if("exact.mean < 0.8"))
    text = file.read_text()
    assert text.startswith("## Evaluations: failed\n")
    assert "| a | passed |\n| b | failed |" in text
    assert text.index("### a: passed") < text.index("### b: failed")


def test_runs_are_linked_if_the_store_is_a_collector(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.check()
    with connect(command.store) as store:
        (first,) = store.experiments()
        served = property(lambda self: "http://collector:4318/")
        monkeypatch.setattr(type(store), "where", served)
    text = markdown(command, "--baseline", "latest", RIGHT=14)
    assert re.search(r"\[experiment\]\(http://collector:4318/experiments/[0-9a-f]{32}\)", text)
    assert re.search(rf"\[comparison\]\(http://collector:4318/compare\?ids={first.id}&ids=[0-9a-f]{{32}}\)", text)
    assert re.search(r"\[trace\]\(http://collector:4318/traces/[0-9a-f]{32}\)", text)


def test_hostile_texts_are_no_markup(command: Command) -> None:
    text = markdown(command, "--name", HOSTILE.replace("\ud800", ""), *fail_if("exact.mean < 0.5"))
    text += markdown(command, *fail_if(HOSTILE))
    for markup in ("<script", "@admin", "](http", "://evil", "\x1b", "\x00"):
        assert markup not in text
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")} == {4}


def test_hostile_labels_inputs_and_keys_of_an_experiment_are_reported(command: Command) -> None:
    text = (
        EVALUATION
        + f"HOSTILE = {HOSTILE!r}\n"
        + "def judge(outputs): return [{'key': '<b>|`k`', 'score': float(RIGHT > 0)}, {'key': 'l', 'label': HOSTILE.replace(chr(0xd800), '')}]\n"
        + "evaluators = [judge]\ndataset = [{'inputs': {'q': 1, 'x': HOSTILE.replace(chr(0xd800), '')}}] * 8\n"
        + "def task(q, x): return x\n"
    )
    command.check(text=text)
    arguments = ["--baseline", "latest", *fail_if("'<b>|`k`' worse")]
    root = junit(command, *arguments, text=text, RIGHT=0)
    assert "--fail-if '<b>|`k`' worse" in [case.get("name") for case in root.iter("testcase")]
    said = markdown(command, *arguments, text=text, RIGHT=0)
    assert "<script" not in said
    assert "<b>" not in said
    assert "@admin" not in said
