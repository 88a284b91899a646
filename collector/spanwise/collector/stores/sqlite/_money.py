"""Budgets: amounts that are reserved before they are spent, in periods of the store's own time (UTC)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from math import isfinite

from spanwise.collector.errors import Refused
from spanwise.collector.records import Booked, Booking, Period
from spanwise.collector.stores.sqlite._half import Half, reads, writes

SECOND = 1_000_000_000
LENGTH: Mapping[Period, int] = {"minute": 60 * SECOND, "day": 86_400 * SECOND}
KEPT = 2 * LENGTH["day"]  # so long the id of a booking books nothing more
KEPT_PERIODS: Mapping[Period, int] = {"minute": KEPT, "day": 400 * LENGTH["day"]}
UNKNOWN = 60 * SECOND  # what nobody has settled for so long may never be settled: its cost is unknown
PRUNED = 3  # old bookings that go for each that is made
TOLERANCE = 1e-9  # of a limit: ten times 0.1 is 1


class Money(Half):
    """A part of `ControlStore`."""

    @writes
    def book(self, db: sqlite3.Connection, /, *bookings: Booking) -> list[bool]:
        now = self._file.clock.keep(db)
        made = [_book(db, booking, now) for booking in bookings]
        _prune(db, now, PRUNED * len(bookings))
        return made

    @writes
    def settle(self, db: sqlite3.Connection, /, actual: Mapping[str, float]) -> None:
        for id, amount in actual.items():
            _settle(db, id, _amount(f"what {id!r} came to", amount))

    @reads
    def booked(self, db: sqlite3.Connection, /, budget: str | None = None) -> list[Booked]:
        sql = (
            "SELECT b.budget, b.start_ns, b.settled, b.reserved, (SELECT coalesce(sum(k.amount), 0) FROM bookings k"
            " WHERE k.made_ns < :before AND k.settled IS NULL AND b.reserved > 0"
            " AND (k.budget, k.period, k.start_ns) = (b.budget, b.period, b.start_ns))"
            " FROM budgets b WHERE :budget IS NULL OR b.budget = :budget ORDER BY b.start_ns DESC, b.budget"
        )
        before = self._file.clock.now() - UNKNOWN
        rows = db.execute(sql, {"budget": budget, "before": before}).fetchall()
        return [
            Booked(
                budget=budget,
                period_start_ns=start,
                settled=settled,
                reserved=max(0.0, open_ - unknown),
                unknown=unknown,
            )
            for budget, start, settled, open_, unknown in rows
        ]

    @writes
    def delete_budget(self, db: sqlite3.Connection, /, budget: str, *, before_ns: int | None = None) -> int:
        where = "budget = :budget AND (:before IS NULL OR start_ns < :before)"
        given = {"budget": budget, "before": before_ns}
        db.execute(f"DELETE FROM bookings WHERE {where}", given)
        return db.execute(f"DELETE FROM budgets WHERE {where}", given).rowcount


def _book(db: sqlite3.Connection, booking: Booking, now: int) -> bool:
    amount, limit = _amount(f"booking {booking.id!r}", booking.amount), _amount("its limit", booking.limit)
    known = db.execute("SELECT budget, period FROM bookings WHERE id = ?", (booking.id,)).fetchone()
    if known:
        _check_same(booking, known)
        return True
    place = (booking.budget, booking.period, now - now % LENGTH[booking.period])
    sql = "SELECT settled + reserved FROM budgets WHERE budget = ? AND period = ? AND start_ns = ?"
    row = db.execute(sql, place).fetchone()
    if (row[0] if row else 0.0) + amount > limit * (1 + TOLERANCE):
        return False
    db.execute(
        "INSERT INTO budgets VALUES (?,?,?,0,?) ON CONFLICT DO UPDATE SET reserved = reserved + excluded.reserved",
        (*place, amount),
    )
    db.execute("INSERT INTO bookings VALUES (?,?,?,?,?,NULL,?)", (booking.id, *place, amount, now))
    return True


def _check_same(booking: Booking, known: tuple[str, str]) -> None:
    """Else its limit would be one that nobody holds to."""
    if known != (booking.budget, booking.period):
        raise Refused(
            f"booking {booking.id!r} is on budget {known[0]!r} by the {known[1]} already; give the one on "
            f"{booking.budget!r} by the {booking.period} another id"
        )


def _settle(db: sqlite3.Connection, id: str, actual: float) -> None:
    sql = "UPDATE bookings SET settled = ? WHERE id = ? AND settled IS NULL RETURNING budget, period, start_ns, amount"
    row = db.execute(sql, (actual, id)).fetchone()
    if row:
        db.execute(
            "UPDATE budgets SET settled = settled + ?, reserved = max(0, round(reserved - ?, 12))"
            " WHERE budget = ? AND period = ? AND start_ns = ?",
            (actual, row[3], *row[:3]),
        )


def _prune(db: sqlite3.Connection, now: int, most: int) -> None:
    sql = "DELETE FROM bookings WHERE rowid IN (SELECT rowid FROM bookings WHERE made_ns < ? ORDER BY made_ns LIMIT ?)"
    if db.execute(sql, (now - KEPT, most)).rowcount:
        for period, kept in KEPT_PERIODS.items():
            db.execute("DELETE FROM budgets WHERE period = ? AND start_ns < ?", (period, now - kept))


def _amount(what: str, amount: float) -> float:
    if not isfinite(amount) or amount < 0:
        raise Refused(f"{what}: an amount is a number from 0, not {amount!r}")
    return amount
