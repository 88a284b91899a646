"""Our own evaluators: classes under `@builtin`, imported when somebody asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from spanwise.evaluators.protocol._binding import asked_by
from spanwise.evaluators.protocol._metric import Metric
from spanwise.evaluators.protocol._spec import Spec
from spanwise.evaluators.protocol._table import TABLE

C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered class and what is said of it."""

    spec: Spec
    factory: type


_entries: dict[str, Entry] = {}  # of the modules that have been imported so far


def builtin(id: str, *, metrics: tuple[Metric, ...], **facts: Any) -> Callable[[C], C]:
    """Register a frozen dataclass whose instances are evaluators: `@builtin("exact", metrics=(…), source="…")`.

    `facts` are fields of `Spec`. Raises `ValueError` where the table does not say that the id is in this module.
    """

    def register(cls: C) -> C:
        if TABLE.get(id) != cls.__module__:
            raise ValueError(
                f"evaluator {id!r} is in {cls.__module__}: say so in spanwise/evaluators/protocol/_table.py"
            )
        group = cls.__module__.rpartition(".")[2]
        needs, uses = asked_by(cls)
        _entries[id] = Entry(Spec(id=id, group=group, metrics=metrics, needs=needs, uses=uses, **facts), cls)
        return cls

    return register


def entry(id: str) -> Entry | None:
    """What is registered under an id, after importing the one module that does; None where it is none of ours."""
    if id not in _entries and id in TABLE:
        importlib.import_module(TABLE[id])
    return _entries.get(id)


def entry_of(instance: object) -> Entry | None:
    """Of which registered class it is an instance; None for anything else. Its module has been imported, then."""
    return next((known for known in list(_entries.values()) if known.factory is type(instance)), None)
