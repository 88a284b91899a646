"""Haystack pipeline components: registration, serialization of judges and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spanwise.evaluators.judges.llm_client.judge_call import Judge, make_judge

component: Any = None
try:
    from haystack import component
except ImportError:  # Haystack is optional: the classes also work without its pipelines
    pass

C = TypeVar("C", bound=type)
# module name in stored pipelines, independent of the module that defines a class
PACKAGE_NAME = __name__.rpartition(".")[0]


def register_component(**outputs: Any) -> Callable[[C], C]:
    """Return a decorator that makes a class a Haystack component with these outputs of `run`. Without Haystack it only
    sets the module.
    """

    def decorate(cls: C) -> C:
        cls.__module__ = PACKAGE_NAME
        if component is None:
            return cls
        for name in ("run", "run_async"):
            if name in cls.__dict__:
                component.output_types(**outputs)(cls.__dict__[name])
        registered: C = component(cls)
        return registered

    return decorate


def component_dict(evaluator: object, **parameters: Any) -> dict[str, Any]:
    """Return the result of `to_dict`: the type, and the parameters of its `__init__`."""
    return {"type": f"{PACKAGE_NAME}.{type(evaluator).__qualname__}", "init_parameters": parameters}


_TYPES_BY_NAME = {
    str(kind): kind for kind in (list[str], list[list[str]], list[int], list[float], list[bool], list[Any])
}


def serialize_judge(judge: Any) -> Any:
    """Return a judge as plain values, without its key. Raises `ValueError` for a function or a script, which cannot be
    serialized.
    """
    if judge is None or isinstance(judge, str):
        return judge
    if hasattr(judge, "to_dict") and not isinstance(judge, Judge):
        from haystack.core.serialization import component_to_dict

        return component_to_dict(obj=judge, name="chat_generator")
    return make_judge(judge).to_dict()


def deserialize_judge(judge: Any) -> Any:
    """Restore a judge from the result of `serialize_judge`."""
    if not isinstance(judge, Mapping) or "type" not in judge:
        return judge
    from haystack.utils import deserialize_chatgenerator_inplace

    holder = {"chat_generator": dict(judge)}
    deserialize_chatgenerator_inplace(holder, key="chat_generator")
    return holder["chat_generator"]


def type_to_text(kind: Any) -> str:
    """Return a type as text in Haystack's notation."""
    if component is None:
        return str(kind)
    from haystack.utils import serialize_type

    return serialize_type(kind)


def type_from_text(name: str) -> Any:
    """Return the type with that name. Without Haystack, an unknown name gives `list[Any]`."""
    if component is None:
        return _TYPES_BY_NAME.get(name, list[Any])
    from haystack.utils import deserialize_type

    return deserialize_type(name)
