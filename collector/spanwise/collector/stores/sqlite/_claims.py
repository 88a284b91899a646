"""Of a rule's feedback on a target by one evaluator, only what the highest claim said stands: what that leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.stores.sqlite._sql import find_many

Place: TypeAlias = tuple[Any, ...]  # what a claim is one of: target, rule, evaluator


class Ruled(NamedTuple):
    """What claims ask of a feedback that has a rule; no claim counts as 0."""

    id: str
    claim: int
    trace_id: str | None
    span_id: str | None
    document: int | None
    session_id: str | None
    experiment_id: str | None
    rule: str
    evaluator: str | None

    @property
    def place(self) -> Place:
        """Target, rule and evaluator."""
        return self[2:]


_COLUMNS = ",".join(Ruled._fields).replace("claim", "coalesce(claim, 0)")


def stored(db: sqlite3.Connection, column: str, values: Iterable[Any]) -> list[Ruled]:
    """What rules have said on traces (by their keys), sessions or experiments."""
    sql = f"SELECT {_COLUMNS} FROM feedback WHERE rule IS NOT NULL AND {column} IN (%s)"
    return [Ruled(*row) for row in find_many(db, sql, values)]


def weighed(rows: Sequence[Ruled], stored: Sequence[Ruled]) -> tuple[set[str], set[str]]:
    """Ids of the rows that do not stand, and of stored ones that the others replace but do not overwrite."""
    highest: dict[Place, int] = {}
    for row in (*stored, *rows):
        highest[row.place] = max(row.claim, highest.get(row.place, 0))
    late = {row.id for row in rows if row.claim < highest[row.place]}
    replaced = {row.id for row in stored if row.claim < highest[row.place]}
    return late, replaced - {row.id for row in rows if row.id not in late}
