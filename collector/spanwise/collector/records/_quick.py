"""Records made where one is made for every span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields, make_dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def quick(record: Callable[P, R]) -> Callable[P, R]:
    """What makes instances of a frozen dataclass with slots, out of the same arguments, at a fifth of the price if all
    are given in order (also those that the record takes by name alone). The record has no `__post_init__`.

    A frozen dataclass sets each of its fields through `object.__setattr__`. Here they are set in an object of a class
    with the same slots that is not frozen, which then becomes one of the record's.
    """

    def freeze(made: Any) -> None:
        made.__class__ = record

    of: Any = record
    same = [(one.name, one.type, field(**_default(one))) for one in fields(of)]
    return make_dataclass(of.__name__, same, slots=True, namespace={"__post_init__": freeze})


def _default(one: Field[Any]) -> dict[str, Any]:
    told = {"default": one.default, "default_factory": one.default_factory}
    return {name: value for name, value in told.items() if value is not MISSING}
