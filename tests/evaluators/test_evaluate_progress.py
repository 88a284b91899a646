"""A bar where somebody can see it move, and nothing elsewhere."""

import io

import pytest
from rich.console import Console

from assay.evaluators import evaluate
from assay.evaluators.engine._progress import Quiet, RichBar, bar

DATA = [{"q": n} for n in range(3)]


@pytest.fixture
def screen(monkeypatch):
    """A terminal on which notes are written."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.delenv("CI", raising=False)
    return console


def test_quiet_where_there_is_no_terminal_and_in_ci(screen, monkeypatch):
    assert isinstance(bar("x", 3, None, screen), RichBar)
    monkeypatch.setenv("CI", "true")
    assert isinstance(bar("x", 3, None, screen), Quiet)
    assert isinstance(bar("x", 3, True, screen), RichBar)
    assert isinstance(bar("x", 3, False, screen), Quiet)


def test_the_bar_shows_how_far_it_is_and_what_failed(screen):
    with bar("an experiment", 3, True, screen) as shown:
        shown.advance(2, 1)
    assert "an experiment" in screen.file.getvalue()
    assert "2/3" in screen.file.getvalue()
    assert "1 failed" in screen.file.getvalue()


def test_evaluate_says_where_results_go_unless_told_to_be_quiet(tmp_path, capfd):
    evaluate(DATA, lambda q: q, store=str(tmp_path / "a.db"))
    assert "results go to" in capfd.readouterr().err
    evaluate(DATA, lambda q: q, store=str(tmp_path / "a.db"), progress=False)
    assert capfd.readouterr() == ("", "")
