"""All control operations in one class; API keys, annotation queues, retention rules, audit log."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import (
    AuditEvent,
    Key,
    Page,
    QueueItem,
    QueueStatus,
    Retention,
)
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.control.alerts import Alerts
from spanwise.collector.stores.control.backfills import Backfills
from spanwise.collector.stores.control.budgets import Budgets
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.control.datasets_and_experiments import Datasets, Experiments
from spanwise.collector.stores.control.decisions import (
    Decisions,
    WorkerReports,
    delete_session_decisions,
    delete_trace_decisions,
)
from spanwise.collector.stores.control.leases import DecisionLeases, Leases
from spanwise.collector.stores.control.notifications import Notifications
from spanwise.collector.stores.control.rule_versions import Rules
from spanwise.collector.stores.table_rows import (
    Connection,
    decode_record,
    delete_many,
    encode_record,
    parse_cursor,
)

MAX_ITEMS = 2**63 - 1  # as a limit: all

# Events about API keys (True) have a separate limit, so that many deletions cannot displace them
MAX_EVENTS = {True: 10_000, False: 40_000}
PRUNE_INTERVAL = 100  # events added between two deletions of old events


class AuditLog(ControlOperationsBase):
    """Audit log operations of `ControlStore`."""

    @write_operation
    def record_audit_event(self, db: WriteConnection, /, event: AuditEvent) -> None:
        """Append an event, and regularly delete the oldest ones beyond `MAX_EVENTS`."""
        of_keys = event.action.endswith("_key")
        row = (int(of_keys), encode_record(event))
        id = int(db.execute("INSERT INTO audit (of_keys, data) VALUES (?, ?) RETURNING id", row).fetchone()[0])
        if id % PRUNE_INTERVAL == 0:
            for kind, count in MAX_EVENTS.items():
                db.execute(_DELETE_OLD, {"kind": int(kind), "count": count})

    @read_operation
    def audit(self, db: Connection, /, *, limit: int = 100, cursor: str | None = None) -> Page[AuditEvent]:
        sql = "SELECT id, data FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?"
        rows = db.execute(sql, (2**63 - 1 if cursor is None else parse_cursor(cursor)[1], limit + 1)).fetchall()
        items = tuple(replace(decode_record(AuditEvent, data), id=str(id)) for id, data in rows[:limit])
        return Page(items=items, next=f"0.{items[-1].id}" if len(rows) > limit and items else None)


_DELETE_OLD = (
    "DELETE FROM audit WHERE of_keys = :kind AND id <="
    " (SELECT id FROM audit WHERE of_keys = :kind ORDER BY id DESC LIMIT 1 OFFSET :count)"
)


class ControlOperations(
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
    """All operations of `ControlBackend` in SQL. A backend adds `where`, `is_full`, `close`, and sums of scores."""

    @write_operation
    def save_key(self, db: WriteConnection, /, key: Key) -> None:
        sql = (
            "INSERT INTO keys (id, created_ns, data) VALUES (?,?,?) ON CONFLICT (id) DO UPDATE SET"
            " created_ns = excluded.created_ns, data = excluded.data"
        )
        db.execute(sql, (key.id, key.created_ns, encode_record(key)))

    @read_operation
    def keys(self, db: Connection, /) -> list[Key]:
        return [decode_record(Key, row[0]) for row in db.execute("SELECT data FROM keys ORDER BY created_ns DESC, id")]

    @write_operation
    def delete_key(self, db: WriteConnection, /, id: str) -> bool:
        return db.execute("DELETE FROM keys WHERE id = ?", (id,)).rowcount > 0

    @write_operation
    def enqueue(self, db: WriteConnection, /, items: Sequence[QueueItem]) -> None:
        names = sorted({item.queue for item in items})
        for name in names:
            db.lock("queue", name)
        waiting = {(item.queue, item.target) for name in names for item in _read_queue(db, name, "waiting", MAX_ITEMS)}
        new: dict[str, QueueItem] = {}
        for item in items:
            if (item.queue, item.target) not in waiting:
                waiting.add((item.queue, item.target))
                id = item.id or uuid.uuid4().hex
                new[id] = replace(item, id=id)
        _put_items(db, list(new.values()))

    @read_operation
    def queue(
        self, db: Connection, /, name: str, *, status: str | None = "waiting", limit: int = 100
    ) -> list[QueueItem]:
        return _read_queue(db, name, None if status is None else _check_status(status), limit)

    @read_operation
    def queues(self, db: Connection, /) -> Mapping[str, int]:
        sql = "SELECT queue, count(*) FILTER (WHERE status = 'waiting') FROM queue GROUP BY queue ORDER BY queue"
        return {row[0]: row[1] for row in db.execute(sql)}

    @write_operation
    def resolve(self, db: WriteConnection, /, item_id: str, status: str, assignee: str | None = None) -> bool:
        checked = _check_status(status)
        row = db.execute("SELECT data FROM queue WHERE id = ?/*pg FOR NO KEY UPDATE*/", (item_id,)).fetchone()
        if not row:
            return False
        item = decode_record(QueueItem, row[0])
        _put_items(db, [replace(item, status=checked, assignee=assignee or item.assignee)])
        return True

    @write_operation
    def set_retention(self, db: WriteConnection, /, rule: Retention) -> None:
        db.execute("DELETE FROM retention WHERE project = ?", (rule.project or "",))
        if rule.max_age_ns is not None or rule.max_bytes is not None:
            row = (rule.project or "", rule.max_age_ns, rule.max_bytes)
            db.execute("INSERT INTO retention (project, max_age_ns, max_bytes) VALUES (?, ?, ?)", row)

    @read_operation
    def retention(self, db: Connection, /) -> list[Retention]:
        rows = db.execute("SELECT project, max_age_ns, max_bytes FROM retention ORDER BY project").fetchall()
        return [Retention(project=row[0] or None, max_age_ns=row[1], max_bytes=row[2]) for row in rows]

    @write_operation
    def delete_references(self, db: WriteConnection, /, deleted: DeletedTraces) -> None:
        """Remove decisions and queue items about deleted traces and sessions."""
        delete_trace_decisions(db, deleted.traces)
        delete_session_decisions(db, deleted.sessions)
        delete_many(db, "queue", "json_extract(data, '$.target.trace_id')", deleted.traces)
        delete_many(db, "queue", "json_extract(data, '$.target.session_id')", deleted.sessions)


def _check_status(status: str) -> Any:
    if status not in get_args(QueueStatus):
        raise Refused(f"unknown status {status!r} of a queue item; expected one of: waiting, done, skipped")
    return status


def _put_items(db: WriteConnection, items: Sequence[QueueItem]) -> None:
    rows = [(item.id, item.queue, item.status, item.created_ns, encode_record(item)) for item in items]
    db.executemany(
        "INSERT INTO queue (id, queue, status, created_ns, data) VALUES (?,?,?,?,?) ON CONFLICT (id) DO UPDATE SET"
        " queue = excluded.queue, status = excluded.status, created_ns = excluded.created_ns, data = excluded.data",
        rows,
    )


def _read_queue(db: Connection, name: str, status: str | None, limit: int) -> list[QueueItem]:
    sql = (
        "SELECT data FROM queue WHERE queue = :name AND (:status IS NULL OR status = :status)"
        " ORDER BY created_ns, id LIMIT :limit"
    )
    rows = db.execute(sql, {"name": name, "status": status, "limit": limit})
    return [decode_record(QueueItem, row[0]) for row in rows]
