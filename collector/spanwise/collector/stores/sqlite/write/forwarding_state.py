"""Forwarding state: cursor of each outlet over the feedback table.

The rows of `feedback` are the queue: they are durable already, each once however often it changes before it is sent,
and bounded by what the store keeps. A row gets a new number when what it says changes.
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

MAX_READ_CHARACTERS = 1024 * 1024  # characters of one reading
_SELECT_AFTER = (
    feedback_table.SELECT_FEEDBACK.replace(" FROM", ", t.project, t.environment FROM")
    + " LEFT JOIN traces t ON t.id = f.trace WHERE f.said > ? ORDER BY f.said LIMIT ?"
)
_FIELDS = "name, url, cursor, sent, dropped, error, updated_ns"
_COUNT_WAITING = "(SELECT count(*) FROM feedback f WHERE f.said > o.cursor)"


def list_outlets(db: sqlite3.Connection) -> list[Outlet]:
    """All that there are or were, by name."""
    rows = db.execute(f"SELECT {_FIELDS}, {_COUNT_WAITING} FROM outlets o ORDER BY name").fetchall()
    return [_outlet_from_row(row) for row in rows]


def open_outlet(db: sqlite3.Connection, clock: StoreClock, name: str, url: str) -> Outlet:
    """One, where it stands; a new one, or one with another address, stands behind all that was said so far."""
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
    """Note how far one is, how much more was sent and given up, and why the last try failed."""
    db.execute(
        "UPDATE outlets SET cursor = max(cursor, ?), sent = sent + ?, dropped = dropped + ?, error = ?, updated_ns = ?"
        " WHERE name = ?",
        (cursor, sent, dropped, error, clock.keep(db), name),
    )


def read_feedback_after(db: sqlite3.Connection, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
    """What was said after a cursor, in order: so many, or as many as are not too long together."""
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
    """How much was said after a cursor."""
    return int(db.execute("SELECT count(*) FROM feedback WHERE said > ?", (cursor,)).fetchone()[0])


def read_file_identity(db: sqlite3.Connection) -> str:
    """The file's own."""
    return str(db.execute("SELECT identity FROM feed").fetchone()[0])


def find_stored_feedback(db: sqlite3.Connection, ids: Collection[str]) -> set[str]:
    """Those of the feedbacks that are here."""
    return {row[0] for row in select_many(db, "SELECT id FROM feedback WHERE id IN (%s)", ids)}


def _outlet_from_row(row: Sequence[object]) -> Outlet:
    fields = (*(part.strip() for part in _FIELDS.split(",")), "waiting")
    return Outlet(**dict(zip(fields, row, strict=True)))  # type: ignore[arg-type]
