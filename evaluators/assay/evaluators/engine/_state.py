"""The plain state of objects that a task is made of, as texts to be compared: settings, not what moves while it runs.

Nothing of an object's own code is run to find it out, and of a value only its digest is ever kept.
"""

from __future__ import annotations

import dis
import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from types import CodeType, MemberDescriptorType
from typing import Any
from uuid import UUID

DEPTH = 4  # of containers within each other
MOST = 10_000  # values of one container
PLAIN = (str, bytes, int, float, complex, bool, type(None))
_TOLD_BY_REPR = (PurePath, date, time, timedelta, Decimal, UUID, re.Pattern)
_SECRET = re.compile(r"(?i)key$|token$|secret|password|credential")  # what is rotated, and changes no answer
_MAKING = ("__init__", "__post_init__", "__new__", "__setstate__", "model_post_init")
_CHANGES = "add append appendleft clear discard extend insert pop popitem popleft remove reverse setdefault sort update"
_ASSIGNS = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")
_MUTATORS = frozenset(_CHANGES.split())


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object holds, by name, without its secrets; of slots, too."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, MemberDescriptorType):
                try:
                    found.setdefault(name, member.__get__(value))
                except AttributeError:  # never set
                    continue
    return {name: inner for name, inner in found.items() if not _SECRET.search(name)}


def is_container(value: Any) -> bool:
    """Whether it can change without being assigned anew."""
    return isinstance(value, list | set | dict)


def text_of(value: Any) -> str | None:
    """A text that is the same for the same plain value, in every process; None for what is not plain, or too large."""
    try:
        return _text(value, DEPTH, itertools.count())
    except ValueError:
        return None


def _text(value: Any, depth: int, counted: Iterator[int]) -> str:
    if next(counted) > MOST or depth < 0:
        raise ValueError("too large")
    if isinstance(value, (*PLAIN, *_TOLD_BY_REPR)):
        return repr(value)
    if type(value) in (list, tuple):
        return repr([_text(inner, depth - 1, counted) for inner in value])
    if type(value) in (set, frozenset):
        return f"set {sorted(_text(inner, depth - 1, counted) for inner in value)}"
    if isinstance(value, dict):
        pairs = [(_text(key, depth - 1, counted), _text(inner, depth - 1, counted)) for key, inner in value.items()]
        return f"dict {sorted(pairs)}"
    raise ValueError("not plain")


class Moving:
    """Names of attributes and variables that code changes while it runs: counters and caches, not settings."""

    def __init__(self) -> None:
        self._assigned: set[str] = set()
        self._mutated: set[str] = set()  # perhaps: named where something is

    def note(self, name: str, code: CodeType) -> None:
        """Look at a piece of a function of that name."""
        if name in _MAKING:
            return
        steps = list(dis.get_instructions(code))
        self._assigned.update(step.argval for step in steps if step.opname in _ASSIGNS)
        if _MUTATORS & set(code.co_names) or any(step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in steps):
            self._mutated.update((*code.co_names, *code.co_freevars, *code.co_varnames))

    def holds(self, name: str, *, container: bool) -> bool:
        """Whether an attribute (or variable) of that name, which holds a container or not, moves."""
        return name in self._assigned or (container and name in self._mutated)


def settled(state: Mapping[str, tuple[str, str, bool]], moving: Moving) -> dict[str, str]:
    """Digests of what does not move, out of {path: (name, digest, whether it is a container)}."""
    return {path: digest for path, (name, digest, held) in state.items() if not moving.holds(name, container=held)}
