"""The feed: heads of traces in the order in which they last changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from assay.collector.errors import NotFound, Refused
from assay.collector.filters import Filter, timeless
from assay.collector.records import Changes, Head, head
from assay.collector.stores.sqlite._for_rules import answer

_HEAD = (
    "t.trace_id, t.change, t.runs_change, t.changed_ns, t.start_ns, t.complete, 1, t.rooted, t.size, t.span_count,"
    " t.probability, t.partial, t.judgement, t.project, t.environment, t.experiment_id, t.session_id"
)
_FROM = "FROM traces t INDEXED BY traces_by_change WHERE t.change > ?"


def changes(db: sqlite3.Connection, after: str | None, limit: int, filters: Sequence[Filter], now_ns: int) -> Changes:
    """What changed after a position. Raises `Refused`."""
    begin = position(db, after)
    answers = [answer(timeless(filter)) for filter in filters]
    passes = "".join(f", {one.sql}" for one in answers)
    values = [value for one in answers for value in one.values]
    rows = db.execute(f"SELECT {_HEAD}{passes} {_FROM} ORDER BY t.change LIMIT ?", (*values, begin, limit)).fetchall()
    return Changes(heads=tuple(map(head, rows)), cursor=str(rows[-1][1] if rows else begin), now_ns=now_ns)


def behind(db: sqlite3.Connection, after: str | None) -> tuple[int, int | None]:
    """How many traces stand in the feed after a position, and when the first of them changed."""
    begin = position(db, after)
    count = db.execute(f"SELECT count(*) {_FROM}", (begin,)).fetchone()[0]
    first = db.execute(f"SELECT t.changed_ns {_FROM} ORDER BY t.change LIMIT 1", (begin,)).fetchone()
    return int(count), first[0] if first else None


def position(db: sqlite3.Connection, cursor: str | None) -> int:
    """The number of the change that a cursor stands behind. Raises `Refused` for what this store never gave out."""
    if cursor is None:
        return 0
    number = int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 20 else -1
    if not 0 <= number <= latest(db):
        raise Refused(
            f"{cursor!r} is no position in this store's feed; use the `cursor` of what was read before, or none"
        )
    return number


def latest(db: sqlite3.Connection) -> int:
    """The highest number that was given out."""
    return int(db.execute("SELECT change FROM feed").fetchone()[0])


def one(db: sqlite3.Connection, trace_id: str, filters: Sequence[Filter]) -> Head:
    """The head of one trace. Raises `NotFound`."""
    answers = [answer(timeless(filter)) for filter in filters]
    values = [value for one in answers for value in one.values]
    asked = "".join(f", {one.sql}" for one in answers)
    sql = f"SELECT {_HEAD}{asked} FROM traces t WHERE t.trace_id = ? AND t.span_count > 0"
    row = db.execute(sql, (*values, trace_id)).fetchone()
    if row is None:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return head(row)
