"""A bar where somebody can see it move, and nothing elsewhere."""

import asyncio
import io
import os
import signal
import sys
import threading
import types

import pytest
from rich.console import Console

from spanwise.evaluators import evaluate
from spanwise.evaluators.experiments import describe_pending_work
from spanwise.evaluators.interface.progress_display import NotebookBar, TerminalBar, make_progress_bar

DATA = [{"q": n} for n in range(3)]


@pytest.fixture
def screen(monkeypatch):
    """A terminal on which notes are written."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.delenv("CI", raising=False)
    return console


def test_quiet_where_there_is_no_terminal_and_in_ci(screen, monkeypatch):
    assert isinstance(make_progress_bar("x", 3, None, screen), TerminalBar)
    monkeypatch.setenv("CI", "true")
    assert not make_progress_bar("x", 3, None, screen).is_visible
    assert isinstance(make_progress_bar("x", 3, True, screen), TerminalBar)
    assert not make_progress_bar("x", 3, False, screen).is_visible


def test_the_bar_shows_how_far_it_is_and_what_failed(screen):
    with make_progress_bar("an experiment", 3, True, screen) as shown:
        shown.advance(2, 1)
    assert "an experiment" in screen.file.getvalue()
    assert "2/3" in screen.file.getvalue()
    assert "1 failed" in screen.file.getvalue()


def test_the_bar_says_what_is_waited_for(screen):
    with make_progress_bar("an experiment", 3, True, screen) as shown:
        shown.show_status("waiting for [somebody]")
    assert "waiting for [somebody]" in screen.file.getvalue()


@pytest.mark.parametrize("is_async", [True, False])
def test_what_is_waited_for_is_read_off_the_stacks(store, is_async):
    seen = {}

    def look(who):
        seen[who] = describe_pending_work(loop)

    async def task(q):
        look("task")

    async def judge(run):
        await asyncio.sleep(0)
        look("judge")
        return True

    loop = asyncio.new_event_loop()
    plain = lambda q: look("task")  # noqa: E731
    evaluate([{"id": "e1", "q": 1}], task if is_async else plain, [judge], store=store, progress=False)
    loop.close()
    assert "the task on example e1" in seen["task"]
    assert "evaluator 'judge' on example e1" in seen["judge"]


def test_ctrl_c_ends_an_experiment_whose_evaluator_hangs_beside_an_async_task(store):
    gate, ended = threading.Event(), []

    def hang(outputs):
        os.kill(os.getpid(), signal.SIGINT)
        ended.append(gate.wait(60))

    async def task(q):
        return q

    with pytest.raises(KeyboardInterrupt):
        evaluate(DATA, task, [hang], name="x", store=store, concurrency=1, progress=False)
    gate.set()
    assert ended in ([], [True])
    assert store.experiment("x").status == "interrupted"


def test_evaluate_says_where_results_go_unless_told_to_be_quiet(tmp_path, capfd):
    evaluate(DATA, lambda q: q, store=str(tmp_path / "a.db"))
    assert "results go to" in capfd.readouterr().err
    evaluate(DATA, lambda q: q, store=str(tmp_path / "a.db"), progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook shows, cell by cell: the part of IPython that draws."""
    shown = []

    def display(html, display_id):
        shown.append(html)
        return types.SimpleNamespace(update=lambda html: shown.__setitem__(-1, html))

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    module = types.SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_notebook_gets_a_bar_that_needs_no_widgets(notebook):
    console = Console(file=io.StringIO(), force_jupyter=True)
    with make_progress_bar("an <experiment>", 3, True, console) as shown:
        assert isinstance(shown, NotebookBar)
        shown.advance(2, 1)
        assert 'an &lt;experiment&gt; <progress value="2" max="3"></progress> 2 of 3 runs, 1 failed' in shown.html()
        shown.show_status("waiting for <x>")
        assert notebook[0].endswith("1 failed, waiting for &lt;x&gt;</p>")
    (left,) = notebook
    assert left.startswith("<p>an &lt;experiment&gt;: 2 runs, 1 failed in 0")


def test_what_is_printed_in_a_notebook_is_plain_text(tmp_path, monkeypatch):
    experiment = evaluate(DATA, lambda q: q, ["exact"], store=str(tmp_path / "a.db"), progress=False)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "│ exact ↑ │ 0 │" in str(experiment)
    assert "\x1b" not in str(experiment)
    assert "<td>exact ↑</td><td>0</td>" in experiment._repr_html_()
