"""Another function, model call or pipeline as the judge."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spanwise.collector.records import Case
from spanwise.evaluators.builtin._replies import number_in
from spanwise.evaluators.protocol import Metric, Skip, builtin, value_of
from spanwise.evaluators.protocol.standards import VALID


def parse_number(answer: Any, judged: Iterable[str] = ()) -> float:
    """The number in what a judge said, as `number_in` reads it. Raises `ValueError`, which shows what it said."""
    try:
        return number_in(answer, judged)
    except ValueError as error:
        raise ValueError(f"the judging pipeline said {answer!r:.200}: {error}") from error


@builtin(
    "pipeline",
    metrics=(Metric("pipeline", None, primary=True),),
    standards=(VALID,),
    source="Laminar: pipeline-based evaluator",
    canonical="by hand",
    example='get("pipeline", function=lambda question, answer: \'{"score": 4}\'), '
    'outputs={"question": "Why?", "answer": "So."}',
)
@dataclass(frozen=True, slots=True)
class Pipeline:
    """The number that another callable gives to the outputs.

    `function` (sync or async) is called with those of the outputs that have the names of its parameters: outputs that
    it does not ask for are left out (`**kwargs` asks for all), and one that it asks for and that is not there is an
    error that names it. Where outputs are no dict, and for the names of a case's fields (`inputs`, `documents`,
    `reference_outputs`, …), the case gives the value. The range is the function's own; `minimum` and `maximum` make
    what lies outside an error.

    What it returns must be a number, a text that is one, an object, or words with "score: 4". JSON (also in a code
    fence or among words) is read before words are searched, so that a number that it only quotes never counts. The
    number of an object is its "score", "rating", "value" or "grade". None, several that differ, JSON that is cut off,
    and an object among words whose number stands in what the function was given are errors that show the reply.
    """

    function: Callable[..., Any]
    minimum: float = -math.inf
    maximum: float = math.inf
    _asks: tuple[tuple[str, bool], ...] = field(init=False, repr=False, compare=False, default=())
    _takes_all: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"function is a callable, not {self.function!r}")
        if math.isnan(self.minimum) or math.isnan(self.maximum):
            raise ValueError(f"minimum and maximum are numbers, not {self.minimum!r} and {self.maximum!r}")
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum!r} is above maximum {self.maximum!r}")
        object.__setattr__(self, "_asks", _asks(self.function))
        parameters = inspect.signature(self.function).parameters.values()
        object.__setattr__(self, "_takes_all", any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The range is what was declared."""
        declared = math.isfinite(self.minimum) and math.isfinite(self.maximum)
        return (Metric("pipeline", (self.minimum, self.maximum) if declared else None, primary=True),)

    async def __call__(self, case: Case, outputs: Any) -> dict[str, Any]:
        arguments = self._arguments(case, outputs)
        answer = self.function(**arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            raise Skip("the judging pipeline gave nothing")
        score = parse_number(answer, map(str, arguments.values()))
        if not self.minimum <= score <= self.maximum:
            raise ValueError(f"the judging pipeline gave {score!r}, outside [{self.minimum!r}, {self.maximum!r}]")
        return {"score": score, "comment": None if isinstance(answer, int | float) else f"{answer}"[:1000]}

    def _arguments(self, case: Case, outputs: Any) -> dict[str, Any]:
        offered = outputs if isinstance(outputs, Mapping) else {}
        arguments = dict(offered) if self._takes_all else {}
        for name, needed in self._asks:
            value = offered[name] if name in offered else value_of(case, name)
            if value is not None:
                arguments[name] = value
            elif needed:
                there = ", ".join(map(repr, offered)) or "none by name"
                raise ValueError(f"the judging pipeline asks for {name!r}; the outputs are {there}")
        return arguments


def _asks(function: Callable[..., Any]) -> tuple[tuple[str, bool], ...]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    return tuple((parameter.name, parameter.default is parameter.empty) for parameter in named)
