"""Builds a file as Spanwise's first file version had it, with one trace, to try the migrations on."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import zstandard

SCHEMA = """
CREATE TABLE traces (
  id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL UNIQUE, span_count INTEGER NOT NULL DEFAULT 0,
  error_count INTEGER NOT NULL DEFAULT 0, project TEXT, environment TEXT, name TEXT, kind TEXT, status TEXT, error TEXT,
  start_ns INTEGER, end_ns INTEGER, input_tokens INTEGER, output_tokens INTEGER, cost REAL, session_id TEXT,
  user_id TEXT, experiment_id TEXT, example_id TEXT, repetition INTEGER, complete INTEGER, updated_ns INTEGER,
  root INTEGER, names TEXT, kinds TEXT, models TEXT, tags TEXT, metadata TEXT
);
CREATE INDEX traces_by_start ON traces (start_ns);
CREATE INDEX traces_by_name ON traces (name, start_ns);
CREATE INDEX traces_by_project ON traces (project, start_ns);
CREATE INDEX traces_by_session ON traces (session_id, start_ns) WHERE session_id IS NOT NULL;
CREATE INDEX traces_by_user ON traces (user_id, start_ns) WHERE user_id IS NOT NULL;
CREATE INDEX traces_by_experiment ON traces (experiment_id, start_ns) WHERE experiment_id IS NOT NULL;
CREATE INDEX traces_with_errors ON traces (start_ns) WHERE error_count > 0;
CREATE TABLE spans (
  id INTEGER PRIMARY KEY, trace INTEGER NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL,
  kind TEXT NOT NULL, status TEXT NOT NULL, error TEXT, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, model TEXT,
  input_tokens INTEGER, output_tokens INTEGER, cost REAL, session_id TEXT, user_id TEXT, size INTEGER NOT NULL,
  resource INTEGER NOT NULL, payload BLOB NOT NULL
);
CREATE UNIQUE INDEX spans_by_trace ON spans (trace, span_id);
CREATE TABLE resources (id INTEGER PRIMARY KEY, data TEXT NOT NULL UNIQUE);
CREATE TABLE dictionaries (id INTEGER PRIMARY KEY, data BLOB NOT NULL, created_ns INTEGER NOT NULL);
CREATE TABLE feedback (
  id TEXT PRIMARY KEY, trace INTEGER, trace_id TEXT, span_id TEXT, document INTEGER, session_id TEXT,
  experiment_id TEXT, key TEXT NOT NULL, score REAL, is_bool INTEGER NOT NULL DEFAULT 0, label TEXT, comment TEXT,
  outcome TEXT NOT NULL, error TEXT, source TEXT NOT NULL, author TEXT, evaluator TEXT, version TEXT, rule TEXT,
  judge_trace_id TEXT, metadata TEXT, created_ns INTEGER NOT NULL, standing INTEGER NOT NULL
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
  metadata TEXT NOT NULL, created_ns INTEGER NOT NULL, example_count INTEGER NOT NULL, PRIMARY KEY (name, version)
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
CREATE TABLE rules (
  name TEXT NOT NULL, version TEXT NOT NULL, created_ns INTEGER NOT NULL, current INTEGER NOT NULL, data TEXT NOT NULL,
  PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, rule TEXT NOT NULL, rule_version TEXT NOT NULL, verdict TEXT NOT NULL,
  reason TEXT NOT NULL, probability REAL NOT NULL, attempts INTEGER NOT NULL, cost REAL, metadata TEXT NOT NULL,
  created_ns INTEGER NOT NULL
);
CREATE UNIQUE INDEX decisions_by_trace ON decisions (trace_id, rule);
CREATE INDEX decisions_by_time ON decisions (created_ns);
CREATE INDEX decisions_by_rule ON decisions (rule, verdict, created_ns);
CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE budgets (
  budget TEXT NOT NULL, period_start_ns INTEGER NOT NULL, spent REAL NOT NULL, PRIMARY KEY (budget, period_start_ns)
) WITHOUT ROWID;
CREATE TABLE keys (id TEXT PRIMARY KEY, created_ns INTEGER NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE queue (
  id TEXT PRIMARY KEY, queue TEXT NOT NULL, status TEXT NOT NULL, created_ns INTEGER NOT NULL, data TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX queue_in_order ON queue (queue, status, created_ns);
PRAGMA application_id = 1095979865;
PRAGMA user_version = 1;
"""
TRACE = "1" * 32


def build(path: Path) -> None:
    """One trace with one model call that answers with the word "parcel", tagged and scored."""
    db = sqlite3.connect(path)
    db.executescript("PRAGMA page_size = 16384; PRAGMA journal_mode = WAL;" + SCHEMA)
    payload = json.dumps({"inputs": {"q": "where"}, "outputs": "the parcel", "tags": ["old"], "environment": "prod"})
    blob = zstandard.compress(payload.encode())
    db.execute('INSERT INTO resources VALUES (1, \'{"service.name": "s"}\')')
    db.execute(
        "INSERT INTO spans VALUES (1, 1, ?, NULL, 'answer', 'llm', 'ok', NULL, 5, 9, 'm', 3, 4, 0.5, NULL, NULL, ?, 1, ?)",
        ("2" * 16, len(payload), blob),
    )
    db.execute(
        "INSERT INTO traces VALUES (1, ?, 1, 0, 'default', 'prod', 'answer', 'llm', 'ok', NULL, 5, 9, 3, 4, 0.5, NULL,"
        " NULL, NULL, NULL, 0, NULL, 9, 1, '[\"answer\"]', '[\"llm\"]', '{\"m\": [1, 3, 4, 0.5]}', '[\"old\"]', NULL)",
        (TRACE,),
    )
    db.execute("INSERT INTO unindexed VALUES (1)")
    db.execute(
        "INSERT INTO feedback (id, trace, trace_id, key, score, outcome, source, created_ns, standing)"
        " VALUES ('f', 1, ?, 'good', 0.5, 'score', 'human', 10, 2)",
        (TRACE,),
    )
    db.commit()
    db.close()
