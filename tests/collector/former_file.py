"""Builds a file of the version before the product was renamed (19), the oldest that can be opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from spanwise.collector.records import Feedback, Run, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.name_conversion import FORMER_APPLICATION_ID
from spanwise.collector.stores.sqlite.database.schema import OLDEST_VERSION, migrate
from spanwise.collector.stores.sqlite.database.score_sum_schema import SCORE_SUM_TABLES

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


WITHOUT_BACKFILLS = (  # came with version 29
    "DROP TRIGGER IF EXISTS decision_deleted",
    "DROP TABLE IF EXISTS backfill_draws",
    "DROP TABLE IF EXISTS backfills",
    *(f"DROP INDEX IF EXISTS {name}" for name in ("decisions_of_backfill", "backfill_due")),
    *(f"DROP INDEX IF EXISTS {name}" for name in ("decisions_due", "decisions_over_budget")),
    "CREATE INDEX decisions_due ON decisions (rule, due_ns) WHERE due_ns IS NOT NULL AND verdict <> 'over_budget'",
    "CREATE INDEX decisions_over_budget ON decisions (rule, created_ns, due_ns)"
    " WHERE due_ns IS NOT NULL AND verdict = 'over_budget'",
    "ALTER TABLE decisions DROP COLUMN backfill",
)


def lower_version(db: sqlite3.Connection, version: int) -> None:
    """Give a file of the newest version a lower one, without the tables and columns that came later."""
    remove_score_sums(db)
    columns = {row[1] for row in db.execute("PRAGMA table_info(traces)")}
    for column in columns & {"prompts", "agents", "finish_reasons", "time_to_first_token_ms"}:  # came with version 22
        db.execute(f"ALTER TABLE traces DROP COLUMN {column}")
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'spend'").fetchone():  # came with version 26
        db.execute("DROP TABLE spend")
        db.execute("ALTER TABLE bookings DROP COLUMN spend")
    for column in {row[1] for row in db.execute("PRAGMA table_info(rules)")} & {"paused_by", "paused_ns"}:  # with 27
        db.execute(f"ALTER TABLE rules DROP COLUMN {column}")
    db.execute(f"PRAGMA user_version = {version}")


def remove_score_sums(db: sqlite3.Connection) -> None:
    """Remove the weighted sums of scores, which came with version 26, and what came after them from a file."""
    triggers = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'score%'").fetchall()
    for (name,) in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for table in (*SCORE_SUM_TABLES, "score_groupings", "score_decisions_deleted"):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    db.execute("DROP INDEX IF EXISTS feedback_without_lease")
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'backfills'").fetchone():
        for statement in WITHOUT_BACKFILLS:
            db.execute(statement)
    db.execute("PRAGMA user_version = 25")
