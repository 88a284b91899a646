"""Control backend: all control operations; API keys, annotation queues, retention rules and the audit log."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import AuditEvent, Key, Page, QueueItem, QueueStatus, Retention, ScoreSums
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.sqlite.control.alerts import Alerts
from spanwise.collector.stores.sqlite.control.backfills import Backfills
from spanwise.collector.stores.sqlite.control.budget_bookings import Budgets
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
from spanwise.collector.stores.sqlite.database.bulk_statements import delete_many, parse_cursor
from spanwise.collector.stores.sqlite.database.column_values import decode_record, encode_record
from spanwise.collector.stores.sqlite.database_file import Backend, read_operation, write_operation
from spanwise.collector.stores.sqlite.score_sums.sum_queries import count_groups, read_sums
from spanwise.collector.stores.sqlite.score_sums.window_sums import SumsQuery

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

    def score_sums(
        self,
        rule: str,
        *,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        block_s: int = 150,
        by: str | None = None,
        groups: Sequence[str] = (),
        joined: bool = True,
        live: bool = False,
    ) -> list[ScoreSums]:
        query = SumsQuery(rule, project, since_ns, until_ns, block_s, key, version, by, groups, joined, live)
        return read_sums(self._file, query)

    def score_groups(
        self,
        rule: str,
        *,
        by: str,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        live: bool = False,
    ) -> Mapping[str, int]:
        return count_groups(self._file, SumsQuery(rule, project, since_ns, until_ns, 150, key, version, by, live=live))

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
