"""All errors of ours have one root, and all of them are told."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import spanwise.cli
import spanwise.collector
import spanwise.evaluators
from spanwise.collector import errors
from spanwise.collector.errors import SpanwiseError

DOCS = (Path(__file__).parent.parent / "docs" / "errors.md").read_text()
NOT_OURS = {
    "BudgetExceeded",
    "ClientDisconnected",
    "EvaluatorFailed",
    "ForeignDatabase",
    "MalformedMessage",
    "RebuildCancelled",
    "RecountNeeded",
    "ReplyTimeout",
    "RollupTooLarge",
    "Skip",
    "SourceUnavailable",
    "StepLimitExceeded",
    "UnconfirmedCode",
    "UnparsableRequest",
    "_AccessDenied",
    "_AlreadyAnswered",
    "_CostIncreased",
    "_IntegerTooLarge",
    "_RequestTooLarge",
}  # internal signals, or pytest's to show


def exceptions() -> dict[str, type]:
    """Every exception that a module of ours defines, by name."""
    packages = (spanwise.collector, spanwise.evaluators, spanwise.cli)
    names = [
        one.name for package in packages for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    classes = [pair for name in names for pair in inspect.getmembers(importlib.import_module(name), inspect.isclass)]
    return {name: kind for name, kind in classes if issubclass(kind, Exception) and kind.__module__ in names}


def test_every_error_has_the_root_and_stands_in_the_tree_and_in_the_docs() -> None:
    found = exceptions().items()
    ours = {name for name, kind in found if issubclass(kind, SpanwiseError) and not name.startswith("_")}
    assert set(exceptions()) - ours == NOT_OURS
    tree = re.compile(r"^ {4,}(\w+)", re.MULTILINE)
    assert set(tree.findall(errors.__doc__ or "")) == ours
    assert set(tree.findall(DOCS.split("```")[0])) == ours
    assert set(re.findall(r"^\| `(\w+)` \|", DOCS, re.MULTILINE)) == ours - {"SpanwiseError"}


def test_the_tree_is_that_of_the_classes() -> None:
    kinds, above = exceptions(), ["Exception"]
    for indent, name in re.findall(r"^( {4,})(\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(indent) // 2 - 1
        above[depth:] = [name]
        assert kinds[name].__base__ is not None
        assert kinds[name].__base__.__name__ == above[depth - 1]
