"""Inputs of its own for every attempt: what a task does to them changes neither the example nor what comes after it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from spanwise.collector.records import JSON, Example

_VALUES = (
    *("inputs", "reference_outputs", "outputs", "conditions", "guidelines", "history", "metadata"),
    *("documents", "expected_documents"),
)
_PLAIN = frozenset({str, int, float, bool, type(None), bytes})  # nothing can change these


class Copies:
    """Makes copies, and remarks once on what cannot be copied: a generator, a lock, nesting without an end."""

    def __init__(self, remark: Callable[[str], None]) -> None:
        self._remark = remark

    def of(self, value: JSON) -> JSON:
        """The value anew, but for its texts and numbers. What refers to itself does so in the copy, too."""
        if type(value) in _PLAIN:
            return value
        try:
            return self._copy(value, {})
        except RecursionError:
            return self._shared(value, "nested too deeply")

    def of_example(self, example: Example) -> Example:
        """The example with values of its own: a task may ask for it."""
        return replace(example, **{name: self.of(getattr(example, name)) for name in _VALUES})

    def _copy(self, value: Any, made: dict[int, Any]) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if id(value) in made:
            return made[id(value)]
        if kind is dict:
            known = made[id(value)] = {}
            for name, member in value.items():
                known[name] = member if type(member) in _PLAIN else self._copy(member, made)
            return known
        if kind is list:
            listed = made[id(value)] = []
            listed.extend([self._copy(member, made) for member in value])
            return listed
        try:
            return deepcopy(value, made)
        except Exception as error:  # whatever somebody's `__deepcopy__` or `__reduce__` raises
            return self._shared(value, str(error))

    def _shared(self, value: Any, why: str) -> Any:
        self._remark(f"inputs with a {type(value).__name__} are the same in every attempt and repetition ({why:.100})")
        return value
