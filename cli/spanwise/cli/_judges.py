"""An evaluator that a command names: the id of a registered one, one of a file, or a definition, with its parameters;
and where those that ask judges send text.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from spanwise.cli._common import notes
from spanwise.cli._module import loaded
from spanwise.collector.errors import Refused
from spanwise.tracer.hints import did_you_mean

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator


def judge(named: str, pairs: Iterable[str] | None = None) -> Evaluator:
    """The evaluator called `exact`, `evals/mine.py:concise` or `polite.yaml`, with parameters of the form name=value.

    In a file it may be a function, a class, or what `get`, `judge` or `@evaluator` has made.

    Raises `Refused` for a name that the file has not and parameters that it does not take, `ValueError` as `get`.
    """
    from spanwise.evaluators import get

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
    from spanwise.evaluators import from_dict
    from spanwise.evaluators.protocol import definition

    told = definition(file)
    return from_dict({**told, "init_parameters": {**(told.get("init_parameters") or {}), **parameters}})


def tell(evaluators: Iterable[Evaluator]) -> None:
    """Say on stderr to whom those send text that ask judges, once each."""
    asking = [evaluator.asking for evaluator in evaluators]
    tell_where(where for known in asking if known is not None for where in known.where)


def tell_where(places: Iterable[str]) -> None:
    """Say on stderr to whom text goes, once each."""
    for place in dict.fromkeys(places):
        notes.print(f"text goes to {place}", markup=False, highlight=False, soft_wrap=True)


def _of_file(file: Path, name: str, parameters: Mapping[str, Any]) -> Evaluator:
    from spanwise.evaluators import Evaluator, as_evaluator

    module = loaded(file)
    found = getattr(module, name, None)
    if not callable(found):
        known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise Refused(f"{str(file)!r} has no function {name!r}{did_you_mean(name, known)}")
    try:
        made = found(**parameters) if inspect.isclass(found) else found
        evaluator = as_evaluator(made)
        if evaluator.spec is not None:  # one of ours with parameters, such as a judge: its definition says all
            return evaluator if inspect.isclass(found) else _changed(evaluator, parameters)
        if parameters and not inspect.isclass(found):
            plain = found.function if isinstance(found, Evaluator) else found
            inspect.signature(plain).bind_partial(**parameters)
            evaluator = replace(evaluator, function=partial(plain, **parameters))
    except TypeError as error:
        raise Refused(f"{file!s}:{name}: {error}") from error
    return replace(evaluator, origin={"type": f"{file.name}:{name}", "init_parameters": dict(parameters)})


def _changed(evaluator: Evaluator, parameters: Mapping[str, Any]) -> Evaluator:
    """The same with other parameters. Raises `TypeError` for one that it has not, `ValueError` as the evaluator."""
    from spanwise.evaluators import as_evaluator

    if not parameters:
        return evaluator
    known = [field.name for field in dataclasses.fields(evaluator.function) if field.init]  # type: ignore[arg-type]
    for name in parameters:
        if name not in known:
            raise TypeError(f"it has no parameter {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}")
    made = as_evaluator(dataclasses.replace(evaluator.function, **parameters))  # type: ignore[type-var]
    if "key" in parameters:
        return made
    make = replace(evaluator.make, version=made.version, parameters=made.make.parameters)
    origin = {**evaluator.origin, "init_parameters": {**evaluator.origin["init_parameters"], **parameters}}
    return replace(
        evaluator, function=made.function, version=made.version, revision=made.revision, make=make, origin=origin
    )


def _parameter(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise ValueError(f"a parameter is name=value, not {pair!r}")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value
