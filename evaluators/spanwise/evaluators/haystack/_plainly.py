"""Judges and types as plain values, for pipelines that are written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.evaluators.haystack._component import component
from spanwise.evaluators.judges._judge import Judge, judge_of

_TYPES = {str(kind): kind for kind in (list[str], list[list[str]], list[int], list[float], list[bool], list[Any])}


def to_plain(judge: Any) -> Any:
    """A judge as plain values, without its key. Raises `ValueError` for what has none: a function, a script."""
    if judge is None or isinstance(judge, str):
        return judge
    if hasattr(judge, "to_dict") and not isinstance(judge, Judge):
        from haystack.core.serialization import component_to_dict

        return component_to_dict(obj=judge, name="chat_generator")
    return judge_of(judge).to_dict()


def from_plain(judge: Any) -> Any:
    """What `to_plain` was given, or what makes the same."""
    if not isinstance(judge, Mapping) or "type" not in judge:
        return judge
    from haystack.utils import deserialize_chatgenerator_inplace

    held = {"chat_generator": dict(judge)}
    deserialize_chatgenerator_inplace(held, key="chat_generator")
    return held["chat_generator"]


def type_named(kind: Any) -> str:
    """A type as Haystack writes it."""
    if component is None:
        return str(kind)
    from haystack.utils import serialize_type

    return serialize_type(kind)


def type_of(name: str) -> Any:
    """The type of that name; where Haystack is not installed and it is none of the usual ones, a list of anything."""
    if component is None:
        return _TYPES.get(name, list[Any])
    from haystack.utils import deserialize_type

    return deserialize_type(name)
