"""What is told while a model loads or reads many texts."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from spanwise.evaluators.interface import progress_display
from spanwise.evaluators.interface.progress_display import redirect_status, show_status, track_progress


def test_who_draws_already_is_told_and_told_when_it_is_over():
    said: list[str] = []
    with redirect_status(said.append), pytest.raises(ValueError, match="broken"), show_status("loading x"):
        assert said == ["loading x"]
        raise ValueError("broken")
    assert said == ["loading x", ""]


def test_nobody_is_told_where_nobody_looks(capfd: pytest.CaptureFixture[str]):
    with show_status("loading x"):
        assert list(track_progress([["a"], ["b", "c"]], "texts embedded")) == [["a"], ["b", "c"]]
    assert capfd.readouterr() == ("", "")


def test_how_far_it_is_is_told_when_it_takes_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_display, "SHOW_AFTER", -1.0)
    said: list[str] = []
    with redirect_status(said.append):
        assert list(track_progress([["a"] * 1000, ["b"] * 1000], "texts embedded"))
    assert said == ["1,000 of 2,000 texts embedded", "2,000 of 2,000 texts embedded", ""]


def test_one_part_is_told_of_by_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_display, "SHOW_AFTER", -1.0)
    said: list[str] = []
    with redirect_status(said.append):
        assert list(track_progress([["a"]], "texts embedded")) == [["a"]]
    assert said == []


@pytest.mark.process
def test_a_terminal_shows_both():
    shown = in_a_terminal(
        "with t.show_status('loading tiny'): pass",
        "list(t.track_progress([['a'], ['b']], 'texts embedded'))",
    )
    assert "loading tiny" in shown
    assert "texts embedded" in shown


@pytest.mark.process
def test_a_name_is_shown_as_it_is_and_steers_no_terminal():
    shown = in_a_terminal(r"with t.show_status('loading [/b] \x1b[2J'): pass")
    assert r"loading [/b] \x1b[2J" in shown
    assert "\x1b[2J" not in shown


def in_a_terminal(*lines: str) -> str:
    """What a program that runs these lines shows."""
    script = "\n".join(
        ("from spanwise.evaluators.interface import progress_display as t", "t.SHOW_AFTER = -1.0", *lines)
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", script], stderr=theirs, env=environment) as program:
        os.close(theirs)
        shown = _all(ours)
        assert program.wait(60) == 0
    return shown


def _all(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 4096):
            parts.append(part)
    except OSError:  # the other side is gone
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()
