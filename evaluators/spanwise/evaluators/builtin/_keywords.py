"""Keywords of JSON Schema that an answer cannot make take for ever: jsonschema's, with bounds.

The schema is the author's, what it is held against is not: a pattern may backtrack without end, alternatives multiply,
and jsonschema compares the items of a list that is to be unique one with another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from time import monotonic
from typing import Any, TypeAlias

from spanwise.evaluators.builtin._patterns import search

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
# Keywords through which the steps of a check may multiply: all others take as long as the answer is.
BRANCHING = frozenset("$ref $dynamicRef $recursiveRef allOf anyOf oneOf not if contains".split())
MOST_UNEVALUATED = 5000  # members of a list or object, for keywords whose price grows with their square

_limit: ContextVar[tuple[float, float]] = ContextVar("limit", default=(float("inf"), 0.0))  # until when, seconds


def first_error(validator: Any, value: Any, seconds: float) -> Any:
    """The first error of a value, or None. Raises `TimeoutError` when bounded keywords take longer than `seconds`."""
    token = _limit.set((monotonic() + seconds, seconds))
    try:
        return next(iter(validator.iter_errors(value)), None)
    finally:
        _limit.reset(token)


def bounded(kind: Any) -> Any:
    """A validator class of jsonschema with bounded keywords."""
    import jsonschema

    theirs = dict(kind.VALIDATORS)
    ours: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
        "additionalProperties": _additional_properties(theirs["additionalProperties"]),
    }
    ours |= {
        name: _of_few(name, theirs[name]) for name in ("unevaluatedItems", "unevaluatedProperties") if name in theirs
    }
    extend: Any = jsonschema.validators.extend  # untyped
    branching = {name: _in_time(keyword) for name, keyword in theirs.items() if name in BRANCHING}
    return extend(kind, branching | ours)


def _check_time() -> None:
    until, seconds = _limit.get()
    if monotonic() > until:
        raise TimeoutError(f"holding it against json_schema took more than {seconds} s: give more seconds")


def _in_time(keyword: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        _check_time()
        return keyword(validator, value, instance, schema)

    return checked


def _of_few(name: str, keyword: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        if isinstance(instance, list | Mapping) and len(instance) > MOST_UNEVALUATED:
            raise ValueError(f"{name} is not told of {len(instance):,} members, more than {MOST_UNEVALUATED:,}")
        return keyword(validator, value, instance, schema)

    return checked


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    """As in jsonschema, but with a time limit: the answer decides how long a pattern may backtrack."""
    import jsonschema

    if isinstance(instance, str) and search(pattern, instance) is None:
        yield jsonschema.ValidationError(f"{instance!r:.200} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, Mapping):
        return
    for pattern, wanted in patterns.items():
        for name, value in instance.items():
            if search(pattern, name) is not None:
                yield from validator.descend(value, wanted, path=name, schema_path=pattern)


def _additional_properties(theirs: Keyword) -> Keyword:
    """Theirs, of the names that none of the patterns match: those are looked for by us, in time."""

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        patterns = schema.get("patternProperties", {})
        if not isinstance(instance, Mapping) or not patterns:
            return theirs(validator, value, instance, schema)
        rest = {name: inner for name, inner in instance.items() if not any(search(each, name) for each in patterns)}
        return theirs(validator, value, rest, {**schema, "patternProperties": {}})

    return additional


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    import jsonschema

    if wanted and isinstance(instance, list):
        seen: set[Any] = set()
        for item in instance:
            _check_time()
            known = _hashable(item)
            if known in seen:
                yield jsonschema.ValidationError(f"{item!r:.200} comes more than once")
                return
            seen.add(known)


def _hashable(value: Any) -> Any:
    """What is equal for values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, Mapping):
        return frozenset((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return (bool, value) if isinstance(value, bool) else value
