"""Judges in commands: out of a user's file, with parameters, over traces, sessions and experiments."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from spanwise.cli.app import app
from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore

FILE = """
from spanwise.evaluators import evaluator, get_evaluator, judge
from spanwise.evaluators.judges import Judge, scripted

def yes(prompt: str) -> str:
    return '{"rationale": "It says please.", "rating": "yes"}'

def no(messages):
    return '{"rationale": "No.", "rating": "no"}'

polite = judge("polite", "Is this answer polite?\\n{outputs}", judge=yes)
relevant = get_evaluator("relevance_to_query", judge=no, key="relevant")
frustrated = get_evaluator("user_frustrated", judge=scripted(lambda ask: no(None)))
unnamed = judge("unnamed", "Is this answer polite?\\n{outputs}")

@evaluator
def longer(outputs, than=3):
    return len(outputs) > than

dataset = [{"inputs": {"q": n}, "outputs": "42 cats, please"} for n in range(2)]
evaluators = [polite]
"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def at(tmp_path, monkeypatch):
    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    (tmp_path / "mine.py").write_text(FILE)
    given = {"start_ns": 1, "end_ns": 2, "session_id": "s", "inputs": {"q": "Why?"}, "outputs": "42 cats"}
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([Run(trace_id=TRACE, span_id="a" * 16, name="answer", **given)])
    return tmp_path


@pytest.fixture
def spanwise(at):
    def run(*arguments, status=0):
        named = [argument.replace("mine.py", str(at / "mine.py")) for argument in arguments]
        result = CliRunner().invoke(app, [*named, "--store", str(at / "a.db"), "--json"])
        assert result.exit_code == status, (result.output, result.stderr, result.exception)
        return result

    return run


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(("name", "score"), [("polite", True), ("relevant", False), ("longer", True)])
def test_evaluators_of_a_file_score_a_trace(spanwise, name, score):
    [feedback] = lines(spanwise("evaluators", "score", f"mine.py:{name}", TRACE[:8]))
    assert (feedback["key"], feedback["score"], feedback["judge_trace_id"]) == (name, score, None)


def test_where_text_goes_is_said_once_and_aside(spanwise):
    result = spanwise("evaluators", "score", "mine.py:polite", TRACE)
    assert result.stderr.count("text goes to the function mine.yes in this process") == 1
    assert "text goes" not in result.stdout
    assert "text goes" not in spanwise("evaluators", "score", "mine.py:longer", TRACE).stderr


def test_parameters_change_what_the_file_says(spanwise):
    [feedback] = lines(spanwise("evaluators", "score", "mine.py:polite", TRACE, "--set", 'scale=["no", "yes"]'))
    assert feedback["score"] is False
    [other] = lines(spanwise("evaluators", "score", "mine.py:polite", TRACE))
    assert other["version"] != feedback["version"]


def test_a_parameter_that_it_has_not_is_refused_by_name(spanwise):
    result = spanwise("evaluators", "score", "mine.py:polite", TRACE, "--set", "scales=[1]", status=1)
    assert "has no parameter 'scales'" in str(result.exception)


def test_what_is_saved_leads_to_the_judges_trace(spanwise, at):
    [feedback] = lines(spanwise("evaluators", "score", "mine.py:polite", TRACE, "--save"))
    with SQLiteStore(at / "a.db") as store:
        root = store.trace(feedback["judge_trace_id"]).root
        assert root.metadata["judged_trace"] == TRACE
        assert store.trace(TRACE).feedback[0].judge_trace_id == root.trace_id
        assert len(store.traces()) == 1


def test_a_session_is_scored_as_a_whole(spanwise, at):
    [feedback] = lines(spanwise("evaluators", "score", "mine.py:frustrated", "--session", "s", "--save"))
    assert (feedback["score"], feedback["target"]["session_id"]) == (False, "s")
    with SQLiteStore(at / "a.db") as store:
        assert store.trace(feedback["judge_trace_id"]).root.metadata["judged_session"] == "s"


@pytest.mark.parametrize("named", [(), (TRACE, "--session", "s")])
def test_a_trace_or_a_session_is_named_and_not_both(spanwise, named):
    assert "name either a trace or" in str(
        spanwise("evaluators", "score", "mine.py:polite", *named, status=1).exception
    )


def test_eval_and_experiments_score_take_them_too(spanwise, at):
    result = spanwise("eval", "mine.py", "--name", "e")
    assert "text goes to the function mine.yes in this process" in result.stderr
    scored = spanwise("experiments", "score", "e", "--evaluator", "mine.py:relevant", "--set", "max_characters=2000")
    assert scored.stderr.count("text goes to the function mine.no in this process") == 1
    assert [row["relevant"] for row in lines(scored)] == [False, False]
    with SQLiteStore(at / "a.db") as store:
        assert store.experiment("e").metadata["totals"]["judge_calls"] == 4
        assert len(store.traces(kind="evaluator")) == 4


def test_a_judge_that_nobody_named_is_refused_before_anything_runs(spanwise, at):
    (at / "mine.py").write_text(FILE + "evaluators = [polite, unnamed]\n")
    assert "no judge is configured" in spanwise("eval", "mine.py", status=3).stderr
    [feedback] = lines(spanwise("evaluators", "score", "mine.py:unnamed", TRACE))
    assert (feedback["outcome"], feedback["error"].startswith("no judge is configured")) == ("error", True)


def test_a_dry_run_asks_nobody_and_stores_nothing(spanwise, at):
    told = FILE.replace("def yes(prompt: str) -> str:\n", "def yes(prompt: str) -> str:\n    raise SystemExit(9)\n")
    rows = 'dataset = [{"inputs": n, "reference_outputs": "42 cats"} for n in range(3)]'
    (at / "mine.py").write_text(f"{told}\n{rows}\nevaluators = [polite, 'exact']\ntask = lambda inputs: 1 / 0\n")
    [estimate] = lines(spanwise("eval", "mine.py", "--dry-run", "--repetitions", "2"))
    assert (estimate["cases"], estimate["by_evaluator"]["polite"]["calls"]) == (3, 6)
    with SQLiteStore(at / "a.db") as store:
        assert (store.experiments(), store.datasets(), store.count()["traces"]) == ([], [], 1)


def test_a_judges_own_trace_is_shown_when_it_is_named(spanwise):
    [feedback] = lines(spanwise("evaluators", "score", "mine.py:polite", TRACE, "--save"))
    own = feedback["judge_trace_id"]
    [shown] = lines(spanwise("traces", "show", own[:10]))
    assert (shown["root"]["trace_id"], shown["root"]["kind"]) == (own, "evaluator")
    assert [row["trace_id"] for row in lines(spanwise("traces", "list"))] == [TRACE]
    assert [row["trace_id"] for row in lines(spanwise("traces", "list", "--where", "kind=evaluator"))] == [own]


def test_the_debugger_hides_no_judge_that_nobody_named(spanwise, at):
    (at / "mine.py").write_text(FILE + "evaluators = [unnamed]\n")
    assert "no judge is configured" in spanwise("eval", "mine.py", "--pdb", status=3).stderr
