"""Haystack pipeline components: registration, serialization of judges and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spanwise.evaluators.judges.llm_client.judge_settings import Judge, make_judge

component: Any = None
try:
    from haystack import component
except ImportError:  # the same classes, for code that has no pipelines
    pass

C = TypeVar("C", bound=type)
PACKAGE_NAME = __name__.rpartition(".")[0]  # under which stored pipelines know the classes, wherever they are written


def register_component(**outputs: Any) -> Callable[[C], C]:
    """Make a class a component of Haystack's, which says what its `run` gives; nothing where there is no Haystack."""

    def decorate(cls: C) -> C:
        cls.__module__ = PACKAGE_NAME
        if component is None:
            return cls
        for name in ("run", "run_async"):
            if name in cls.__dict__:
                component.output_types(**outputs)(cls.__dict__[name])
        made: C = component(cls)
        return made

    return decorate


def component_dict(evaluator: object, **parameters: Any) -> dict[str, Any]:
    """What `to_dict` gives: the type, and the parameters of its `__init__`."""
    return {"type": f"{PACKAGE_NAME}.{type(evaluator).__qualname__}", "init_parameters": parameters}


_TYPES_BY_NAME = {
    str(kind): kind for kind in (list[str], list[list[str]], list[int], list[float], list[bool], list[Any])
}


def serialize_judge(judge: Any) -> Any:
    """A judge as plain values, without its key. Raises `ValueError` for what has none: a function, a script."""
    if judge is None or isinstance(judge, str):
        return judge
    if hasattr(judge, "to_dict") and not isinstance(judge, Judge):
        from haystack.core.serialization import component_to_dict

        return component_to_dict(obj=judge, name="chat_generator")
    return make_judge(judge).to_dict()


def deserialize_judge(judge: Any) -> Any:
    """What `to_plain` was given, or what makes the same."""
    if not isinstance(judge, Mapping) or "type" not in judge:
        return judge
    from haystack.utils import deserialize_chatgenerator_inplace

    held = {"chat_generator": dict(judge)}
    deserialize_chatgenerator_inplace(held, key="chat_generator")
    return held["chat_generator"]


def type_to_text(kind: Any) -> str:
    """A type as Haystack writes it."""
    if component is None:
        return str(kind)
    from haystack.utils import serialize_type

    return serialize_type(kind)


def type_from_text(name: str) -> Any:
    """The type of that name; where Haystack is not installed and it is none of the usual ones, a list of anything."""
    if component is None:
        return _TYPES_BY_NAME.get(name, list[Any])
    from haystack.utils import deserialize_type

    return deserialize_type(name)
