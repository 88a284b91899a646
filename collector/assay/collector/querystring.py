"""Filters as text, one grammar for query strings, command lines and pages.

In a query string: `name=answer&feedback=concise<0.5&latency_ms=>=200&tags=a&tags=b`. On a command line, one term each:
`name=answer 'feedback=concise<0.5' 'latency_ms>=200' metadata.tenant=t1 since=1h` and words to be found in inputs or
outputs. `since` and `until` take a duration (`90s`, `30m`, `1h`, `7d`, `2w`: so long ago) or an ISO date or time (in
the time zone of the machine that reads it, unless it says which).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from assay.collector.filters import COMPARISONS, CONDITIONS, LISTS, Filter, combined

Condition: TypeAlias = tuple[str, Any]  # a field of `Filter`, and its value there: a list of one, where it is a list

OPERATOR = "<=|>=|!=|<|>|="
COMPARED = re.compile(rf"(?P<key>.*?)(?P<operator>{OPERATOR})(?P<value>.*)", re.DOTALL)
TERM = re.compile(rf"(?P<name>[a-z_]+)(?:\.(?P<key>[^<>=!]+))?(?P<operator>{OPERATOR})(?P<value>.*)", re.DOTALL)
WRITTEN_OUT = re.compile(r"[<>=!.]")
DURATION = re.compile(r"(\d+)\s*([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
ALIASES = {"since": "since_ns", "until": "until_ns", "tag": "tags"}
JOINED = (*LISTS, "feedback", "metadata")  # fields whose conditions add up
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def to_filter(items: Iterable[tuple[str, str]]) -> Filter:
    """The filter that pairs of a name and a text say. Raises `ValueError`, naming the pair."""
    return gathered(condition(name, text) for name, text in items)


def parse(terms: Iterable[str]) -> Filter:
    """The filter that terms of a command line say. Raises `ValueError`, naming the term."""
    terms = list(terms)
    words = [word for word in terms if not TERM.fullmatch(word)]
    conditions = [term(text) for text in terms if TERM.fullmatch(text)]
    return gathered([*conditions, ("text", " ".join(words))] if words else conditions)


def gathered(conditions: Iterable[Condition]) -> Filter:
    """The filter in which all of them hold: lists and metadata add up, of anything else the last counts.

    Raises `ValueError` for a name that is no condition.
    """
    together: dict[str, Any] = {}
    for field, value in conditions:
        if field in JOINED and field in together:
            value = together[field] | value if field == "metadata" else together[field] + value
        together[field] = value
    return combined(None, together)


def condition(name: str, text: str) -> Condition:
    """What one pair of a query string says. Raises `ValueError`, naming the pair."""
    if name not in READERS and WRITTEN_OUT.search(name):  # `latency_ms>=5` splits at its "="
        return term(name if not text and TERM.fullmatch(name) else f"{name}={text}")
    return ALIASES.get(name, name), READERS.get(name, str)(text)


def term(text: str) -> Condition:
    """What one term of a command line says. Raises `ValueError`, naming the term."""
    match = TERM.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no condition, such as name=answer or latency_ms>200")
    name, key, operator, value = match.groups()
    if operator != "=" and name not in COMPARISONS and not (key and name == "feedback"):
        raise ValueError(f"{text!r}: {name!r} can only be compared with =")
    if key is None:
        return condition(name, value if operator == "=" else operator + value)
    return (name, {key: value}) if name == "metadata" else condition(name, f"{key}{operator}{value}")


def to_items(filter: Filter) -> list[tuple[str, str]]:
    """The pairs that say a filter: `to_filter` of them is the filter again.

    What the grammar cannot say does not survive: a comparison within a key of feedback or metadata, a label of
    feedback that reads as a number, and an empty list of `experiments`.
    """
    return [(name, text) for field in CONDITIONS for name, text in _items(field, getattr(filter, field))]


def _items(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if field in LISTS:
        yield from ((field, text) for text in value)
    elif field == "feedback":
        yield from ((field, f"{key}{operator}{bound}") for key, operator, bound in value)
    elif field == "metadata":
        yield from (
            (f"metadata.{key}", text) if ":" in key else (field, f"{key}:{text}") for key, text in value.items()
        )
    elif field in COMPARISONS:
        yield field, f"{value[0]}{value[1]!r}"
    else:
        yield field, str(value).lower() if isinstance(value, bool) else str(value)


def field_of(name: str) -> str | None:
    """The field of `Filter` that the name of a pair speaks of; None for a name that is no condition."""
    first = WRITTEN_OUT.split(name, maxsplit=1)[0]
    field = ALIASES.get(first, first)
    return field if field in Filter.__dataclass_fields__ else None


def moment(text: str, now_ns: int | None = None) -> int:
    """Nanoseconds since the epoch: nine digits or more as they are, a duration ago, or an ISO date or time.

    Raises `ValueError`, also for what is too far away for a signed number of 64 bits (the year 2262).
    """
    if text.isdecimal() and len(text) > 8:  # eight digits are a date without its dashes
        return _bounded(int(text), text)
    if DURATION.fullmatch(text):
        return _bounded((time.time_ns() if now_ns is None else now_ns) - duration(text), text)
    try:
        seconds = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise _no_time(text) from None
    return _bounded(round(seconds * 1_000_000) * 1000, text)


def duration(text: str) -> int:
    """Nanoseconds of a duration such as `30d`. Raises `ValueError`."""
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no duration; write 90s, 30m, 1h, 7d or 2w")
    return int(match[1]) * SECONDS[match[2]] * 1_000_000_000


def bound(text: str) -> float | str:
    """What feedback is compared with: a number, true and false as 1 and 0, else a label."""
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return float(text)
    except ValueError:
        return text


def _bounded(time_ns: int, text: str) -> int:
    if not -(2**63) <= time_ns < 2**63:
        raise _no_time(text)
    return time_ns


def _no_time(text: str) -> ValueError:
    return ValueError(f"{text!r} is no time; write 1h, 7d, 2026-01-31 or 2026-01-31T12:00")


def _nanoseconds(text: str) -> int:
    return _bounded(int(text), text) if text.removeprefix("-").isdecimal() else moment(text)


def _comparison(name: str, text: str) -> tuple[str, float]:
    _, operator, number = _split(name, text if text[:1] in "<>=!" else "=" + text)
    try:
        return operator, float(number)
    except ValueError:
        raise ValueError(f"{name}={number!r} is not a number") from None


def _feedback(text: str) -> tuple[tuple[str, str, float | str]]:
    key, operator, value = _split("feedback", text)
    return ((key, operator, bound(value)),)


def _split(name: str, text: str) -> tuple[str, str, str]:
    match = COMPARED.fullmatch(text)
    if not match or (name == "feedback" and not match["key"]):
        example = "concise<0.5" if name == "feedback" else ">=100"
        raise ValueError(f"{name}={text!r} holds no comparison, such as {name}={example}")
    return match["key"], match["operator"], match["value"]


def _metadata(text: str) -> dict[str, str]:
    key, _, value = text.partition(":")
    return {key: value}


def _truth(text: str) -> bool:
    if text.lower() not in TRUTHS:
        raise ValueError(f"complete={text!r} is neither true nor false")
    return TRUTHS[text.lower()]


def _listed(text: str) -> tuple[str]:
    return (text,)


READERS: Mapping[str, Callable[[str], Any]] = {  # of all names that do not simply take the text
    **dict.fromkeys((*LISTS, "tag"), _listed),
    **{name: partial(_comparison, name) for name in COMPARISONS},
    "since": moment,
    "until": moment,
    "since_ns": _nanoseconds,
    "until_ns": _nanoseconds,
    "feedback": _feedback,
    "metadata": _metadata,
    "complete": _truth,
}
