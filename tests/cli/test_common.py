"""What every command shares: output for people and pipes."""

import io
import json

import pytest
from rich.console import Console

from looped_cases import loop_over
from spanwise.cli import command_io
from spanwise.cli.command_io import build_filter, emit, shorten
from spanwise.collector.filters import Filter


@loop_over(
    ("value", "text"),
    [
        ("a\n  b\tc", "a b c"),
        ({"q": "Why?"}, '{"q":"Why?"}'),
        ({1: None}, '{"1":null}'),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        (None, "null"),
    ],
)
def test_a_value_on_one_line(value, text):
    assert shorten(value) == text


def test_where_and_options_are_one_filter():
    filter = build_filter(["name=a", "tags=x", "tags=y", "latency_ms>=5"], since="123456789", text=None, user="u")
    assert filter == Filter(name="a", tags=("x", "y"), latency_ms=(">=", 5.0), since_ns=123_456_789, user="u")


def test_rows_for_pipes(capfdbinary):
    emit([{"a": 1}, {"b": complex(1)}])
    assert [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()] == [{"a": 1}, {"b": "(1+0j)"}]


@pytest.mark.parametrize(("width", "shown"), [(200, "a" * 32), (60, "a" * 8)])
def test_of_a_traces_id_a_narrow_terminal_shows_the_beginning(monkeypatch, width, shown):
    out = io.StringIO()
    monkeypatch.setattr(command_io, "console", Console(file=out, width=width, force_terminal=True, color_system=None))
    command_io.print_table(("trace", "inputs"), [("a" * 32, "some words " * 4)])
    cells = out.getvalue().splitlines()[3].split("│")
    assert cells[1].strip() == shown


def test_ids_do_not_fold_and_brackets_are_text(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(command_io, "console", Console(file=out, width=40, force_terminal=True, color_system=None))
    command_io.print_table(("id", "what"), [("b" * 24, "[bold]some longer words[/]")])
    assert "b" * 24 in out.getvalue()
    assert "[bold]" in out.getvalue()
