"""Filters as text, one grammar for query strings, command lines and pages.

In a query string: `name=answer&feedback=concise<0.5&latency_ms=>=200&tags=a&tags=b`. On a command line, one term each:
`name=answer 'feedback=concise<0.5' 'latency_ms>=200' metadata.tenant=t1 since=1h` and words to be found in inputs or
outputs. `since` and `until` take a duration (`90s`, `30m`, `1h`, `7d`, `2w`: so long ago) or an ISO date or time (in
the time zone of the machine that reads it, unless it says which).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from assay.collector.filters import COMPARISONS, LISTS, Filter, combined

NUMBERS = ("since_ns", "until_ns")
COMPARED = re.compile(r"^(?P<key>.*?)(?P<operator><=|>=|!=|<|>|=)(?P<value>.*)$", re.DOTALL)
TERM = re.compile(r"^(?P<name>[a-z_]+)(?:\.(?P<key>[^<>=!]+))?(?P<operator><=|>=|!=|<|>|=)(?P<value>.*)$", re.DOTALL)
WRITTEN_OUT = re.compile(r"[<>=!.]")
DURATION = re.compile(r"^(\d+)\s*([smhdw])$")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
NAMES = {"since": "since_ns", "until": "until_ns", "tag": "tags"}
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def to_filter(items: Iterable[tuple[str, str]]) -> Filter:
    """The filter that pairs of a name and a text say. Raises `ValueError`, naming the pair."""
    conditions: dict[str, Any] = {}
    for name, value in items:
        if name not in Filter.__dataclass_fields__ and WRITTEN_OUT.search(name):  # `latency_ms>=5` splits at its "="
            name, value = pair(f"{name}={value}" if value else name)
        _add(conditions, NAMES.get(name, name), value)
    return combined(None, conditions)


def parse(terms: Iterable[str]) -> Filter:
    """The filter that terms of a command line say. Raises `ValueError`, naming the term."""
    terms = list(terms)
    words = [term for term in terms if not TERM.match(term)]
    items = [pair(term) for term in terms if TERM.match(term)]
    return to_filter([*items, ("text", " ".join(words))] if words else items)


def pair(term: str) -> tuple[str, str]:
    """What one term says, as `to_filter` takes it. Raises `ValueError`."""
    found = TERM.match(term)
    if not found:
        raise ValueError(f"{term!r} is no condition, such as name=answer or latency_ms>200")
    name, key, operator, value = found.groups()
    if key is not None:
        return name, f"{key}:{value}" if name == "metadata" else f"{key}{operator}{value}"
    if operator != "=" and name not in COMPARISONS:
        raise ValueError(f"{term!r}: {name!r} can only be compared with =")
    return name, value if operator == "=" else operator + value


def moment(text: str, now_ns: int | None = None) -> int:
    """Nanoseconds since the epoch: an integer as it is, a duration ago, or an ISO date or time. Raises `ValueError`."""
    if text.lstrip("-").isdigit():
        return int(text)
    if found := DURATION.match(text):
        ago = int(found[1]) * SECONDS[found[2]] * 1_000_000_000
        return (time.time_ns() if now_ns is None else now_ns) - ago
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 1h, 7d, 2026-01-31 or 2026-01-31T12:00") from None
    return round(when.timestamp() * 1_000_000) * 1000


def duration(text: str) -> int:
    """Nanoseconds of a duration such as `30d`. Raises `ValueError`."""
    found = DURATION.match(text)
    if not found:
        raise ValueError(f"{text!r} is no duration; write 90s, 30m, 1h, 7d or 2w")
    return int(found[1]) * SECONDS[found[2]] * 1_000_000_000


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
        return moment(value)
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
