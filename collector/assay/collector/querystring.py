"""Filters in query strings and on command lines: `name=answer&feedback=concise<0.5&latency_ms=>=200&tags=a&tags=b`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from assay.collector.filters import COMPARISONS, LISTS, Filter, combined

NUMBERS = ("since_ns", "until_ns")
COMPARED = re.compile(r"^(?P<key>.*?)(?P<operator><=|>=|!=|<|>|=)(?P<value>.*)$", re.DOTALL)
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def to_filter(items: Iterable[tuple[str, str]]) -> Filter:
    """The filter that pairs of a name and a text say. Raises `ValueError`, naming the pair."""
    conditions: dict[str, Any] = {}
    for name, value in items:
        _add(conditions, name, value)
    return combined(None, conditions)


def to_items(filter: Filter) -> list[tuple[str, str]]:
    """The pairs that say a filter: `to_filter` of them is the filter again."""
    return [item for name in Filter.__dataclass_fields__ for item in _items(name, getattr(filter, name))]


def _add(conditions: dict[str, Any], name: str, value: str) -> None:
    if name in LISTS:
        conditions.setdefault(name, []).append(value)
    elif name == "feedback":
        conditions.setdefault(name, []).append(_feedback(value))
    elif name == "metadata":
        key, _, text = value.partition(":")
        conditions.setdefault(name, {})[key] = text
    else:
        conditions[name] = _scalar(name, value)


def _scalar(name: str, value: str) -> Any:
    if name in NUMBERS:
        return _number(name, value, int)
    if name in COMPARISONS:
        _, operator, bound = _split(name, value if value[:1] in "<>=!" else "=" + value)
        return operator, _number(name, bound, float)
    if name == "complete":
        if value.lower() not in TRUTHS:
            raise ValueError(f"complete={value!r} is neither true nor false")
        return TRUTHS[value.lower()]
    return value


def _feedback(value: str) -> tuple[str, str, float | str]:
    key, operator, bound = _split("feedback", value)
    if bound.lower() in ("true", "false"):
        return key, operator, float(bound.lower() == "true")
    try:
        return key, operator, float(bound)
    except ValueError:
        return key, operator, bound


def _split(name: str, value: str) -> tuple[str, str, str]:
    found = COMPARED.match(value)
    if not found or (name == "feedback" and not found["key"]):
        raise ValueError(f"{name}={value!r} holds no comparison, such as {name}={_example(name)}")
    return found["key"], found["operator"], found["value"]


def _example(name: str) -> str:
    return "concise<0.5" if name == "feedback" else ">=100"


def _number(name: str, value: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a number") from None


def _items(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if name in LISTS:
        yield from ((name, one) for one in value)
    elif name == "feedback":
        yield from ((name, f"{key}{operator}{bound}") for key, operator, bound in value)
    elif name == "metadata":
        yield from ((name, f"{key}:{text}") for key, text in value.items())
    elif name in COMPARISONS:
        yield name, f"{value[0]}{value[1]!r}"
    else:
        yield name, str(value).lower() if isinstance(value, bool) else str(value)
