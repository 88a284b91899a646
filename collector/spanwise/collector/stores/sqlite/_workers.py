"""What monitors say of themselves, and how far each rule has come."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from spanwise.collector.records import Decision, Rule, WorkerReport
from spanwise.collector.stores._why import WORST
from spanwise.collector.stores.sqlite._half import Half, reads, writes
from spanwise.collector.stores.sqlite._outcomes import COMPUTED
from spanwise.collector.stores.sqlite._records import from_text, to_text
from spanwise.collector.stores.sqlite._rows import SELECT, decision

KEPT_NS = 86_400 * 1_000_000_000
FAILED = 5  # decisions of which the errors are shown


_BY_ROW = "SELECT verdict, count(*) FROM decisions WHERE rule = ? GROUP BY verdict"
_ORDER = " ".join(f"WHEN '{verdict}' THEN {place}" for place, verdict in enumerate(WORST))
_NAMES = " ".join(f"WHEN {place} THEN '{verdict}'" for place, verdict in enumerate(WORST))
_BY_TRACE = (
    f"SELECT CASE worst {_NAMES} END, count(*) FROM (SELECT min(CASE verdict {_ORDER} END) AS worst FROM decisions"
    " WHERE rule = ? GROUP BY substr(target, 1, instr(target || '/', '/') - 1)) GROUP BY worst"
)


class Workers(Half):
    """A part of `ControlStore`."""

    @writes
    def report(self, db: sqlite3.Connection, /, worker: WorkerReport) -> None:
        now = self._file.clock.keep(db)
        key = f"{worker.holder} {worker.project}"  # a worker reports for each project that it serves
        db.execute("DELETE FROM workers WHERE seen_ns < ? OR holder = ?", (now - KEPT_NS, key))
        db.execute("INSERT INTO workers VALUES (?,?,?,?)", (key, worker.project, now, to_text(worker)))

    @reads
    def workers(self, db: sqlite3.Connection, /) -> list[WorkerReport]:
        """What workers said of themselves within the last day, the newest of each."""
        sql = "SELECT data, seen_ns FROM workers WHERE seen_ns >= ? ORDER BY holder"
        rows = db.execute(sql, (self._file.clock.now() - KEPT_NS,)).fetchall()
        return [replace(from_text(WorkerReport, row[0]), seen_ns=row[1]) for row in rows]

    @reads
    def funnel(self, db: sqlite3.Connection, /, rule: Rule) -> dict[str, int]:
        """How many traces of a version have come to each verdict: of several targets of a trace the worst counts."""
        id = _number(db, rule)
        rows = db.execute(_BY_TRACE if rule.target in ("span", "document") else _BY_ROW, (id,)).fetchall()
        sums = db.execute("SELECT total(filtered), total(sampled_out) FROM counts WHERE rule = ?", (id,)).fetchone()
        return {**dict(zip(COMPUTED, map(int, sums), strict=True)), **dict(rows)}

    @reads
    def failed(self, db: sqlite3.Connection, /, rule: Rule) -> Sequence[Decision]:
        """The last decisions of a version that failed, newest first."""
        sql = f"{SELECT} WHERE d.rule = ? AND d.verdict = 'failed' ORDER BY d.id DESC LIMIT ?"
        return [decision(row) for row in db.execute(sql, (_number(db, rule), FAILED))]


def _number(db: sqlite3.Connection, rule: Rule) -> int | None:
    sql = "SELECT id FROM rules WHERE project = ? AND name = ? AND version = ?"
    row = db.execute(sql, (rule.project, rule.name, rule.version)).fetchone()
    return int(row[0]) if row else None
