"""The control half: what people and processes keep beside traces. `ControlStore` says what each verb promises."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import Key, QueueItem, QueueStatus, Retention
from spanwise.collector.stores._halves import Gone
from spanwise.collector.stores.sqlite._audit import Audit
from spanwise.collector.stores.sqlite._claiming import Claims
from spanwise.collector.stores.sqlite._datasets import Datasets
from spanwise.collector.stores.sqlite._decisions import Decisions, forget_sessions, forget_traces
from spanwise.collector.stores.sqlite._experiments import Experiments
from spanwise.collector.stores.sqlite._half import reads, writes
from spanwise.collector.stores.sqlite._leases import Leases
from spanwise.collector.stores.sqlite._money import Money
from spanwise.collector.stores.sqlite._records import from_text, to_text
from spanwise.collector.stores.sqlite._rules import Rules
from spanwise.collector.stores.sqlite._sql import delete_many
from spanwise.collector.stores.sqlite._workers import Workers


class SQLiteControl(Datasets, Experiments, Rules, Decisions, Claims, Leases, Money, Workers, Audit):
    """Implements `ControlStore` on a file, and what `Both` asks of such a half."""

    @writes
    def save_key(self, db: sqlite3.Connection, /, key: Key) -> None:
        db.execute("INSERT OR REPLACE INTO keys VALUES (?,?,?)", (key.id, key.created_ns, to_text(key)))

    @reads
    def keys(self, db: sqlite3.Connection, /) -> list[Key]:
        return [from_text(Key, row[0]) for row in db.execute("SELECT data FROM keys ORDER BY created_ns DESC, id")]

    @writes
    def delete_key(self, db: sqlite3.Connection, /, id: str) -> bool:
        return db.execute("DELETE FROM keys WHERE id = ?", (id,)).rowcount > 0

    @writes
    def enqueue(self, db: sqlite3.Connection, /, items: Sequence[QueueItem]) -> None:
        names = {item.queue for item in items}
        waiting = {(item.queue, item.target) for name in names for item in _queue(db, name, "waiting", -1)}
        for item in items:
            if (item.queue, item.target) not in waiting:
                waiting.add((item.queue, item.target))
                _put(db, replace(item, id=item.id or uuid.uuid4().hex))

    @reads
    def queue(
        self, db: sqlite3.Connection, /, name: str, *, status: str | None = "waiting", limit: int = 100
    ) -> list[QueueItem]:
        return _queue(db, name, None if status is None else _status(status), limit)

    @reads
    def queues(self, db: sqlite3.Connection, /) -> Mapping[str, int]:
        sql = "SELECT queue, sum(status = 'waiting') FROM queue GROUP BY queue ORDER BY queue"
        return {row[0]: row[1] for row in db.execute(sql)}

    @writes
    def resolve(self, db: sqlite3.Connection, /, item_id: str, status: str, assignee: str | None = None) -> bool:
        word = _status(status)
        row = db.execute("SELECT data FROM queue WHERE id = ?", (item_id,)).fetchone()
        if not row:
            return False
        item = from_text(QueueItem, row[0])
        _put(db, replace(item, status=word, assignee=assignee or item.assignee))
        return True

    @writes
    def set_retention(self, db: sqlite3.Connection, /, rule: Retention) -> None:
        db.execute("DELETE FROM retention WHERE project = ?", (rule.project or "",))
        if rule.max_age_ns is not None or rule.max_bytes is not None:
            row = (rule.project or "", rule.max_age_ns, rule.max_bytes)
            db.execute("INSERT INTO retention (project, max_age_ns, max_bytes) VALUES (?, ?, ?)", row)

    @reads
    def retention(self, db: sqlite3.Connection, /) -> list[Retention]:
        rows = db.execute("SELECT project, max_age_ns, max_bytes FROM retention ORDER BY project").fetchall()
        return [Retention(project=row[0] or None, max_age_ns=row[1], max_bytes=row[2]) for row in rows]

    @writes
    def forget(self, db: sqlite3.Connection, /, gone: Gone) -> None:
        """Remove decisions and items of queues about traces and sessions that go."""
        forget_traces(db, gone.traces)
        forget_sessions(db, gone.sessions)
        delete_many(db, "queue", "json_extract(data, '$.target.trace_id')", gone.traces)
        delete_many(db, "queue", "json_extract(data, '$.target.session_id')", gone.sessions)


def _status(word: str) -> Any:
    if word not in get_args(QueueStatus):
        raise Refused(f"an item of a queue is 'waiting', 'done' or 'skipped', not {word!r}")
    return word


def _put(db: sqlite3.Connection, item: QueueItem) -> None:
    row = (item.id, item.queue, item.status, item.created_ns, to_text(item))
    db.execute("INSERT OR REPLACE INTO queue VALUES (?,?,?,?,?)", row)


def _queue(db: sqlite3.Connection, name: str, status: str | None, limit: int) -> list[QueueItem]:
    sql = (
        "SELECT data FROM queue WHERE queue = :name AND (:status IS NULL OR status = :status)"
        " ORDER BY created_ns, id LIMIT :limit"
    )
    rows = db.execute(sql, {"name": name, "status": status, "limit": limit})
    return [from_text(QueueItem, row[0]) for row in rows]
