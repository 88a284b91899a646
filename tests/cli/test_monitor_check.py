"""`assay monitor check`: what rules would do, on the command line."""

from __future__ import annotations

import json
import secrets
import time

import pytest
from typer.testing import CliRunner

from assay.cli._app import app
from assay.collector.records import Run
from assay.collector.stores.sqlite import SQLiteStore

RULES = """
from assay.evaluators import evaluator, monitor
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


def assay(*words):
    return CliRunner().invoke(app, ["monitor", *words])


def test_each_rule_of_the_file_says_what_it_would_take(place):
    said = assay("check", "rules.py", "--store", place).stdout
    assert "of 4 traces in 1d, 4 match and 4 are taken" in said
    assert said.index("brief (default") < said.index("half (default")


def test_one_rule_is_tried(place):
    said = assay("check", "rules.py", "--rule", "brief", "--try", "2", "--store", place).stdout
    assert said.count("short") == 2
    assert "half" not in said


def test_for_pipes(place):
    said = assay("check", "rules.py", "--json", "--try", "1", "--store", place).stdout
    first = json.loads(said.splitlines()[0])
    assert (first["rule"], first["matched"], first["tried"][0]["feedback"][0]["score"]) == ("brief", 4, True)


def test_an_unknown_rule_or_file_is_one_line(place):
    assert "holds no rule 'brif'" in str(assay("check", "rules.py", "--rule", "brif", "--store", place).exception)
    assert "there is no file 'nix.py'" in str(assay("check", "nix.py", "--store", place).exception)


def test_a_difference_needs_a_shadow(place):
    assert "no rule 'x'" in str(assay("diff", "x", "--store", place).exception)
