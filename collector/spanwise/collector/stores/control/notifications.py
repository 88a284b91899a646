"""Notifications of alerts, and the durable state of their deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Delivery, DeliveryOutcome, Notification, NotificationStatus, Page
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.table_rows import (
    Connection,
    decode_record,
    dumps,
    encode_record,
    parse_cursor,
    select_many,
)

MAX_NOTIFICATIONS = 10_000  # older notifications are deleted, unless one of their deliveries is open
PRUNE_INTERVAL = 100  # notifications added between two deletions of old ones
# A notification that keeps failing holds up later ones of its alert and group for this long, so that they arrive in
# order after a failure of the target, but one that the target never accepts does not block them for a day.
ORDER_NS = 3600 * 1_000_000_000

_COLUMNS = "d.target, d.attempts, d.first_ns, d.next_ns, d.delivered_ns, d.gave_up_ns, d.error"
_IS_DUE = (
    "d.next_ns <= :now AND NOT EXISTS (SELECT 1 FROM deliveries e WHERE e.target = d.target AND e.order_key = d.order_key"
    " AND e.notification < d.notification AND e.next_ns IS NOT NULL AND (e.first_ns IS NULL OR e.first_ns > :ordered))"
)
_DELETE_OLD = (
    "DELETE FROM notifications WHERE number <= (SELECT number FROM notifications ORDER BY number DESC LIMIT 1 OFFSET ?)"
    " AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.notification = number AND d.next_ns IS NOT NULL)"
)


class Notifications(ControlOperationsBase):
    """Notification operations of `ControlStore`."""

    @write_operation
    def add_notifications(self, db: WriteConnection, /, notifications: Sequence[Notification]) -> None:
        """Store notifications to be delivered, as `enqueue_notifications` does."""
        enqueue_notifications(db, notifications)

    @read_operation
    def notifications(
        self,
        db: Connection,
        /,
        *,
        project: str | None = None,
        alert: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[NotificationStatus]:
        wanted = {"project": project, "alert": alert}
        where = " AND ".join([f"{name} = :{name}" for name, value in wanted.items() if value is not None] or ["true"])
        before = 2**63 - 1 if cursor is None else parse_cursor(cursor)[1]
        sql = f"SELECT number, data FROM notifications WHERE {where} AND number < :before ORDER BY number DESC LIMIT :limit"
        rows = db.execute(sql, {**wanted, "before": before, "limit": limit + 1}).fetchall()
        found = {number: decode_record(Notification, data) for number, data in rows[:limit]}
        deliveries: dict[int, list[Delivery]] = {}
        sql = f"SELECT d.notification, {_COLUMNS} FROM deliveries d WHERE d.notification IN (%s)"
        for number, *row in select_many(db, sql, found):
            deliveries.setdefault(number, []).append(_make_delivery(found[number], row))
        items = tuple(
            NotificationStatus(notification=one, deliveries=tuple(deliveries.get(number, ())))
            for number, one in found.items()
        )
        return Page(items=items, next=f"0.{rows[limit - 1][0]}" if len(rows) > limit and items else None)

    @read_operation
    def count_due_deliveries(self, db: Connection, /) -> Mapping[str, int]:
        sql = "SELECT target, count(*) FROM deliveries WHERE next_ns <= ? GROUP BY target"
        return dict(db.execute(sql, (self._database.clock.now(),)).fetchall())

    @read_operation
    def due_deliveries(self, db: Connection, /, target: str, *, limit: int = 100) -> list[NotificationStatus]:
        now = self._database.clock.now()
        sql = (
            f"SELECT n.data, {_COLUMNS} FROM deliveries d JOIN notifications n ON n.number = d.notification"
            f" WHERE d.target = :target AND {_IS_DUE} ORDER BY d.next_ns, d.notification LIMIT :limit"
        )
        rows = db.execute(sql, {"target": target, "now": now, "ordered": now - ORDER_NS, "limit": limit})
        due = []
        for data, *row in rows:
            notification = decode_record(Notification, data)
            due.append(NotificationStatus(notification=notification, deliveries=(_make_delivery(notification, row),)))
        return due

    @write_operation
    def record_delivery(
        self,
        db: WriteConnection,
        /,
        notification: str,
        target: str,
        outcome: DeliveryOutcome,
        *,
        error: str | None = None,
        retry_s: float = 0.0,
    ) -> None:
        if outcome not in ("delivered", "retry", "gave up"):
            raise Refused(f"unknown outcome {outcome!r} of a delivery; expected one of: delivered, retry, gave up")
        if not 0 <= retry_s <= MAX_RETRY_SECONDS:
            raise Refused(f"retry_s must be from 0 to {MAX_RETRY_SECONDS:.0f} seconds, got {retry_s!r}")
        now = self._database.clock.keep(db)
        updated = db.execute(
            "UPDATE deliveries SET attempts = attempts + 1, first_ns = coalesce(first_ns, :now), next_ns = :next,"
            " delivered_ns = :delivered, gave_up_ns = :gave_up, error = :error WHERE target = :target"
            " AND notification = (SELECT number FROM notifications WHERE id = :id) AND next_ns IS NOT NULL",
            {
                "now": now,
                "next": now + int(retry_s * 1e9) if outcome == "retry" else None,
                "delivered": now if outcome == "delivered" else None,
                "gave_up": now if outcome == "gave up" else None,
                "error": error,
                "target": target,
                "id": notification,
            },
        )
        if not updated.rowcount and not db.execute(_SELECT_DELIVERY, (notification, target)).fetchone():
            raise NotFound(f"there is no delivery of notification {notification!r} to target {target!r}")


MAX_RETRY_SECONDS = 86_400.0
_SELECT_DELIVERY = (
    "SELECT 1 FROM deliveries WHERE notification = (SELECT number FROM notifications WHERE id = ?) AND target = ?"
)


def enqueue_notifications(db: Connection, notifications: Iterable[Notification]) -> None:
    """Store notifications with one open delivery per target, in the caller's transaction.

    In one transaction with the change of state that they report, none is lost if the process is killed. A
    notification whose id is already stored changes nothing. Notifications of one alert and group are delivered in the
    order in which they are stored here.
    """
    for one in notifications:
        row = (one.id, one.project, one.alert, encode_record(one))
        sql = "INSERT INTO notifications (id, project, alert, data) VALUES (?,?,?,?) ON CONFLICT (id) DO NOTHING RETURNING number"
        inserted = db.execute(sql, row).fetchone()
        if inserted is None:
            continue
        [number] = inserted
        # A test is not held up by notifications that fail
        order_key = dumps([one.project, one.alert, one.group, one.id if one.status == "test" else None])
        db.executemany(
            "INSERT INTO deliveries (notification, target, order_key, attempts, next_ns) VALUES (?,?,?,0,0)",
            [(number, target, order_key) for target in dict.fromkeys(one.targets)],
        )
        if number % PRUNE_INTERVAL == 0:
            db.execute(_DELETE_OLD, (MAX_NOTIFICATIONS,))
            db.execute("DELETE FROM deliveries WHERE notification NOT IN (SELECT number FROM notifications)")


def _make_delivery(notification: Notification, row: Sequence[Any]) -> Delivery:
    target, attempts, first_ns, next_ns, delivered_ns, gave_up_ns, error = row
    return Delivery(
        notification=notification.id,
        target=target,
        attempts=attempts,
        first_attempt_ns=first_ns,
        next_ns=next_ns,
        delivered_ns=delivered_ns,
        gave_up_ns=gave_up_ns,
        error=error,
    )
