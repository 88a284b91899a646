"""A file of rules, run to its end: all of its rules, or none."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

from spanwise.collector.errors import SpanwiseError
from spanwise.evaluators.monitors._money import unpriced
from spanwise.evaluators.monitors._rule import Monitored, collecting


class BrokenRules(SpanwiseError, ValueError):
    """A file of rules that cannot be used: it does not run, holds no rule, or two of one
    name, or a rule whose budget cannot be kept."""


def load(file: str | os.PathLike[str]) -> list[Monitored]:
    """The rules of a file. Raises `BrokenRules`; what the file itself raises is the cause.

    The file is run as a module of its own, with its folder importable as for `python FILE`. Its path, as it is given,
    is the owner of its rules.
    """
    path = Path(file)
    rules: list[Monitored] = []
    token = collecting.set(rules)
    try:
        _run(path)
    except (BrokenRules, KeyboardInterrupt):
        raise
    except BaseException as error:  # also one that ends the process, had it been the main program
        raise BrokenRules(f"{str(path)!r} does not run: {type(error).__name__}: {error}") from error
    finally:
        collecting.reset(token)
    _check(path, rules)
    return [Monitored(replace(rule.record, owner=path.as_posix()), rule.evaluators) for rule in rules]


def _run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.exists():
        raise BrokenRules(f"there is no file {str(path)!r}")
    if spec is None or spec.loader is None:
        raise BrokenRules(f"{str(path)!r} is not a Python file")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)


def _check(path: Path, rules: list[Monitored]) -> None:
    if not rules:
        raise BrokenRules(f"{str(path)!r} holds no rule: call spanwise.evaluators.monitor(…) in it")
    names = [(rule.record.project, rule.record.name) for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BrokenRules(f"{str(path)!r} holds two rules named {twice[1]!r} in project {twice[0]!r}")
    for rule in rules:
        if why := unpriced(rule.record.settings.budget, rule.evaluators):
            raise BrokenRules(f"{str(path)!r}: rule {rule.record.name!r}: {why}")
