"""Tables, indexes and migrations of the database file.

A migration that takes longer than a second logs its progress; the field `done` of each log record is the percentage.

Scalars have plain columns, so that sqlite-utils and datasette can read the file. All other fields of a run are one
zstd-compressed JSON object in `spans.payload` (`spanwise db sql` adds a `payload()` function to read it). `traces`
holds each random trace id once. All other tables refer to the trace by its integer key, in arrival order.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite.database.column_values import hash_id
from spanwise.collector.stores.sqlite.database.name_conversion import FORMER_APPLICATION_ID, convert_names
from spanwise.collector.stores.sqlite.write.run_codec import MIN_PROBABILITY, PayloadDecoder, read_sampling_info

log = logging.getLogger("spanwise.collector.migration")

ReportProgress = Callable[[int, int], None]  # arguments: units of a step that are done, and units in total
QUIET_SECONDS = 1.0  # seconds before the first log record
REPORT_SECONDS = 0.2  # seconds between two log records
PROGRESS_STEPS = 100_000  # SQLite steps between two calls of the progress handler; some milliseconds


class MigrationProgress:
    """Progress log of migrating the file at `path` from one version to another. Each step counts equally."""

    def __init__(self, path: str, version: int, upto: int, quiet: float = QUIET_SECONDS) -> None:
        self._what = f"bringing {os.path.basename(path)!r} from version {version} to {upto}"
        self._first, self._steps = version, max(1, upto - version)
        self._share = 0.0
        self._due = time.monotonic() + quiet
        self._said = False

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
            self._due, self._said = now + REPORT_SECONDS, True
            self._say(int(100 * self._share))

    def _say(self, done: int) -> None:
        log.info("%s: %d %%", self._what, done, extra={"done": done})

    def __enter__(self) -> MigrationProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._said and error is None:
            self._say(100)
        elif self._said:
            log.info("%s: stopped at %d %%", self._what, int(100 * self._share), extra={"done": 100})


APPLICATION_ID = 0x53504E57  # "SPNW" in ASCII
APPLICATION_IDS = (APPLICATION_ID, FORMER_APPLICATION_ID)
# Page size of a new file. Measured with a million spans (`benchmarks/file.py pages`): with 16 KiB a span writes 1.7
# times as much log and costs 20 % more CPU; with 4 KiB the file is 3 % larger.
PAGE_SIZE = 8192

_VERSION_1 = """
CREATE TABLE traces (
  id INTEGER PRIMARY KEY,
  trace_id TEXT NOT NULL UNIQUE,
  span_count INTEGER NOT NULL DEFAULT 0,
  error_count INTEGER NOT NULL DEFAULT 0,
  project TEXT, environment TEXT, name TEXT, kind TEXT, status TEXT, error TEXT,
  start_ns INTEGER, end_ns INTEGER,
  input_tokens INTEGER, output_tokens INTEGER, cost REAL,
  session_id TEXT, user_id TEXT, experiment_id TEXT, example_id TEXT, repetition INTEGER,
  complete INTEGER,
  updated_ns INTEGER,
  root INTEGER,
  names TEXT, kinds TEXT, models TEXT, tags TEXT, metadata TEXT
);
CREATE INDEX traces_by_start ON traces (start_ns);
CREATE INDEX traces_by_name ON traces (name, start_ns);
CREATE INDEX traces_by_project ON traces (project, start_ns);
CREATE INDEX traces_by_session ON traces (session_id, start_ns) WHERE session_id IS NOT NULL;
CREATE INDEX traces_by_user ON traces (user_id, start_ns) WHERE user_id IS NOT NULL;
CREATE INDEX traces_by_experiment ON traces (experiment_id, start_ns) WHERE experiment_id IS NOT NULL;
CREATE INDEX traces_with_errors ON traces (start_ns) WHERE error_count > 0;

CREATE TABLE spans (
  id INTEGER PRIMARY KEY,
  trace INTEGER NOT NULL,
  span_id TEXT NOT NULL,
  parent_id TEXT,
  name TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL, error TEXT,
  start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
  model TEXT, input_tokens INTEGER, output_tokens INTEGER, cost REAL,
  session_id TEXT, user_id TEXT,
  size INTEGER NOT NULL,
  resource INTEGER NOT NULL,
  payload BLOB NOT NULL
);
CREATE UNIQUE INDEX spans_by_trace ON spans (trace, span_id);
CREATE TABLE resources (id INTEGER PRIMARY KEY, data TEXT NOT NULL UNIQUE);
CREATE TABLE dictionaries (id INTEGER PRIMARY KEY, data BLOB NOT NULL, created_ns INTEGER NOT NULL);

CREATE TABLE feedback (
  id TEXT PRIMARY KEY,
  trace INTEGER, trace_id TEXT, span_id TEXT, document INTEGER, session_id TEXT, experiment_id TEXT,
  key TEXT NOT NULL, score REAL, is_bool INTEGER NOT NULL DEFAULT 0, label TEXT, comment TEXT,
  outcome TEXT NOT NULL, error TEXT, source TEXT NOT NULL, author TEXT, evaluator TEXT, version TEXT, rule TEXT,
  judge_trace_id TEXT, metadata TEXT, created_ns INTEGER NOT NULL,
  standing INTEGER NOT NULL
);
CREATE INDEX feedback_by_trace ON feedback (trace, key) WHERE trace IS NOT NULL;
CREATE INDEX feedback_by_score ON feedback (key, score, trace) WHERE standing = 2;
CREATE INDEX feedback_without_score ON feedback (key, outcome, trace) WHERE standing = 2 AND outcome <> 'score';
CREATE INDEX feedback_by_time ON feedback (created_ns);
CREATE INDEX feedback_by_session ON feedback (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX feedback_by_experiment ON feedback (experiment_id) WHERE experiment_id IS NOT NULL;

CREATE VIRTUAL TABLE words USING fts5 (text, content='', columnsize=0, detail=none, tokenize='unicode61');
CREATE TABLE indexed (trace INTEGER PRIMARY KEY, upto INTEGER NOT NULL);
CREATE TABLE unindexed (trace INTEGER PRIMARY KEY);

CREATE TABLE datasets (
  name TEXT NOT NULL, version INTEGER NOT NULL, kind TEXT NOT NULL, schema TEXT, description TEXT NOT NULL,
  metadata TEXT NOT NULL, created_ns INTEGER NOT NULL, example_count INTEGER NOT NULL,
  PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE TABLE examples (
  id INTEGER PRIMARY KEY,
  dataset TEXT NOT NULL, example_id TEXT NOT NULL, position INTEGER NOT NULL, split TEXT,
  since INTEGER NOT NULL, until INTEGER, data TEXT NOT NULL
);
CREATE INDEX examples_in_order ON examples (dataset, position);
CREATE TABLE experiments (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, dataset TEXT NOT NULL, project TEXT NOT NULL, status TEXT NOT NULL,
  started_ns INTEGER NOT NULL, data TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX experiments_by_start ON experiments (started_ns);
CREATE TABLE rules (
  name TEXT NOT NULL, version TEXT NOT NULL, created_ns INTEGER NOT NULL, current INTEGER NOT NULL, data TEXT NOT NULL,
  PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY,
  trace_id TEXT NOT NULL, rule TEXT NOT NULL, rule_version TEXT NOT NULL, verdict TEXT NOT NULL,
  reason TEXT NOT NULL, probability REAL NOT NULL, attempts INTEGER NOT NULL, cost REAL, metadata TEXT NOT NULL,
  created_ns INTEGER NOT NULL
);
CREATE UNIQUE INDEX decisions_by_trace ON decisions (trace_id, rule);
CREATE INDEX decisions_by_time ON decisions (created_ns);
CREATE INDEX decisions_by_rule ON decisions (rule, verdict, created_ns);
CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE budgets (
  budget TEXT NOT NULL, period_start_ns INTEGER NOT NULL, spent REAL NOT NULL,
  PRIMARY KEY (budget, period_start_ns)
) WITHOUT ROWID;
CREATE TABLE keys (id TEXT PRIMARY KEY, created_ns INTEGER NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE queue (
  id TEXT PRIMARY KEY, queue TEXT NOT NULL, status TEXT NOT NULL, created_ns INTEGER NOT NULL, data TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX queue_in_order ON queue (queue, status, created_ns);
"""


def _run_statements(db: sqlite3.Connection, report: ReportProgress, statements: Sequence[str]) -> None:
    for number, statement in enumerate(statements):
        report(number, len(statements))
        db.execute(statement)


def _create_tables(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Create the tables of version 1."""
    _run_statements(db, report, _VERSION_1.split(";\n"))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


_VERSION_2 = """
CREATE TABLE known (field TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (field, value)) WITHOUT ROWID;
CREATE TABLE retention (project TEXT PRIMARY KEY, max_age_ns INTEGER, max_bytes INTEGER) WITHOUT ROWID;
ALTER TABLE unindexed ADD COLUMN since_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE traces ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE traces SET size = (SELECT coalesce(sum(s.size), 0) FROM spans s WHERE s.trace = traces.id);
"""
_DISTINCT_VALUES = (
    "SELECT DISTINCT 'environment', environment FROM traces WHERE environment IS NOT NULL",
    "SELECT DISTINCT 'kind', value FROM traces, json_each(kinds)",
    "SELECT DISTINCT 'model', key FROM traces, json_each(models)",
    "SELECT DISTINCT 'tag', value FROM traces, json_each(tags)",
)
# Distinct values of all traces. A value that is missing here does not appear in filter menus.
COLLECT_VALUES = tuple(f"INSERT OR IGNORE INTO known {select}" for select in _DISTINCT_VALUES)


def _add_distinct_values(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add version 2: distinct values for filter menus, retention by size, and the time since which a trace waits for the
    full-text index.
    """
    _run_statements(db, report, (*_VERSION_2.split(";\n"), *COLLECT_VALUES))


_VERSION_3 = """
CREATE INDEX traces_shown ON traces (start_ns) WHERE kind <> 'evaluator' OR experiment_id IS NOT NULL;
CREATE INDEX traces_shown_by_project ON traces (project, start_ns)
  WHERE kind <> 'evaluator' OR experiment_id IS NOT NULL;
CREATE INDEX traces_of_evaluators ON traces (start_ns) WHERE kind = 'evaluator';
"""


def _index_evaluator_traces(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add version 3: indexes for lists of evaluators' own traces, and for lists without them. Evaluators' traces may
    outnumber all others many times.
    """
    _run_statements(db, report, _VERSION_3.split(";\n"))


def _index_human_feedback(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add version 4: an index of human feedback, which is rare among the scores of judges under the same key."""
    _run_statements(
        db, report, ("CREATE INDEX feedback_of_people ON feedback (key, created_ns) WHERE source = 'human'",)
    )


# Completeness of settled traces, open runs, and reports of processes. For traces stored before, only payloads contain
# the number of dropped runs. Their column `dropped` is 0 until another span arrives.
_COMPLETENESS: tuple[str, ...] = (
    "ALTER TABLE traces ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE traces ADD COLUMN calls_sent INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE traces ADD COLUMN running INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE open_runs (
      trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL, kind TEXT NOT NULL,
      start_ns INTEGER NOT NULL, local_root TEXT, project TEXT NOT NULL, environment TEXT NOT NULL, instance TEXT,
      seen_ns INTEGER NOT NULL, PRIMARY KEY (trace_id, span_id)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE processes (
      instance TEXT PRIMARY KEY, stored INTEGER NOT NULL DEFAULT 0, seen_ns INTEGER NOT NULL, service TEXT,
      project TEXT NOT NULL, environment TEXT NOT NULL, pid INTEGER, reported_ns INTEGER, progress INTEGER, report TEXT
    ) WITHOUT ROWID
    """,
)

# Change feed, tombstones, and the lease number with which feedback was written.
_MONITOR_TRACES: tuple[str, ...] = (
    "CREATE TABLE feed (id INTEGER PRIMARY KEY CHECK (id = 1), change INTEGER NOT NULL, clock_ns INTEGER NOT NULL)",
    "INSERT INTO feed SELECT 1, coalesce(max(id), 0), coalesce(max(updated_ns), 0) FROM traces",
    "ALTER TABLE traces ADD COLUMN change INTEGER",
    "ALTER TABLE traces ADD COLUMN runs_change INTEGER",
    "ALTER TABLE traces ADD COLUMN changed_ns INTEGER",
    "ALTER TABLE traces ADD COLUMN probability REAL",
    "ALTER TABLE traces ADD COLUMN partial INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE traces ADD COLUMN rooted INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE traces ADD COLUMN judgement INTEGER NOT NULL DEFAULT 0",
    # Each trace once, in order of arrival. Traces that only have feedback get no change number.
    "UPDATE traces SET change = id, runs_change = id, changed_ns = updated_ns,"
    " rooted = EXISTS (SELECT 1 FROM spans s WHERE s.trace = traces.id AND s.parent_id IS NULL),"
    " judgement = (kind = 'evaluator' AND experiment_id IS NULL),"
    " probability = said_probability((SELECT payload FROM spans s WHERE s.id = traces.root)) WHERE span_count > 0",
    "CREATE INDEX feedback_of_rules ON feedback (rule, created_ns) WHERE rule IS NOT NULL",
    "ALTER TABLE feedback ADD COLUMN claim INTEGER",
    # Rows are in order of `until_ns`, because the store's time never goes back.
    "CREATE TABLE tombstones (id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL UNIQUE, until_ns INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX traces_by_change ON traces (change) WHERE change IS NOT NULL",
)

# Rules with versions and settings, decisions with leases, rule leases, budget bookings.
_MONITOR_CONTROL: tuple[str, ...] = (
    # The earlier tables were never used
    *(f"DROP TABLE {table}" for table in ("rules", "decisions", "leases", "budgets")),
    "CREATE TABLE rules (id INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,"
    " state TEXT NOT NULL, owner TEXT NOT NULL, active_from INTEGER NOT NULL, off INTEGER NOT NULL,"
    " cursor TEXT, token INTEGER NOT NULL DEFAULT 0, data TEXT NOT NULL)",
    "CREATE UNIQUE INDEX rules_by_version ON rules (project, name, version)",
    "CREATE UNIQUE INDEX rules_in_force ON rules (project, name) WHERE state = 'in force'",
    "CREATE TABLE settings (id INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,"
    " from_change INTEGER NOT NULL, created_ns INTEGER NOT NULL, data TEXT NOT NULL)",
    "CREATE INDEX settings_by_rule ON settings (project, name)",
    "CREATE TABLE decisions (id INTEGER PRIMARY KEY, rule INTEGER NOT NULL, target TEXT NOT NULL,"
    " verdict TEXT NOT NULL, reason TEXT NOT NULL, probability REAL, u REAL, rate REAL, stratum INTEGER,"
    " incomplete INTEGER NOT NULL, change INTEGER NOT NULL, runs_change INTEGER NOT NULL, read_change INTEGER NOT NULL,"
    " claim INTEGER NOT NULL, holder TEXT, until_ns INTEGER, attempts INTEGER NOT NULL, deaths INTEGER NOT NULL,"
    " reopened INTEGER NOT NULL, next_ns INTEGER, states TEXT, inputs_hash TEXT, cost REAL,"
    " created_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL, due_ns INTEGER)",
    "CREATE UNIQUE INDEX decisions_by_target ON decisions (target, rule)",
    "CREATE INDEX decisions_by_rule ON decisions (rule, verdict)",
    "CREATE INDEX decisions_due ON decisions (rule, due_ns) WHERE due_ns IS NOT NULL AND verdict <> 'over_budget'",
    "CREATE INDEX decisions_over_budget ON decisions (rule, created_ns, due_ns)"
    " WHERE due_ns IS NOT NULL AND verdict = 'over_budget'",
    "CREATE TABLE counts (rule INTEGER NOT NULL, hour_ns INTEGER NOT NULL, filtered INTEGER NOT NULL,"
    " sampled_out INTEGER NOT NULL, PRIMARY KEY (rule, hour_ns)) WITHOUT ROWID",
    "CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_ns INTEGER NOT NULL,"
    " token INTEGER NOT NULL) WITHOUT ROWID",
    # Number of the last lease, of rules and decisions together. Numbers are never reused, even if the row with the
    # lease is gone.
    "CREATE TABLE numbers (last INTEGER NOT NULL)",
    "INSERT INTO numbers VALUES (0)",
    "CREATE TABLE budgets (budget TEXT NOT NULL, period TEXT NOT NULL, start_ns INTEGER NOT NULL,"
    " settled REAL NOT NULL, reserved REAL NOT NULL, PRIMARY KEY (budget, period, start_ns)) WITHOUT ROWID",
    "CREATE TABLE bookings (id TEXT PRIMARY KEY, budget TEXT NOT NULL, period TEXT NOT NULL, start_ns INTEGER NOT NULL,"
    " amount REAL NOT NULL, settled REAL, made_ns INTEGER NOT NULL)",
    "CREATE INDEX bookings_by_time ON bookings (made_ns)",
    "CREATE INDEX bookings_reserved ON bookings (budget, period, start_ns, made_ns) WHERE settled IS NULL",
    "CREATE TABLE workers (holder TEXT PRIMARY KEY, project TEXT NOT NULL, seen_ns INTEGER NOT NULL,"
    " data TEXT NOT NULL) WITHOUT ROWID",
)

_MONITOR = (*_MONITOR_TRACES, *_MONITOR_CONTROL)


def _probability_reader(db: sqlite3.Connection) -> Callable[[bytes], float | None]:
    """Return an SQL function that reads the head sampling probability from a root's payload.

    The function returns None for a payload that cannot be read.
    """
    decoder = PayloadDecoder(dict(db.execute("SELECT id, data FROM dictionaries").fetchall()))

    def probability(payload: bytes) -> float | None:
        try:
            return read_sampling_info(decoder.payload(payload).get("attributes", {}), {}).probability
        except Exception:  # errors of zstd, JSON or types: a damaged row must not stop the migration
            return None

    return probability


def _add_completeness_and_monitoring(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add version 5: completeness of traces, and tables of monitoring rules."""
    db.create_function("said_probability", 1, _probability_reader(db))
    _run_statements(db, report, (*_COMPLETENESS, *_MONITOR))


_AUDIT = (
    "CREATE TABLE audit (id INTEGER PRIMARY KEY, of_keys INTEGER NOT NULL, data TEXT NOT NULL)",
    "CREATE INDEX audit_by_kind ON audit (of_keys, id)",
)


def _add_audit_log(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add version 6: audit log of deletions and of changes to API keys."""
    _run_statements(db, report, _AUDIT)


# Amendments whose run has not arrived, and the index of model response ids, by which runs are found.
_AMENDMENTS: tuple[str, ...] = (
    "CREATE TABLE amendments (id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL,"
    " project TEXT NOT NULL, fields TEXT NOT NULL, size INTEGER NOT NULL, seen_ns INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX amendments_by_span ON amendments (trace_id, span_id, project)",
    "CREATE TABLE responses (span INTEGER PRIMARY KEY, response_id TEXT NOT NULL)",
    "CREATE INDEX responses_by_id ON responses (response_id)",
)


def _add_amendments(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add version 7: amendments that wait for their run."""
    _run_statements(db, report, _AMENDMENTS)


INDEX_FEEDBACK_ORDER = "CREATE INDEX IF NOT EXISTS feedback_as_said ON feedback (said) WHERE said IS NOT NULL"

# Order in which feedback was written or last changed, and the outlets that it is forwarded to. Earlier feedback has
# no number. `identity` identifies the file among collectors that forward to each other.
_FORWARDING: tuple[str, ...] = (
    "ALTER TABLE feedback ADD COLUMN said INTEGER",
    INDEX_FEEDBACK_ORDER,
    "ALTER TABLE feed ADD COLUMN identity TEXT NOT NULL DEFAULT ''",
    "UPDATE feed SET identity = lower(hex(randomblob(8)))",
    "CREATE TABLE outlets (name TEXT PRIMARY KEY, url TEXT NOT NULL, cursor INTEGER NOT NULL,"
    " sent INTEGER NOT NULL, dropped INTEGER NOT NULL, error TEXT, updated_ns INTEGER NOT NULL) WITHOUT ROWID",
)


def _add_forwarding(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add version 8: forwarding of feedback."""
    _run_statements(db, report, _FORWARDING)


# A store without outlets needs no index by order of feedback; see `forwarding_state`.
_COMPACT_RESPONSE_IDS: tuple[str, ...] = (
    "ALTER TABLE responses RENAME TO answers",
    "DROP INDEX responses_by_id",
    "CREATE TABLE responses (span INTEGER PRIMARY KEY, answer INTEGER NOT NULL)",
    "INSERT INTO responses SELECT span, number_of_answer(response_id) FROM answers",
    "CREATE INDEX responses_by_answer ON responses (answer)",
    "DROP TABLE answers",
    "DROP INDEX feedback_as_said",
)


def _compact_response_ids(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Store model response ids as hashes, and index the order of feedback only if outlets exist."""
    db.create_function("number_of_answer", 1, hash_id)
    _run_statements(db, report, _COMPACT_RESPONSE_IDS)
    if db.execute("SELECT 1 FROM outlets").fetchone():
        db.execute(INDEX_FEEDBACK_ORDER)


# `again`: size in bytes at which the index entry of a trace is rebuilt. `replaced`: overwritten payloads, whose text
# is needed to delete the entry.
_FULLTEXT_GROWTH: tuple[str, ...] = (
    "ALTER TABLE indexed ADD COLUMN again INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE replaced (trace INTEGER NOT NULL, span INTEGER NOT NULL, payload BLOB NOT NULL,"
    " PRIMARY KEY (trace, span)) WITHOUT ROWID",
    "CREATE INDEX feedback_by_label ON feedback (key, label, trace) WHERE standing = 2 AND label IS NOT NULL",
)


def _add_fulltext_growth(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Let growing traces be indexed again in the full-text index, and add an index of labels."""
    _run_statements(db, report, _FULLTEXT_GROWTH)


# State of incremental trace summaries, so that adding a span costs the same in a trace of any size. `data` is None
# while a background job rebuilds it. A trace of many spans without a row comes from an older file. See
# `incremental_summary`, `span_nodes`.
_SUMMARY_STATES: tuple[str, ...] = (
    "ALTER TABLE spans ADD COLUMN tokens_below INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE spans ADD COLUMN cost_below INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE states (trace INTEGER PRIMARY KEY, data BLOB)",
    "CREATE INDEX states_due ON states (trace) WHERE data IS NULL",
    "CREATE TABLE orphans (trace INTEGER NOT NULL, id TEXT NOT NULL, start_ns INTEGER NOT NULL, span_id TEXT NOT NULL,"
    " row INTEGER NOT NULL, below INTEGER NOT NULL, callers INTEGER NOT NULL, members INTEGER NOT NULL,"
    " PRIMARY KEY (trace, id)) WITHOUT ROWID",
    "CREATE INDEX orphans_by_start ON orphans (trace, start_ns, span_id)",
    "CREATE TABLE local_roots (trace INTEGER NOT NULL, id TEXT NOT NULL, members INTEGER NOT NULL, started INTEGER,"
    " open INTEGER NOT NULL, dropped INTEGER NOT NULL, calls_sent INTEGER NOT NULL, answered INTEGER NOT NULL,"
    " PRIMARY KEY (trace, id)) WITHOUT ROWID",
)


def _add_summary_states(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add the state of incremental trace summaries."""
    _run_statements(db, report, _SUMMARY_STATES)


# Totals of the traces of an hour: see `hourly_rollups`. `exact` holds the amounts as integers.
_HOURLY_ROLLUPS: tuple[str, ...] = (
    "CREATE TABLE sums_hours (hour INTEGER PRIMARY KEY, rows INTEGER NOT NULL, state INTEGER NOT NULL)",
    "CREATE INDEX sums_hours_to_count ON sums_hours (hour) WHERE state > 0",
    "CREATE TABLE sums (id INTEGER PRIMARY KEY, hour INTEGER NOT NULL, project TEXT NOT NULL,"
    " environment TEXT NOT NULL, name TEXT NOT NULL, shown INTEGER NOT NULL, model TEXT NOT NULL, n INTEGER NOT NULL,"
    " errors INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cost REAL NOT NULL,"
    " exact TEXT NOT NULL, latencies BLOB NOT NULL)",
    "CREATE UNIQUE INDEX sums_by_hour ON sums (hour, project, environment, name, shown, model)",
    "CREATE TABLE sums_said (cell INTEGER NOT NULL, key TEXT NOT NULL, label TEXT NOT NULL, said INTEGER NOT NULL,"
    " n INTEGER NOT NULL, total REAL NOT NULL, exact TEXT NOT NULL, minimum REAL, minimum_n INTEGER NOT NULL,"
    " maximum REAL, maximum_n INTEGER NOT NULL, failed INTEGER NOT NULL, skipped INTEGER NOT NULL,"
    " PRIMARY KEY (cell, key, label)) WITHOUT ROWID",
    # Covering index of latencies, so that queries need not read the trace rows
    "DROP INDEX traces_shown",
    "CREATE INDEX traces_shown ON traces (start_ns, end_ns, experiment_id)"
    " WHERE kind <> 'evaluator' OR experiment_id IS NOT NULL",
)


# All rollup tables of the newest version.
ROLLUP_TABLES = (
    *("sums", "sums_said", "sums_hours"),
    *("sums_names", "sums_of_hours", "sums_days", "sums_of_days"),
)


def _add_hourly_rollups(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add hourly rollups. Background jobs build those of existing traces hour by hour once the file is open."""
    _run_statements(db, report, _HOURLY_ROLLUPS)
    mark_rollups_stale(db)


def mark_rollups_stale(db: sqlite3.Connection) -> None:
    """Mark the rollups of all hours stale. Queries read rows until the rollups are rebuilt."""
    there = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for table in there.intersection(ROLLUP_TABLES):
        db.execute(f"DELETE FROM {table}")
    db.execute(
        "INSERT INTO sums_hours (hour, rows, state) SELECT DISTINCT start_ns / 3600000000000, -1, 1 FROM traces"
        " WHERE start_ns IS NOT NULL"
    )


# Response ids in blocks of 1,000 that arrived together: see `pending_amendments`.
_RESPONSE_ID_BLOCKS: tuple[str, ...] = (
    "ALTER TABLE responses RENAME TO answers",
    "DROP INDEX responses_by_answer",
    "CREATE TABLE responses (part INTEGER NOT NULL, answer INTEGER NOT NULL, span INTEGER NOT NULL,"
    " PRIMARY KEY (part, answer, span)) WITHOUT ROWID",
    "INSERT INTO responses SELECT min(span) OVER (PARTITION BY number / 1000), answer, span"
    " FROM (SELECT span, answer, row_number() OVER (ORDER BY span) AS number FROM answers)",
    "DROP TABLE answers",
)


def _add_response_id_blocks(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Store response ids of the same block next to each other, so that inserts touch few pages."""
    _run_statements(db, report, _RESPONSE_ID_BLOCKS)


# Without this index, a query for all traces of a project including evaluators' own (used by deletion) scans all
# traces by time.
_FEWER_INDEXES: tuple[str, ...] = ("DROP INDEX traces_by_project",)


def _drop_project_index(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Drop an index that almost no query uses, to make inserting a trace cheaper."""
    _run_statements(db, report, _FEWER_INDEXES)


# Rollups of sealed hours and days (see `sealed_rollups`), built by background jobs. The index tells whether a trace
# has a score under a key without reading the feedback rows.
_SEALED_PERIODS: tuple[str, ...] = (
    "ALTER TABLE sums_hours ADD COLUMN rest INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE sums_hours ADD COLUMN named INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE sums_names (name TEXT NOT NULL, hour INTEGER NOT NULL, PRIMARY KEY (name, hour)) WITHOUT ROWID",
    "CREATE TABLE sums_latencies (cell INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE sums_days (day INTEGER PRIMARY KEY, rest INTEGER NOT NULL)",
    "CREATE TABLE sums_of_days (id INTEGER PRIMARY KEY, day INTEGER NOT NULL, project TEXT NOT NULL,"
    " environment TEXT NOT NULL, name TEXT NOT NULL, shown INTEGER NOT NULL, model TEXT NOT NULL, n INTEGER NOT NULL,"
    " errors INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cost REAL NOT NULL,"
    " first INTEGER NOT NULL, last INTEGER NOT NULL, latencies BLOB NOT NULL, ordered BLOB)",
    "CREATE INDEX sums_by_day ON sums_of_days (day, model)",
    "CREATE TABLE sums_said_of_days (cell INTEGER NOT NULL, key TEXT NOT NULL, label TEXT NOT NULL,"
    " said INTEGER NOT NULL, n INTEGER NOT NULL, total REAL NOT NULL, minimum REAL, maximum REAL,"
    " failed INTEGER NOT NULL, skipped INTEGER NOT NULL, PRIMARY KEY (cell, key, label)) WITHOUT ROWID",
    "DROP INDEX feedback_by_trace",
    "CREATE INDEX feedback_by_trace ON feedback (trace, key, (standing = 2 AND outcome = 'score'))"
    " WHERE trace IS NOT NULL",
)


def _add_sealed_periods(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add days, ordered latencies and names of runs to the rollups, and an index that finds missing scores."""
    _run_statements(db, report, _SEALED_PERIODS)


# Totals of a sealed hour (see `sealed_rollups`). Hours that were sealed without them are sealed again.
_SEALED_HOURS: tuple[str, ...] = (
    "CREATE TABLE sums_of_hours (id INTEGER PRIMARY KEY, hour INTEGER NOT NULL, side INTEGER NOT NULL,"
    " project TEXT NOT NULL, data BLOB NOT NULL)",
    "CREATE UNIQUE INDEX sums_by_side ON sums_of_hours (hour, side, project)",
    "UPDATE sums_hours SET rest = 0",
)


def _add_sealed_hours(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add the totals of sealed hours, by name and by model."""
    _run_statements(db, report, _SEALED_HOURS)


# When the trace of a rule's feedback started (a session: its first trace), so that a time window selects scores by an
# index. The trigger keeps it up to date: an earlier span may arrive later than the feedback.
_TRACE_START: tuple[str, ...] = (
    "ALTER TABLE feedback ADD COLUMN trace_start_ns INTEGER",
    "UPDATE feedback SET trace_start_ns = coalesce((SELECT t.start_ns FROM traces t WHERE t.id = feedback.trace),"
    " (SELECT min(t.start_ns) FROM traces t WHERE t.session_id = feedback.session_id), created_ns)"
    " WHERE rule IS NOT NULL",
    "DROP INDEX feedback_of_rules",
    "CREATE INDEX feedback_of_rules ON feedback (rule, trace_start_ns) WHERE rule IS NOT NULL",
    "CREATE TRIGGER trace_start_moved AFTER UPDATE OF start_ns ON traces WHEN new.start_ns IS NOT old.start_ns BEGIN"
    " UPDATE feedback SET trace_start_ns = new.start_ns WHERE trace = new.id AND rule IS NOT NULL; END",
)


def _add_trace_start(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Add the start of the trace to the feedback of rules."""
    _run_statements(db, report, _TRACE_START)


# A head sampling probability below 1/10,000 counts as unknown, also in traces and decisions stored before.
_NO_TINY_PROBABILITY: tuple[str, ...] = (
    f"UPDATE traces SET probability = NULL WHERE probability < {MIN_PROBABILITY}",
    f"UPDATE decisions SET probability = NULL WHERE probability > 0 AND probability < rate * {MIN_PROBABILITY}"
    " AND instr(target, '/') = 0",
)


def _clear_tiny_probabilities(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Clear sampling probabilities that are too small for weighting."""
    _run_statements(db, report, _NO_TINY_PROBABILITY)


# Outcome under which each rule counts a trace.
_OUTCOMES: tuple[str, ...] = (
    "CREATE TABLE outcomes (rule INTEGER NOT NULL, block INTEGER NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (rule, block)) WITHOUT ROWID",
)


def _add_trace_outcomes(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Store the outcome under which each rule counts a trace, so that it counts once. Earlier counts stay unchanged."""
    _run_statements(db, report, _OUTCOMES)


def _convert_names(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Convert names that contain the product's former name (version 20). Nothing enters the change feed."""
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
    "UPDATE sums_hours SET rest = 0 WHERE rest > 0",
    # Hours with bins in an early form, recognised by its bytes, are recounted
    "UPDATE sums_hours SET state = 1, rows = -1 WHERE state = 0 AND hour IN (SELECT hour FROM sums"
    " WHERE substr(latencies, 3, 6) IN (x'000000000000', x'ffffffffffff'))",
)


def _make_sealed_periods_uniform(db: sqlite3.Connection, report: ReportProgress) -> None:
    """Store sealed days like sealed hours, and no sorted latencies."""
    _run_statements(db, report, _UNIFORM_SEALED_PERIODS)


# Each migration runs in one transaction and reports its progress in units of its choice.
MIGRATIONS: tuple[Callable[[sqlite3.Connection, ReportProgress], None], ...] = (
    _create_tables,
    _add_distinct_values,
    _index_evaluator_traces,
    _index_human_feedback,
    _add_completeness_and_monitoring,
    _add_audit_log,
    _add_amendments,
    _add_forwarding,
    _compact_response_ids,
    _add_fulltext_growth,
    _add_summary_states,
    _add_hourly_rollups,
    _add_response_id_blocks,
    _drop_project_index,
    _add_sealed_periods,
    _add_sealed_hours,
    _add_trace_start,
    _clear_tiny_probabilities,
    _add_trace_outcomes,
    _convert_names,
    _make_sealed_periods_uniform,
)


def migrate(db: sqlite3.Connection, path: str, upto: int = len(MIGRATIONS)) -> None:
    """Migrate a file to the newest version or to `upto`, and log the progress.

    Each step is one transaction, so an interrupted migration continues after the last complete step. Raises `Refused`
    for a file that is newer than this version of Spanwise or that is not a Spanwise database.
    """
    version = read_version(db, path)
    with MigrationProgress(path, version, upto) as progress:
        db.set_progress_handler(progress.tick, PROGRESS_STEPS)
        try:
            for step in range(version, upto):
                progress.begin(step)
                _run_migration(db, step, progress.of(step))
        finally:
            db.set_progress_handler(None, 0)


def _run_migration(db: sqlite3.Connection, step: int, report: ReportProgress) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        MIGRATIONS[step](db, report)
        db.execute(f"PRAGMA user_version = {step + 1}")
    except BaseException:
        if db.in_transaction:  # on a full disk SQLite has already rolled back
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def read_version(db: sqlite3.Connection, path: str) -> int:
    """Return the version of a file, 0 for an empty one.

    Raises `Refused` for a file that is newer than this version of Spanwise or that is not a Spanwise database.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = int(db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if application not in APPLICATION_IDS and (tables or version):
        raise Refused(f"{path!r} is an SQLite file, but not one of Spanwise's; name another with --store")
    if version > len(MIGRATIONS):
        raise Refused(
            f"{path!r} was written by a newer Spanwise (file version {version}, this one reads {len(MIGRATIONS)}); "
            "upgrade with: pip install '.[server]' in a newer checkout of Spanwise"
        )
    return version
