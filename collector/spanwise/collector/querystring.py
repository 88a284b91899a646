"""Filters as text, one grammar for query strings, command lines and pages; Python takes the same names and texts.

In a query string: `name=answer&feedback=concise<0.5&latency_ms>=200&tags=a&tags=b`. On a command line, one term each:
`name=answer 'feedback=concise<0.5' 'latency_ms>=200' metadata.tenant=t1 since=1h` and words to be found in inputs or
outputs. `since` and `until` take a duration (`90s`, `30m`, `1h`, `7d`, `2w`: so long ago) or an ISO date or time (in
the time zone of the machine that reads it, unless it says which).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from spanwise.collector import readings
from spanwise.collector.filters import COMPARISONS, CONDITIONS, FIELDS, LISTS, Filter, combined, read
from spanwise.collector.readings import as_text, bound, duration, moment

__all__ = ["Condition", "bound", "condition", "duration", "field_of", "gathered", "moment", "parse", "term"]
__all__ += ["to_filter", "to_items"]

Condition: TypeAlias = tuple[str, Any]  # a field of `Filter`, and its value there: a list of one, where it is a list

TERM = re.compile(
    rf"(?P<name>[a-z_]+)(?:\.(?P<key>[^<>=!]+))?(?P<operator>{readings.OPERATOR})(?P<value>.*)", re.DOTALL
)
WRITTEN_OUT = re.compile(r"[<>=!.]")
JOINED = (*LISTS, "feedback", "metadata")  # fields whose conditions add up


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
    if WRITTEN_OUT.search(name):  # `latency_ms>=5` splits at its "="
        return term(name if not text and TERM.fullmatch(name) else f"{name}={text}")
    return read(name, text)


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
        for key, text in value.items():
            said = f"{key}:{as_text(text)}"
            plain = readings.metadata(said) == {key: text}
            yield (field, said) if plain else (f"metadata.{key}", as_text(text))
    elif field in COMPARISONS:
        yield field, f"{value[0]}{value[1]!r}"
    elif field in ("since_ns", "until_ns"):  # few digits are a date
        yield field.removesuffix("_ns") if value >= 10**8 else field, str(value)
    else:
        yield field, str(value).lower() if isinstance(value, bool) else str(value)


def field_of(name: str) -> str | None:
    """The field of `Filter` that the name of a pair speaks of; None for a name that is no condition."""
    first = WRITTEN_OUT.split(name, maxsplit=1)[0]
    field = FIELDS.get(first, first)
    return field if field in CONDITIONS else None
