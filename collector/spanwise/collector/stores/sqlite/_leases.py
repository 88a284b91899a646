"""Leases, each with a token that is higher than all that were given out before it, under any name."""

from __future__ import annotations

import sqlite3
from math import isfinite

from spanwise.collector.errors import Refused
from spanwise.collector.records import Lease
from spanwise.collector.stores.sqlite._half import Half, reads, writes

LONGEST = 10 * 365 * 86_400.0  # seconds


class Leases(Half):
    """A part of `ControlStore`."""

    @writes
    def acquire(self, db: sqlite3.Connection, /, name: str, holder: str, seconds: float) -> Lease | None:
        now = self._file.clock.keep(db)
        row = db.execute("SELECT holder, token FROM leases WHERE name = ? AND expires_ns > ?", (name, now)).fetchone()
        if row and row[0] != holder:
            return None
        token = row[1] if row else rising(db, 1)[0]
        lease = Lease(name=name, holder=holder, expires_ns=later(now, seconds), token=token)
        db.execute("DELETE FROM leases WHERE expires_ns <= ? OR name = ?", (now, name))
        db.execute("INSERT INTO leases VALUES (?,?,?,?)", (name, holder, lease.expires_ns, token))
        return lease

    @writes
    def release(self, db: sqlite3.Connection, /, name: str, holder: str) -> bool:
        sql = "DELETE FROM leases WHERE name = ? AND holder = ? RETURNING expires_ns"
        return self._was_held(db.execute(sql, (name, holder)).fetchone())

    @reads
    def leases(self, db: sqlite3.Connection, /) -> list[Lease]:
        sql = "SELECT name, holder, expires_ns, token FROM leases WHERE expires_ns > ? ORDER BY name"
        rows = db.execute(sql, (self._file.clock.now(),))
        return [Lease(name=row[0], holder=row[1], expires_ns=row[2], token=row[3]) for row in rows]

    @writes
    def delete_lease(self, db: sqlite3.Connection, /, name: str) -> bool:
        return self._was_held(db.execute("DELETE FROM leases WHERE name = ? RETURNING expires_ns", (name,)).fetchone())

    def _was_held(self, row: tuple[int] | None) -> bool:
        return row is not None and row[0] > self._file.clock.now()  # one that has run out is nobody's


def rising(db: sqlite3.Connection, count: int) -> range:
    """Numbers that were never given out before, to no lease and no claim, and rise."""
    last = int(db.execute("UPDATE numbers SET last = last + ? RETURNING last", (count,)).fetchone()[0])
    return range(last - count + 1, last + 1)


def later(now: int, seconds: float) -> int:
    """A time some seconds from now. Raises `Refused` for a number that is none, or years away."""
    if not isfinite(seconds) or abs(seconds) > LONGEST:
        raise Refused(f"{seconds!r} is no number of seconds to hold something for")
    return now + int(seconds * 1e9)
