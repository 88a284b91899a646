"""How far a migration is, as commands show it."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from spanwise.cli.app import LOG_INTERVAL_S, show_migration_progress

LOG = logging.getLogger("spanwise.collector.migration")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def say(*percentages: int) -> None:
    show_migration_progress()
    for done in percentages:
        LOG.info("bringing 'spanwise.db' from version 4 to 8: %d %%", done, extra={"done": done})


def test_a_terminal_has_one_line_that_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    say(10, 50, 100)
    assert terminal.getvalue().count("\r") == 3
    assert terminal.getvalue().count("\n") == 1


def test_elsewhere_there_are_a_few_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say(0)
    say(*range(1, 100))
    say(100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "bringing 'spanwise.db' from version 4 to 8: 100 %"
    assert len(lines) < 10, f"one in {LOG_INTERVAL_S} seconds"


def test_asking_twice_says_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    show_migration_progress()
    say(100)
    assert len(capsys.readouterr().err.splitlines()) == 1
