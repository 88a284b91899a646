"""Bind call arguments to parameter names, with the signature read once, at decoration time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, TypeAlias

Bind: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def binder(function: Callable[..., Any]) -> Bind:
    """A function from `(args, kwargs)` to `{parameter: value}`: defaults included, a leading `self` or `cls` left out.

    Arguments that do not fit (the call itself will raise) are kept under `args` and `kwargs`.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have none
        return _loose
    skip = int(bool(parameters) and parameters[0].kind in _POSITIONAL and parameters[0].name in ("self", "cls"))
    return _binder(parameters[skip:], skip)


def _loose(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"args": args, **kwargs} if args else dict(kwargs)


def _binder(parameters: list[Parameter], skip: int) -> Bind:
    names = tuple(p.name for p in parameters if p.kind in _POSITIONAL)
    rest = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
    extra = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
    defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}
    known = {p.name for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY} - {rest, extra}
    order = [p.name for p in parameters]
    exact = len(names) + skip if len(order) == len(names) else -1

    def bind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) == exact and not kwargs:
            return dict(zip(names, args[skip:] if skip else args, strict=True))
        given = args[skip:]
        values = {**defaults, **dict(zip(names, given, strict=False))}
        if rest is not None:
            values[rest] = given[len(names) :]
        unknown = {k: v for k, v in kwargs.items() if k not in known}
        values.update((k, v) for k, v in kwargs.items() if k in known)
        if extra is not None:
            values[extra] = unknown
        elif unknown or (rest is None and len(given) > len(names)):
            return _loose(given, kwargs)
        return {name: values[name] for name in order if name in values}

    return bind
