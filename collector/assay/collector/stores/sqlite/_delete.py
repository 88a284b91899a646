"""Taking traces out, with everything of the trace half that speaks of them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence

from assay.collector.filters import Filter
from assay.collector.stores._halves import Gone
from assay.collector.stores.sqlite import _responses, _words
from assay.collector.stores.sqlite._append import Appender
from assay.collector.stores.sqlite._plan import plan
from assay.collector.stores.sqlite._sql import delete_many, find_many
from assay.collector.stores.sqlite._values import loads

CHUNK = 200  # traces per transaction, so that what arrives meanwhile is not held up
FEW = 10  # where there is hardly any room left


def passing(db: sqlite3.Connection, filter: Filter) -> Gone | None:
    """Up to `CHUNK` of the traces that pass, evaluators' own among them, and the sessions that end with them; None if
    there are none.
    """
    chosen = plan(db, filter, judgements=True)
    sql = f"SELECT t.trace_id, t.session_id FROM {chosen.source} WHERE {chosen.where} LIMIT ?"
    rows = db.execute(sql, (*chosen.values, CHUNK)).fetchall()
    going = Counter(session for _, session in rows if session is not None)
    counted = "SELECT session_id, count(*) FROM traces WHERE session_id IN (%s) GROUP BY session_id"
    ending = [session for session, count in find_many(db, counted, going) if count == going[session]]
    return Gone([trace_id for trace_id, _ in rows], ending) if rows else None


def remove(appender: Appender, gone: Gone, db: sqlite3.Connection) -> tuple[int, set[str]]:
    """Remove these traces, feedback on sessions that end with them, and the traces of evaluators that gave feedback
    which goes; returns how many of the first, and their tags.
    """
    rows = find_many(db, "SELECT id, tags, session_id FROM traces WHERE trace_id IN (%s)", gone.traces)
    keys = [row[0] for row in rows]
    linked = _linked(db, "trace", keys)
    _take_out(appender, db, keys)
    appender.tombstones.put(gone.traces)
    appender.evict(gone.traces)
    ended = _ended(db, {row[2] for row in rows if row[2] is not None})
    linked |= _linked(db, "session_id", ended)
    delete_many(db, "feedback", "session_id", ended)
    judgements(appender, db, linked)
    return len(rows), {tag for row in rows if row[1] is not None for tag in loads(row[1])}


def judgements(appender: Appender, db: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Remove those of the traces that are evaluators' own, and keep away those that are still on their way."""
    ids = set(ids)
    here = find_many(db, "SELECT id, trace_id, judgement FROM traces WHERE span_count > 0 AND trace_id IN (%s)", ids)
    gone = {key: trace_id for key, trace_id, judgement in here if judgement}
    _take_out(appender, db, list(gone))
    appender.tombstones.put([*gone.values(), *(ids - {row[1] for row in here})])
    appender.evict(gone.values())


def _take_out(appender: Appender, db: sqlite3.Connection, keys: Sequence[int]) -> None:
    appender.sums.gone(keys)
    appender.disturbed.update(keys)
    _words.remove(appender.reader, keys)
    _responses.remove(db, keys)
    for table in ("unindexed", "feedback", "spans"):
        delete_many(db, table, "trace", keys)
    delete_many(db, "open_runs", "(SELECT id FROM traces t WHERE t.trace_id = open_runs.trace_id)", keys)
    delete_many(db, "traces", "id", keys)


def _linked(db: sqlite3.Connection, column: str, values: Iterable[int | str]) -> set[str]:
    """The traces that feedback names as its judgements; people may name anything, so of theirs those that are here."""
    linked = (
        "SELECT judge_trace_id FROM feedback f WHERE %s IN (%%s) AND judge_trace_id IS NOT NULL AND (source <> 'human'"
        " OR EXISTS (SELECT 1 FROM traces t WHERE t.trace_id = f.judge_trace_id))"
    )
    return {row[0] for row in find_many(db, linked % column, values)}


def _ended(db: sqlite3.Connection, sessions: set[str]) -> set[str]:
    """Those of which no trace is left now: since `passing` has looked, some may have come, and others gone."""
    sql = "SELECT DISTINCT session_id FROM traces WHERE session_id IN (%s)"
    return sessions - {row[0] for row in find_many(db, sql, sessions)}


def forget_tags(appender: Appender, tags: set[str]) -> None:
    """Take tags that no trace has any more out of the menus: a tag may name a person."""
    db = appender.reader.db
    left = {row[0] for row in db.execute("SELECT DISTINCT value FROM traces, json_each(tags) WHERE tags IS NOT NULL")}
    delete_many(db, "known", "field = 'tag' AND value", tags - left)
    appender.forget()


def feedback_without_trace(db: sqlite3.Connection, before_ns: int) -> None:
    """Remove feedback older than a time whose trace has never arrived."""
    sql = (
        "SELECT t.id FROM traces t WHERE t.span_count = 0 AND NOT EXISTS"
        " (SELECT 1 FROM feedback f WHERE f.trace = t.id AND f.created_ns >= ?)"
    )
    keys = [row[0] for row in db.execute(sql, (before_ns,))]
    delete_many(db, "feedback", "trace", keys)
    delete_many(db, "traces", "id", keys)
