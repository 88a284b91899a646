"""Classes as components of Haystack's, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

component: Any = None
try:
    from haystack import component
except ImportError:  # the same classes, for code that has no pipelines
    pass

C = TypeVar("C", bound=type)
MODULE = __name__.rpartition(".")[0]  # under which stored pipelines know the classes, wherever they are written


def as_component(**outputs: Any) -> Callable[[C], C]:
    """Make a class a component of Haystack's, which says what its `run` gives; nothing where there is no Haystack."""

    def decorate(cls: C) -> C:
        cls.__module__ = MODULE
        if component is None:
            return cls
        for name in ("run", "run_async"):
            if name in cls.__dict__:
                component.output_types(**outputs)(cls.__dict__[name])
        made: C = component(cls)
        return made

    return decorate


def as_dict(evaluator: object, **parameters: Any) -> dict[str, Any]:
    """What `to_dict` gives: the type, and the parameters of its `__init__`."""
    return {"type": f"{MODULE}.{type(evaluator).__qualname__}", "init_parameters": parameters}
