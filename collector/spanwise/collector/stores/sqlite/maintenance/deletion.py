"""Deletion of traces with their feedback, evaluators' traces and index entries, in small transactions."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spanwise.collector.filters import Filter
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.sqlite.query.filter_sql import plan_query
from spanwise.collector.stores.sqlite.search import fulltext_index
from spanwise.collector.stores.sqlite.write import side_tables
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.table_rows import (
    INT_MAX,
    cut_page,
    delete_many,
    loads,
    parse_cursor,
    select_many,
)

BATCH_TRACES = 200  # traces per search
# Bounds of the spans per transaction, unless a single trace has more. Writers of spans wait for the transaction
MIN_SPANS, MAX_SPANS = 250, 2_000
TRANSACTION_SECONDS = 0.02  # target duration of a transaction, within these bounds
FULL_DISK_TRACES = 10  # traces per transaction on a nearly full disk


def find_deletable(
    db: sqlite3.Connection, filter: Filter, after: str | None = None, upto: int | None = None
) -> DeletedTraces | None:
    """Return up to `BATCH_TRACES` of the latest traces that pass the filter, including evaluators' own; None if none
    passes.

    The result includes the sessions that lose their last trace. `after` is a position in the list, `upto` the highest
    integer key.
    """
    chosen = plan_query(db, filter, judgements=True)
    if after is not None:
        chosen = chosen.after(*parse_cursor(after))
    sql = (
        f"SELECT t.trace_id, t.session_id, t.start_ns, t.id FROM {chosen.source} WHERE {chosen.where}"
        " AND +t.id <= ? ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    )
    found = db.execute(sql, (*chosen.values, INT_MAX if upto is None else upto, BATCH_TRACES + 1)).fetchall()
    rows, next = cut_page(found, BATCH_TRACES, 2, 3)
    if not rows:
        return None
    deleted = Counter(row[1] for row in rows if row[1] is not None)
    counted = "SELECT session_id, count(*) FROM traces WHERE session_id IN (%s) GROUP BY session_id"
    ended = [session for session, count in select_many(db, counted, deleted) if count == deleted[session]]
    return DeletedTraces([row[0] for row in rows], ended, next)


_ENDED_IN_PROJECT = (
    "SELECT id FROM feedback f WHERE f.session_id IN (%s) AND f.project IS NOT NULL AND NOT EXISTS"
    " (SELECT 1 FROM traces t WHERE t.session_id = f.session_id AND t.project = f.project)"
)


class DeletionPace:
    """Number of spans per transaction, adapted so that it takes about `TRANSACTION_SECONDS`."""

    def __init__(self) -> None:
        self.spans = MIN_SPANS

    def pieces(self, db: sqlite3.Connection, traces: Sequence[str]) -> Iterator[list[str]]:
        """Yield batches of traces that have about `spans` spans together, at least one trace each."""
        sizes = dict(select_many(db, "SELECT trace_id, span_count FROM traces WHERE trace_id IN (%s)", traces))
        piece, spans = list[str](), 0
        for trace_id in traces:
            if piece and spans + sizes.get(trace_id, 0) > self.spans:
                yield piece
                piece, spans = [], 0
            piece.append(trace_id)
            spans += sizes.get(trace_id, 0) + 1
        yield piece

    def record(self, spans: int, seconds: float) -> None:
        """Record the duration of a batch. Batches far below the wanted size are ignored, as they say little about the
        speed.
        """
        if 2 * spans >= self.spans:
            fitting = int(spans * TRANSACTION_SECONDS / max(seconds, 1e-6))
            self.spans = min(max((self.spans + fitting) // 2, MIN_SPANS), MAX_SPANS)


def delete_traces(
    appender: Appender, gone: DeletedTraces, pace: DeletionPace, db: sqlite3.Connection
) -> tuple[int, set[str]]:
    """Delete these traces, the feedback on sessions that have no other traces (in the project, if it names one), and the
    traces of evaluators that gave the deleted feedback.

    Return the number of these traces and their tags.
    """
    began = time.perf_counter()
    rows = select_many(db, "SELECT id, tags, session_id, span_count FROM traces WHERE trace_id IN (%s)", gone.traces)
    keys = [row[0] for row in rows]
    linked = _linked_judgements(db, "trace", keys)
    # Must precede removals from the full-text index: after them, this write would make FTS5 flush
    appender.tombstones.put(gone.traces)
    _delete_rows(appender, db, keys)
    appender.evict(gone.traces)
    # Find the sessions without traces again, because the result of `find_deletable` may be outdated by now
    sessions = {row[2] for row in rows if row[2] is not None}
    sql = "SELECT DISTINCT session_id FROM traces WHERE session_id IN (%s)"
    ended = sessions - {row[0] for row in select_many(db, sql, sessions)}
    of_ended = [row[0] for row in select_many(db, "SELECT id FROM feedback WHERE session_id IN (%s)", ended)]
    of_ended += [row[0] for row in select_many(db, _ENDED_IN_PROJECT, sessions - ended)]
    linked |= _linked_judgements(db, "id", of_ended)
    delete_many(db, "feedback", "id", of_ended)
    delete_judgements(appender, db, linked)
    pace.record(sum(row[3] for row in rows), time.perf_counter() - began)
    return len(rows), {tag for row in rows if row[1] is not None for tag in loads(row[1])}


def delete_judgements(appender: Appender, db: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Delete those of these traces that are evaluators' own. Reject those that have not arrived yet when they arrive."""
    ids = set(ids)
    if not ids:
        return
    rows = select_many(db, "SELECT id, trace_id, judgement FROM traces WHERE span_count > 0 AND trace_id IN (%s)", ids)
    deleted = {key: trace_id for key, trace_id, judgement in rows if judgement}
    _delete_rows(appender, db, list(deleted))
    appender.tombstones.put([*deleted.values(), *(ids - {row[1] for row in rows})])
    appender.evict(deleted.values())


def _delete_rows(appender: Appender, db: sqlite3.Connection, keys: Sequence[int]) -> None:
    appender.sums.subtract_traces(keys)
    appender.disturbed.update(keys)
    for key in keys:
        appender.text_buffer.drop(key)
    fulltext_index.remove_from_index(appender.reader, keys)
    side_tables.remove_response_ids(db, keys)
    for table in ("unindexed", "feedback", "spans", "states", "orphans", "local_roots"):
        delete_many(db, table, "trace", keys)
    delete_many(db, "open_runs", "(SELECT id FROM traces t WHERE t.trace_id = open_runs.trace_id)", keys)
    delete_many(db, "traces", "id", keys)


def _linked_judgements(db: sqlite3.Connection, column: str, values: Iterable[int | str]) -> set[str]:
    """Return the ids of traces that feedback names as the trace of its evaluator.

    Human feedback may name any trace, so only stored traces count for human feedback.
    """
    linked = (
        "SELECT judge_trace_id FROM feedback f WHERE %s IN (%%s) AND judge_trace_id IS NOT NULL AND (source <> 'human'"
        " OR EXISTS (SELECT 1 FROM traces t WHERE t.trace_id = f.judge_trace_id))"
    )
    return {row[0] for row in select_many(db, linked % column, values)}


class UnusedTags(NamedTuple):
    """Tags that no trace had at a position of the change feed."""

    tags: set[str]
    change: int


_SELECT_TAGS = "SELECT DISTINCT value FROM traces, json_each(tags) WHERE tags IS NOT NULL"


def find_unused_tags(db: sqlite3.Connection, tags: set[str]) -> UnusedTags:
    """Return the tags that no trace has. The query scans all traces, so it should run on a read connection."""
    [change] = db.execute("SELECT change FROM feed").fetchone()
    return UnusedTags(tags.difference(row[0] for row in db.execute(_SELECT_TAGS)), change)


def delete_tags(appender: Appender, unused: UnusedTags) -> None:
    """Delete unused tags from the filter menus, because a tag may name a person. Tags used again since are kept."""
    db = appender.reader.db
    since = {row[0] for row in db.execute(f"{_SELECT_TAGS} AND traces.change > ?", (unused.change,))}
    delete_many(db, "known", "field = 'tag' AND value", unused.tags - since)
    appender.forget()


_SELECT_ORPHANED = (
    "SELECT t.id FROM traces t WHERE t.span_count = 0 AND NOT EXISTS"
    " (SELECT 1 FROM feedback f WHERE f.trace = t.id AND f.created_ns >= ?)"
)


def find_orphaned_feedback(db: sqlite3.Connection, before_ns: int) -> list[int]:
    """Return keys of traces without spans whose feedback is all older than `before_ns`. Use a read connection."""
    return [row[0] for row in db.execute(_SELECT_ORPHANED, (before_ns,))]


def delete_orphaned_feedback(db: sqlite3.Connection, keys: Sequence[int], before_ns: int) -> None:
    """Delete the feedback of these traces, except where newer feedback has arrived since."""
    keys = [row[0] for row in select_many(db, _SELECT_ORPHANED + " AND t.id IN (%s)", keys, (before_ns,))]
    delete_many(db, "feedback", "trace", keys)
    delete_many(db, "traces", "id", keys)
