"""Tables and triggers of the weighted sums of scores and of measures of traces (see `stores.sqlite.score_sums`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from spanwise.collector.statistics import GRAIN_S
from spanwise.collector.stores.table_rows import insert_many

_GRAIN_NS = GRAIN_S * 1_000_000_000

# Weighted sums of the scores of rules, contributions to them, and changes that they do not include yet (see
# `score_sums`). The owner of a contribution is the key of a trace, or `/` and the id of a session
_SCORE_SUM_TABLES = (
    "CREATE TABLE score_changes (trace INTEGER PRIMARY KEY)",
    "CREATE TABLE score_target_changes (target TEXT PRIMARY KEY) WITHOUT ROWID",
    # has a row once decisions were deleted while their scores stayed
    "CREATE TABLE score_decisions_deleted (id INTEGER PRIMARY KEY)",
    "CREATE TABLE score_groupings (project TEXT NOT NULL, rule TEXT NOT NULL, field TEXT NOT NULL,"
    " since_ns INTEGER NOT NULL, PRIMARY KEY (project, rule, field)) WITHOUT ROWID",
    "CREATE TABLE score_series (id INTEGER PRIMARY KEY, project TEXT NOT NULL, rule TEXT NOT NULL,"
    " version TEXT NOT NULL, key TEXT NOT NULL, label TEXT NOT NULL, field TEXT NOT NULL, value TEXT NOT NULL)",
    "CREATE UNIQUE INDEX score_series_by_name ON score_series (project, rule, field, key, value, version, label)",
    "CREATE TABLE score_labels (id INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE)",
    "CREATE TABLE score_contributions (owner PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE score_sums (series INTEGER NOT NULL, level INTEGER NOT NULL, block INTEGER NOT NULL,"
    " label INTEGER NOT NULL, n INTEGER NOT NULL, graded INTEGER NOT NULL, failed INTEGER NOT NULL,"
    " skipped INTEGER NOT NULL, left_out INTEGER NOT NULL, weight REAL NOT NULL, total REAL NOT NULL,"
    " weight_squares REAL NOT NULL, products REAL NOT NULL, total_squares REAL NOT NULL,"
    " left_out_total REAL NOT NULL, exact BLOB, PRIMARY KEY (series, level, block, label)) WITHOUT ROWID",
    "CREATE TABLE score_clusters (series INTEGER NOT NULL, level INTEGER NOT NULL, block INTEGER NOT NULL,"
    " session INTEGER NOT NULL, label INTEGER NOT NULL, weight REAL NOT NULL, total REAL NOT NULL, exact BLOB,"
    " spans INTEGER NOT NULL, PRIMARY KEY (series, level, block, session, label)) WITHOUT ROWID",
    # `spans` is 1 if the session may have traces in other blocks of the level, too
    "CREATE INDEX score_clusters_that_span ON score_clusters (series, level, block) WHERE spans = 1",
)

# Changed contributions are recorded where rows are written, and by triggers where that is rare: UPDATE triggers would cost
# a scored trace several microseconds (`benchmarks/score_sums.py cost`). `INSERT OR IGNORE` would not do in a trigger: the
# statement that fires it decides how conflicts are resolved.
_NEW_TRACE = "NOT EXISTS (SELECT 1 FROM score_changes c WHERE c.trace = {0})"
_NEW_TARGET = "NOT EXISTS (SELECT 1 FROM score_target_changes c WHERE c.target = {0})"
_SESSION_TARGET = "'/' || old.session_id"
_HAS_SCORES = "EXISTS (SELECT 1 FROM feedback f WHERE f.trace = {0} AND f.rule IS NOT NULL)"
_FEEDBACK_TRIGGERS = (
    "CREATE TRIGGER score_removed AFTER DELETE ON feedback WHEN old.rule IS NOT NULL AND old.trace IS NOT NULL"
    f" BEGIN INSERT INTO score_changes SELECT old.trace WHERE {_NEW_TRACE.format('old.trace')}; END",
    "CREATE TRIGGER score_removed_from_session AFTER DELETE ON feedback"
    " WHEN old.rule IS NOT NULL AND old.trace IS NULL AND old.session_id IS NOT NULL BEGIN"
    f" INSERT INTO score_target_changes SELECT {_SESSION_TARGET} WHERE {_NEW_TARGET.format(_SESSION_TARGET)}; END",
)

# Changes of a decision `{0}`. The address of a session starts with `/` and the project, that of a trace whose id is not
# alphanumeric with `%`
_TRACE_ADDRESS = "substr({0}.target, 1, instr({0}.target || '/', '/') - 1)"
_DECIDED_TRACE = (
    f"SELECT t.id FROM {{trace_source}} t WHERE {{is_chosen}}t.trace_id = {_TRACE_ADDRESS}"
    f" AND {_HAS_SCORES.format('t.id')} AND {_NEW_TRACE.format('t.id')}"
)
_DECIDED_TARGET = (
    "SELECT d.target FROM (SELECT CASE WHEN {0}.target LIKE '/%'"
    " THEN (SELECT '/' || substr({0}.target, length(r.project) + 3) FROM rules r WHERE r.id = {0}.rule)"
    f" ELSE {_TRACE_ADDRESS} END AS target {{source}}WHERE {{is_chosen}}substr({{0}}.target, 1, 1) IN ('/', '%')) d"
    f" WHERE d.target IS NOT NULL AND {_NEW_TARGET.format('d.target')}"
)
_RECORD_TARGET = f"INSERT INTO score_changes {_DECIDED_TRACE}; INSERT INTO score_target_changes {_DECIDED_TARGET}"
_OF_TRIGGER = {"trace_source": "traces", "source": "", "is_chosen": ""}
_OF_DECISION = {
    "trace_source": "decisions x CROSS JOIN traces",
    "source": "FROM decisions x ",
    "is_chosen": "x.id = ? AND ",
}
_RECORD_DECISION = tuple(statement.format("x", **_OF_DECISION) for statement in _RECORD_TARGET.split("; "))
# A new decision has no lease, so it concerns only scores that were given without one. These are rare, and the condition
# costs next to nothing
_DECISION_TRIGGERS = (
    "CREATE INDEX feedback_without_lease ON feedback (trace) WHERE rule IS NOT NULL AND (claim IS NULL OR claim = 0)",
    "CREATE TRIGGER score_decision_added AFTER INSERT ON decisions WHEN EXISTS (SELECT 1 FROM feedback"
    " INDEXED BY feedback_without_lease WHERE rule IS NOT NULL AND (claim IS NULL OR claim = 0))"
    f" BEGIN {_RECORD_TARGET.format('new', **_OF_TRIGGER)}; END",
    f"CREATE TRIGGER score_decision_removed AFTER DELETE ON decisions BEGIN {_RECORD_TARGET.format('old', **_OF_TRIGGER)}; END",
)
_RECORD_TRACE_FIELDS = (
    f"INSERT INTO score_changes SELECT new.id WHERE {_NEW_TRACE.format('new.id')} AND {_HAS_SCORES.format('new.id')}"
)
_TRACE_FIELDS = ("session_id", "project", "start_ns")
_TRACE_TRIGGERS = (
    f"CREATE TRIGGER score_trace_changed AFTER UPDATE OF {', '.join(_TRACE_FIELDS)} ON traces"
    f" WHEN {' OR '.join(f'new.{name} IS NOT old.{name}' for name in _TRACE_FIELDS)} BEGIN {_RECORD_TRACE_FIELDS}; END",
)
_GROUP_COLUMNS = ("name", "environment", "user_id", "tags", "models", "prompts", "agents", "metadata")
_GROUP_TRIGGER = (
    f"CREATE TRIGGER IF NOT EXISTS score_group_changed AFTER UPDATE OF {', '.join(_GROUP_COLUMNS)} ON traces"
    f" WHEN {' OR '.join(f'new.{name} IS NOT old.{name}' for name in _GROUP_COLUMNS)} BEGIN {_RECORD_TRACE_FIELDS}; END"
)
# A session has the values of all its traces
_RECORD_SESSION = (
    "INSERT INTO score_target_changes SELECT '/' || {0}.session_id WHERE {0}.session_id IS NOT NULL"
    " AND EXISTS (SELECT 1 FROM feedback f WHERE f.session_id = {0}.session_id AND f.rule IS NOT NULL)"
    " AND NOT EXISTS (SELECT 1 FROM score_target_changes c WHERE c.target = '/' || {0}.session_id);"
)
_RECORD_SESSIONS = " ".join(_RECORD_SESSION.format(row) for row in ("new", "old"))
_SESSION_GROUP_COLUMNS = ("session_id", "project", "kind", *_GROUP_COLUMNS)
_GROUP_TRIGGERS = (
    _GROUP_TRIGGER,
    f"CREATE TRIGGER IF NOT EXISTS score_session_group_changed AFTER UPDATE OF {', '.join(_SESSION_GROUP_COLUMNS)} ON traces"
    " WHEN (new.session_id IS NOT NULL OR old.session_id IS NOT NULL)"
    f" AND ({' OR '.join(f'new.{name} IS NOT old.{name}' for name in _SESSION_GROUP_COLUMNS)}) BEGIN {_RECORD_SESSIONS} END",
    "CREATE TRIGGER IF NOT EXISTS score_session_group_added AFTER INSERT ON traces WHEN new.session_id IS NOT NULL"
    f" BEGIN {_RECORD_SESSION.format('new')} END",
    "CREATE TRIGGER IF NOT EXISTS score_session_group_removed AFTER DELETE ON traces WHEN old.session_id IS NOT NULL"
    f" BEGIN {_RECORD_SESSION.format('old')} END",
)
_RECORD_ALL_SCORES = (
    "INSERT OR IGNORE INTO score_changes SELECT trace FROM feedback WHERE rule IS NOT NULL AND trace IS NOT NULL",
    "INSERT OR IGNORE INTO score_target_changes SELECT '/' || session_id FROM feedback"
    " WHERE rule IS NOT NULL AND trace IS NULL AND session_id IS NOT NULL",
)
ADD_SCORE_SUMS = (
    *_SCORE_SUM_TABLES,
    *_FEEDBACK_TRIGGERS,
    *_DECISION_TRIGGERS,
    *_TRACE_TRIGGERS,
    *_RECORD_ALL_SCORES,
)

# All tables that are computed from feedback and decisions
SCORE_SUM_TABLES = (
    *("score_changes", "score_target_changes", "score_series", "score_labels"),
    *("score_contributions", "score_sums", "score_clusters"),
)


def mark_score_sums_stale(db: sqlite3.Connection) -> None:
    """Delete all sums, and record all scores as changes, so that the background thread computes the sums again."""
    for table in SCORE_SUM_TABLES:
        db.execute(f"DELETE FROM {table}")
    for statement in _RECORD_ALL_SCORES:
        db.execute(statement)
    if db.execute("SELECT 1 FROM score_groupings LIMIT 1").fetchone():
        watch_group_fields(db)


def watch_group_fields(db: sqlite3.Connection) -> None:
    """Record from now on changes of the fields by which sums can be grouped. Files without groupings do without."""
    for statement in _GROUP_TRIGGERS:
        db.execute(statement)


def record_scores(db: sqlite3.Connection, traces: Iterable[int], sessions: Iterable[str]) -> None:
    """Record that the scores of traces, and of sessions as targets, change."""
    insert_many(db, "score_changes", ("trace",), [(trace,) for trace in traces], "ON CONFLICT DO NOTHING")
    targets = [(f"/{session}",) for session in sessions]
    insert_many(db, "score_target_changes", ("target",), targets, "ON CONFLICT DO NOTHING")


def record_decisions(db: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Record that the sampling probability, or the lease number, of decisions changes."""
    rows = [(id,) for id in ids]
    for statement in _RECORD_DECISION if rows else ():
        db.executemany(statement, rows)


# Sums of measures of traces (see `trace_measures`). A block is a period of `block_s` seconds, counted from the epoch; a row
# of `measure_blocks` says that the sums of a block are in `measure_sums`. `generation` counts the updates of the sums,
# which include all changes of the change feed up to `applied`
MEASURE_TABLES = (
    "CREATE TABLE trace_measures (id INTEGER PRIMARY KEY, project TEXT NOT NULL, measure TEXT NOT NULL,"
    " conditions TEXT NOT NULL, field TEXT NOT NULL, block_s INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX trace_measures_by_name ON trace_measures (project, measure, conditions, field, block_s)",
    "CREATE TABLE measure_sums (measure INTEGER NOT NULL, block INTEGER NOT NULL, value TEXT NOT NULL, n INTEGER NOT NULL,"
    " weight REAL NOT NULL, total REAL NOT NULL, weight_squares REAL NOT NULL, products REAL NOT NULL,"
    " total_squares REAL NOT NULL, PRIMARY KEY (measure, block, value)) WITHOUT ROWID",
    "CREATE TABLE measure_blocks (measure INTEGER NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (measure, block)) WITHOUT ROWID",
    "CREATE TABLE measure_state (id INTEGER PRIMARY KEY CHECK (id = 1), applied INTEGER NOT NULL, generation INTEGER NOT NULL)",
    "INSERT INTO measure_state VALUES (1, 0, 0)",
    # grains from which traces were deleted or moved, and how often
    "CREATE TABLE measure_changes (grain INTEGER PRIMARY KEY, count INTEGER NOT NULL)",
)
MEASURE_TABLE_NAMES = ("trace_measures", "measure_sums", "measure_blocks", "measure_state", "measure_changes")
# New runs are found in the change feed; traces that are deleted, or that start at another time, leave a grain
_LEAVE_GRAIN = (
    f"UPDATE measure_changes SET count = count + 1 WHERE grain = old.start_ns / {_GRAIN_NS};"
    f" INSERT INTO measure_changes SELECT old.start_ns / {_GRAIN_NS}, 1 WHERE NOT EXISTS"
    f" (SELECT 1 FROM measure_changes c WHERE c.grain = old.start_ns / {_GRAIN_NS});"
)
_MEASURE_TRIGGERS = {
    "measured_trace_moved": "AFTER UPDATE OF start_ns ON traces WHEN old.start_ns IS NOT NULL AND new.start_ns IS NOT old.start_ns",
    "measured_trace_deleted": "AFTER DELETE ON traces WHEN old.start_ns IS NOT NULL",
}


def watch_measured_traces(db: sqlite3.Connection) -> None:
    """Record from now on which grains lose traces. Files without measures do without."""
    for name, event in _MEASURE_TRIGGERS.items():
        db.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {event} BEGIN {_LEAVE_GRAIN} END")


def forget_measured_traces(db: sqlite3.Connection) -> None:
    """Stop recording which grains lose traces."""
    for name in _MEASURE_TRIGGERS:
        db.execute(f"DROP TRIGGER IF EXISTS {name}")


# Sums of sessions are stored by grain and hour alone (see `session_clusters`). The column `spans` of an hour gets the value
# for other days where the session had other hours
STORE_SESSION_HOURS = (
    "DELETE FROM score_clusters WHERE level > 1",
    "DROP INDEX score_clusters_that_span",
    "UPDATE score_clusters SET spans = 3 WHERE level = 1 AND spans = 1",
    "CREATE INDEX score_clusters_that_span ON score_clusters (series, spans, block) WHERE level = 1 AND spans > 0",
    "CREATE INDEX score_clusters_by_session ON score_clusters (session, series, block) WHERE level = 1",
)
