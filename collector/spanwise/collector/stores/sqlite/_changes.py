"""The feed: heads of traces in the order in which they last changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, cast

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import Filter, timeless
from spanwise.collector.records import Changes, Head
from spanwise.collector.stores.sqlite._for_rules import Writer, among, answer

MOST = 10_000  # heads of a slice
FILTERS = 500  # of one question

# Each column costs as much as it costs to find the row: what is yes or no comes in one
_TOLD = "coalesce(t.complete, 2) | (t.rooted << 2) | (t.partial << 3) | (t.judgement << 4) | ((t.dropped > 0) << 5)"
_HEAD = (
    f"t.trace_id, t.change, t.runs_change, t.changed_ns, t.start_ns, {_TOLD}, t.size, t.span_count, t.probability,"
    " t.project, t.environment, t.experiment_id, t.session_id, t.id"
)
# By `_TOLD`: settled, whole, rooted, partial, judgement
_FLAGS = [
    ((False, True, None, None)[told & 3], not told & 32, bool(told & 4), bool(told & 8), bool(told & 16))
    for told in range(64)
]
_FROM = "FROM traces t INDEXED BY traces_by_change WHERE t.change > ?"


def changes(db: sqlite3.Connection, after: str | None, limit: int, filters: Sequence[Filter], now_ns: int) -> Changes:
    """What changed after a position. Raises `Refused`."""
    begin, most = position(db, after), max(0, min(limit, MOST))
    columns, values = _columns(filters, _words(db, begin, most) if any(one.text for one in filters) else None)
    rows = db.execute(f"SELECT {columns} {_FROM} ORDER BY t.change LIMIT ?", (*values, begin, most)).fetchall()
    return Changes(heads=tuple(map(_head, rows)), cursor=str(rows[-1][1] if rows else begin), now_ns=now_ns)


def one(db: sqlite3.Connection, trace_id: str, filters: Sequence[Filter]) -> Head:
    """The head of one trace. Raises `NotFound`."""
    columns, values = _columns(filters)
    sql = f"SELECT {columns} FROM traces t WHERE t.trace_id = ? AND t.span_count > 0"
    row = db.execute(sql, (*values, trace_id)).fetchone()
    if row is None:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return _head(row)


def _words(db: sqlite3.Connection, begin: int, most: int) -> Writer:
    return among(db, [row[0] for row in db.execute(f"SELECT t.id {_FROM} ORDER BY t.change LIMIT ?", (begin, most))])


def _columns(filters: Sequence[Filter], words: Writer | None = None) -> tuple[str, list[Any]]:
    """What is read of a trace, and the values for its marks. Raises `Refused`."""
    if len(filters) > FILTERS:
        raise Refused(f"{len(filters)} filters at once; ask at most {FILTERS} of them, and the others in another call")
    answers = [answer(timeless(filter), words) for filter in filters]
    return ", ".join((_HEAD, *(one.sql for one in answers))), [value for one in answers for value in one.values]


_PASSES = {0: False, 1: True, None: None}


class _Draft:
    """A head whose fields can still be set: a frozen one sets them at several times the price."""

    __slots__ = Head.__slots__


def _head(row: Sequence[Any]) -> Head:
    made: Any = _Draft()
    (
        made.trace_id,
        made.change,
        made.runs_change,
        made.changed_ns,
        made.start_ns,
        told,
        made.size,
        made.span_count,
        made.probability,
        made.project,
        made.environment,
        made.experiment_id,
        made.session_id,
        made.number,
        *passes,
    ) = row
    made.settled, made.whole, made.rooted, made.partial, made.judgement = _FLAGS[told]
    made.cursor = str(made.change)
    made.passes = tuple([_PASSES[one] for one in passes])
    made.__class__ = Head  # the slots are the same
    return cast(Head, made)


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
