"""Evaluators named on the command line: registry ids, functions in Python files, definition files."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import orjson
import typer

from spanwise.cli.command_io import error_console, print_note
from spanwise.collector.errors import Refused
from spanwise.tracer.source_loader import UncachedSourceLoader
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator


def resolve_evaluator(named: str, pairs: Iterable[str] | None = None) -> Evaluator:
    """Return the evaluator called `exact`, `evals/mine.py:concise` or `polite.yaml`, with name=value parameters.

    In a file it may be a function, a class, or the result of `get_evaluator`, `judge` or `@evaluator`.

    Raises `Refused` for a missing name and for unknown parameters, and `ValueError` as `get_evaluator` does.
    """
    from spanwise.evaluators import from_dict, get_evaluator
    from spanwise.evaluators.interface import read_definition

    parameters = dict(map(_parse_parameter, pairs or []))
    file, _, name = named.rpartition(":")
    if is_definition_file(named):
        definition = read_definition(Path(named))
        defaults = definition.get("init_parameters") or {}
        return from_dict({**definition, "init_parameters": {**defaults, **parameters}})
    if is_evaluator_file(named):
        return _load_from_file(Path(file), name, parameters)
    return get_evaluator(named, **parameters)


def is_evaluator_file(named: str) -> bool:
    """Return whether the name refers to a file: `evals/mine.py:concise`, or a definition file."""
    file, colon, _ = named.rpartition(":")
    return bool(colon and file.endswith(".py")) or is_definition_file(named)


def is_definition_file(named: str) -> bool:
    """Return whether the name is that of a definition file, which holds the output of `to_dict`."""
    return named.endswith((".json", ".yaml", ".yml"))


def print_judge_endpoints(evaluators: Iterable[Evaluator]) -> None:
    """Print to stderr, once each, the endpoints to which the judges among these evaluators send text."""
    judges = [evaluator.asking for evaluator in evaluators if evaluator.asking is not None]
    print_endpoints(endpoint for judge in judges for endpoint in judge.where)


def print_endpoints(endpoints: Iterable[str]) -> None:
    """Print to stderr, once each, the endpoints that receive text."""
    for endpoint in dict.fromkeys(endpoints):
        print_note(f"text goes to {endpoint}")


def _load_from_file(file: Path, name: str, parameters: Mapping[str, Any]) -> Evaluator:
    from spanwise.evaluators import Evaluator, as_evaluator

    module = load_module(file)
    value = getattr(module, name, None)
    if not callable(value):
        known = [known for known, member in vars(module).items() if callable(member) and not known.startswith("_")]
        raise Refused(f"{str(file)!r} has no function {name!r}{did_you_mean(name, known)}")
    try:
        evaluator = as_evaluator(value(**parameters) if inspect.isclass(value) else value)
        # with a `spec`, the object is a registered class with parameters, such as a judge, and needs no `partial`
        if evaluator.spec is not None:
            return evaluator if inspect.isclass(value) else _change_parameters(evaluator, parameters)
        if parameters and not inspect.isclass(value):
            function = value.function if isinstance(value, Evaluator) else value
            inspect.signature(function).bind_partial(**parameters)
            evaluator = replace(evaluator, function=partial(function, **parameters))
    except TypeError as error:
        raise Refused(f"{file!s}:{name}: {error}") from error
    return replace(evaluator, origin={"type": f"{file.name}:{name}", "init_parameters": dict(parameters)})


def _change_parameters(evaluator: Evaluator, parameters: Mapping[str, Any]) -> Evaluator:
    """Return the evaluator with other parameters. Raises `TypeError` for an unknown one, and the evaluator's
    `ValueError`.
    """
    from spanwise.evaluators import as_evaluator

    if not parameters:
        return evaluator
    known = [field.name for field in dataclasses.fields(evaluator.function) if field.init]  # type: ignore[arg-type]
    for name in parameters:
        if name not in known:
            raise TypeError(f"it has no parameter {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}")
    changed = as_evaluator(dataclasses.replace(evaluator.function, **parameters))  # type: ignore[type-var]
    if "key" in parameters:
        return changed
    make = replace(evaluator.make, version=changed.version, parameters=changed.make.parameters)
    origin = {**evaluator.origin, "init_parameters": {**evaluator.origin["init_parameters"], **parameters}}
    return replace(
        evaluator,
        function=changed.function,
        version=changed.version,
        revision=changed.revision,
        make=make,
        origin=origin,
    )


def _parse_parameter(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise ValueError(f"a parameter must be name=value, got {pair!r}")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def load_module(file: Path) -> ModuleType:
    """Load a file as a module, with its folder importable as for `python FILE`."""
    loader = UncachedSourceLoader(file.stem, str(file))
    spec = importlib.util.spec_from_file_location(file.stem, file, loader=loader)
    if not file.exists():
        raise Refused(f"there is no file {str(file)!r}")
    if spec is None or spec.loader is None:
        raise Refused(f"{str(file)!r} is not a Python file")
    sys.path.insert(0, str(file.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print_user_traceback(error, file)
        raise typer.Exit(1) from None
    return module


def print_user_traceback(error: BaseException, file: Path) -> None:
    """Print the traceback, starting at its first frame in the user's file. The frames before it are Spanwise's own."""
    lines = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(lines.stack) if Path(frame.filename).name == file.name), len(lines.stack))
    del lines.stack[:first]
    error_console.print("".join(lines.format()), end="", markup=False, highlight=False, soft_wrap=True)
