"""Budgets: amounts reserved before they are spent, settled or expired, per period."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from math import isfinite

from spanwise.collector.errors import Refused
from spanwise.collector.records import Booking, BudgetUsage, Period
from spanwise.collector.stores.sqlite.database_file import Backend, read_operation, write_operation

SECOND_NS = 1_000_000_000
PERIOD_NS: Mapping[Period, int] = {"minute": 60 * SECOND_NS, "day": 86_400 * SECOND_NS}
BOOKING_LIFETIME_NS = 2 * PERIOD_NS["day"]  # for this long, a repeated booking with the same id has no effect
PERIOD_LIFETIME_NS: Mapping[Period, int] = {"minute": BOOKING_LIFETIME_NS, "day": 400 * PERIOD_NS["day"]}
# after this time, the amount of an unsettled booking is reported as unknown: it may never be settled
UNKNOWN_AFTER_NS = 60 * SECOND_NS
PRUNE_PER_BOOKING = 3  # expired bookings deleted per new booking
LIMIT_TOLERANCE = 1e-9  # relative tolerance for rounding errors, so that ten bookings of 0.1 fit into a limit of 1


class Budgets(Backend):
    """Budget operations of `ControlStore`."""

    @write_operation
    def book(self, db: sqlite3.Connection, /, *bookings: Booking) -> list[bool]:
        now = self._file.clock.keep(db)
        results = [_make_booking(db, booking, now) for booking in bookings]
        # Each call deletes a few expired bookings, and then the budget periods that are past their lifetime
        most = PRUNE_PER_BOOKING * len(bookings)
        sql = "DELETE FROM bookings WHERE rowid IN (SELECT rowid FROM bookings WHERE made_ns < ? ORDER BY made_ns LIMIT ?)"
        if db.execute(sql, (now - BOOKING_LIFETIME_NS, most)).rowcount:
            for period, lifetime in PERIOD_LIFETIME_NS.items():
                db.execute("DELETE FROM budgets WHERE period = ? AND start_ns < ?", (period, now - lifetime))
        return results

    @write_operation
    def settle(self, db: sqlite3.Connection, /, actual: Mapping[str, float]) -> None:
        for id, amount in actual.items():
            _settle_booking(db, id, _check_amount(f"the actual amount of booking {id!r}", amount))

    @read_operation
    def booked(self, db: sqlite3.Connection, /, budget: str | None = None) -> list[BudgetUsage]:
        sql = (
            "SELECT b.budget, b.start_ns, b.settled, b.reserved, (SELECT coalesce(sum(k.amount), 0) FROM bookings k"
            " WHERE k.made_ns < :before AND k.settled IS NULL AND b.reserved > 0"
            " AND (k.budget, k.period, k.start_ns) = (b.budget, b.period, b.start_ns))"
            " FROM budgets b WHERE :budget IS NULL OR b.budget = :budget ORDER BY b.start_ns DESC, b.budget"
        )
        before = self._file.clock.now() - UNKNOWN_AFTER_NS
        rows = db.execute(sql, {"budget": budget, "before": before}).fetchall()
        return [
            BudgetUsage(
                budget=budget,
                period_start_ns=start,
                settled=settled,
                reserved=max(0.0, open_ - unknown),
                unknown=unknown,
            )
            for budget, start, settled, open_, unknown in rows
        ]

    @write_operation
    def delete_budget(self, db: sqlite3.Connection, /, budget: str, *, before_ns: int | None = None) -> int:
        where = "budget = :budget AND (:before IS NULL OR start_ns < :before)"
        given = {"budget": budget, "before": before_ns}
        db.execute(f"DELETE FROM bookings WHERE {where}", given)
        return db.execute(f"DELETE FROM budgets WHERE {where}", given).rowcount


def _make_booking(db: sqlite3.Connection, booking: Booking, now: int) -> bool:
    amount, limit = (
        _check_amount(f"the amount of booking {booking.id!r}", booking.amount),
        _check_amount("the limit", booking.limit),
    )
    known = db.execute("SELECT budget, period FROM bookings WHERE id = ?", (booking.id,)).fetchone()
    if known:
        _check_same(booking, known)
        return True
    period_key = (booking.budget, booking.period, now - now % PERIOD_NS[booking.period])
    sql = "SELECT settled + reserved FROM budgets WHERE budget = ? AND period = ? AND start_ns = ?"
    row = db.execute(sql, period_key).fetchone()
    if (row[0] if row else 0.0) + amount > limit * (1 + LIMIT_TOLERANCE):
        return False
    db.execute(
        "INSERT INTO budgets VALUES (?,?,?,0,?) ON CONFLICT DO UPDATE SET reserved = reserved + excluded.reserved",
        (*period_key, amount),
    )
    db.execute("INSERT INTO bookings VALUES (?,?,?,?,?,NULL,?)", (booking.id, *period_key, amount, now))
    return True


def _check_same(booking: Booking, known: tuple[str, str]) -> None:
    """Raise `Refused` if another budget or period already has a booking with this id.

    Accepting such a booking would skip the check of its limit.
    """
    if known != (booking.budget, booking.period):
        raise Refused(
            f"booking id {booking.id!r} is already used on budget {known[0]!r} per {known[1]}; use another id for budget"
            f" {booking.budget!r} per {booking.period}"
        )


def _settle_booking(db: sqlite3.Connection, id: str, actual: float) -> None:
    sql = "UPDATE bookings SET settled = ? WHERE id = ? AND settled IS NULL RETURNING budget, period, start_ns, amount"
    row = db.execute(sql, (actual, id)).fetchone()
    if row:
        db.execute(
            "UPDATE budgets SET settled = settled + ?, reserved = max(0, round(reserved - ?, 12))"
            " WHERE budget = ? AND period = ? AND start_ns = ?",
            (actual, row[3], *row[:3]),
        )


def _check_amount(what: str, amount: float) -> float:
    if not isfinite(amount) or amount < 0:
        raise Refused(f"{what} must be >= 0, got {amount!r}")
    return amount
