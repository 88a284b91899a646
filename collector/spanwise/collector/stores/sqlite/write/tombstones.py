"""Tombstones: ids of deleted traces, whose late spans are rejected."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from spanwise.collector.stores.sqlite.database.bulk_statements import select_many
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock

LIFETIME_NS = 8 * 24 * 3600 * 1_000_000_000  # a spool keeps what it could not deliver for seven days
MAX_TOMBSTONES = 1_000_000  # some 100 bytes each; the oldest fall out
PRUNE_ROWS = 5_000  # forgotten at once


class Tombstones:
    """Ids of traces that were deleted lately. For the writer's thread."""

    def __init__(self, db: sqlite3.Connection, clock: StoreClock) -> None:
        self._db, self._clock = db, clock
        self.bound = MAX_TOMBSTONES
        self.late = 0  # spans, feedback and amendments that came for them since the start
        self.forget()

    def forget(self) -> None:
        """Look again whether there are any: after a rollback."""
        self._any = self._db.execute("SELECT 1 FROM tombstones LIMIT 1").fetchone() is not None

    def put(self, trace_ids: Iterable[str]) -> None:
        """These were deleted now."""
        until = self._clock.keep(self._db) + LIFETIME_NS
        rows = [(trace_id, until) for trace_id in dict.fromkeys(trace_ids)]
        # REPLACE: of one that was deleted twice the place is then among the newest
        self._db.executemany("INSERT OR REPLACE INTO tombstones (trace_id, until_ns) VALUES (?, ?)", rows)
        self._any = self._any or bool(rows)

    def among(self, trace_ids: Iterable[str]) -> set[str]:
        """Those of the traces that were deleted. A file from which nothing was deleted is not even asked."""
        if not self._any:
            return set()
        sql = "SELECT trace_id FROM tombstones WHERE until_ns > ? AND trace_id IN (%s)"
        return {row[0] for row in select_many(self._db, sql, trace_ids, (self._clock.now(),))}

    def prune(self) -> bool:
        """Forget some of those whose time has passed, and of more than `bound`; whether there were any."""
        first = f"(SELECT id, until_ns FROM tombstones ORDER BY id LIMIT {PRUNE_ROWS})"  # in the order of their time
        sql = f"SELECT id FROM {first} WHERE until_ns <= ? OR id <= (SELECT max(id) - ? FROM tombstones)"
        asked = (self._clock.now(), self.bound)
        gone = self._db.execute(f"DELETE FROM tombstones WHERE id IN ({sql})", asked).rowcount
        self.forget()
        return gone > 0
