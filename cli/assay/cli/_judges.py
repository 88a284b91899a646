"""An evaluator that a command names: the id of a registered one, one of a file, a definition; with its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from assay.cli._module import loaded
from assay.collector.errors import Refused
from assay.tracer.hints import did_you_mean

if TYPE_CHECKING:
    from assay.evaluators import Evaluator


def judge(named: str, pairs: Iterable[str] | None = None) -> Evaluator:
    """The evaluator called `exact`, `evals/mine.py:concise` or `polite.yaml`, with parameters of the form name=value.

    Raises `Refused` for a name that the file has not and parameters that it does not take, `ValueError` as `get`.
    """
    from assay.evaluators import get

    parameters = dict(map(_parameter, pairs or []))
    file, _, name = named.rpartition(":")
    if is_definition(named):
        return _defined(Path(named), parameters)
    return _of_file(Path(file), name, parameters) if is_file(named) else get(named, **parameters)


def is_file(named: str) -> bool:
    """Whether an evaluator is named by the file that it is in: `evals/mine.py:concise`, or a definition."""
    file, colon, _ = named.rpartition(":")
    return bool(colon and file.endswith(".py")) or is_definition(named)


def is_definition(named: str) -> bool:
    """Whether it is the name of a file with what `to_dict` gave."""
    return named.endswith((".json", ".yaml", ".yml"))


def _defined(file: Path, parameters: Mapping[str, Any]) -> Evaluator:
    from assay.evaluators import from_dict
    from assay.evaluators.protocol import definition

    told = definition(file)
    return from_dict({**told, "init_parameters": {**(told.get("init_parameters") or {}), **parameters}})


def _of_file(file: Path, name: str, parameters: Mapping[str, Any]) -> Evaluator:
    from assay.evaluators import Evaluator, as_evaluator

    module = loaded(file)
    found = getattr(module, name, None)
    if not callable(found):
        known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise Refused(f"{str(file)!r} has no function {name!r}{did_you_mean(name, known)}")
    try:
        made = found(**parameters) if inspect.isclass(found) else found
        evaluator = as_evaluator(made)
        if parameters and not inspect.isclass(found):
            plain = found.function if isinstance(found, Evaluator) else found
            inspect.signature(plain).bind_partial(**parameters)
            evaluator = replace(evaluator, function=partial(plain, **parameters))
    except TypeError as error:
        raise Refused(f"{file!s}:{name}: {error}") from error
    return replace(evaluator, origin={"type": f"{file.name}:{name}", "init_parameters": dict(parameters)})


def _parameter(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise ValueError(f"a parameter is name=value, not {pair!r}")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value
