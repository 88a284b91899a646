"""`spanwise monitor check`: what rules would do, on the command line."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spanwise.cli.app import app
from spanwise.collector.records import Document, Run
from spanwise.collector.stores.sqlite import SQLiteStore

RULES = """
from spanwise.evaluators import evaluator, monitor
@evaluator
def short(outputs) -> bool:
    return len(outputs) < 5
monitor("brief", evaluators=[short], filter="name=answer")
monitor("half", evaluators=[short], sample_rate=0.5)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(RULES)
    with SQLiteStore(tmp_path / "a.db") as store:
        ids = ({"trace_id": secrets.token_hex(16), "span_id": secrets.token_hex(8)} for _ in range(4))
        store.append(
            [Run(name="answer", start_ns=time.time_ns(), end_ns=time.time_ns(), outputs="abc", **id) for id in ids]
        )
    return "a.db"


def spanwise(*words):
    return CliRunner().invoke(app, ["monitor", *words])


def test_each_rule_of_the_file_says_what_it_would_take(place):
    said = spanwise("check", "rules.py", "--store", place).stdout
    assert "of 4 traces in 1d, 4 match and 4 are sampled" in said
    assert said.index("brief (default") < said.index("half (default")


def test_one_rule_is_tried(place):
    said = spanwise("check", "rules.py", "--rule", "brief", "--try", "2", "--store", place).stdout
    assert said.count("short") == 2
    assert "half" not in said


def test_for_pipes(place):
    said = spanwise("check", "rules.py", "--json", "--try", "1", "--store", place).stdout
    first = json.loads(said.splitlines()[0])
    assert (first["rule"], first["matched"], first["tried"][0]["feedback"][0]["score"]) == ("brief", 4, True)


def test_an_unknown_rule_or_file_is_one_line(place):
    assert "defines no rule 'brif'" in str(spanwise("check", "rules.py", "--rule", "brif", "--store", place).exception)
    assert "there is no file 'nix.py'" in str(spanwise("check", "nix.py", "--store", place).exception)


def test_documents_are_told_by_span_and_number(place):
    rule = 'monitor("each", evaluators=[short], target="document", filter="name=search")'
    Path("each.py").write_text(RULES.split("monitor(")[0] + rule)
    with SQLiteStore(place) as store:
        documents = (Document("a"), Document("b"))
        store.append(
            [Run(trace_id="a" * 32, span_id="b" * 16, name="search", start_ns=time.time_ns(), documents=documents)]
        )
    said = spanwise("check", "each.py", "--try", "9", "--store", place).stdout
    assert "they contain about 2 documents to score" in said
    assert [line.split()[3:7:2] for line in said.splitlines() if "b" * 16 in line] == [["b" * 16, "1"], ["b" * 16, "2"]]


def test_a_difference_needs_a_shadow(place):
    assert "no rule 'x'" in str(spanwise("diff", "x", "--store", place).exception)


def test_a_misspelt_command_is_no_file(place):
    said = spanwise("chek", "rules.py")
    assert said.exit_code == 2
    assert "No such command 'chek'" in said.output


def test_a_missing_file_is_told_before_a_missing_server(place):
    assert "there is no rules file 'nix.py'" in str(spanwise("nix.py").exception)
