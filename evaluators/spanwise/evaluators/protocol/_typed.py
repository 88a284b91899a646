"""Whether parameters are of the kinds that an evaluator declares: a wrong one should be told before any case."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from spanwise.evaluators.protocol._infinite import number_of


def check(id: str, kind: type, parameters: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a parameter whose value does not fit its annotation."""
    hints = _hints(kind)
    for name, value in parameters.items():
        if not fits(value, hints[name]):
            raise ValueError(f"evaluator {id!r}: {name} is {_words(hints[name])}, not {value!r:.200}")


def with_numbers(kind: type, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the infinite numbers that JSON has words for in the place of these, where a number is wanted."""
    hints = _hints(kind)
    return {name: _number(value, hints.get(name, Any)) for name, value in parameters.items()}


def _number(value: Any, hint: Any) -> Any:
    number = number_of(value)
    return number if number is not value and not fits(value, hint) and fits(number, hint) else value


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated kind; a string is no sequence of strings, a bool no number."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in inner)
    if origin is Literal:
        return value in inner
    if origin in (Sequence, tuple):
        return isinstance(value, list | tuple) and all(fits(member, inner[0]) for member in value)
    if origin is Callable:
        return callable(value)
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return hint is Any or isinstance(value, origin or hint)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Sequence, tuple):
        return f"a list of {_words(inner[0])}"
    simple = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "None"}
    return simple.get(hint, "a function" if origin is Callable else "a dict" if origin is Mapping else str(hint))
