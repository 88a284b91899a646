"""`spanwise judges` as a person uses it: keys through a pipe, votes in the store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collector.making import run
from spanwise.cli.app import app
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.terminal_escaping import escape_text
from spanwise.evaluators import corrected_mean

FILE = """
from spanwise.evaluators import judge
from spanwise.evaluators.judges import scripted

says = scripted(lambda ask: {"rationale": "r", "rating": "yes"})
polite = judge("polite", "Is this answer polite?\\n{outputs}", judge=says)
tone = judge("tone", "How formal?\\n{outputs}", scale=range(1, 6), judge=says)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Twenty traces, of which a judge says yes of fifteen."""
    path = tmp_path / "a.db"
    with SQLiteStore(path) as store:
        store.append(
            [run(trace_id=f"{n + 1:032x}", inputs={"q": f"question {n}"}, outputs=f"answer {n}") for n in range(20)]
        )
        store.add_feedback([said(n, n < 15) for n in range(20)])
    (tmp_path / "mine.py").write_text(FILE)
    return path


def said(n: int, score: Any, key: str = "polite", version: str = "1") -> Feedback:
    target = Target(trace_id=f"{n + 1:032x}")
    return Feedback(
        target=target, key=key, score=score, source="model", evaluator=key, version=version, comment="SECRET"
    )


Spanwise = Callable[..., str]


@pytest.fixture
def spanwise(database: Path) -> Spanwise:
    def invoke(*arguments: str, keys: str = "", status: int = 0) -> str:
        words = ["judges", *arguments, "--store", str(database)]
        if arguments[0] == "label":
            words += [] if "--author" in arguments else ["--author", "ann"]
        result = CliRunner().invoke(app, words, input=keys)
        assert result.exit_code == status, result.output
        return result.output

    return invoke


def votes(database: Path, key: str = "polite") -> list[Feedback]:
    with SQLiteStore(database) as store:
        return list(store.feedbacks(key=key, source="human"))


def test_one_key_is_one_vote_with_the_probability_of_its_case(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "4", keys="yyny")
    kept = votes(database)
    assert sorted(vote.score for vote in kept if vote.score is not None) == [False, True, True, True]
    assert {(vote.source, vote.author, vote.metadata["drawn"]["probability"]) for vote in kept} == {
        ("human", "ann", 0.2)
    }


def test_the_verdict_of_the_judge_is_not_shown(spanwise: Spanwise) -> None:
    shown = spanwise("label", "polite", "-n", "20", keys="y" * 20)
    assert "question 3" in shown
    assert "SECRET" not in shown


def test_what_has_a_vote_is_not_drawn_again_and_the_probability_grows(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "4", keys="yyyy")
    first = {vote.target for vote in votes(database)}
    assert "case 1 of 6" in spanwise("label", "polite", "-n", "10", keys="n" * 6)
    assert len(votes(database)) == 10
    assert {vote.target for vote in votes(database) if vote.score} == first
    assert {vote.metadata["drawn"]["probability"] for vote in votes(database)} == {0.5}


def test_quitting_keeps_what_was_voted_and_says_how_likely_that_was(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "10", keys="ysn" + "q")
    assert {vote.metadata["drawn"]["probability"] for vote in votes(database)} == {0.1}
    assert "8 of 8" not in spanwise("label", "polite", "-n", "10", keys="")  # the end of the input quits
    assert len(votes(database)) == 2


def test_back_votes_again(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "2", keys="ybny")
    assert sorted(bool(vote.score) for vote in votes(database)) == [False, True]


def test_keys_that_mean_nothing_are_asked_again(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "1", keys="x7\n \ny")
    assert [vote.score for vote in votes(database)] == [True]


def test_votes_of_a_part_stay_as_likely_as_they_were_when_the_whole_is_drawn(
    database: Path, spanwise: Spanwise
) -> None:
    with SQLiteStore(database) as store:
        store.append([run(trace_id=f"{n + 1:032x}", name="rare") for n in range(100, 110)])
        store.add_feedback([said(n, True) for n in range(100, 110)])
    spanwise("label", "polite", "-n", "8", "--where", "name=rare", keys="y" * 8)
    spanwise("label", "polite", "-n", "15", keys="n" * 15)
    drawn = {vote.target.trace_id: vote.metadata["drawn"]["probability"] for vote in votes(database)}
    assert [p for id, p in drawn.items() if int(id or "", 16) >= 100] == [0.8] * 8
    assert {p for id, p in drawn.items() if int(id or "", 16) < 100} == {0.5}  # 15 of 30


def test_what_was_scored_twice_is_one_case_with_its_newest_verdict(database: Path, spanwise: Spanwise) -> None:
    with SQLiteStore(database) as store:
        store.add_feedback([replace(said(n, False), rule="nightly", id=f"again {n}") for n in range(10)])
    assert "from 20 cases" in spanwise("label", "polite", "-n", "2", keys="yy")
    assert {vote.metadata["drawn"]["probability"] for vote in votes(database)} == {0.1}


def test_a_judge_is_named_by_its_definition_too(database: Path, spanwise: Spanwise) -> None:
    made = {"type": "judge", "init_parameters": {"key": "polite", "prompt": "Polite?\n{outputs}"}}
    (database.parent / "polite.json").write_text(json.dumps(made))
    spanwise("label", str(database.parent / "polite.json"), "-n", "2", keys="yy")
    assert len(votes(database)) == 2


def test_it_is_said_to_whom_text_goes(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "2", keys="yy")
    assert "text goes to" in spanwise("calibrate", f"{database.parent / 'mine.py'}:polite", "--missing")


def test_what_a_judge_says_steers_no_terminal(database: Path, spanwise: Spanwise) -> None:
    with SQLiteStore(database) as store:
        store.add_feedback([replace(said(n, True), comment="\x1b]0;title\x07evil", id=f"{n}") for n in range(20)])
    spanwise("label", "polite", "-n", "2", keys="nn")
    shown = spanwise("calibrate", "polite", "--differing", "2")
    assert "evil" in shown
    assert "\x1b" not in shown


def test_two_people_vote_on_the_same_sample(database: Path, spanwise: Spanwise) -> None:
    for name in ("ann", "bob"):
        spanwise("label", "polite", "-n", "5", "--author", name, keys="yyyyy")
    by_name = {name: {vote.target for vote in votes(database) if vote.author == name} for name in ("ann", "bob")}
    assert by_name["ann"] == by_name["bob"]


def test_another_seed_draws_others(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "5", keys="yyyyy")
    spanwise("label", "polite", "-n", "5", "--seed", "1", "--author", "bob", keys="yyyyy")
    assert len({vote.target for vote in votes(database)}) > 5


def test_balanced_by_the_verdict_each_vote_has_the_probability_of_its_kind(database: Path, spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "6", "--balance", keys="y" * 6)
    drawn = [vote.metadata["drawn"] for vote in votes(database)]
    assert sorted((it["among"], it["probability"]) for it in drawn) == [("0.0", 0.6)] * 3 + [("1.0", 0.2)] * 3
    with SQLiteStore(database) as store:
        assert corrected_mean("polite", store=store).votes == 6


def test_a_judge_of_a_file_has_its_own_scale(database: Path, spanwise: Spanwise, tmp_path: Path) -> None:
    shown = spanwise("label", f"{tmp_path / 'mine.py'}:tone", "-n", "3", keys="519")
    assert "1 · 2 · 3 · 4 · 5 · s skip" in shown
    assert sorted(float(vote.score or 0) for vote in votes(database, "tone")) == [1.0, 5.0]


def test_what_would_steer_a_terminal_is_shown_as_text(database: Path, spanwise: Spanwise) -> None:
    with SQLiteStore(database) as store:
        store.append([run(trace_id="f" * 32, inputs="a\x1b[2Jb\u202ec [bold]d", outputs="x")])
        store.add_feedback([Feedback(target=Target(trace_id="f" * 32), key="loud", score=True, source="model")])
    shown = spanwise("label", "loud", "-n", "1", keys="y")
    assert r"a\x1b[2Jb\u202ec [bold]d" in shown


def test_harmless_keeps_what_people_write() -> None:
    assert escape_text("Grüße, 東京 🙂\n\tno\u00a0break") == "Grüße, 東京 🙂\n\tno\u00a0break"
    assert escape_text("\x07\x9b\r\u2066") == r"\x07\x9b\r\u2066"


def test_votes_are_rows_of_json_for_pipes(spanwise: Spanwise, database: Path) -> None:
    words = ["judges", "label", "polite", "-n", "2", "--author", "ann", "--json", "--store", str(database)]
    rows = CliRunner().invoke(app, words, input="yn").stdout
    assert sorted(json.loads(row)["score"] for row in rows.splitlines()) == [False, True]


@pytest.mark.process
def test_a_run_that_is_killed_has_lost_no_vote(database: Path) -> None:
    words = ["judges", "label", "polite", "-n", "9", "--author", "ann", "--store", str(database)]
    program = f"import sys; sys.argv[1:] = {words!r}; from spanwise.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"yy")
        process.stdin.flush()
        while b"case 3 of 9" not in (line := process.stdout.readline()):
            assert line
        process.kill()
    assert len(votes(database)) == 2


def test_sessions_are_voted_on_as_a_whole(database: Path, spanwise: Spanwise) -> None:
    with SQLiteStore(database) as store:
        store.append(
            [run(trace_id=f"{n + 1:032x}", session_id="talk", inputs=f"turn {n}", outputs="ok") for n in (100, 101)]
        )
    shown = spanwise("label", "resolved", "--sessions", "-n", "1", keys="y")
    assert "turn 100" in shown
    assert [vote.target.session_id for vote in votes(database, "resolved")] == ["talk"]


def test_there_is_nothing_to_draw_from(database: Path) -> None:
    words = ["judges", "label", "x", "--where", "name=none", "--author", "ann", "--store", str(database)]
    assert "nothing to label for 'x'" in str(CliRunner().invoke(app, words).exception)


def test_calibrate_says_agreement_and_the_corrected_mean(spanwise: Spanwise) -> None:
    spanwise("label", "polite", "-n", "20", keys="y" * 20)
    shown = spanwise("calibrate", "polite", "--differing", "2")
    assert "agrees with people 75 % (κ 0.00, 20 labels)" in shown
    assert "estimated mean of human labels 0.9" in shown
    assert "SECRET" in shown
    found = json.loads(spanwise("calibrate", "polite", "--json").splitlines()[-1])
    assert (found["agreement"]["n"], found["corrected"]["votes"]) == (20, 20)
