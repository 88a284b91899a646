"""Experiments, rules, decisions, leases, budgets, keys and annotation queues."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.collector.errors import NotFound, Refused
from assay.collector.records import JSON, Decision, Experiment, Key, Lease, Page, QueueItem, Rule, changed
from assay.collector.stores.sqlite import _records
from assay.collector.stores.sqlite._append import insert_many, overwrite
from assay.collector.stores.sqlite._records import to_text
from assay.collector.stores.sqlite._values import dumps, loads

# experiments


def save_experiments(db: sqlite3.Connection, experiments: Sequence[Experiment]) -> None:
    """Create or overwrite, by id."""
    columns = ("id", "name", "dataset", "project", "status", "started_ns", "data")
    rows = [
        (one.id, one.name, one.dataset, one.project, one.status, one.started_ns, to_text(one)) for one in experiments
    ]
    insert_many(db, "experiments", columns, rows, overwrite(columns))


def experiment(db: sqlite3.Connection, id_or_name: str) -> Experiment:
    """By id, by the beginning of an id, or the newest of a name. Raises `NotFound`."""
    for where, value in (
        ("id = ?", id_or_name),
        ("name = ?", id_or_name),
        ("substr(id, 1, length(?)) = ?", id_or_name),
    ):
        values = (value,) * where.count("?")
        sql = f"SELECT data FROM experiments WHERE {where} ORDER BY started_ns DESC LIMIT 1"
        row = db.execute(sql, values).fetchone() if value else None
        if row:
            return _records.experiment(row[0])
    raise NotFound(f"there is no experiment {id_or_name!r} in this store; `assay experiments` lists them")


def change_experiment(db: sqlite3.Connection, id: str, fields: Mapping[str, JSON]) -> Experiment:
    """Overwrite some fields. Raises `NotFound`, `Refused`."""
    made = changed(experiment(db, id), fields)
    save_experiments(db, [made])
    return made


def experiments(db: sqlite3.Connection, dataset: str | None, project: str | None, limit: int) -> list[Experiment]:
    """Newest first."""
    sql = (
        "SELECT data FROM experiments WHERE (?1 IS NULL OR dataset = ?1) AND (?2 IS NULL OR project = ?2)"
        " ORDER BY started_ns DESC, id LIMIT ?3"
    )
    return [_records.experiment(row[0]) for row in db.execute(sql, (dataset, project, limit))]


# rules and decisions


def save_rules(db: sqlite3.Connection, rules: Sequence[Rule]) -> None:
    """Create or overwrite; earlier versions stay."""
    sql = "INSERT OR REPLACE INTO rules (name, version, created_ns, current, data) VALUES (?,?,?,1,?)"
    for rule in rules:
        db.execute("UPDATE rules SET current = 0 WHERE name = ?", (rule.name,))
        db.execute(sql, (rule.name, rule.version, rule.created_ns, to_text(rule)))


def rules(db: sqlite3.Connection, all_versions: bool) -> list[Rule]:
    """By name, newest version first; rules that were removed only among all versions."""
    sql = "SELECT data FROM rules WHERE current OR ? ORDER BY name, current DESC, created_ns DESC"
    return [_records.rule(row[0]) for row in db.execute(sql, (all_versions,))]


def change_rule(db: sqlite3.Connection, name: str, fields: Mapping[str, JSON]) -> Rule:
    """Overwrite some fields of the version in force. Raises `NotFound`, `Refused`."""
    row = db.execute("SELECT data FROM rules WHERE name = ? AND current", (name,)).fetchone()
    if not row:
        raise NotFound(f"there is no rule {name!r} in this store")
    made = changed(_records.rule(row[0]), fields)
    save_rules(db, [made])
    return made


def delete_rule(db: sqlite3.Connection, name: str) -> bool:
    """Take a rule out of use."""
    return db.execute("UPDATE rules SET current = 0 WHERE name = ? AND current", (name,)).rowcount > 0


_DECISION = (
    "trace_id",
    "rule",
    "rule_version",
    "verdict",
    "reason",
    "probability",
    "attempts",
    "cost",
    "metadata",
    "created_ns",
)


def save_decisions(db: sqlite3.Connection, decisions: Sequence[Decision]) -> None:
    """One per (trace, rule)."""
    last = {(d.trace_id, d.rule): d for d in decisions}
    rows = [(*(getattr(d, name) for name in _DECISION[:8]), dumps(d.metadata), d.created_ns) for d in last.values()]
    updates = ",".join(f"{name}=excluded.{name}" for name in _DECISION[2:])
    insert_many(db, "decisions", _DECISION, rows, f"ON CONFLICT (trace_id, rule) DO UPDATE SET {updates}")


def decisions(
    db: sqlite3.Connection, trace_id: str | None, rule: str | None, verdict: str | None, limit: int, cursor: str | None
) -> Page[Decision]:
    """Newest first."""
    wanted = [("trace_id", trace_id), ("rule", rule), ("verdict", verdict)]
    where = [f"{name} = ?" for name, value in wanted if value is not None]
    values: list[Any] = [value for _, value in wanted if value is not None]
    if cursor is not None:
        where.append("(created_ns, id) < (?, ?)")
        values.extend(position(cursor))
    sql = f"SELECT {','.join(_DECISION)}, id FROM decisions WHERE {' AND '.join(where) or '1'}"
    rows = db.execute(f"{sql} ORDER BY created_ns DESC, id DESC LIMIT ?", (*values, limit + 1)).fetchall()
    next = f"{rows[limit - 1][9]}.{rows[limit - 1][10]}" if len(rows) > limit else None
    return Page(items=tuple(_decision(row) for row in rows[:limit]), next=next)


def delete_decisions(db: sqlite3.Connection, trace_id: str | None, rule: str | None) -> int:
    """Of a trace, of a rule, or of both. Raises `Refused` for neither."""
    if trace_id is None and rule is None:
        raise Refused("name the trace or the rule whose decisions shall go; to remove all of them, go rule by rule")
    sql = "DELETE FROM decisions WHERE (?1 IS NULL OR trace_id = ?1) AND (?2 IS NULL OR rule = ?2)"
    return db.execute(sql, (trace_id, rule)).rowcount


def _decision(row: Sequence[Any]) -> Decision:
    return Decision(**{**dict(zip(_DECISION, row, strict=False)), "metadata": loads(row[8])})


def position(cursor: str) -> tuple[int, int]:
    """The two integers of a cursor. Raises `Refused`."""
    try:
        time_ns, key = cursor.split(".")
        return int(time_ns), int(key)
    except ValueError:
        raise Refused(f"{cursor!r} is no cursor; use the `next` of the page before") from None


# leases and budgets


def acquire(db: sqlite3.Connection, name: str, holder: str, seconds: float) -> Lease | None:
    """Take or renew."""
    now = time.time_ns()
    row = db.execute("SELECT holder, expires_ns FROM leases WHERE name = ?", (name,)).fetchone()
    if row and row[0] != holder and row[1] > now:
        return None
    lease = Lease(name=name, holder=holder, expires_ns=now + int(seconds * 1e9))
    db.execute("INSERT OR REPLACE INTO leases VALUES (?,?,?)", (name, holder, lease.expires_ns))
    return lease


def release(db: sqlite3.Connection, name: str, holder: str) -> bool:
    """Give back."""
    return db.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder)).rowcount > 0


def leases(db: sqlite3.Connection) -> list[Lease]:
    """Those that have not run out, by name."""
    sql = "SELECT name, holder, expires_ns FROM leases WHERE expires_ns > ? ORDER BY name"
    rows = db.execute(sql, (time.time_ns(),))
    return [Lease(name=name, holder=holder, expires_ns=expires_ns) for name, holder, expires_ns in rows]


def delete_lease(db: sqlite3.Connection, name: str) -> bool:
    """Take from whoever holds it; one that has run out is nobody's."""
    row = db.execute("DELETE FROM leases WHERE name = ? RETURNING expires_ns", (name,)).fetchone()
    return row is not None and row[0] > time.time_ns()


def spend(db: sqlite3.Connection, budget: str, amount: float, limit: float, period_start_ns: int) -> float | None:
    """Book unless that passes the limit."""
    total = spent(db, budget, period_start_ns) + amount
    if amount > 0 and total > limit:
        return None
    db.execute("INSERT OR REPLACE INTO budgets VALUES (?,?,?)", (budget, period_start_ns, total))
    return total


def spent(db: sqlite3.Connection, budget: str, period_start_ns: int) -> float:
    """What is booked."""
    sql = "SELECT spent FROM budgets WHERE budget = ? AND period_start_ns = ?"
    row = db.execute(sql, (budget, period_start_ns)).fetchone()
    return float(row[0]) if row else 0.0


def delete_budget(db: sqlite3.Connection, budget: str, before_ns: int | None) -> int:
    """Forget periods that begin before a time, or all."""
    sql = "DELETE FROM budgets WHERE budget = ?1 AND (?2 IS NULL OR period_start_ns < ?2)"
    return db.execute(sql, (budget, before_ns)).rowcount


# keys and annotation queues


def save_key(db: sqlite3.Connection, key: Key) -> None:
    """Create or overwrite."""
    db.execute("INSERT OR REPLACE INTO keys VALUES (?,?,?)", (key.id, key.created_ns, to_text(key)))


def keys(db: sqlite3.Connection) -> list[Key]:
    """Newest first."""
    return [_records.key(row[0]) for row in db.execute("SELECT data FROM keys ORDER BY created_ns DESC, id")]


def delete_key(db: sqlite3.Connection, id: str) -> bool:
    """Revoke."""
    return db.execute("DELETE FROM keys WHERE id = ?", (id,)).rowcount > 0


def enqueue(db: sqlite3.Connection, items: Sequence[QueueItem]) -> None:
    """Put in what does not wait there already."""
    waiting = {
        (item.queue, item.target) for name in {item.queue for item in items} for item in queue(db, name, "waiting", -1)
    }
    for item in items:
        if (item.queue, item.target) not in waiting:
            waiting.add((item.queue, item.target))
            _put(db, replace(item, id=item.id or uuid.uuid4().hex))


def _put(db: sqlite3.Connection, item: QueueItem) -> None:
    row = (item.id, item.queue, item.status, item.created_ns, to_text(item))
    db.execute("INSERT OR REPLACE INTO queue VALUES (?,?,?,?,?)", row)


def queue(db: sqlite3.Connection, name: str, status: str | None, limit: int) -> list[QueueItem]:
    """Oldest first."""
    sql = "SELECT data FROM queue WHERE queue = ?1 AND (?2 IS NULL OR status = ?2) ORDER BY created_ns, id LIMIT ?3"
    return [_records.queue_item(row[0]) for row in db.execute(sql, (name, status, limit))]


def queues(db: sqlite3.Connection) -> dict[str, int]:
    """Names, and how many wait."""
    sql = "SELECT queue, sum(status = 'waiting') FROM queue GROUP BY queue ORDER BY queue"
    return {row[0]: row[1] for row in db.execute(sql)}


def resolve(db: sqlite3.Connection, item_id: str, status: str, assignee: str | None) -> bool:
    """Mark as done or skipped."""
    if status not in ("waiting", "done", "skipped"):
        raise Refused(f"an item of a queue is 'waiting', 'done' or 'skipped', not {status!r}")
    row = db.execute("SELECT data FROM queue WHERE id = ?", (item_id,)).fetchone()
    if not row:
        return False
    item = _records.queue_item(row[0])
    _put(db, replace(item, status=status, assignee=assignee or item.assignee))  # type: ignore[arg-type]
    return True
