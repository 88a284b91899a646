"""Tables, indexes and migrations of the database file.

A migration that takes longer than a second logs its progress; the field `done` of each log record is the percentage.

Scalars have plain columns, so that sqlite-utils and datasette can read the file. All other fields of a run are one
zstd-compressed JSON object in `spans.payload` (`spanwise db sql` adds a `payload()` function to read it). `traces`
holds each random trace id once. All other tables refer to the trace by its integer key, in arrival order.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TypeAlias

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite.database.name_conversion import FORMER_APPLICATION_ID, convert_names
from spanwise.collector.stores.sqlite.database.score_sum_schema import (
    ADD_SCORE_SUMS,
    MEASURE_TABLES,
    STORE_SESSION_HOURS,
    watch_group_fields,
)

log = logging.getLogger("spanwise.collector.migration")

ReportProgress = Callable[[int, int], None]  # arguments: units of a step that are done, and units in total
QUIET_SECONDS = 1.0  # seconds before the first log record
REPORT_SECONDS = 0.2  # seconds between two log records
PROGRESS_STEPS = 100_000  # SQLite steps between two calls of the progress handler; takes a few milliseconds


class MigrationProgress:
    """Progress log of migrating the file at `path` from one version to another. Each step counts equally."""

    def __init__(self, path: str, version: int, upto: int, quiet: float = QUIET_SECONDS) -> None:
        self._title = f"bringing {os.path.basename(path)!r} from version {version} to {upto}"
        self._first, self._steps = version, max(1, upto - version)
        self._share = 0.0
        self._due = time.monotonic() + quiet
        self._has_logged = False

    def begin(self, step: int) -> None:
        """Record that a step begins; step n migrates version n to n + 1."""
        self._share = (step - self._first) / self._steps
        self.tick()

    def of(self, step: int) -> ReportProgress:
        """Return the progress callback of a step. The step counts in units of its choice."""

        def report(done: int, of: int) -> None:
            self._share = (step - self._first + min(1.0, done / max(1, of))) / self._steps
            self.tick()

        return report

    def tick(self) -> None:
        """Log the progress if the next log record is due."""
        if (now := time.monotonic()) >= self._due:
            self._due, self._has_logged = now + REPORT_SECONDS, True
            self._log(int(100 * self._share))

    def _log(self, done: int) -> None:
        log.info("%s: %d %%", self._title, done, extra={"done": done})

    def __enter__(self) -> MigrationProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._has_logged and error is None:
            self._log(100)
        elif self._has_logged:
            log.info("%s: stopped at %d %%", self._title, int(100 * self._share), extra={"done": 100})


APPLICATION_ID = 0x53504E57  # "SPNW" in ASCII
APPLICATION_IDS = (APPLICATION_ID, FORMER_APPLICATION_ID)
# Page size of a new file. Measured with a million spans (`benchmarks/file.py pages`): with 16 KiB a span writes 1.7
# times as much log and costs 20 % more CPU; with 4 KiB the file is 3 % larger.
PAGE_SIZE = 8192

# Tables of version 21. Versions 19, of files from before the product was renamed, and 20 differ only in the rollups
_SCHEMA = """
-- Traces: the summary, the position in the change feed, and distinct values of all runs as JSON
CREATE TABLE traces (
  id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL UNIQUE, span_count INTEGER NOT NULL DEFAULT 0,
  error_count INTEGER NOT NULL DEFAULT 0, project TEXT, environment TEXT, name TEXT, kind TEXT, status TEXT,
  error TEXT, start_ns INTEGER, end_ns INTEGER, input_tokens INTEGER, output_tokens INTEGER, cost REAL,
  session_id TEXT, user_id TEXT, experiment_id TEXT, example_id TEXT, repetition INTEGER, complete INTEGER,
  updated_ns INTEGER, root INTEGER, names TEXT, kinds TEXT, models TEXT, tags TEXT, metadata TEXT,
  size INTEGER NOT NULL DEFAULT 0, dropped INTEGER NOT NULL DEFAULT 0, calls_sent INTEGER NOT NULL DEFAULT 0,
  running INTEGER NOT NULL DEFAULT 0, change INTEGER, runs_change INTEGER, changed_ns INTEGER, probability REAL,
  partial INTEGER NOT NULL DEFAULT 0, rooted INTEGER NOT NULL DEFAULT 0, judgement INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX traces_by_start ON traces (start_ns);
CREATE INDEX traces_by_name ON traces (name, start_ns);
CREATE INDEX traces_by_session ON traces (session_id, start_ns) WHERE session_id IS NOT NULL;
CREATE INDEX traces_by_user ON traces (user_id, start_ns) WHERE user_id IS NOT NULL;
CREATE INDEX traces_by_experiment ON traces (experiment_id, start_ns) WHERE experiment_id IS NOT NULL;
CREATE INDEX traces_with_errors ON traces (start_ns) WHERE error_count > 0;
CREATE INDEX traces_shown_by_project ON traces (project, start_ns)
  WHERE kind <> 'evaluator' OR experiment_id IS NOT NULL;
CREATE INDEX traces_of_evaluators ON traces (start_ns) WHERE kind = 'evaluator';
CREATE UNIQUE INDEX traces_by_change ON traces (change) WHERE change IS NOT NULL;
CREATE INDEX traces_shown ON traces (start_ns, end_ns, experiment_id)
  WHERE kind <> 'evaluator' OR experiment_id IS NOT NULL;

-- Spans. `payload` is compressed JSON; `tokens_below` and `cost_below` sum the descendants
CREATE TABLE spans (
  id INTEGER PRIMARY KEY, trace INTEGER NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL,
  kind TEXT NOT NULL, status TEXT NOT NULL, error TEXT, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
  model TEXT, input_tokens INTEGER, output_tokens INTEGER, cost REAL, session_id TEXT, user_id TEXT,
  size INTEGER NOT NULL, resource INTEGER NOT NULL, payload BLOB NOT NULL, tokens_below INTEGER NOT NULL DEFAULT 0,
  cost_below INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX spans_by_trace ON spans (trace, span_id);
CREATE TABLE resources (id INTEGER PRIMARY KEY, data TEXT NOT NULL UNIQUE);
CREATE TABLE dictionaries (id INTEGER PRIMARY KEY, data BLOB NOT NULL, created_ns INTEGER NOT NULL);

-- Runs that have started and not ended, and the processes that send spans
CREATE TABLE open_runs (
  trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL, kind TEXT NOT NULL,
  start_ns INTEGER NOT NULL, local_root TEXT, project TEXT NOT NULL, environment TEXT NOT NULL, instance TEXT,
  seen_ns INTEGER NOT NULL,
  PRIMARY KEY (trace_id, span_id)
) WITHOUT ROWID;
CREATE TABLE processes (
  instance TEXT PRIMARY KEY, stored INTEGER NOT NULL DEFAULT 0, seen_ns INTEGER NOT NULL, service TEXT,
  project TEXT NOT NULL, environment TEXT NOT NULL, pid INTEGER, reported_ns INTEGER, progress INTEGER, report TEXT
) WITHOUT ROWID;

-- Amendments whose run has not arrived, and hashes of model response ids in blocks of spans that arrived together
CREATE TABLE amendments (
  id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL, project TEXT NOT NULL, fields TEXT NOT NULL,
  size INTEGER NOT NULL, seen_ns INTEGER NOT NULL
);
CREATE UNIQUE INDEX amendments_by_span ON amendments (trace_id, span_id, project);
CREATE TABLE responses (
  part INTEGER NOT NULL, answer INTEGER NOT NULL, span INTEGER NOT NULL,
  PRIMARY KEY (part, answer, span)
) WITHOUT ROWID;

-- State of incremental trace summaries (see `incremental_summary`, `trace_summary`). `data` is NULL while it is rebuilt
CREATE TABLE states (trace INTEGER PRIMARY KEY, data BLOB);
CREATE INDEX states_due ON states (trace) WHERE data IS NULL;
CREATE TABLE orphans (
  trace INTEGER NOT NULL, id TEXT NOT NULL, start_ns INTEGER NOT NULL, span_id TEXT NOT NULL, row INTEGER NOT NULL,
  below INTEGER NOT NULL, callers INTEGER NOT NULL, members INTEGER NOT NULL,
  PRIMARY KEY (trace, id)
) WITHOUT ROWID;
CREATE INDEX orphans_by_start ON orphans (trace, start_ns, span_id);
CREATE TABLE local_roots (
  trace INTEGER NOT NULL, id TEXT NOT NULL, members INTEGER NOT NULL, started INTEGER, open INTEGER NOT NULL,
  dropped INTEGER NOT NULL, calls_sent INTEGER NOT NULL, answered INTEGER NOT NULL,
  PRIMARY KEY (trace, id)
) WITHOUT ROWID;

-- Feedback. `standing` 2 marks the newest of a key; `said` is the order of writing, for forwarding.
-- `trace_start_ns` is set for feedback of rules; a time window selects by it
CREATE TABLE feedback (
  id TEXT PRIMARY KEY, trace INTEGER, trace_id TEXT, span_id TEXT, document INTEGER, session_id TEXT,
  experiment_id TEXT, key TEXT NOT NULL, score REAL, is_bool INTEGER NOT NULL DEFAULT 0, label TEXT, comment TEXT,
  outcome TEXT NOT NULL, error TEXT, source TEXT NOT NULL, author TEXT, evaluator TEXT, version TEXT, rule TEXT,
  judge_trace_id TEXT, metadata TEXT, created_ns INTEGER NOT NULL, standing INTEGER NOT NULL, claim INTEGER,
  said INTEGER, trace_start_ns INTEGER
);
CREATE INDEX feedback_by_score ON feedback (key, score, trace) WHERE standing = 2;
CREATE INDEX feedback_without_score ON feedback (key, outcome, trace) WHERE standing = 2 AND outcome <> 'score';
CREATE INDEX feedback_by_time ON feedback (created_ns);
CREATE INDEX feedback_by_session ON feedback (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX feedback_by_experiment ON feedback (experiment_id) WHERE experiment_id IS NOT NULL;
CREATE INDEX feedback_of_people ON feedback (key, created_ns) WHERE source = 'human';
CREATE INDEX feedback_by_label ON feedback (key, label, trace) WHERE standing = 2 AND label IS NOT NULL;
CREATE INDEX feedback_by_trace ON feedback (trace, key, (standing = 2 AND outcome = 'score')) WHERE trace IS NOT NULL;
CREATE INDEX feedback_of_rules ON feedback (rule, trace_start_ns) WHERE rule IS NOT NULL;
CREATE TRIGGER trace_start_moved AFTER UPDATE OF start_ns ON traces WHEN new.start_ns IS NOT old.start_ns
  BEGIN UPDATE feedback SET trace_start_ns = new.start_ns WHERE trace = new.id AND rule IS NOT NULL; END;

-- Change feed: the last change number, the store's clock, and an id of the file, by which collectors that forward to
-- each other know it
CREATE TABLE feed (
  id INTEGER PRIMARY KEY CHECK (id = 1), change INTEGER NOT NULL, clock_ns INTEGER NOT NULL,
  identity TEXT NOT NULL DEFAULT ''
);

-- Deleted traces. Rows are in order of `until_ns`, because the store's clock never goes back
CREATE TABLE tombstones (id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL UNIQUE, until_ns INTEGER NOT NULL);
CREATE TABLE outlets (
  name TEXT PRIMARY KEY, url TEXT NOT NULL, cursor INTEGER NOT NULL, sent INTEGER NOT NULL, dropped INTEGER NOT NULL,
  error TEXT, updated_ns INTEGER NOT NULL
) WITHOUT ROWID;

-- Distinct values for filter menus
CREATE TABLE known (field TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (field, value)) WITHOUT ROWID;
CREATE TABLE retention (project TEXT PRIMARY KEY, max_age_ns INTEGER, max_bytes INTEGER) WITHOUT ROWID;

-- Full-text index (see `fulltext_index`). `replaced` has overwritten payloads, whose text is needed to delete an entry
CREATE VIRTUAL TABLE words USING fts5 (text, content='', columnsize=0, detail=none, tokenize='unicode61');
CREATE TABLE indexed (trace INTEGER PRIMARY KEY, upto INTEGER NOT NULL, again INTEGER NOT NULL DEFAULT 0);
CREATE TABLE unindexed (trace INTEGER PRIMARY KEY, since_ns INTEGER NOT NULL DEFAULT 0);
CREATE TABLE replaced (
  trace INTEGER NOT NULL, span INTEGER NOT NULL, payload BLOB NOT NULL,
  PRIMARY KEY (trace, span)
) WITHOUT ROWID;

-- Datasets and experiments
CREATE TABLE datasets (
  name TEXT NOT NULL, version INTEGER NOT NULL, kind TEXT NOT NULL, schema TEXT, description TEXT NOT NULL,
  metadata TEXT NOT NULL, created_ns INTEGER NOT NULL, example_count INTEGER NOT NULL,
  PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE TABLE examples (
  id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, example_id TEXT NOT NULL, position INTEGER NOT NULL, split TEXT,
  since INTEGER NOT NULL, until INTEGER, data TEXT NOT NULL
);
CREATE INDEX examples_in_order ON examples (dataset, position);
CREATE TABLE experiments (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, dataset TEXT NOT NULL, project TEXT NOT NULL, status TEXT NOT NULL,
  started_ns INTEGER NOT NULL, data TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX experiments_by_start ON experiments (started_ns);

-- Rules with versions and settings, decisions, and the outcome under which each rule counts a trace
CREATE TABLE rules (
  id INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, state TEXT NOT NULL,
  owner TEXT NOT NULL, active_from INTEGER NOT NULL, off INTEGER NOT NULL, cursor TEXT,
  token INTEGER NOT NULL DEFAULT 0, data TEXT NOT NULL
);
CREATE UNIQUE INDEX rules_by_version ON rules (project, name, version);
CREATE UNIQUE INDEX rules_in_force ON rules (project, name) WHERE state = 'in force';
CREATE TABLE settings (
  id INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,
  from_change INTEGER NOT NULL, created_ns INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE INDEX settings_by_rule ON settings (project, name);
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY, rule INTEGER NOT NULL, target TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL,
  probability REAL, u REAL, rate REAL, stratum INTEGER, incomplete INTEGER NOT NULL, change INTEGER NOT NULL,
  runs_change INTEGER NOT NULL, read_change INTEGER NOT NULL, claim INTEGER NOT NULL, holder TEXT, until_ns INTEGER,
  attempts INTEGER NOT NULL, deaths INTEGER NOT NULL, reopened INTEGER NOT NULL, next_ns INTEGER, states TEXT,
  inputs_hash TEXT, cost REAL, created_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL, due_ns INTEGER
);
CREATE UNIQUE INDEX decisions_by_target ON decisions (target, rule);
CREATE INDEX decisions_by_rule ON decisions (rule, verdict);
CREATE INDEX decisions_due ON decisions (rule, due_ns) WHERE due_ns IS NOT NULL AND verdict <> 'over_budget';
CREATE INDEX decisions_over_budget ON decisions (rule, created_ns, due_ns)
  WHERE due_ns IS NOT NULL AND verdict = 'over_budget';
CREATE TABLE outcomes (
  rule INTEGER NOT NULL, block INTEGER NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (rule, block)
) WITHOUT ROWID;
CREATE TABLE counts (
  rule INTEGER NOT NULL, hour_ns INTEGER NOT NULL, filtered INTEGER NOT NULL, sampled_out INTEGER NOT NULL,
  PRIMARY KEY (rule, hour_ns)
) WITHOUT ROWID;

-- Leases. `numbers` has the number of the last one; numbers are never reused
CREATE TABLE leases (
  name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_ns INTEGER NOT NULL, token INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE numbers (last INTEGER NOT NULL);

-- Budgets of rules
CREATE TABLE budgets (
  budget TEXT NOT NULL, period TEXT NOT NULL, start_ns INTEGER NOT NULL, settled REAL NOT NULL,
  reserved REAL NOT NULL,
  PRIMARY KEY (budget, period, start_ns)
) WITHOUT ROWID;
CREATE TABLE bookings (
  id TEXT PRIMARY KEY, budget TEXT NOT NULL, period TEXT NOT NULL, start_ns INTEGER NOT NULL, amount REAL NOT NULL,
  settled REAL, made_ns INTEGER NOT NULL
);
CREATE INDEX bookings_by_time ON bookings (made_ns);
CREATE INDEX bookings_reserved ON bookings (budget, period, start_ns, made_ns) WHERE settled IS NULL;
CREATE TABLE workers (
  holder TEXT PRIMARY KEY, project TEXT NOT NULL, seen_ns INTEGER NOT NULL, data TEXT NOT NULL
) WITHOUT ROWID;

-- Audit log and API keys
CREATE TABLE audit (id INTEGER PRIMARY KEY, of_keys INTEGER NOT NULL, data TEXT NOT NULL);
CREATE INDEX audit_by_kind ON audit (of_keys, id);
CREATE TABLE keys (id TEXT PRIMARY KEY, created_ns INTEGER NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE queue (
  id TEXT PRIMARY KEY, queue TEXT NOT NULL, status TEXT NOT NULL, created_ns INTEGER NOT NULL, data TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX queue_in_order ON queue (queue, status, created_ns);

-- Rollups by hour (see `hourly_rollups`), and sealed hours and days (see `sealed_rollups`)
CREATE TABLE sums_hours (
  hour INTEGER PRIMARY KEY, rows INTEGER NOT NULL, state INTEGER NOT NULL, rest INTEGER NOT NULL DEFAULT 0,
  named INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX sums_hours_to_count ON sums_hours (hour) WHERE state > 0;
CREATE TABLE sums (
  id INTEGER PRIMARY KEY, hour INTEGER NOT NULL, project TEXT NOT NULL, environment TEXT NOT NULL, name TEXT NOT NULL,
  shown INTEGER NOT NULL, model TEXT NOT NULL, n INTEGER NOT NULL, errors INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cost REAL NOT NULL, exact TEXT NOT NULL,
  latencies BLOB NOT NULL
);
CREATE UNIQUE INDEX sums_by_hour ON sums (hour, project, environment, name, shown, model);
CREATE TABLE sums_said (
  cell INTEGER NOT NULL, key TEXT NOT NULL, label TEXT NOT NULL, said INTEGER NOT NULL, n INTEGER NOT NULL,
  total REAL NOT NULL, exact TEXT NOT NULL, minimum REAL, minimum_n INTEGER NOT NULL, maximum REAL,
  maximum_n INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,
  PRIMARY KEY (cell, key, label)
) WITHOUT ROWID;
CREATE TABLE sums_names (name TEXT NOT NULL, hour INTEGER NOT NULL, PRIMARY KEY (name, hour)) WITHOUT ROWID;
CREATE TABLE sums_of_hours (
  id INTEGER PRIMARY KEY, hour INTEGER NOT NULL, side INTEGER NOT NULL, project TEXT NOT NULL, data BLOB NOT NULL
);
CREATE UNIQUE INDEX sums_by_side ON sums_of_hours (hour, side, project);
CREATE TABLE sums_days (day INTEGER PRIMARY KEY, rest INTEGER NOT NULL);
CREATE TABLE sums_of_days (
  id INTEGER PRIMARY KEY, day INTEGER NOT NULL, side INTEGER NOT NULL, project TEXT NOT NULL, data BLOB NOT NULL
);
CREATE UNIQUE INDEX sums_of_days_by_side ON sums_of_days (day, side, project);
INSERT INTO feed VALUES (1, 0, 0, lower(hex(randomblob(8))));
INSERT INTO numbers VALUES (0);
"""
_SCHEMA_VERSION, OLDEST_VERSION = 21, 19
# A store without outlets needs no index by order of feedback; see `feedback_table`.
INDEX_FEEDBACK_ORDER = "CREATE INDEX IF NOT EXISTS feedback_as_said ON feedback (said) WHERE said IS NOT NULL"

_DISTINCT_VALUES = (
    "SELECT DISTINCT 'environment', environment FROM traces WHERE environment IS NOT NULL",
    "SELECT DISTINCT 'kind', value FROM traces, json_each(kinds)",
    "SELECT DISTINCT 'model', key FROM traces, json_each(models)",
    "SELECT DISTINCT 'tag', value FROM traces, json_each(tags)",
    "SELECT DISTINCT 'prompt', key FROM traces, json_each(prompts) WHERE key <> ''",
    "SELECT DISTINCT 'prompt_version', v.value FROM traces, json_each(prompts) p, json_each(p.value) v"
    " WHERE v.value IS NOT NULL",
    "SELECT DISTINCT 'agent', value FROM traces, json_each(agents)",
    "SELECT DISTINCT 'finish_reason', value FROM traces, json_each(finish_reasons)",
)
# Distinct values of all traces. A value that is missing here does not appear in filter menus.
COLLECT_VALUES = tuple(f"INSERT OR IGNORE INTO known {select}" for select in _DISTINCT_VALUES)

# All rollup tables
ROLLUP_TABLES = (
    *("sums", "sums_said", "sums_hours"),
    *("sums_names", "sums_of_hours", "sums_days", "sums_of_days"),
)


def mark_rollups_stale(db: sqlite3.Connection) -> None:
    """Mark the rollups of all hours stale. Queries read rows until the rollups are rebuilt."""
    existing = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for table in existing.intersection(ROLLUP_TABLES):
        db.execute(f"DELETE FROM {table}")
    db.execute(
        "INSERT INTO sums_hours (hour, rows, state) SELECT DISTINCT start_ns / 3600000000000, -1, 1 FROM traces"
        " WHERE start_ns IS NOT NULL"
    )


def _run_statements(db: sqlite3.Connection, report: ReportProgress, statements: Sequence[str]) -> None:
    for number, statement in enumerate(statements):
        report(number, len(statements))
        db.execute(statement)


def _create_tables(db: sqlite3.Connection, report: ReportProgress) -> None:
    _run_statements(db, report, _SCHEMA.split(";\n"))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _convert_names(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Convert names that contain the product's former name. Nothing enters the change feed."""
    convert_names(db, report)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


# Sealed days have rows of the same form as sealed hours, and latencies are stored only as bins. All periods are sealed
# again in the background.
_UNIFORM_SEALED_PERIODS: tuple[str, ...] = (
    *(f"DROP TABLE IF EXISTS {table}" for table in ("sums_latencies", "sums_said_of_days", "sums_of_days")),
    "CREATE TABLE sums_of_days (id INTEGER PRIMARY KEY, day INTEGER NOT NULL, side INTEGER NOT NULL,"
    " project TEXT NOT NULL, data BLOB NOT NULL)",
    "CREATE UNIQUE INDEX sums_of_days_by_side ON sums_of_days (day, side, project)",
    "DELETE FROM sums_of_hours",
    "DELETE FROM sums_days",
    "UPDATE sums_hours SET rest = 0, named = 0 WHERE rest > 0",
    # Hours with bins in an early form, recognised by its bytes, are recounted
    "UPDATE sums_hours SET state = 1, rows = -1 WHERE state = 0 AND hour IN (SELECT hour FROM sums"
    " WHERE substr(latencies, 3, 6) IN (x'000000000000', x'ffffffffffff'))",
)


def _make_sealed_periods_uniform(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Store sealed days like sealed hours, and no sorted latencies."""
    _run_statements(db, report, _UNIFORM_SEALED_PERIODS)


# NULL in old rows: runs stored before have these values only among their attributes. Adding a column rewrites no row
_LABEL_COLUMNS = tuple(
    f"ALTER TABLE traces ADD COLUMN {column}"
    for column in ("prompts TEXT", "agents TEXT", "finish_reasons TEXT", "time_to_first_token_ms REAL")
)


# The full-text index records positions, for phrases. All traces are indexed again in the background.
_INDEX_POSITIONS = (
    "DROP TABLE IF EXISTS words",
    "CREATE VIRTUAL TABLE words USING fts5 (text, content='', columnsize=0, detail=full, tokenize='unicode61')",
    "DELETE FROM indexed",
    "DELETE FROM replaced",
    "INSERT OR IGNORE INTO unindexed (trace, since_ns) SELECT id, (SELECT max(clock_ns, 1) FROM feed) FROM traces"
    " WHERE span_count > 0",
)


def _count_documents_apart(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Recount the rollups of files that have feedback on documents, which is counted apart from that on traces."""
    if db.execute("SELECT 1 FROM feedback WHERE document IS NOT NULL LIMIT 1").fetchone():
        mark_rollups_stale(db)


# Sealed hours and days have the 99th percentile of latencies, and the number of scores that are 0 or 1. All periods are
# sealed again in the background.
_SEAL_AGAIN = (
    "DELETE FROM sums_of_hours",
    "DELETE FROM sums_of_days",
    "DELETE FROM sums_days",
    "UPDATE sums_hours SET rest = 0, named = 0 WHERE rest > 0",
)

# Notifications of alerts, and one row per target of each. A row is open, and due at `next_ns`, until it is delivered or
# given up. Open rows with one `order_key` and target are delivered in order
_NOTIFICATION_TABLES = (
    "CREATE TABLE IF NOT EXISTS notifications (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, project TEXT NOT NULL,"
    " alert TEXT NOT NULL, data TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS notifications_by_alert ON notifications (project, alert, number)",
    "CREATE TABLE IF NOT EXISTS deliveries (notification INTEGER NOT NULL, target TEXT NOT NULL, order_key TEXT NOT NULL,"
    " attempts INTEGER NOT NULL, first_ns INTEGER, next_ns INTEGER, delivered_ns INTEGER, gave_up_ns INTEGER,"
    " error TEXT, PRIMARY KEY (notification, target)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS deliveries_due ON deliveries (target, next_ns) WHERE next_ns IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS deliveries_in_order ON deliveries (target, order_key, notification) WHERE next_ns IS NOT NULL",
)

# Alerts, the states of their groups, and changes of status. Columns of people (off, acknowledged, snoozed) are separate
# from `data`, which looks overwrite
_ALERT_TABLES = (
    "CREATE TABLE IF NOT EXISTS alerts ("
    "id INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, owner TEXT NOT NULL,"
    " token INTEGER NOT NULL DEFAULT 0, looked_ns INTEGER NOT NULL DEFAULT 0, off INTEGER NOT NULL DEFAULT 0,"
    " snoozed_until_ns INTEGER, snoozed_by TEXT NOT NULL DEFAULT '', left_out TEXT NOT NULL DEFAULT '[0, []]',"
    " data TEXT NOT NULL)",
    "CREATE UNIQUE INDEX IF NOT EXISTS alerts_by_name ON alerts (project, name)",
    "CREATE TABLE IF NOT EXISTS alert_groups ("
    "alert INTEGER NOT NULL, is_group INTEGER NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL,"
    " acknowledged_event TEXT NOT NULL DEFAULT '', acknowledged_by TEXT NOT NULL DEFAULT '', acknowledged_ns INTEGER,"
    " snoozed_until_ns INTEGER, snoozed_by TEXT NOT NULL DEFAULT '',"
    " PRIMARY KEY (alert, is_group, name)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS alert_events ("
    "number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, project TEXT NOT NULL, alert TEXT NOT NULL, data TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS alert_events_by_alert ON alert_events (project, alert, number)",
)


# Backfills, and the draws of their samples (see `backfills`)
_CREATE_BACKFILLS = (
    "CREATE TABLE backfills (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, rule INTEGER NOT NULL,"
    " state TEXT NOT NULL, cursor TEXT, walked INTEGER NOT NULL DEFAULT 0, read INTEGER NOT NULL DEFAULT 0,"
    " matched INTEGER NOT NULL DEFAULT 0, sampled INTEGER NOT NULL DEFAULT 0, known INTEGER NOT NULL DEFAULT 0,"
    " placed INTEGER NOT NULL DEFAULT 0, low INTEGER NOT NULL DEFAULT 0, created_ns INTEGER NOT NULL,"
    " ended_ns INTEGER, data TEXT NOT NULL)",
    "CREATE INDEX backfills_by_rule ON backfills (rule, state)",
    "CREATE TABLE backfill_draws (decision INTEGER NOT NULL, backfill INTEGER NOT NULL, place INTEGER NOT NULL,"
    " rate REAL, probability REAL, PRIMARY KEY (decision, backfill)) WITHOUT ROWID",
    "CREATE INDEX backfill_draws_in_order ON backfill_draws (backfill, place) WHERE backfill > 0",
    "CREATE TRIGGER decision_deleted AFTER DELETE ON decisions"
    " BEGIN DELETE FROM backfill_draws WHERE decision = old.id; END",
    "ALTER TABLE decisions ADD COLUMN backfill INTEGER",
    "CREATE INDEX decisions_of_backfill ON decisions (backfill, verdict, cost) WHERE backfill IS NOT NULL",
    "CREATE INDEX backfill_due ON decisions (backfill, due_ns) WHERE backfill IS NOT NULL AND due_ns IS NOT NULL",
    # live rows alone, so that a claim of live rows does not read those of backfills
    "DROP INDEX decisions_due",
    "CREATE INDEX decisions_due ON decisions (rule, due_ns)"
    " WHERE due_ns IS NOT NULL AND verdict <> 'over_budget' AND backfill IS NULL",
    "DROP INDEX decisions_over_budget",
    "CREATE INDEX decisions_over_budget ON decisions (rule, created_ns, due_ns)"
    " WHERE due_ns IS NOT NULL AND verdict = 'over_budget' AND backfill IS NULL",
)


# US dollars of judge calls by the hour in which they began. `open` is reserved or of unknown cost
_SPEND_TABLE = (
    "CREATE TABLE spend (id INTEGER PRIMARY KEY, hour_ns INTEGER NOT NULL, project TEXT NOT NULL, rule TEXT NOT NULL,"
    " evaluator TEXT NOT NULL, model TEXT NOT NULL, settled REAL NOT NULL DEFAULT 0, open REAL NOT NULL DEFAULT 0,"
    " unpriced INTEGER NOT NULL DEFAULT 0)",
    "CREATE UNIQUE INDEX spend_by_hour ON spend (hour_ns, project, rule, evaluator, model)",
    "ALTER TABLE bookings ADD COLUMN spend INTEGER",  # id of a row of `spend`
)


# Actor that paused a rule, and the time
_PAUSE_COLUMNS = ("ALTER TABLE rules ADD COLUMN paused_by TEXT", "ALTER TABLE rules ADD COLUMN paused_ns INTEGER")


# Project of a session that is the target of feedback. Only feedback of rules gets it, because other feedback of old files
# may be reported again without it. A repeat overwrites feedback by its id
_INDEX_SESSION_PROJECT = "CREATE INDEX feedback_by_project ON feedback (project) WHERE project IS NOT NULL"
_SESSION_FEEDBACK = (
    "SELECT id, rule, session_id, document, experiment_id, key, source, evaluator FROM feedback"
    " WHERE rule IS NOT NULL AND session_id IS NOT NULL AND trace_id IS NULL"
)


def _add_session_projects(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add the project of the session to feedback of rules on sessions, if one rule or one project has the session."""
    db.execute("ALTER TABLE feedback ADD COLUMN project TEXT")
    db.execute(_INDEX_SESSION_PROJECT)
    rows = db.execute(_SESSION_FEEDBACK).fetchall()
    for number, (id, rule, session, document, experiment, key, source, evaluator) in enumerate(rows):
        report(number, len(rows))
        deciding = db.execute(
            "SELECT DISTINCT r.project FROM rules r JOIN decisions d ON d.rule = r.id"
            " AND d.target = '/' || r.project || '/' || ? WHERE r.name = ?",
            (session, rule),
        ).fetchall()
        having = "SELECT DISTINCT project FROM traces WHERE session_id = ? AND project IS NOT NULL"
        projects = deciding or db.execute(having, (session,)).fetchall()
        if len(projects) != 1:
            continue  # the feedback stays that of the session in any project
        parts = (None, None, document, session, experiment, key, source, None, evaluator, None, rule)
        [project] = projects[0]
        new = _derive_id(*parts, project) if id == _derive_id(*parts) else id
        db.execute("UPDATE feedback SET project = ?, id = ? WHERE id = ?", (project, new, id))
    for (session,) in db.execute(f"SELECT DISTINCT session_id FROM ({_SESSION_FEEDBACK})").fetchall():
        db.execute("INSERT OR IGNORE INTO score_target_changes VALUES (?)", (f"/{session}",))
    if db.execute("SELECT 1 FROM score_groupings LIMIT 1").fetchone():
        watch_group_fields(db)  # of sessions, too


def _derive_id(*parts: object) -> str:
    """Return the id of feedback with these parts, as `feedback_id` derives it."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


# By version: the step to the next version. Each runs in one transaction and reports its progress in units of its choice
MigrationStep: TypeAlias = Callable[[sqlite3.Connection, ReportProgress], None]
MIGRATIONS: Mapping[int, MigrationStep] = {
    19: _convert_names,
    20: _make_sealed_periods_uniform,
    # Columns for prompts, agents, finish reasons and the time to the first token
    21: partial(_run_statements, statements=_LABEL_COLUMNS),
    22: partial(_run_statements, statements=_INDEX_POSITIONS),
    23: _count_documents_apart,
    24: partial(_run_statements, statements=_SEAL_AGAIN),
    # Tables and triggers of the weighted sums of scores. The sums are filled in the background
    25: partial(_run_statements, statements=ADD_SCORE_SUMS),
    26: partial(_run_statements, statements=_NOTIFICATION_TABLES),
    27: partial(_run_statements, statements=_ALERT_TABLES),
    28: partial(_run_statements, statements=_CREATE_BACKFILLS),
    29: partial(_run_statements, statements=_SPEND_TABLE),
    30: partial(_run_statements, statements=_PAUSE_COLUMNS),
    31: _add_session_projects,
    32: partial(_run_statements, statements=MEASURE_TABLES),
    33: partial(_run_statements, statements=STORE_SESSION_HOURS),
}
FILE_VERSION = max(MIGRATIONS) + 1


def migrate(db: sqlite3.Connection, path: str, upto: int = FILE_VERSION) -> None:
    """Create the tables of an empty file, or migrate a file to the newest version or to `upto`, and log the progress.

    Each step is one transaction, so an interrupted migration continues after the last complete step. Raises `Refused`
    for a file that `read_version` refuses.
    """
    version = read_version(db, path)
    if version == 0:
        version = min(upto, _SCHEMA_VERSION)
        _run_step(db, version, _create_tables, lambda done, of: None)
    with MigrationProgress(path, version, upto) as progress:
        db.set_progress_handler(progress.tick, PROGRESS_STEPS)
        try:
            for step in range(version, upto):
                progress.begin(step)
                _run_step(db, step + 1, MIGRATIONS[step], progress.of(step))
        finally:
            db.set_progress_handler(None, 0)


def _run_step(db: sqlite3.Connection, version: int, step: MigrationStep, report: ReportProgress) -> None:
    """Run a step that brings the file to a version, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        step(db, report)
        db.execute(f"PRAGMA user_version = {version}")
    except BaseException:
        if db.in_transaction:  # on a full disk SQLite has already rolled back
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def read_version(db: sqlite3.Connection, path: str) -> int:
    """Return the version of a file, 0 for an empty one.

    Raises `Refused` for a file that is not a Spanwise database, and for versions that this Spanwise cannot open.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = int(db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if application not in APPLICATION_IDS and (tables or version):
        raise Refused(f"{path!r} is an SQLite file, but not a Spanwise database; name another with --store")
    if version > FILE_VERSION:
        raise Refused(
            f"{path!r} was written by a newer Spanwise (file version {version}, this one reads {FILE_VERSION}); "
            "upgrade with: pip install '.[server]' in a newer checkout of Spanwise"
        )
    if 0 < version < OLDEST_VERSION:
        raise outdated_file_error(path, version)
    return version


def outdated_file_error(path: str, version: int) -> Refused:
    """Return the error for a file of an unreleased version that can no longer be migrated."""
    return Refused(
        f"{path!r} has file version {version}, and the oldest that this Spanwise opens is {OLDEST_VERSION}; export it with "
        "the version that wrote it (`db export FILE --format jsonl`) and import that into a new file (`spanwise db import`)"
    )
