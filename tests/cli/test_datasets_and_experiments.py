"""`spanwise datasets`, `spanwise experiments` and `spanwise eval`, as a user runs them."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spanwise.cli import command_io
from spanwise.cli.app import app
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import datasets, evaluate

EVALUATION = """
dataset = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"} for n in range(4)]
evaluators = ["exact", lambda outputs: len(outputs)]
def task(q):
    return "no" if q == "Q3" else f"a {q.lower()}"
"""


@pytest.fixture
def spanwise(tmp_path):
    """Run a command on a database of this test; its output."""

    def run(*arguments, status=0):
        result = CliRunner().invoke(
            app, [*map(str, arguments), "--store", str(tmp_path / "a.db")], catch_exceptions=False
        )
        assert result.exit_code == status, result.output
        return result.stdout

    return run


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("question,gold\nWhere?,Here\nWhen?,Now\n")
    return path


def lines(output):
    return [json.loads(line) for line in output.splitlines()]


def test_a_file_goes_in_and_out(spanwise, questions, tmp_path):
    assert (
        spanwise("datasets", "import", "q", questions, "--column", "gold=reference_outputs")
        == "q version 1: 2 examples\n"
    )
    assert [row["reference_outputs"] for row in lines(spanwise("datasets", "show", "q", "--json"))] == ["Here", "Now"]
    spanwise("datasets", "export", "q", tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    assert "q    │ 1       │ kv   │ 2" in spanwise("datasets", "list")
    assert "Where?" in spanwise("datasets", "show", "q")


def test_what_writes_a_dataset_speaks_json_too(spanwise, questions, tmp_path):
    (saved,) = lines(spanwise("datasets", "import", "q", questions, "--json"))
    assert (saved["name"], saved["version"], saved["example_count"]) == ("q", 1, 2)
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([Run(trace_id="1" * 32, span_id="2" * 16, name="answer", inputs={"q": "Q"}, end_ns=1)])
    (saved,) = lines(spanwise("datasets", "from-traces", "hard", "--json"))
    assert (saved["name"], saved["example_count"]) == ("hard", 1)


def test_scores_added_later_speak_json_too(spanwise, tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION)
    spanwise("eval", tmp_path / "check.py")
    rows = lines(spanwise("experiments", "score", "check", "--evaluator", "contains", "--json"))
    assert [row["contains"] for row in rows] == [True, True, True, False]


def test_ids_stay_whole_in_narrow_terminals(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=70, color_system=None)
    monkeypatch.setattr(command_io, "console", screen)
    command_io.print_table(("trace", "name", "inputs", "id"), [("ab" * 16, "long " * 9, "longer " * 9, "cd" * 16)])
    assert "│ abababab │" in screen.file.getvalue()
    assert "cd" * 16 in screen.file.getvalue()


def test_versions_differ(spanwise, questions):
    spanwise("datasets", "import", "q", questions)
    questions.write_text("question,gold\nWhere?,Here\nWhy?,Because\n")
    spanwise("datasets", "import", "q", questions, "--replace")
    changes = lines(spanwise("datasets", "diff", "q", 1, "--json"))
    assert [change["change"] for change in changes] == ["added", "removed"]
    assert [one["version"] for one in lines(spanwise("datasets", "versions", "q", "--json"))] == [2, 1]


def test_a_dataset_is_removed(spanwise, questions):
    spanwise("datasets", "import", "q", questions)
    spanwise("datasets", "delete", "q", "--yes")
    with pytest.raises(NotFound):
        spanwise("datasets", "show", "q")


def test_a_schema_is_inferred_and_held(spanwise, questions, tmp_path):
    spanwise("datasets", "import", "q", questions, "--schema", "infer")
    (tmp_path / "bad.jsonl").write_text('{"inputs": {"question": 5}}\n')
    with pytest.raises(ValueError, match=r"inputs"):
        spanwise("datasets", "import", "q", tmp_path / "bad.jsonl")


def test_what_a_user_mistypes_is_said(spanwise, questions):
    with pytest.raises(Refused, match="--column 'gold' must be OLD=NEW"):
        spanwise("datasets", "import", "q", questions, "--column", "gold")
    with pytest.raises(Refused, match="--kind 'talk'; expected one of: kv, llm, chat"):
        spanwise("datasets", "import", "q", questions, "--kind", "talk")


def test_traces_become_a_dataset(spanwise, tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append(
            [Run(trace_id="1" * 32, span_id="2" * 16, name="answer", inputs={"q": "Q"}, outputs="A", end_ns=1)]
        )
    spanwise("datasets", "from-traces", "hard", "--name", "answer", "--outputs-are-references")
    assert lines(spanwise("datasets", "show", "hard", "--json"))[0]["reference_outputs"] == "A"


def test_traces_are_picked_by_the_beginning_of_their_ids_and_corrected(spanwise, tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        for n in "123":
            store.append([Run(trace_id=n * 32, span_id=n * 16, name="answer", inputs={"q": n}, outputs="A", end_ns=1)])
    picked = ("--correction", "1111=B", "--correction", '2222={"a": 1}', "--trace", "3" * 32)
    spanwise("datasets", "from-traces", "hard", *picked)
    found = {
        row["inputs"]["q"]: row.get("reference_outputs")
        for row in lines(spanwise("datasets", "show", "hard", "--json"))
    }
    assert found == {"1": "B", "2": {"a": 1}, "3": None}
    with pytest.raises(Refused, match="there is no trace '4444'"):
        spanwise("datasets", "from-traces", "hard", "--trace", "4444")


def test_filters_hold_beside_corrections(spanwise, tmp_path):
    runs = [
        Run(trace_id=str(n) * 32, span_id=str(n) * 16, name="ab"[n % 2], start_ns=n, end_ns=n + 1, inputs={"q": n})
        for n in range(1, 6)
    ]
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append(runs)
    spanwise("datasets", "from-traces", "hard", "--name", "a", "--correction", "1111=B", "--correction", "4444=A")
    found = {
        row["inputs"]["q"]: row.get("reference_outputs")
        for row in lines(spanwise("datasets", "show", "hard", "--json"))
    }
    assert found == {1: "B", 2: None, 4: "A"}


def test_a_summary_exported_as_html_says_its_encoding(spanwise, tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION)
    spanwise("eval", tmp_path / "check.py")
    spanwise("experiments", "export", "check", tmp_path / "runs.html")
    written = (tmp_path / "runs.html").read_text("utf-8")
    assert '<meta charset="utf-8">' in written
    assert "<title>check</title>" in written


def test_an_evaluation_in_a_file(spanwise, tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION)
    assert "│ exact ↑  │ 4 │ 0.75 │" in spanwise("eval", tmp_path / "check.py")
    assert "check" in spanwise("experiments", "list")
    assert "│ exact ↑  │ 4 │ 0.75 │" in spanwise("experiments", "show", "check", "--rows", 2)
    assert [row["exact"] for row in lines(spanwise("experiments", "show", "check", "--json"))] == [1.0, 1.0, 1.0, 0.0]
    of_key = lines(spanwise("experiments", "show", "check", "--summary", "--json"))[0]
    assert (of_key["key"], of_key["mean"], of_key["low"], of_key["high"]) == (
        "exact",
        0.75,
        pytest.approx(0.3006, abs=1e-4),
        pytest.approx(0.9544, abs=1e-4),
    )


def test_an_evaluation_fails_under_its_bound(spanwise, tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION)
    spanwise("eval", tmp_path / "check.py", "--fail-under", "exact=0.5")
    spanwise("eval", tmp_path / "check.py", "--fail-under", "exact=0.8", status=1)
    spanwise("eval", tmp_path / "check.py", "--fail-under", "unknown=0", status=1)


def test_an_evaluation_in_which_every_run_failed_fails(spanwise, tmp_path):
    (tmp_path / "bad.py").write_text("dataset = [{'inputs': 1}]\nevaluators = []\ndef task(inputs): raise KeyError(1)")
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "bad.py"), "--store", str(tmp_path / "a.db")])
    assert (result.exit_code, "all 1 runs failed" in result.output) == (1, True)


def test_a_file_without_a_dataset_is_told_what_it_needs(spanwise, tmp_path):
    (tmp_path / "empty.py").write_text("evaluators = []\n")
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "empty.py")])
    assert (result.exit_code, "does not define 'dataset'" in result.output) == (3, True)


@pytest.mark.process
def test_experiments_are_compared_scored_exported_and_removed(spanwise, tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION)
    spanwise("eval", tmp_path / "check.py", "--name", "first")
    (tmp_path / "check.py").write_text(EVALUATION.replace("Q3", "none"))
    spanwise("eval", tmp_path / "check.py", "--name", "second")
    shown = spanwise("experiments", "compare", "first", "second", "--changes", 5)
    assert "inconclusive" in shown
    assert "+0.25 over 4 pairs" in shown
    assert "document_recall" in spanwise("experiments", "score", "first", "--evaluator", "document_recall")
    spanwise("experiments", "export", "first", tmp_path / "runs.csv")
    runs = datasets.read(tmp_path / "runs.csv")
    assert len(runs) == 4
    assert runs[0].inputs == {"q": "Q0"}
    spanwise("experiments", "delete", "first", "--yes")
    assert "first" not in spanwise("experiments", "list")


def test_one_that_died_is_listed_as_such_with_the_runs_that_are_there(spanwise, tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        made = evaluate([{"q": n} for n in range(3)], lambda q: 1 // q, store=store, name="x", progress=False).record
        store.save_experiment(replace(made, status="running", seen_ns=1, metadata={}))
    listed = " ".join(spanwise("experiments", "list").split())
    assert "no heartbeat since" in listed
    assert "│ 3 │ 1 │" in listed


def test_runs_that_a_store_did_not_take_are_delivered_later(spanwise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SQLiteStore(tmp_path / "a.db") as store:
        left = evaluate([{"q": 1}], lambda q: q, ["exact"], store=Unwilling(store), name="x", progress=False).unstored
    assert "stored 1 spans" in spanwise("experiments", "deliver", left.path)
    assert [row["outputs"] for row in lines(spanwise("experiments", "show", "x", "--json"))] == [1]
    assert not left.path.exists()


class Unwilling:
    """A store that takes no runs."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    def append(self, runs, feedback=()):
        raise Refused("no")


def test_errors_come_with_tracebacks(spanwise, tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION.replace('"no" if', "1 / 0 if"))
    spanwise("eval", tmp_path / "check.py", status=1)
    output = spanwise("experiments", "errors", "check")
    assert "ZeroDivisionError: division by zero" in output
    assert output.endswith("1 errors\n")


def test_an_evaluation_that_cannot_be_read_shows_its_own_lines(tmp_path):
    (tmp_path / "broken.py").write_text("def made():\n    import no_such_module\n\nmade()\n")
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "broken.py")], catch_exceptions=False)
    said = result.stderr.splitlines()
    assert result.exit_code == 3
    assert said[0] == "Traceback (most recent call last):"
    assert 'broken.py", line 4' in said[1]
    assert any(line == "ModuleNotFoundError: No module named 'no_such_module'" for line in said)


def test_a_file_that_is_no_python_shows_where(tmp_path):
    (tmp_path / "broken.py").write_text("dataset = [\n")
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "broken.py")], catch_exceptions=False)
    assert "SyntaxError: '[' was never closed" in result.stderr
    assert "importlib" not in result.stderr


def test_functions_of_a_file_score_an_experiment_and_again_with_other_parameters(spanwise, tmp_path):
    (tmp_path / "check.py").write_text(EVALUATION)
    (tmp_path / "mine.py").write_text("def brief(outputs, longest=2):\n    return len(outputs) <= longest\n")
    spanwise("eval", tmp_path / "check.py")
    score = ("experiments", "score", "check", "--evaluator", f"{tmp_path / 'mine.py'}:brief", "--json")
    assert [row["brief"] for row in lines(spanwise(*score))] == [False, False, False, True]
    assert [row["brief"] for row in lines(spanwise(*score, "--set", "longest=9"))] == [True, True, True, True]


def test_parameters_belong_to_one_evaluator(spanwise):
    with pytest.raises(Refused, match="--set applies to a single --evaluator, got 2"):
        spanwise("experiments", "score", "x", "--evaluator", "exact", "--evaluator", "regex", "--set", "pattern=a")


def test_an_imported_correction_changes_its_example(spanwise, questions):
    for gold in ("Here", "There"):
        questions.write_text(f"question,gold\nWhere?,{gold}\n")
        spanwise("datasets", "import", "q", questions, "--column", "gold=reference_outputs")
    (change,) = lines(spanwise("datasets", "diff", "q", 1, "--json"))
    assert (change["change"], change["what"]) == ("changed", "reference_outputs")


def test_encoding_split_and_doubles_of_an_imported_file(spanwise, tmp_path, capsys):
    (tmp_path / "q.csv").write_text("question,split\nWo wär's?,a\nwo wär's?,a\nWo?,b\nWer?,c\n", "cp1252")
    how = ("--encoding", "cp1252", "--split", "a", "--split", "b", "--deduplicate")
    spanwise("datasets", "import", "q", tmp_path / "q.csv", *how)
    assert [row["inputs"]["question"] for row in lines(spanwise("datasets", "show", "q", "--json"))] == [
        "Wo wär's?",
        "Wo?",
    ]


def test_perturbed_examples_go_into_another_dataset_or_a_new_version(spanwise, questions):
    spanwise("datasets", "import", "q", questions)
    options = ("--kind", "casing", "--kind", "contractions", "--seed", "1")
    table = spanwise("datasets", "perturb", "q", *options, "--to", "q2")
    assert "casing       │ 2         │ 0            │ 0" in table
    assert "contractions │ 0         │ 2            │ 0" in table
    assert table.endswith("q2 version 1: 4 examples\n")
    assert [row.get("categories") for row in lines(spanwise("datasets", "show", "q2", "--json"))][2:] == [
        ["casing"]
    ] * 2
    (saved,) = lines(spanwise("datasets", "perturb", "q", *options, "--share", "0", "--json"))
    assert (saved["version"], saved["perturbed"]) == (1, {"casing": 0, "contractions": 0})
    spanwise("datasets", "perturb", "q", *options)
    (saved,) = lines(spanwise("datasets", "perturb", "q", *options, "--json"))
    assert (saved["version"], saved["example_count"], saved["existing"]["casing"]) == (2, 4, 2)


def test_perturb_names_what_it_does_not_know(spanwise, questions):
    spanwise("datasets", "import", "q", questions)
    with pytest.raises(Refused, match="unknown kind of perturbation 'typo'; expected one of: typos, casing"):
        spanwise("datasets", "perturb", "q", "--kind", "typo")
    with pytest.raises(Refused, match="no example has a text in the field 'answer'"):
        spanwise("datasets", "perturb", "q", "--kind", "typos", "--field", "answer")
