"""What senders sent, in a terminal: it steers nothing, passes for no line of ours, and fills no screen."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import pytest
from rich.progress import Progress
from typer.testing import CliRunner

from collector.making import run
from spanwise.cli.app import app, report_errors
from spanwise.collector.errors import Refused
from spanwise.collector.records import Document, Example, Experiment, Feedback, Rule, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.terminal_escaping import TerminalConsole, escape_line, escape_message, escape_text
from spanwise.evaluators.interface.progress_display import TerminalBar

# Colours, a title, the clipboard (OSC 52), NUL, BEL, C1's CSI, bidi marks and isolates, a lone surrogate, another line
EVIL = "\x1b[31mred\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x00\x9b1m\u202eesrever\u2066\u200f\ud800\r\nstore: fake\u2028x\x7f"
TRACE = "a" * 32
COMMANDS = [
    "traces list",
    f"traces show {TRACE}",
    f"traces show {TRACE} --whole",
    "traces reconcile",
    "feedback list",
    "datasets list",
    "experiments list",
    "experiments show e1",
    "experiments errors e1",
    f"monitor why {TRACE}",
    "monitor status",
    "db stats",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("terminal") / "a.db"
    evil = EVIL.replace("\ud800", "")  # SQLite has no bytes for it
    with SQLiteStore(file) as store:
        texts = {"inputs": evil, "outputs": {evil: evil}, "error": evil, "model": evil, "session_id": evil}
        documents = (Document(content=evil, id=evil),)
        own = {"project": evil, "tags": (evil,), "status": "error", "kind": evil}
        store.append([run(evil, trace_id=TRACE, documents=documents, **own, **texts)])
        store.append([run(evil, experiment_id="e1", example_id=evil, status="error", error=evil)])
        target = Target(trace_id=TRACE)
        store.add_feedback(
            [
                Feedback(target=target, key=evil, label=evil, comment=evil, author=evil),
                Feedback(target=target, key=f"{evil}2", outcome="error", error=evil, evaluator=evil),
            ]
        )
        store.save_examples(evil, [Example(inputs=evil, id="1")])
        store.save_experiment(Experiment(id="e1", name=evil, dataset=evil))
        store.save_rule(Rule(name=evil, version="1", project=evil, evaluators=({"key": evil},), filter={"name": evil}))
    return str(file)


def steers(text: str) -> set[str]:
    return {
        letter
        for letter in text
        if letter != "\n" and not (letter.isprintable() or unicodedata.category(letter) == "Zs")
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_that_was_sent_steers_the_terminal(path: str, command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--store", path])
    assert steers(result.output) == set()
    assert "red" in result.output or command in ("traces reconcile",)


@pytest.mark.parametrize("command", ["traces list", "feedback list", "datasets list", "experiments list"])
def test_no_name_passes_for_a_line_of_ours(path: str, command: str) -> None:
    lines = CliRunner().invoke(app, [*command.split(), "--store", path]).stdout.splitlines()
    assert not any(line.startswith("store: fake") for line in lines)


def test_json_is_exactly_what_was_sent(path: str) -> None:
    output = CliRunner().invoke(app, ["traces", "list", "--store", path, "--json"]).stdout
    assert EVIL.replace("\ud800", "") in [json.loads(line)["name"] for line in output.split("\n")[:-1]]


def test_a_name_of_5_mb_is_a_line(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([run("x" * 5_000_000, trace_id=TRACE)])
    for command in ("traces list", f"traces show {TRACE}"):
        output = CliRunner().invoke(app, [*command.split(), "--store", str(tmp_path / "a.db")]).output
        assert len(output) < 5_000
        assert "xxx" in output


def test_errors_are_harmless_and_bounded() -> None:
    with pytest.raises(SystemExit) as caught, report_errors():
        raise Refused(f"there is no trace {EVIL} {'x' * 100_000}")
    assert steers(str(caught.value)) == set()
    assert len(str(caught.value)) < 11_000


def test_a_bar_bears_no_name_that_steers() -> None:
    out = io.StringIO()
    console = TerminalConsole(file=out, force_terminal=True, color_system=None, width=200)
    with TerminalBar(EVIL, 1, console):
        pass
    with Progress(console=console) as progress:
        progress.add_task(EVIL)
    assert "]52;c;" in out.getvalue()
    assert not any(mark in out.getvalue() for mark in ("\x1b]52", "\x1b]0", "\x07", "\x00", "\u202e", "\x1b[31m"))


@pytest.mark.parametrize("text", ["plain", "", "Zürich 東京 🙂 عربي", "a\tb\nc", "no\u00a0break"])
def test_what_is_harmless_stays(text: str) -> None:
    assert escape_text(text) == text == escape_message(text)


def test_a_line_is_one_line() -> None:
    assert escape_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"
    assert escape_line("abcdef", 3) == "abc… (6 characters)"
