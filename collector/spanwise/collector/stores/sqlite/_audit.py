"""What was deleted and who changed keys: the newest, of keys and of all else each so many."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from spanwise.collector.records import AuditEvent, Page
from spanwise.collector.stores.sqlite._half import Half, reads, writes
from spanwise.collector.stores.sqlite._records import from_text, to_text
from spanwise.collector.stores.sqlite._sql import position

# Apart, so that no number of deletions covers up what was done to keys
KEPT = {True: 10_000, False: 40_000}
EVERY = 100  # events between two looks at whether there are more


class Audit(Half):
    """A part of `ControlStore`."""

    @writes
    def note(self, db: sqlite3.Connection, /, event: AuditEvent) -> None:
        """Keep an event; of those before it only so many."""
        of_keys = event.action.endswith("_key")
        row = (of_keys, to_text(event))
        id = int(db.execute("INSERT INTO audit (of_keys, data) VALUES (?, ?) RETURNING id", row).fetchone()[0])
        if id % EVERY == 0:
            for kind, count in KEPT.items():
                db.execute(_FORGET, {"kind": kind, "count": count})

    @reads
    def audit(self, db: sqlite3.Connection, /, *, limit: int = 100, cursor: str | None = None) -> Page[AuditEvent]:
        sql = "SELECT id, data FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?"
        rows = db.execute(sql, (2**63 - 1 if cursor is None else position(cursor)[1], limit + 1)).fetchall()
        items = tuple(replace(from_text(AuditEvent, data), id=str(id)) for id, data in rows[:limit])
        return Page(items=items, next=f"0.{items[-1].id}" if len(rows) > limit and items else None)


_FORGET = (
    "DELETE FROM audit WHERE of_keys = :kind AND id <="
    " (SELECT id FROM audit WHERE of_keys = :kind ORDER BY id DESC LIMIT 1 OFFSET :count)"
)
