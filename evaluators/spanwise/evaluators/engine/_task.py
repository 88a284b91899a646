"""How a task is called with the inputs of an example: decided by its signature, once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Example
from spanwise.evaluators.engine._fresh import Copies
from spanwise.tracer.capture import is_traced, is_wrapped

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OF_EXAMPLE = frozenset({"example", "history"})
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class TaskError(SpanwiseError, ValueError):
    """A task that cannot be called with the inputs of an example."""


@dataclass(frozen=True, slots=True)
class Task:
    """A function under test. `takes` are its parameters' names, `needs` those without a default."""

    function: Callable[..., Any]
    name: str
    takes: frozenset[str]
    needs: frozenset[str]
    takes_all: bool  # **kwargs
    wants: frozenset[str]  # parameters that it gets even where inputs do not have them: example, seed, history
    first: str | None  # the one parameter that can be given by position
    is_async: bool
    is_traced: bool  # a call opens a span of its own
    is_wrapped: bool  # … below another decorator

    def arguments(
        self, example: Example, kind: str = "kv", seed: int | None = None, copies: Copies | None = None
    ) -> tuple[tuple[Any, ...], JSON]:
        """(positional, named) arguments for an example, `copies` of its values if these are to stay as they are.

        Raises `TaskError`, which says what does not fit.
        """
        inputs = example.inputs
        if copies is not None:
            inputs = copies.of(inputs)
            example = copies.of_example(example) if self.wants & _OF_EXAMPLE else example
        positional, named = self._split(inputs, kind)
        if self.wants:
            extra = {"example": example, "seed": seed, "history": example.history}
            absent = self.wants - named.keys() - ({self.first} if positional else set())
            named = {**named, **{name: extra[name] for name in absent}}
        lacking = self.needs - named.keys() - ({self.first} if positional else set())
        if lacking:
            raise TaskError(self._misfit(sorted(lacking), example))
        return positional, named

    def _split(self, inputs: JSON, kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not isinstance(inputs, Mapping):
            return (inputs,), {}
        if "inputs" in self.takes and "inputs" not in inputs:
            return (), {"inputs": inputs}
        if kind != "kv" and self.first is not None and not inputs.keys() <= self.takes:
            return (next(iter(inputs.values())),), {}
        return (), dict(inputs) if self.takes_all else {k: v for k, v in inputs.items() if k in self.takes}

    def _misfit(self, lacking: list[str], example: Example) -> str:
        has = sorted(example.inputs) if isinstance(example.inputs, Mapping) else f"a {type(example.inputs).__name__}"
        return (
            f"task {self.name!r} needs {', '.join(map(repr, lacking))}, but the example's inputs are {has}: rename the "
            "parameter or the column, or take the whole dict with a parameter named 'inputs'"
        )


def as_task(function: Any) -> Task:
    """Read a callable's signature. Raises `TaskError` for something that cannot be called."""
    if not callable(function):
        raise TaskError(f"a task is a function, or None to score what is there, not {function!r}")
    parameters = _parameters(function)
    named = [parameter for parameter in parameters if parameter.kind in _NAMED]
    by_position = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    takes = frozenset(parameter.name for parameter in named)
    needs = frozenset(parameter.name for parameter in (*by_position, *named) if parameter.default is parameter.empty)
    return Task(
        function=function,
        name=_name(function),
        takes=takes,
        needs=needs,
        wants=needs & _OF_EXAMPLE | takes & {"seed"},
        takes_all=any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
        first=by_position[0].name if by_position else None,
        is_async=_is_async(function),
        is_traced=is_traced(function),
        is_wrapped=is_wrapped(function),
    )


def joined(pieces: Iterable[Any]) -> Any:
    """Return what an iterator yields: one text if all pieces are texts, else a list."""
    listed = list(pieces)
    return "".join(listed) if listed and all(isinstance(piece, str) for piece in listed) else listed


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise TaskError(f"cannot read the parameters of {function!r}: wrap it in a function ({error})") from error


def _name(function: Any) -> str:
    inner = getattr(function, "func", function)  # functools.partial
    return str(getattr(inner, "__name__", None) or type(inner).__name__)


def _is_async(function: Any) -> bool:
    inner = getattr(function, "func", function)
    candidates = (inner, getattr(inner, "__call__", None))  # noqa: B004
    return any(inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called) for called in candidates)
