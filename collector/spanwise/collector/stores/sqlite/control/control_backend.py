"""Control backend: all control operations; API keys, queues, retention rules, audit log, budgets."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import (
    AuditEvent,
    Booking,
    BudgetUsage,
    Key,
    Page,
    Period,
    QueueItem,
    QueueStatus,
    Retention,
    Spend,
    SpendGroup,
)
from spanwise.collector.rule_policy import PERIOD_NS, SECOND_NS, find_period
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.control_tables import ControlTables
from spanwise.collector.stores.sqlite.control.alerts import Alerts
from spanwise.collector.stores.sqlite.control.backfills import Backfills
from spanwise.collector.stores.sqlite.control.datasets_and_experiments import Datasets, Experiments
from spanwise.collector.stores.sqlite.control.decisions import (
    Decisions,
    WorkerReports,
    delete_session_decisions,
    delete_trace_decisions,
)
from spanwise.collector.stores.sqlite.control.leases import DecisionLeases, Leases
from spanwise.collector.stores.sqlite.control.notifications import Notifications
from spanwise.collector.stores.sqlite.control.rule_versions import Rules
from spanwise.collector.stores.sqlite.database.table_rows import decode_record, delete_many, encode_record, parse_cursor
from spanwise.collector.stores.sqlite.database_file import Backend, read_operation, write_operation

# Budgets: amounts reserved before they are spent, settled or expired, per period; spend per rule, evaluator and
# model.

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
            db.execute("DELETE FROM spend WHERE hour_ns < ?", (now - SPEND_LIFETIME_NS,))
        return results

    @write_operation
    def settle(self, db: sqlite3.Connection, /, actual: Mapping[str, float]) -> None:
        for id, amount in actual.items():
            _settle_booking(db, id, _check_amount(f"the actual amount of booking {id!r}", amount))

    @read_operation
    def booked(self, db: sqlite3.Connection, /, budget: str | None = None) -> list[BudgetUsage]:
        # Open amounts without a recent booking are of unknown cost, also once their bookings are deleted
        sql = (
            "SELECT b.budget, b.start_ns, b.settled, b.reserved, (SELECT coalesce(sum(k.amount), 0) FROM bookings k"
            " WHERE k.made_ns >= :since AND k.settled IS NULL AND b.reserved > 0"
            " AND (k.budget, k.period, k.start_ns) = (b.budget, b.period, b.start_ns))"
            " FROM budgets b WHERE :budget IS NULL OR b.budget = :budget ORDER BY b.start_ns DESC, b.budget"
        )
        since = self._file.clock.now() - UNKNOWN_AFTER_NS
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
        db: sqlite3.Connection,
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
        groups = ", ".join([*columns, *([start] if bucket_ns is not None else [])])
        sql = (
            "WITH recent AS (SELECT spend, sum(amount) AS amount FROM bookings WHERE made_ns >= :recent"
            " AND settled IS NULL AND spend IS NOT NULL GROUP BY spend)"
            f" SELECT {start}, sum(settled), sum(open), sum(coalesce(min(open, recent.amount), 0)), sum(unpriced)"
            f" {''.join(f', {column}' for column in columns)} FROM spend LEFT JOIN recent ON recent.spend = spend.id"
            " WHERE (:project IS NULL OR project = :project) AND (:rule IS NULL OR rule = :rule)"
            " AND hour_ns >= :since AND hour_ns < :until"
            f" {f'GROUP BY {groups}' if groups else ''} ORDER BY {', '.join(['1', 'sum(settled + open) DESC', *columns])}"
        )
        given = {
            "recent": self._file.clock.now() - UNKNOWN_AFTER_NS,
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
    def delete_budget(self, db: sqlite3.Connection, /, budget: str, *, before_ns: int | None = None) -> int:
        where = "budget = :budget AND (:before IS NULL OR start_ns < :before)"
        given = {"budget": budget, "before": before_ns}
        db.execute(f"DELETE FROM bookings WHERE {where}", given)
        return db.execute(f"DELETE FROM budgets WHERE {where}", given).rowcount


def _make_booking(db: sqlite3.Connection, booking: Booking, now: int) -> bool:
    amount = _check_amount(f"the amount of booking {booking.id!r}", booking.amount)
    limit = _check_amount("the limit", booking.limit)
    known = db.execute("SELECT budget, period FROM bookings WHERE id = ?", (booking.id,)).fetchone()
    if known:
        _check_same(booking, known)
        return True
    period_key = (booking.budget, booking.period, find_period(booking.period, now)[0])
    sql = "SELECT settled + reserved FROM budgets WHERE budget = ? AND period = ? AND start_ns = ?"
    row = db.execute(sql, period_key).fetchone()
    if (row[0] if row else 0.0) + amount > limit * (1 + LIMIT_TOLERANCE):
        return False
    db.execute(
        "INSERT INTO budgets VALUES (?,?,?,0,?) ON CONFLICT DO UPDATE SET reserved = reserved + excluded.reserved",
        (*period_key, amount),
    )
    spend = None
    if (spender := booking.spender) is not None:
        sql = (
            "INSERT INTO spend (hour_ns, project, rule, evaluator, model, open, unpriced) VALUES (?,?,?,?,?,?,?)"
            " ON CONFLICT DO UPDATE SET open = open + excluded.open, unpriced = unpriced + excluded.unpriced RETURNING id"
        )
        key = (now - now % HOUR_NS, spender.project, spender.rule, spender.evaluator, spender.model)
        spend = int(db.execute(sql, (*key, amount, not spender.priced)).fetchone()[0])
    db.execute("INSERT INTO bookings VALUES (?,?,?,?,?,NULL,?,?)", (booking.id, *period_key, amount, now, spend))
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
    sql = "UPDATE bookings SET settled = ? WHERE id = ? AND settled IS NULL RETURNING budget, period, start_ns, amount, spend"
    row = db.execute(sql, (actual, id)).fetchone()
    if row:
        db.execute(
            "UPDATE budgets SET settled = settled + ?, reserved = max(0, round(reserved - ?, 12))"
            " WHERE budget = ? AND period = ? AND start_ns = ?",
            (actual, row[3], *row[:3]),
        )
        db.execute(
            "UPDATE spend SET settled = settled + ?, open = max(0, round(open - ?, 12)) WHERE id = ?",
            (actual, row[3], row[4]),
        )


def _check_amount(what: str, amount: float) -> float:
    if not isfinite(amount) or amount < 0:
        raise Refused(f"{what} must be >= 0, got {amount!r}")
    return amount


# Control backend: all control operations; API keys, annotation queues, retention rules and the audit log.

# Events about API keys (True) have a separate limit, so that many deletions cannot displace them
MAX_EVENTS = {True: 10_000, False: 40_000}
PRUNE_INTERVAL = 100  # events added between two deletions of old events


class AuditLog(Backend):
    """Audit log operations of `ControlStore`."""

    @write_operation
    def record_audit_event(self, db: sqlite3.Connection, /, event: AuditEvent) -> None:
        """Append an event, and regularly delete the oldest ones beyond `MAX_EVENTS`."""
        of_keys = event.action.endswith("_key")
        row = (of_keys, encode_record(event))
        id = int(db.execute("INSERT INTO audit (of_keys, data) VALUES (?, ?) RETURNING id", row).fetchone()[0])
        if id % PRUNE_INTERVAL == 0:
            for kind, count in MAX_EVENTS.items():
                db.execute(_DELETE_OLD, {"kind": kind, "count": count})

    @read_operation
    def audit(self, db: sqlite3.Connection, /, *, limit: int = 100, cursor: str | None = None) -> Page[AuditEvent]:
        sql = "SELECT id, data FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?"
        rows = db.execute(sql, (2**63 - 1 if cursor is None else parse_cursor(cursor)[1], limit + 1)).fetchall()
        items = tuple(replace(decode_record(AuditEvent, data), id=str(id)) for id, data in rows[:limit])
        return Page(items=items, next=f"0.{items[-1].id}" if len(rows) > limit and items else None)


_DELETE_OLD = (
    "DELETE FROM audit WHERE of_keys = :kind AND id <="
    " (SELECT id FROM audit WHERE of_keys = :kind ORDER BY id DESC LIMIT 1 OFFSET :count)"
)


class SQLiteControl(
    Datasets,
    Experiments,
    Rules,
    Decisions,
    DecisionLeases,
    Backfills,
    Leases,
    Budgets,
    WorkerReports,
    Alerts,
    Notifications,
    AuditLog,
):
    """Control backend on a database file: `ControlStore`, and the methods that the combined store needs."""

    @property
    def control_tables(self) -> ControlTables:
        """Return the tables of this backend as rows, for copies."""
        return ControlTables(self._file, _list_columns)

    def is_full(self) -> bool:
        return self._file.is_full or self._file.was_full_lately

    @write_operation
    def save_key(self, db: sqlite3.Connection, /, key: Key) -> None:
        db.execute("INSERT OR REPLACE INTO keys VALUES (?,?,?)", (key.id, key.created_ns, encode_record(key)))

    @read_operation
    def keys(self, db: sqlite3.Connection, /) -> list[Key]:
        return [decode_record(Key, row[0]) for row in db.execute("SELECT data FROM keys ORDER BY created_ns DESC, id")]

    @write_operation
    def delete_key(self, db: sqlite3.Connection, /, id: str) -> bool:
        return db.execute("DELETE FROM keys WHERE id = ?", (id,)).rowcount > 0

    @write_operation
    def enqueue(self, db: sqlite3.Connection, /, items: Sequence[QueueItem]) -> None:
        names = {item.queue for item in items}
        waiting = {(item.queue, item.target) for name in names for item in _read_queue(db, name, "waiting", -1)}
        for item in items:
            if (item.queue, item.target) not in waiting:
                waiting.add((item.queue, item.target))
                _put_item(db, replace(item, id=item.id or uuid.uuid4().hex))

    @read_operation
    def queue(
        self, db: sqlite3.Connection, /, name: str, *, status: str | None = "waiting", limit: int = 100
    ) -> list[QueueItem]:
        return _read_queue(db, name, None if status is None else _check_status(status), limit)

    @read_operation
    def queues(self, db: sqlite3.Connection, /) -> Mapping[str, int]:
        sql = "SELECT queue, sum(status = 'waiting') FROM queue GROUP BY queue ORDER BY queue"
        return {row[0]: row[1] for row in db.execute(sql)}

    @write_operation
    def resolve(self, db: sqlite3.Connection, /, item_id: str, status: str, assignee: str | None = None) -> bool:
        checked = _check_status(status)
        row = db.execute("SELECT data FROM queue WHERE id = ?", (item_id,)).fetchone()
        if not row:
            return False
        item = decode_record(QueueItem, row[0])
        _put_item(db, replace(item, status=checked, assignee=assignee or item.assignee))
        return True

    @write_operation
    def set_retention(self, db: sqlite3.Connection, /, rule: Retention) -> None:
        db.execute("DELETE FROM retention WHERE project = ?", (rule.project or "",))
        if rule.max_age_ns is not None or rule.max_bytes is not None:
            row = (rule.project or "", rule.max_age_ns, rule.max_bytes)
            db.execute("INSERT INTO retention (project, max_age_ns, max_bytes) VALUES (?, ?, ?)", row)

    @read_operation
    def retention(self, db: sqlite3.Connection, /) -> list[Retention]:
        rows = db.execute("SELECT project, max_age_ns, max_bytes FROM retention ORDER BY project").fetchall()
        return [Retention(project=row[0] or None, max_age_ns=row[1], max_bytes=row[2]) for row in rows]

    @write_operation
    def delete_references(self, db: sqlite3.Connection, /, deleted: DeletedTraces) -> None:
        """Remove decisions and queue items about deleted traces and sessions."""
        delete_trace_decisions(db, deleted.traces)
        delete_session_decisions(db, deleted.sessions)
        delete_many(db, "queue", "json_extract(data, '$.target.trace_id')", deleted.traces)
        delete_many(db, "queue", "json_extract(data, '$.target.session_id')", deleted.sessions)


def _list_columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def _check_status(status: str) -> Any:
    if status not in get_args(QueueStatus):
        raise Refused(f"unknown status {status!r} of a queue item; expected one of: waiting, done, skipped")
    return status


def _put_item(db: sqlite3.Connection, item: QueueItem) -> None:
    row = (item.id, item.queue, item.status, item.created_ns, encode_record(item))
    db.execute("INSERT OR REPLACE INTO queue VALUES (?,?,?,?,?)", row)


def _read_queue(db: sqlite3.Connection, name: str, status: str | None, limit: int) -> list[QueueItem]:
    sql = (
        "SELECT data FROM queue WHERE queue = :name AND (:status IS NULL OR status = :status)"
        " ORDER BY created_ns, id LIMIT :limit"
    )
    rows = db.execute(sql, {"name": name, "status": status, "limit": limit})
    return [decode_record(QueueItem, row[0]) for row in rows]
