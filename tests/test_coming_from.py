"""Every name of ours in "Coming from …" exists: functions, their arguments, verbs of the store, variables, commands."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spanwise.evaluators
import spanwise.tracer
from looped_cases import loop_over
from spanwise.collector.stores import ControlStore, TraceStore
from spanwise.evaluators.interface import EvaluatorOptions
from spanwise.tracer import Run
from spanwise.tracer.decorator import _decorate
from spanwise.tracer.suggestions import OPTION_EQUIVALENTS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
PLAIN = {"inputs", "outputs", "reference_outputs"}  # arguments of an evaluator


def cells() -> Iterator[list[str]]:
    for line in PAGE.splitlines():
        if line.startswith(("| ", "||")):
            yield [cell.strip() for cell in line.strip("|").split(" |")]


def ours() -> list[str]:
    return sorted({name for row in cells() for name in re.findall(r"`([^`]+)`", row[-1])})


class Named:
    """The objects that an expression names: tracer's and evaluators' names, `store` for the verbs of both halves."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text.removeprefix("@").replace("=…", "=...").replace("…", "..."), mode="eval").body
        self.target = self.found(tree)

    def found(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return getattr(spanwise.tracer, name, None) or getattr(spanwise.evaluators, name)
            case ast.Attribute(value=ast.Name(id="pytest"), attr="mark"):
                return pytest.mark
            case ast.Attribute(value=ast.Name(id="store"), attr=name):
                return getattr(TraceStore, name, None) or getattr(ControlStore, name)
            case ast.Attribute(value=value, attr=name):
                return getattr(self.found(value), name)
            case ast.Call(func=func, args=args, keywords=keywords):
                return self.called(self.found(func), len(args), {str(one.arg) for one in keywords})
        raise AssertionError(ast.dump(node))

    def called(self, function: Any, count: int, keywords: set[str]) -> Any:
        if inspect.isclass(function) and issubclass(function, Exception):
            return function
        taken = inspect.signature(_decorate if function is spanwise.tracer.trace else function).parameters
        options = EvaluatorOptions.__annotations__ if function is spanwise.evaluators.evaluator else ()
        assert keywords <= {*taken, *options}
        places = [one for one in taken.values() if one.name != "self" and one.kind is not one.KEYWORD_ONLY]
        assert count <= len(places) or any(one.kind is one.VAR_POSITIONAL for one in places)
        return Run if function is spanwise.tracer.current_run else function


@loop_over("name", [name for name in ours() if name not in PLAIN and not name.startswith("SPANWISE_")])
def test_a_name_of_ours_exists_with_its_arguments(name: str) -> None:
    assert Named(name).target is not None


@loop_over("name", [name for name in ours() if name.startswith("SPANWISE_")])
def test_a_variable_is_read_somewhere(name: str) -> None:
    sources = (ROOT / "tracer" / "spanwise" / "tracer").rglob("*.py")
    assert any(f'"{name}"' in path.read_text() for path in sources)


def test_tables_have_a_column_for_each_product_and_one_for_us() -> None:
    assert {len(row) for row in cells()} == {5}
    assert len(ours()) > 60


def test_a_name_that_is_not_there_would_be_found() -> None:
    with pytest.raises(AttributeError):
        Named("tracd(kind=…)")
    with pytest.raises(AssertionError):
        Named("@trace(run_type=…)")


def test_options_of_decorators_that_the_page_names_are_met_with_a_hint() -> None:
    _, tracing = PAGE.split("## Tracing")
    rows = [row for row in cells() if "@trace(" in row[-1] and row[-1] in tracing]
    named = {name for row in rows for cell in row[:-1] for name in re.findall(r"`(\w+)=", cell)}
    assert named - {"name", "tags", "metadata", "attributes"} <= set(OPTION_EQUIVALENTS)
