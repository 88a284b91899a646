"""Tables and triggers of the weighted sums of scores (see `stores.sqlite.score_sums`)."""

from __future__ import annotations

import sqlite3

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
    " PRIMARY KEY (series, level, block, session, label)) WITHOUT ROWID",
)

# Triggers that record changed contributions: feedback of rules, decisions, and fields of traces. `INSERT OR IGNORE` would
# not do: within a trigger, the statement that fires it decides how conflicts are resolved.
_NEW_TRACE = "NOT EXISTS (SELECT 1 FROM score_changes c WHERE c.trace = {0})"
_NEW_TARGET = "NOT EXISTS (SELECT 1 FROM score_target_changes c WHERE c.target = {0})"
_RECORD_TRACE = f"INSERT INTO score_changes SELECT {{0}}.trace WHERE {_NEW_TRACE.format('{0}.trace')}"
_SESSION_TARGET = "'/' || {0}.session_id"
_RECORD_SESSION = (
    f"INSERT INTO score_target_changes SELECT {_SESSION_TARGET} WHERE {_NEW_TARGET.format(_SESSION_TARGET)}"
)
_COUNTED_COLUMNS = "trace, session_id, key, score, label, outcome, claim, rule, standing, trace_start_ns"
_HAS_SCORES = "EXISTS (SELECT 1 FROM feedback f WHERE f.trace = {0} AND f.rule IS NOT NULL)"


def _define_feedback_triggers() -> tuple[str, ...]:
    found = []
    for name, event, row in (
        ("score_added", "INSERT", "new"),
        ("score_changed", f"UPDATE OF {_COUNTED_COLUMNS}", "new"),
        ("score_left", "UPDATE OF trace, session_id, rule", "old"),
        ("score_removed", "DELETE", "old"),
    ):
        on = f"AFTER {event} ON feedback WHEN {row}.rule IS NOT NULL AND {row}"
        found += [
            f"CREATE TRIGGER {name} {on}.trace IS NOT NULL BEGIN {_RECORD_TRACE.format(row)}; END",
            f"CREATE TRIGGER {name}_to_session {on}.trace IS NULL AND {row}.session_id IS NOT NULL"
            f" BEGIN {_RECORD_SESSION.format(row)}; END",
        ]
    return tuple(found)


# `{0}` is the row of a decision. The address of a session starts with `/` and the project, that of a trace whose id is
# not alphanumeric with `%`
_TRACE_ADDRESS = "substr({0}.target, 1, instr({0}.target || '/', '/') - 1)"
_RECORD_TARGET = (
    f"INSERT INTO score_changes SELECT t.id FROM traces t WHERE t.trace_id = {_TRACE_ADDRESS}"
    f" AND {_HAS_SCORES.format('t.id')} AND {_NEW_TRACE.format('t.id')};"
    " INSERT INTO score_target_changes SELECT d.target FROM (SELECT CASE WHEN {0}.target LIKE '/%'"
    " THEN (SELECT '/' || substr({0}.target, length(r.project) + 3) FROM rules r WHERE r.id = {0}.rule)"
    f" ELSE {_TRACE_ADDRESS} END AS target WHERE substr({{0}}.target, 1, 1) IN ('/', '%')) d"
    f" WHERE d.target IS NOT NULL AND {_NEW_TARGET.format('d.target')}"
)
# A new decision has no lease, so it concerns only scores that were given without one. The first lease on a decision
# concerns only scores whose decision was deleted. Both are rare, and the conditions cost next to nothing
_DECISION_TRIGGERS = (
    "CREATE INDEX feedback_without_lease ON feedback (trace) WHERE rule IS NOT NULL AND (claim IS NULL OR claim = 0)",
    "CREATE TRIGGER score_decision_added AFTER INSERT ON decisions WHEN EXISTS (SELECT 1 FROM feedback"
    " INDEXED BY feedback_without_lease WHERE rule IS NOT NULL AND (claim IS NULL OR claim = 0))"
    f" BEGIN {_RECORD_TARGET.format('new')}; END",
    "CREATE TRIGGER score_decision_changed AFTER UPDATE OF probability ON decisions"
    f" WHEN new.probability IS NOT old.probability BEGIN {_RECORD_TARGET.format('new')}; END",
    "CREATE TRIGGER score_decision_leased AFTER UPDATE OF claim ON decisions WHEN new.claim IS NOT old.claim"
    " AND (old.claim > 0 OR EXISTS (SELECT 1 FROM score_decisions_deleted))"
    f" BEGIN {_RECORD_TARGET.format('new')}; END",
    f"CREATE TRIGGER score_decision_removed AFTER DELETE ON decisions BEGIN {_RECORD_TARGET.format('old')}; END",
)
_RECORD_TRACE_FIELDS = (
    f"INSERT INTO score_changes SELECT new.id WHERE {_NEW_TRACE.format('new.id')} AND {_HAS_SCORES.format('new.id')}"
)
_GROUP_COLUMNS = ("name", "environment", "user_id", "tags", "models", "prompts", "agents", "metadata")
_TRACE_TRIGGERS = (
    "CREATE TRIGGER score_trace_changed AFTER UPDATE OF session_id, project ON traces"
    f" WHEN new.session_id IS NOT old.session_id OR new.project IS NOT old.project BEGIN {_RECORD_TRACE_FIELDS}; END",
    f"CREATE TRIGGER score_group_changed AFTER UPDATE OF {', '.join(_GROUP_COLUMNS)} ON traces"
    f" WHEN ({' OR '.join(f'new.{name} IS NOT old.{name}' for name in _GROUP_COLUMNS)})"
    f" AND EXISTS (SELECT 1 FROM score_groupings) BEGIN {_RECORD_TRACE_FIELDS}; END",
)
_RECORD_ALL_SCORES = (
    "INSERT OR IGNORE INTO score_changes SELECT trace FROM feedback WHERE rule IS NOT NULL AND trace IS NOT NULL",
    "INSERT OR IGNORE INTO score_target_changes SELECT '/' || session_id FROM feedback"
    " WHERE rule IS NOT NULL AND trace IS NULL AND session_id IS NOT NULL",
)
ADD_SCORE_SUMS = (
    *_SCORE_SUM_TABLES,
    *_define_feedback_triggers(),
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
