"""Where feedback is sent on to, and how far that is: what is said after a cursor, which stands in the file.

The rows of `feedback` are the queue: they are durable already, each once however often it changes before it is sent,
and bounded by what the store keeps. A row gets a new number when what it says changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from spanwise.collector.records import Outlet
from spanwise.collector.stores._serving import Said
from spanwise.collector.stores.sqlite import _feedback
from spanwise.collector.stores.sqlite._clock import Clock
from spanwise.collector.stores.sqlite._schema import AS_SAID
from spanwise.collector.stores.sqlite._sql import find_many

MOST = 1024 * 1024  # characters of one reading
_AFTER = (
    _feedback.SELECT.replace(" FROM", ", t.project, t.environment FROM")
    + " LEFT JOIN traces t ON t.id = f.trace WHERE f.said > ? ORDER BY f.said LIMIT ?"
)
_FIELDS = "name, url, cursor, sent, dropped, error, updated_ns"
_WAITING = "(SELECT count(*) FROM feedback f WHERE f.said > o.cursor)"


def stored(db: sqlite3.Connection) -> list[Outlet]:
    """All that there are or were, by name."""
    rows = db.execute(f"SELECT {_FIELDS}, {_WAITING} FROM outlets o ORDER BY name").fetchall()
    return [_outlet(row) for row in rows]


def opened(db: sqlite3.Connection, clock: Clock, name: str, url: str) -> Outlet:
    """One, where it stands; a new one, or one with another address, stands behind all that was said so far."""
    now = clock.keep(db)
    db.execute(AS_SAID)
    last = db.execute("SELECT coalesce(max(said), 0) FROM feedback").fetchone()[0]
    db.execute("DELETE FROM outlets WHERE name = ? AND url <> ?", (name, url))
    db.execute("INSERT OR IGNORE INTO outlets VALUES (?, ?, ?, 0, 0, NULL, ?)", (name, url, last, now))
    row = db.execute(f"SELECT {_FIELDS}, {_WAITING} FROM outlets o WHERE name = ?", (name,)).fetchone()
    return _outlet(row)


def moved(
    db: sqlite3.Connection, clock: Clock, name: str, cursor: int, sent: int, dropped: int, error: str | None
) -> None:
    """Note how far one is, how much more was sent and given up, and why the last try failed."""
    db.execute(
        "UPDATE outlets SET cursor = max(cursor, ?), sent = sent + ?, dropped = dropped + ?, error = ?, updated_ns = ?"
        " WHERE name = ?",
        (cursor, sent, dropped, error, clock.keep(db), name),
    )


def after(db: sqlite3.Connection, cursor: int, limit: int) -> Sequence[Said]:
    """What was said after a cursor, in order: so many, or as many as are not too long together."""
    found: list[Said] = []
    size = 0
    for row in db.execute(_AFTER, (cursor, limit)):
        size += sum(len(part) for part in row if isinstance(part, str))
        if found and size > MOST:
            break
        found.append(Said(row[_feedback.SAID], _feedback.read(row), row[-2], row[-1]))
    return found


def waiting(db: sqlite3.Connection, cursor: int) -> int:
    """How much was said after a cursor."""
    return int(db.execute("SELECT count(*) FROM feedback WHERE said > ?", (cursor,)).fetchone()[0])


def identity(db: sqlite3.Connection) -> str:
    """The file's own."""
    return str(db.execute("SELECT identity FROM feed").fetchone()[0])


def there(db: sqlite3.Connection, ids: Collection[str]) -> set[str]:
    """Those of the feedbacks that are here."""
    return {row[0] for row in find_many(db, "SELECT id FROM feedback WHERE id IN (%s)", ids)}


def _outlet(row: Sequence[object]) -> Outlet:
    fields = (*(part.strip() for part in _FIELDS.split(",")), "waiting")
    return Outlet(**dict(zip(fields, row, strict=True)))  # type: ignore[arg-type]
