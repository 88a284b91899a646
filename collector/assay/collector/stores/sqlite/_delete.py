"""Taking traces out, with everything that speaks of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from assay.collector.errors import Refused
from assay.collector.filters import Filter
from assay.collector.stores.sqlite import _words
from assay.collector.stores.sqlite._append import Appender, find_many
from assay.collector.stores.sqlite._plan import plan
from assay.collector.stores.sqlite._reader import Reader
from assay.collector.stores.sqlite._values import loads
from assay.collector.stores.sqlite._where import matching

CHUNK = 200  # traces per transaction, so that what arrives meanwhile is not held up


def some(writer: Reader, appender: Appender, filter: Filter, disturbed: set[int], tags: set[str]) -> int:
    """Remove up to `CHUNK` of the traces that pass; returns how many, and adds their tags to `tags`.

    Raises `Refused` for a filter that every trace passes.
    """
    _check(filter)
    found = plan(writer.db, filter)
    sql = f"SELECT t.id, t.trace_id, t.session_id, t.tags FROM {found.source} WHERE {found.where} LIMIT ?"
    rows = writer.db.execute(sql, (*found.values, CHUNK)).fetchall()
    _traces(writer, appender, {row[0]: row[1] for row in rows}, disturbed)
    _sessions(writer.db, {row[2] for row in rows if row[2] is not None})
    tags.update(tag for row in rows if row[3] is not None for tag in loads(row[3]))
    return len(rows)


def _check(filter: Filter) -> None:
    if filter == Filter():
        raise Refused("an empty filter would delete every trace; name at least one condition")
    if filter.text is not None and not matching(filter.text):
        raise Refused(f"text {filter.text!r} holds no word, so that every trace would pass; name one")


def forget_tags(db: sqlite3.Connection, appender: Appender, tags: set[str]) -> None:
    """Take tags that no trace has any more out of the menus: a tag may name a person."""
    left = {row[0] for row in db.execute("SELECT DISTINCT value FROM traces, json_each(tags) WHERE tags IS NOT NULL")}
    find_many(db, "DELETE FROM known WHERE field = 'tag' AND value IN (%s)", tags - left)
    appender.forget()


def _traces(writer: Reader, appender: Appender, traces: dict[int, str], disturbed: set[int]) -> None:
    disturbed.update(traces)
    _words.remove(writer, traces)
    for sql in (
        "DELETE FROM unindexed WHERE trace IN (%s)",
        "DELETE FROM feedback WHERE trace IN (%s)",
        "DELETE FROM spans WHERE trace IN (%s)",
        "DELETE FROM traces WHERE id IN (%s)",
    ):
        find_many(writer.db, sql, traces)
    find_many(writer.db, "DELETE FROM decisions WHERE trace_id IN (%s)", traces.values())
    find_many(writer.db, "DELETE FROM queue WHERE json_extract(data, '$.target.trace_id') IN (%s)", traces.values())
    appender.evict(traces.values())


def _sessions(db: sqlite3.Connection, sessions: set[str]) -> None:
    """Feedback on sessions of which no trace is left."""
    left = {
        row[0] for row in find_many(db, "SELECT DISTINCT session_id FROM traces WHERE session_id IN (%s)", sessions)
    }
    find_many(db, "DELETE FROM feedback WHERE session_id IN (%s)", sessions - left)
    find_many(db, "DELETE FROM queue WHERE json_extract(data, '$.target.session_id') IN (%s)", sessions - left)


def experiment(db: sqlite3.Connection, id: str) -> bool:
    """Remove an experiment's record and the feedback on it; its traces are removed by `some`."""
    db.execute("DELETE FROM feedback WHERE experiment_id = ?", (id,))
    return db.execute("DELETE FROM experiments WHERE id = ?", (id,)).rowcount > 0


def feedback_without_trace(db: sqlite3.Connection, before_ns: int) -> int:
    """Remove feedback older than a time whose trace has never arrived; returns how many traces that were."""
    sql = (
        "SELECT t.id FROM traces t WHERE t.span_count = 0 AND NOT EXISTS"
        " (SELECT 1 FROM feedback f WHERE f.trace = t.id AND f.created_ns >= ?)"
    )
    keys: Sequence[int] = [row[0] for row in db.execute(sql, (before_ns,))]
    find_many(db, "DELETE FROM feedback WHERE trace IN (%s)", keys)
    find_many(db, "DELETE FROM traces WHERE id IN (%s)", keys)
    return len(keys)
