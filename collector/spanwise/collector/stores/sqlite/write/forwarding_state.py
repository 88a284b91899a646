"""Forwarding state: cursor of each outlet over the feedback table.

The rows of `feedback` are the queue: they are durable, and retention limits their number. A row that changes several
times before it is sent is sent once. A row gets a new sequence number (column `said`) when its content changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from spanwise.collector.records import Outlet
from spanwise.collector.stores.capabilities import OutgoingFeedback
from spanwise.collector.stores.sqlite.database.bulk_statements import select_many
from spanwise.collector.stores.sqlite.database.schema import INDEX_FEEDBACK_ORDER
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.write import feedback_table

MAX_READ_CHARACTERS = 1024 * 1024  # maximum number of characters of one read
_SELECT_AFTER = (
    feedback_table.SELECT_FEEDBACK.replace(" FROM", ", t.project, t.environment FROM")
    + " LEFT JOIN traces t ON t.id = f.trace WHERE f.said > ? ORDER BY f.said LIMIT ?"
)
_FIELDS = "name, url, cursor, sent, dropped, error, updated_ns"
_COUNT_WAITING = "(SELECT count(*) FROM feedback f WHERE f.said > o.cursor)"


def list_outlets(db: sqlite3.Connection) -> list[Outlet]:
    """Return all present and former outlets, by name."""
    rows = db.execute(f"SELECT {_FIELDS}, {_COUNT_WAITING} FROM outlets o ORDER BY name").fetchall()
    return [_outlet_from_row(row) for row in rows]


def open_outlet(db: sqlite3.Connection, clock: StoreClock, name: str, url: str) -> Outlet:
    """Return an outlet with its cursor. A new outlet, or one with another URL, starts after all present feedback."""
    now = clock.keep(db)
    db.execute(INDEX_FEEDBACK_ORDER)
    last = db.execute("SELECT coalesce(max(said), 0) FROM feedback").fetchone()[0]
    db.execute("DELETE FROM outlets WHERE name = ? AND url <> ?", (name, url))
    db.execute("INSERT OR IGNORE INTO outlets VALUES (?, ?, ?, 0, 0, NULL, ?)", (name, url, last, now))
    row = db.execute(f"SELECT {_FIELDS}, {_COUNT_WAITING} FROM outlets o WHERE name = ?", (name,)).fetchone()
    return _outlet_from_row(row)


def move_outlet(
    db: sqlite3.Connection, clock: StoreClock, name: str, cursor: int, sent: int, dropped: int, error: str | None
) -> None:
    """Record the cursor of an outlet, how many more rows were sent and dropped, and the error of the last attempt."""
    db.execute(
        "UPDATE outlets SET cursor = max(cursor, ?), sent = sent + ?, dropped = dropped + ?, error = ?, updated_ns = ?"
        " WHERE name = ?",
        (cursor, sent, dropped, error, clock.keep(db), name),
    )


def read_feedback_after(db: sqlite3.Connection, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
    """Return feedback written after a cursor, in order: at most `limit` rows and about `MAX_READ_CHARACTERS`."""
    found: list[OutgoingFeedback] = []
    size = 0
    for row in db.execute(_SELECT_AFTER, (cursor, limit)):
        size += sum(len(part) for part in row if isinstance(part, str))
        if found and size > MAX_READ_CHARACTERS:
            break
        found.append(
            OutgoingFeedback(row[feedback_table.NUMBER_PLACE], feedback_table.feedback_from_row(row), row[-2], row[-1])
        )
    return found


def count_feedback_after(db: sqlite3.Connection, cursor: int) -> int:
    """Return the number of feedback rows written after a cursor."""
    return int(db.execute("SELECT count(*) FROM feedback WHERE said > ?", (cursor,)).fetchone()[0])


def read_file_identity(db: sqlite3.Connection) -> str:
    """Return the random identity of the file."""
    return str(db.execute("SELECT identity FROM feed").fetchone()[0])


def find_stored_feedback(db: sqlite3.Connection, ids: Collection[str]) -> set[str]:
    """Return those of the feedback ids that are stored."""
    return {row[0] for row in select_many(db, "SELECT id FROM feedback WHERE id IN (%s)", ids)}


def _outlet_from_row(row: Sequence[object]) -> Outlet:
    fields = (*(part.strip() for part in _FIELDS.split(",")), "waiting")
    return Outlet(**dict(zip(fields, row, strict=True)))  # type: ignore[arg-type]
