"""Under which id a model has given the answer that a run holds: what comes without a span is matched by it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from assay.collector.stores.sqlite._numbers import number_of
from assay.collector.stores.sqlite._reader import Reader
from assay.collector.stores.sqlite._sql import delete_many, find_many, insert_many

MOST = 200_000  # some 30 bytes each; of the latest spans, as what belongs to them comes within minutes
CANDIDATES = 8  # of one id: a call that several instrumentations have seen


def put(db: sqlite3.Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Keep that spans (their rows) bear responses' ids."""
    answers = [(span, number_of(response_id)) for span, response_id in rows]
    insert_many(db, "responses", ("span", "answer"), answers, "ON CONFLICT DO NOTHING")


def find(reader: Reader, response_id: str) -> list[tuple[str, str]]:
    """Trace and span of those that bear an id, the latest first. Of another id with the same number none is given."""
    sql = (
        "SELECT t.trace_id, s.id FROM responses r JOIN spans s ON s.id = r.span JOIN traces t ON t.id = s.trace"
        " WHERE r.answer = ? ORDER BY r.span DESC LIMIT ?"
    )
    rows = reader.db.execute(sql, (number_of(response_id), CANDIDATES)).fetchall()
    facts = [(trace_id, reader.stored(trace_id, row).fact) for trace_id, row in rows]
    return [(trace_id, fact.span_id) for trace_id, fact in facts if fact.response_id == response_id]


def remove(db: sqlite3.Connection, traces: Iterable[int]) -> None:
    """Remove those of traces (their keys) that go, before their spans do."""
    spans = [row[0] for row in find_many(db, "SELECT id FROM spans WHERE trace IN (%s)", traces)]
    delete_many(db, "responses", "span", spans)


def prune(db: sqlite3.Connection) -> None:
    """Forget all but those of the latest spans that bear one."""
    last = f"(SELECT span FROM responses ORDER BY span DESC LIMIT 1 OFFSET {MOST})"
    db.execute(f"DELETE FROM responses WHERE span <= {last}")
