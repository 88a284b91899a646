"""What monitors keep: rules, decisions, leases, budgets. Nothing else leans on these tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from assay.collector.errors import NotFound, Refused
from assay.collector.records import JSON, Decision, Lease, Page, Rule, Verdict, changed
from assay.collector.stores.sqlite._half import Half, reads, writes
from assay.collector.stores.sqlite._records import from_text, to_text
from assay.collector.stores.sqlite._sql import delete_many, insert_many, page, position
from assay.collector.stores.sqlite._values import dumps, loads

_DECISION = Decision.__slots__  # the columns bear the names of the fields, in their order


class Monitor(Half):
    """Rules and what they decided, leases and budgets: a part of `ControlStore`."""

    @writes
    def save_rule(self, db: sqlite3.Connection, /, *rules: Rule) -> None:
        _save_rules(db, rules)

    @reads
    def rules(self, db: sqlite3.Connection, /, *, all_versions: bool = False) -> list[Rule]:
        sql = "SELECT data FROM rules WHERE current OR ? ORDER BY name, current DESC, created_ns DESC"
        return [from_text(Rule, row[0]) for row in db.execute(sql, (all_versions,))]

    @writes
    def change_rule(self, db: sqlite3.Connection, /, name: str, **fields: JSON) -> Rule:
        row = db.execute("SELECT data FROM rules WHERE name = ? AND current", (name,)).fetchone()
        if not row:
            raise NotFound(f"there is no rule {name!r} in this store")
        made = changed(from_text(Rule, row[0]), fields)
        _save_rules(db, [made])
        return made

    @writes
    def delete_rule(self, db: sqlite3.Connection, /, name: str) -> bool:
        return db.execute("UPDATE rules SET current = 0 WHERE name = ? AND current", (name,)).rowcount > 0

    @writes
    def save_decisions(self, db: sqlite3.Connection, /, decisions: Sequence[Decision]) -> None:
        last = {(d.trace_id, d.rule): d for d in decisions}
        rows = [(*(getattr(d, name) for name in _DECISION[:8]), dumps(d.metadata), d.created_ns) for d in last.values()]
        updates = ",".join(f"{name}=excluded.{name}" for name in _DECISION[2:])
        insert_many(db, "decisions", _DECISION, rows, f"ON CONFLICT (trace_id, rule) DO UPDATE SET {updates}")

    @reads
    def decisions(
        self,
        db: sqlite3.Connection,
        /,
        *,
        trace_id: str | None = None,
        rule: str | None = None,
        verdict: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[Decision]:
        if verdict is not None and verdict not in get_args(Verdict):
            raise Refused(f"there is no verdict {verdict!r}; use one of {', '.join(get_args(Verdict))}")
        wanted = [("trace_id", trace_id), ("rule", rule), ("verdict", verdict)]
        where = [f"{name} = ?" for name, value in wanted if value is not None]
        values: list[Any] = [value for _, value in wanted if value is not None]
        if cursor is not None:
            where.append("(created_ns, id) < (?, ?)")
            values.extend(position(cursor))
        sql = f"SELECT {','.join(_DECISION)}, id FROM decisions WHERE {' AND '.join(where) or '1'}"
        fetched = db.execute(f"{sql} ORDER BY created_ns DESC, id DESC LIMIT ?", (*values, limit + 1)).fetchall()
        rows, next = page(fetched, limit, time=9, key=10)
        return Page(items=tuple(map(_decision, rows)), next=next)

    @writes
    def delete_decisions(
        self, db: sqlite3.Connection, /, *, trace_id: str | None = None, rule: str | None = None
    ) -> int:
        if trace_id is None and rule is None:
            raise Refused("name the trace or the rule whose decisions shall go; to remove all of them, go rule by rule")
        sql = "DELETE FROM decisions WHERE (:trace IS NULL OR trace_id = :trace) AND (:rule IS NULL OR rule = :rule)"
        return db.execute(sql, {"trace": trace_id, "rule": rule}).rowcount

    @writes
    def acquire(self, db: sqlite3.Connection, /, name: str, holder: str, seconds: float) -> Lease | None:
        now = time.time_ns()
        row = db.execute("SELECT holder, expires_ns FROM leases WHERE name = ?", (name,)).fetchone()
        if row and row[0] != holder and row[1] > now:
            return None
        lease = Lease(name=name, holder=holder, expires_ns=now + int(seconds * 1e9))
        db.execute("INSERT OR REPLACE INTO leases VALUES (?,?,?)", (name, holder, lease.expires_ns))
        return lease

    @writes
    def release(self, db: sqlite3.Connection, /, name: str, holder: str) -> bool:
        return db.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder)).rowcount > 0

    @reads
    def leases(self, db: sqlite3.Connection, /) -> list[Lease]:
        sql = "SELECT name, holder, expires_ns FROM leases WHERE expires_ns > ? ORDER BY name"
        rows = db.execute(sql, (time.time_ns(),))
        return [Lease(name=name, holder=holder, expires_ns=expires_ns) for name, holder, expires_ns in rows]

    @writes
    def delete_lease(self, db: sqlite3.Connection, /, name: str) -> bool:
        row = db.execute("DELETE FROM leases WHERE name = ? RETURNING expires_ns", (name,)).fetchone()
        return row is not None and row[0] > time.time_ns()  # one that has run out is nobody's

    @writes
    def spend(
        self, db: sqlite3.Connection, /, budget: str, amount: float, limit: float, period_start_ns: int
    ) -> float | None:
        total = _spent(db, budget, period_start_ns) + amount
        if amount > 0 and total > limit:
            return None
        db.execute("INSERT OR REPLACE INTO budgets VALUES (?,?,?)", (budget, period_start_ns, total))
        return total

    @reads
    def spent(self, db: sqlite3.Connection, /, budget: str, period_start_ns: int) -> float:
        return _spent(db, budget, period_start_ns)

    @writes
    def delete_budget(self, db: sqlite3.Connection, /, budget: str, *, before_ns: int | None = None) -> int:
        sql = "DELETE FROM budgets WHERE budget = :budget AND (:before IS NULL OR period_start_ns < :before)"
        return db.execute(sql, {"budget": budget, "before": before_ns}).rowcount


def forget_decisions(db: sqlite3.Connection, trace_ids: Iterable[str]) -> None:
    """Remove what was decided about traces that go."""
    delete_many(db, "decisions", "trace_id", trace_ids)


def _save_rules(db: sqlite3.Connection, rules: Sequence[Rule]) -> None:
    sql = "INSERT OR REPLACE INTO rules (name, version, created_ns, current, data) VALUES (?,?,?,1,?)"
    for rule in rules:
        db.execute("UPDATE rules SET current = 0 WHERE name = ?", (rule.name,))
        db.execute(sql, (rule.name, rule.version, rule.created_ns, to_text(rule)))


def _decision(row: Sequence[Any]) -> Decision:
    return Decision(**{**dict(zip(_DECISION, row, strict=False)), "metadata": loads(row[8])})


def _spent(db: sqlite3.Connection, budget: str, period_start_ns: int) -> float:
    sql = "SELECT spent FROM budgets WHERE budget = ? AND period_start_ns = ?"
    row = db.execute(sql, (budget, period_start_ns)).fetchone()
    return float(row[0]) if row else 0.0
