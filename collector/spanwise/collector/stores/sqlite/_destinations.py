"""Destinations whose part of a trace has been received: for tracers, which await and inform only these.

A destination takes part in a project once a span of that project has continued a call of the same project to it. The
project of a sender with a project's key is that of the key, so no sender can name destinations for another project.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from spanwise.collector.stores.sqlite._codec import Fact
from spanwise.tracer.destinations import MOST

T = TypeVar("T")
FIELD = "destination"  # in the table `known`: project and destination in one line each
MOST_PROJECTS = 1_000
REMEMBERED = 20_000  # calls, and continuations, whose other half has not arrived


class Destinations:
    """The writer's record of destinations. Reading a project's is safe in any thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._by_project: dict[str, tuple[str, ...]] = {}
        self._calls: OrderedDict[tuple[int, str], tuple[str, str]] = OrderedDict()  # by trace and span
        self._continued: OrderedDict[tuple[int, str], str] = OrderedDict()  # by trace and parent: the project
        self.forget()

    def forget(self) -> None:
        """Read again what the file has: after a rollback, memory may be ahead of it."""
        self._calls.clear()
        self._continued.clear()
        by_project: dict[str, tuple[str, ...]] = {}
        for (value,) in self._db.execute("SELECT value FROM known WHERE field = ?", (FIELD,)):
            project, _, name = value.rpartition("\n")
            by_project[project] = (*by_project.get(project, ()), name)
        self._by_project = by_project

    def of(self, project: str) -> Sequence[str]:
        """The destinations of a project."""
        return self._by_project.get(project, ())

    def note(self, traces: Iterable[int], facts: Iterable[Fact]) -> None:
        """Look through spans that are being written, and keep the destinations that have answered."""
        for trace, fact in zip(traces, facts, strict=True):
            if fact.route:
                self._call(trace, fact)
            elif fact.route is not None and fact.parent_id is not None:
                self._continue(trace, fact.parent_id, fact.project)

    def _call(self, trace: int, fact: Fact) -> None:
        if self._continued.pop((trace, fact.span_id), None) == fact.project:
            self._add(fact.project, fact.route or "")
        else:
            _remember(self._calls, (trace, fact.span_id), (fact.project, fact.route or ""))

    def _continue(self, trace: int, caller: str, project: str) -> None:
        call = self._calls.get((trace, caller))
        if call is None:
            _remember(self._continued, (trace, caller), project)
        elif call[0] == project:
            del self._calls[trace, caller]
            self._add(*call)

    def _add(self, project: str, name: str) -> None:
        known = self._by_project.get(project, ())
        if name in known or (not known and len(self._by_project) >= MOST_PROJECTS):
            return
        dropped = known[: len(known) + 1 - MOST]
        self._by_project[project] = (*known[len(dropped) :], name)
        rows = [(FIELD, f"{project}\n{one}") for one in dropped]
        self._db.executemany("DELETE FROM known WHERE field = ? AND value = ?", rows)
        self._db.execute("INSERT OR IGNORE INTO known VALUES (?, ?)", (FIELD, f"{project}\n{name}"))


def _remember(some: OrderedDict[tuple[int, str], T], key: tuple[int, str], value: T) -> None:
    some[key] = value
    if len(some) > REMEMBERED:
        some.popitem(last=False)
