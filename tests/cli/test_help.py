"""Every command and every group of commands shows an example in its help."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from spanwise.cli.app import app


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
