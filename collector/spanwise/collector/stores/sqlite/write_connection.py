"""Write connection of a database file: what control operations need besides SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from spanwise.collector.records import Alert
from spanwise.collector.stores.sqlite.database import score_sum_schema
from spanwise.collector.stores.sqlite.score_sums import sum_tables, trace_measures


class SQLiteWriteConnection(sqlite3.Connection):
    """The one connection that writes the file (see `WriteConnection` in `stores.control`).

    Decisions and scores are in one file, so that the sums of scores follow the decisions.
    """

    def lock(self, kind: str, *names: str, shared: bool = False) -> None:
        """Do nothing, because no other transaction runs."""

    def issue_numbers(self, count: int) -> Sequence[int]:
        last = int(self.execute("UPDATE numbers SET last = last + ? RETURNING last", (count,)).fetchone()[0])
        return range(last - count + 1, last + 1)

    def record_decision_changes(self, ids: Iterable[int]) -> None:
        score_sum_schema.record_decisions(self, ids)

    def record_leases(self, leased: Iterable[tuple[int, int]]) -> None:
        # Scores belong to the decision whose lease number is the next one above theirs. So the first lease of a decision
        # concerns only scores whose own decision was deleted
        may_be_orphaned = self.execute("SELECT 1 FROM score_decisions_deleted").fetchone() is not None
        score_sum_schema.record_decisions(self, [id for id, former in leased if former or may_be_orphaned])

    def record_deleted_decisions(self) -> None:
        self.execute("INSERT OR IGNORE INTO score_decisions_deleted VALUES (1)")

    def register_live_sums(self, project: str, rule: str) -> None:
        sum_tables.register_live_sums(self, project, rule)

    def register_grouping(self, project: str, rule: str, by: str) -> None:
        sum_tables.register_grouping(self, project, rule, by)

    def remove_grouping(self, project: str, rule: str, by: str) -> None:
        sum_tables.remove_grouping(self, project, rule, by)

    def remove_measure(self, alert: Alert, remaining: Sequence[Alert]) -> None:
        trace_measures.remove_measure(self, alert, remaining)
