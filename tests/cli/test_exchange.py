"""`spanwise db export` and `spanwise db import`, as people run them: from a file, through a server, from pipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.making import run
from spanwise.cli.app import app
from spanwise.collector.records import Feedback, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

TRACE = "a" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([run(trace_id=TRACE), run("other")])
        store.add_feedback([Feedback(target=Target(trace_id=TRACE), key="k", score=1.0)])
    return tmp_path / "a.db"


def spanwise(*words: object, input: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in ("db", *words)], input=input)


@pytest.mark.parametrize("format", ["otlp", "jsonl"])
def test_a_file_goes_through_another_into_a_third(path: Path, tmp_path: Path, format: str) -> None:
    out = spanwise("export", tmp_path / "out.jsonl", "--format", format, "--store", path)
    assert (out.exit_code, "wrote 2 × run, 1 × feedback" in out.stderr) == (0, True)
    back = spanwise("import", tmp_path / "out.jsonl", "--store", tmp_path / "b.db", "--json")
    assert json.loads(back.stdout) == {"kept": {"run": 2, "feedback": 1}, "left_out": {}, "bad": 0, "reasons": []}
    with SQLiteStore(path) as one, SQLiteStore(tmp_path / "b.db") as other:
        assert one.trace(TRACE) == other.trace(TRACE)


def test_through_servers_and_pipes(path: Path, tmp_path: Path) -> None:
    with SQLiteStore(path) as store, Server(store) as server:
        piped = spanwise("export", "-", "--store", server.url, "--where", "name=other")
    assert len(piped.stdout_bytes.splitlines()) == 1
    with SQLiteStore(tmp_path / "b.db") as store, Server(store) as server:
        assert spanwise("import", "-", "--store", server.url, input=piped.stdout_bytes).exit_code == 0
        assert [trace.name for trace in store.traces()] == ["other"]


def test_what_cannot_be_kept_is_told_and_the_exit_status_says_so(tmp_path: Path) -> None:
    told = spanwise("import", "-", "--store", tmp_path / "b.db", input=b"nonsense \x1b[31m\n")
    assert (told.exit_code, "bad: 1" in told.stderr, "line 1: " in told.stderr) == (1, True, True)
    assert "\x1b" not in told.output


@pytest.mark.process
def test_a_format_that_there_is_not_is_refused(path: Path, tmp_path: Path) -> None:
    refused = spanwise("export", tmp_path / "x", "--format", "xml", "--store", path)
    assert "unknown format 'xml'; expected one of: " in str(refused.exception)
    assert list(tmp_path.glob("x*")) == []
