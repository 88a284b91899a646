"""Builds a file of the version before the product was renamed (19), the oldest that can be opened."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from spanwise.collector.records import Feedback, Run, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.name_conversion import FORMER_APPLICATION_ID
from spanwise.collector.stores.sqlite.database.schema import OLDEST_VERSION, migrate
from spanwise.collector.stores.sqlite.database.score_sum_schema import MEASURE_TABLE_NAMES, SCORE_SUM_TABLES

TRACE = "1" * 32
PAGES = 16384  # such files have larger pages than new ones


def build(path: Path) -> None:
    """One trace with one model call that answers with the word "parcel", tagged and scored."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {PAGES}")
        db.execute("PRAGMA journal_mode = WAL")
        migrate(db, str(path))
    call = Run(trace_id=TRACE, span_id="2" * 16, name="answer", kind="llm", start_ns=5, end_ns=9, status="ok", model="m",
               outputs="the parcel", tags=("old",), attributes={"assay.partial": True})  # fmt: skip
    with SQLiteStore(path) as store:
        store.append([call], [Feedback(target=Target(trace_id=TRACE), key="good", score=0.5)])
    mark(path)


def mark(path: Path, version: int = OLDEST_VERSION) -> None:
    """Mark a file as one of the version before the renaming, or of another version."""
    with closing(sqlite3.connect(path)) as db:
        lower_version(db, version)
        db.execute(f"PRAGMA application_id = {FORMER_APPLICATION_ID}")


def lower_version(db: sqlite3.Connection, version: int) -> None:
    """Bring a file back to an earlier version: undo all later migrations, the latest first."""
    current = int(db.execute("PRAGMA user_version").fetchone()[0])
    for undone in range(current, version, -1):
        for statement in UNDO.get(undone, ()):
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {version}")


# only in files with groupings
GROUP_TRIGGERS = (
    "score_group_changed",
    *(f"score_session_group_{event}" for event in ("changed", "added", "removed")),
)
# By version: the statements that undo the migration to it. The migrations to other versions changed no tables
UNDO: Mapping[int, Sequence[str]] = {
    22: [
        f"ALTER TABLE traces DROP COLUMN {column}"
        for column in ("prompts", "agents", "finish_reasons", "time_to_first_token_ms")
    ],
    23: [
        "DROP TABLE words",
        "CREATE VIRTUAL TABLE words USING fts5 (text, content='', columnsize=0, detail=none, tokenize='unicode61')",
    ],
    26: [
        *(f"DROP TRIGGER {name}" for name in ("score_removed", "score_removed_from_session", "score_trace_changed")),
        *(f"DROP TRIGGER {name}" for name in ("score_decision_added", "score_decision_removed")),
        *(f"DROP TRIGGER IF EXISTS {name}" for name in GROUP_TRIGGERS),
        *(f"DROP TABLE {table}" for table in (*SCORE_SUM_TABLES, "score_groupings", "score_decisions_deleted")),
        "DROP INDEX feedback_without_lease",
    ],
    27: ["DROP TABLE notifications", "DROP TABLE deliveries"],
    28: ["DROP TABLE alerts", "DROP TABLE alert_groups", "DROP TABLE alert_events"],
    29: [
        "DROP TRIGGER decision_deleted",
        "DROP TABLE backfill_draws",
        "DROP TABLE backfills",
        *(f"DROP INDEX {name}" for name in ("decisions_of_backfill", "backfill_due")),
        *(f"DROP INDEX {name}" for name in ("decisions_due", "decisions_over_budget")),
        "CREATE INDEX decisions_due ON decisions (rule, due_ns) WHERE due_ns IS NOT NULL AND verdict <> 'over_budget'",
        "CREATE INDEX decisions_over_budget ON decisions (rule, created_ns, due_ns)"
        " WHERE due_ns IS NOT NULL AND verdict = 'over_budget'",
        "ALTER TABLE decisions DROP COLUMN backfill",
    ],
    30: ["DROP TABLE spend", "ALTER TABLE bookings DROP COLUMN spend"],
    31: ["ALTER TABLE rules DROP COLUMN paused_by", "ALTER TABLE rules DROP COLUMN paused_ns"],
    34: [
        "DROP INDEX score_clusters_by_session",
        "DROP INDEX score_clusters_that_span",
        "CREATE INDEX score_clusters_that_span ON score_clusters (series, level, block) WHERE spans = 1",
    ],
    33: [f"DROP TABLE {table}" for table in MEASURE_TABLE_NAMES],
    32: [
        "DROP INDEX feedback_by_project",
        "ALTER TABLE feedback DROP COLUMN project",
        *(f"DROP TRIGGER IF EXISTS {name}" for name in GROUP_TRIGGERS[1:]),
    ],
}
