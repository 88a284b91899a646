"""Budgets: amounts reserved before they are spent, settled or expired, per period; spend per rule, evaluator and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import Booking, BudgetUsage, Period, Spend, SpendGroup
from spanwise.collector.rule_policy import PERIOD_NS, SECOND_NS, find_period
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.table_rows import Connection

HOUR_NS = 3_600 * SECOND_NS
BOOKING_LIFETIME_NS = 2 * PERIOD_NS["day"]  # for this long, a repeated booking with the same id has no effect
SPEND_LIFETIME_NS = 400 * PERIOD_NS["day"]
PERIOD_LIFETIME_NS: Mapping[Period, int] = {
    "minute": BOOKING_LIFETIME_NS,
    "day": SPEND_LIFETIME_NS,
    "month": SPEND_LIFETIME_NS,
}
# after this time, the amount of an unsettled booking is reported as unknown: it may never be settled
UNKNOWN_AFTER_NS = 60 * SECOND_NS
PRUNE_PER_BOOKING = 3  # expired bookings deleted per new booking
LIMIT_TOLERANCE = 1e-9  # relative tolerance for rounding errors, so that ten bookings of 0.1 fit into a limit of 1


class Budgets(ControlOperationsBase):
    """Budget operations of `ControlStore`."""

    @write_operation
    def book(self, db: WriteConnection, /, *bookings: Booking) -> list[bool]:
        now = self._database.clock.keep(db)
        # In the order of budgets, so that two calls do not wait for each other
        order = sorted(range(len(bookings)), key=lambda place: (bookings[place].budget, bookings[place].period))
        results = {place: _make_booking(db, bookings[place], now) for place in order}
        # Each call deletes a few expired bookings, and then the budget periods that are past their lifetime
        most = PRUNE_PER_BOOKING * len(bookings)
        sql = "SELECT id FROM bookings WHERE made_ns < ? ORDER BY made_ns LIMIT ?/*pg FOR UPDATE SKIP LOCKED*/"
        if expired := db.execute(sql, (now - BOOKING_LIFETIME_NS, most)).fetchall():
            db.executemany("DELETE FROM bookings WHERE id = ?", expired)
            for period, lifetime in PERIOD_LIFETIME_NS.items():
                db.execute("DELETE FROM budgets WHERE period = ? AND start_ns < ?", (period, now - lifetime))
            db.execute("DELETE FROM spend WHERE hour_ns < ?", (now - SPEND_LIFETIME_NS,))
        return [results[place] for place in range(len(bookings))]

    @write_operation
    def settle(self, db: WriteConnection, /, actual: Mapping[str, float]) -> None:
        for id, amount in sorted(actual.items()):
            _settle_booking(db, id, _check_amount(f"the actual amount of booking {id!r}", amount))

    @read_operation
    def booked(self, db: Connection, /, budget: str | None = None) -> list[BudgetUsage]:
        # Open amounts without a recent booking are of unknown cost, also once their bookings are deleted
        sql = (
            "SELECT b.budget, b.start_ns, b.settled, b.reserved, (SELECT coalesce(sum(k.amount), 0) FROM bookings k"
            " WHERE k.made_ns >= :since AND k.settled IS NULL AND b.reserved > 0"
            " AND (k.budget, k.period, k.start_ns) = (b.budget, b.period, b.start_ns))"
            " FROM budgets b WHERE :budget IS NULL OR b.budget = :budget ORDER BY b.start_ns DESC, b.budget"
        )
        since = self._database.clock.now() - UNKNOWN_AFTER_NS
        rows = db.execute(sql, {"budget": budget, "since": since}).fetchall()
        usages = []
        for name, start, settled, open_, recent in rows:
            reserved = min(open_, recent)
            unknown = round(open_ - reserved, 12)
            usages.append(
                BudgetUsage(budget=name, period_start_ns=start, settled=settled, reserved=reserved, unknown=unknown)
            )
        return usages

    @read_operation
    def spend(
        self,
        db: Connection,
        /,
        *,
        by: Sequence[SpendGroup] = (),
        bucket_ns: int | None = None,
        project: str | None = None,
        rule: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> list[Spend]:
        if wrong := [name for name in by if name not in get_args(SpendGroup)]:
            raise Refused(f"cannot group spend by {wrong[0]!r}; expected: {', '.join(get_args(SpendGroup))}")
        if bucket_ns is not None and (bucket_ns <= 0 or bucket_ns % HOUR_NS):
            raise Refused(f"bucket_ns must be a multiple of an hour ({HOUR_NS}), got {bucket_ns}")
        columns = tuple(dict.fromkeys(by))
        start = "min(hour_ns)" if bucket_ns is None else "hour_ns - hour_ns % :bucket"
        groups = ", ".join([*columns, *(["1"] if bucket_ns is not None else [])])
        sql = (
            "WITH recent AS (SELECT spend, sum(amount) AS amount FROM bookings WHERE made_ns >= :recent"
            " AND settled IS NULL AND spend IS NOT NULL GROUP BY spend)"
            f" SELECT {start}, sum(settled), sum(open), sum(coalesce(CASE WHEN open < recent.amount THEN open ELSE recent.amount END, 0)), sum(unpriced)"
            f" {''.join(f', {column}' for column in columns)} FROM spend LEFT JOIN recent ON recent.spend = spend.id"
            " WHERE (:project IS NULL OR project = :project) AND (:rule IS NULL OR rule = :rule)"
            " AND hour_ns >= :since AND hour_ns < :until"
            f" {f'GROUP BY {groups}' if groups else ''} ORDER BY {', '.join(['1', 'sum(settled + open) DESC', *columns])}"
        )
        given = {
            "recent": self._database.clock.now() - UNKNOWN_AFTER_NS,
            "bucket": bucket_ns,
            "project": project,
            "rule": rule,
            "since": -(2**63) if since_ns is None else since_ns - since_ns % HOUR_NS,
            "until": 2**63 - 1 if until_ns is None else until_ns,
        }
        return [
            Spend(
                start_ns=start_ns,
                settled=settled,
                reserved=reserved,
                unknown=round(open_ - reserved, 12),
                unpriced=unpriced,
                **dict(zip(columns, names, strict=True)),
            )
            for start_ns, settled, open_, reserved, unpriced, *names in db.execute(sql, given)
            if start_ns is not None  # without groups, no rows make one group
        ]

    @write_operation
    def delete_budget(self, db: WriteConnection, /, budget: str, *, before_ns: int | None = None) -> int:
        where = "budget = :budget AND (:before IS NULL OR start_ns < :before)"
        given = {"budget": budget, "before": before_ns}
        db.execute(f"DELETE FROM bookings WHERE {where}", given)
        return db.execute(f"DELETE FROM budgets WHERE {where}", given).rowcount


def _make_booking(db: Connection, booking: Booking, now: int) -> bool:
    amount = _check_amount(f"the amount of booking {booking.id!r}", booking.amount)
    limit = _check_amount("the limit", booking.limit)
    known = db.execute("SELECT budget, period FROM bookings WHERE id = ?", (booking.id,)).fetchone()
    if known:
        _check_same(booking, known)
        return True
    period_key = (booking.budget, booking.period, find_period(booking.period, now)[0])
    most = limit * (1 + LIMIT_TOLERANCE)
    # One statement checks the limit and adds the amount, so that two bookings cannot both take the last of it
    sql = (
        "INSERT INTO budgets (budget, period, start_ns, settled, reserved) VALUES (?,?,?,0,?)"
        " ON CONFLICT (budget, period, start_ns) DO UPDATE SET reserved = budgets.reserved + excluded.reserved"
        " WHERE budgets.settled + budgets.reserved + excluded.reserved <= ?"
    )
    if amount > most or not db.execute(sql, (*period_key, amount, most)).rowcount:
        return False
    spend = None
    if (spender := booking.spender) is not None:
        sql = (
            "INSERT INTO spend (hour_ns, project, rule, evaluator, model, open, unpriced) VALUES (?,?,?,?,?,?,?)"
            " ON CONFLICT (hour_ns, project, rule, evaluator, model) DO UPDATE SET open = spend.open + excluded.open,"
            " unpriced = spend.unpriced + excluded.unpriced RETURNING id"
        )
        key = (now - now % HOUR_NS, spender.project, spender.rule, spender.evaluator, spender.model)
        spend = int(db.execute(sql, (*key, amount, int(not spender.priced))).fetchone()[0])
    sql = "INSERT INTO bookings (id, budget, period, start_ns, amount, made_ns, spend) VALUES (?,?,?,?,?,?,?)"
    db.execute(sql, (booking.id, *period_key, amount, now, spend))
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


# An amount without a part of it; 12 digits, because sums of decimal fractions have rounding errors
_REDUCED = "CASE WHEN {0} > ? THEN round({0} - ?, 12) ELSE 0 END"


def _settle_booking(db: Connection, id: str, actual: float) -> None:
    sql = "UPDATE bookings SET settled = ? WHERE id = ? AND settled IS NULL RETURNING budget, period, start_ns, amount, spend"
    row = db.execute(sql, (actual, id)).fetchone()
    if row:
        db.execute(
            f"UPDATE budgets SET settled = settled + ?, reserved = {_REDUCED.format('reserved')}"
            " WHERE budget = ? AND period = ? AND start_ns = ?",
            (actual, row[3], row[3], *row[:3]),
        )
        db.execute(
            f"UPDATE spend SET settled = settled + ?, open = {_REDUCED.format('open')} WHERE id = ?",
            (actual, row[3], row[3], row[4]),
        )


def _check_amount(what: str, amount: float) -> float:
    if not isfinite(amount) or amount < 0:
        raise Refused(f"{what} must be >= 0, got {amount!r}")
    return amount
