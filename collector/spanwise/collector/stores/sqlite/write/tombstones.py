"""Tombstones: ids of deleted traces, whose late spans are rejected."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from spanwise.collector.stores.sqlite.database.bulk_statements import select_many
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock

LIFETIME_NS = 8 * 24 * 3600 * 1_000_000_000  # a sender's spool keeps undelivered spans for seven days
MAX_TOMBSTONES = 1_000_000  # about 100 bytes each; the oldest are removed
PRUNE_ROWS = 5_000  # maximum number of rows checked at once


class Tombstones:
    """Ids of recently deleted traces. For the writer's thread."""

    def __init__(self, db: sqlite3.Connection, clock: StoreClock) -> None:
        self._db, self._clock = db, clock
        self.bound = MAX_TOMBSTONES
        self.late = 0  # spans, feedback and amendments rejected since the start
        self.forget()

    def forget(self) -> None:
        """Check again whether the table has rows, after a rollback."""
        self._any = self._db.execute("SELECT 1 FROM tombstones LIMIT 1").fetchone() is not None

    def put(self, trace_ids: Iterable[str]) -> None:
        """Record that these traces are deleted now."""
        until = self._clock.keep(self._db) + LIFETIME_NS
        rows = [(trace_id, until) for trace_id in dict.fromkeys(trace_ids)]
        # REPLACE gives a trace that is deleted again a new row id, so that rows stay in order of time
        self._db.executemany("INSERT OR REPLACE INTO tombstones (trace_id, until_ns) VALUES (?, ?)", rows)
        self._any = self._any or bool(rows)

    def among(self, trace_ids: Iterable[str]) -> set[str]:
        """Return the deleted traces among these. No query runs if the table is empty."""
        if not self._any:
            return set()
        sql = "SELECT trace_id FROM tombstones WHERE until_ns > ? AND trace_id IN (%s)"
        return {row[0] for row in select_many(self._db, sql, trace_ids, (self._clock.now(),))}

    def prune(self) -> bool:
        """Remove expired tombstones and those beyond `bound`, at most `PRUNE_ROWS`; return whether there were any."""
        first = f"(SELECT id, until_ns FROM tombstones ORDER BY id LIMIT {PRUNE_ROWS})"  # in order of expiry
        sql = f"SELECT id FROM {first} WHERE until_ns <= ? OR id <= (SELECT max(id) - ? FROM tombstones)"
        values = (self._clock.now(), self.bound)
        deleted = self._db.execute(f"DELETE FROM tombstones WHERE id IN ({sql})", values).rowcount
        self.forget()
        return deleted > 0
