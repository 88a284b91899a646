"""Every command and every group of commands shows an example in its help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import spanwise.cli
from spanwise.cli.app import COMMANDS, LazyCommands, app


def commands(found: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = getattr(found, "commands", {})
    return [path, *(one for name, command in inner.items() for one in commands(command, (*path, name)))]


@pytest.mark.parametrize("path", commands(typer.main.get_command(app)), ids=" ".join)
def test_help_shows_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example: spanwise " in result.stdout


def test_the_help_of_serve_names_the_variable_whole() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert "SPANWISE_FORWARD_HEADERS_<NAME>" in result.stdout


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("spanwise ")


def test_the_help_has_the_first_paragraph_of_each_commands_own_help() -> None:
    imported = typer.main.get_command(app).commands
    own = {name: (command.help or "").split("\n\n")[0].replace("\n", " ") for name, command in imported.items()}
    assert own == {name: text for name, (_, text) in COMMANDS.items()}


def test_an_error_in_the_module_of_a_command_does_not_hide_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise KeyError("a fault of the module")

    monkeypatch.setattr("spanwise.cli.app.import_module", broken)
    with pytest.raises(KeyError, match="a fault of the module"):
        LazyCommands(COMMANDS).get("demo")
    assert LazyCommands(COMMANDS).get("demos") is None


@pytest.mark.process
def test_a_command_is_imported_when_it_runs() -> None:
    code = (
        "import sys; sys.argv[1:] = sys.argv[1].split(); from spanwise.cli import main\n"
        "try: main()\n"
        "finally: print([name for name in sys.modules if name.startswith('spanwise.cli.commands.')], file=sys.stderr)"
    )

    def modules(arguments: str) -> str:
        ran = subprocess.run([sys.executable, "-c", code, arguments], capture_output=True, text=True, check=True)
        assert "Example: spanwise" in ran.stdout
        return ran.stderr.strip()

    assert modules("--help") == "[]"
    assert modules("keys --help") == "['spanwise.cli.commands.keys']"


@pytest.mark.process
def test_a_command_whose_extra_is_missing_exits_with_one_line() -> None:
    code = "import sys; sys.modules['msgspec'] = None; sys.argv[1:] = ['traces', 'list']; from spanwise.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("spanwise: ")
    assert " needs 'msgspec', which is not installed: " in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.process
def test_the_package_runs_as_a_module() -> None:
    folders = [str(Path(folder).parent) for folder in spanwise.__path__]
    ran = subprocess.run(
        [sys.executable, "-m", "spanwise", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    assert "Usage: python -m spanwise " in ran.stdout
