"""Parts of a trace that may be too large to be read whole: its tree, its runs page by page, one run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from spanwise.collector.errors import NotFound
from spanwise.collector.records import Branch, Page, Run
from spanwise.collector.stores._tree import Line, branch, in_order
from spanwise.collector.stores.sqlite._reader import RUN, Reader
from spanwise.collector.stores.sqlite._sql import find_many
from spanwise.collector.stores.sqlite.root_values import complete_root_of

_LINES = f"SELECT {','.join(Line._fields)} FROM spans WHERE trace = ?"
_MARKS = "SELECT span_id, count(*), sum(outcome = 'error') FROM feedback WHERE trace = ? AND span_id IN (%s) GROUP BY 1"
# Ids alone are sorted: the payloads of all that come later would be read and thrown away
_LATER = (
    "SELECT id, span_id FROM spans WHERE trace = :trace AND (start_ns, -end_ns, span_id) >= (:start, :end, :span)"
    " ORDER BY start_ns, -end_ns, span_id LIMIT :limit"
)
_FIRST = -(1 << 63)


def tree(reader: Reader, trace_id: str, limit: int, cursor: str | None) -> Page[Branch]:
    """The page that holds the run `cursor`. Raises `NotFound`."""
    key, _ = _row_of(reader.db, trace_id)
    lines = [Line._make(row) for row in reader.db.execute(_LINES, (key,))]
    reader.look()
    placed = list(in_order(lines))
    at = 0 if cursor is None else _position(trace_id, placed, cursor)
    start, end = at - at % limit, at - at % limit + limit
    known = {line.span_id for line in lines}
    marks = {row[0]: row[1:] for row in find_many(reader.db, _MARKS, [x.span_id for _, x in placed[start:end]], (key,))}
    items = tuple(
        branch(start + n, depth, line, known, *marks.get(line.span_id, (0, 0)))
        for n, (depth, line) in enumerate(placed[start:end])
    )
    return Page(items=items, next=placed[end][1].span_id if end < len(placed) else None)


def _position(trace_id: str, placed: Sequence[tuple[int, Line]], span_id: str) -> int:
    found = next((position for position, (_, line) in enumerate(placed) if line.span_id == span_id), None)
    if found is None:
        raise _no_run(trace_id, span_id)
    return found


def runs(reader: Reader, trace_id: str, limit: int, cursor: str | None) -> Page[Run]:
    """By start time, as in `Trace.runs`, from the run `cursor` on. Raises `NotFound`."""
    key, root = _row_of(reader.db, trace_id)
    start, end = (_FIRST, _FIRST) if cursor is None else _times(reader.db, key, trace_id, cursor)
    given = {"trace": key, "start": start, "end": end, "span": cursor or "", "limit": limit + 1}
    found = reader.db.execute(_LATER, given).fetchall()
    rows = {row[0]: row for row in find_many(reader.db, RUN + "s.id IN (%s)", [id for id, _ in found[:limit]])}
    items = tuple(_run(reader, trace_id, key, root, rows[id]) for id, _ in found[:limit])
    return Page(items=items, next=found[limit][1] if len(found) > limit else None)


def _times(db: sqlite3.Connection, key: int, trace_id: str, span_id: str) -> tuple[int, int]:
    sql = "SELECT start_ns, -end_ns FROM spans WHERE trace = ? AND span_id = ?"
    times: tuple[int, int] | None = db.execute(sql, (key, span_id)).fetchone()
    if times is None:
        raise _no_run(trace_id, span_id)
    return times


def run(reader: Reader, trace_id: str, span_id: str | None) -> Run:
    """One run, the root if none is named. Raises `NotFound`."""
    key, root = _row_of(reader.db, trace_id)
    if span_id is None:
        row = reader.db.execute(RUN + "s.id = ?", (root,)).fetchone()
    else:
        row = reader.db.execute(RUN + "s.trace = ? AND s.span_id = ?", (key, span_id)).fetchone()
    if row is None:
        raise _no_run(trace_id, span_id)
    return _run(reader, trace_id, key, root, row)


def _run(reader: Reader, trace_id: str, key: int, root: int, row: Sequence[Any]) -> Run:
    found = reader.run(trace_id, row)
    return complete_root_of(reader, key, found) if row[0] == root else found


def _row_of(db: sqlite3.Connection, trace_id: str) -> tuple[int, int]:
    """The key of a trace, and the row of its root."""
    sql = "SELECT id, root FROM traces WHERE span_count > 0 AND trace_id = ?"
    row: tuple[int, int] | None = db.execute(sql, (trace_id,)).fetchone()
    if row is None:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return row


def _no_run(trace_id: str, span_id: str | None) -> NotFound:
    return NotFound(f"trace {trace_id!r} has no run {span_id!r}")
