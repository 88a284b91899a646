"""Deletion of traces with their feedback, judgements and index entries, in small transactions."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spanwise.collector.filters import Filter
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.sqlite.database.bulk_statements import cut_page, delete_many, parse_cursor, select_many
from spanwise.collector.stores.sqlite.database.column_values import INT_MAX, loads
from spanwise.collector.stores.sqlite.query.query_plan import plan_query
from spanwise.collector.stores.sqlite.search import fulltext_index
from spanwise.collector.stores.sqlite.write import pending_amendments
from spanwise.collector.stores.sqlite.write.span_writer import Appender

BATCH_TRACES = 200  # traces that are looked for together
MIN_SPANS, MAX_SPANS = (
    250,
    2_000,
)  # spans that go in one transaction, unless a single trace has more: who appends waits for it
TRANSACTION_SECONDS = 0.02  # seconds that it may take, within these bounds
FULL_DISK_TRACES = 10  # traces, where there is hardly any room left


def find_deletable(
    db: sqlite3.Connection, filter: Filter, after: str | None = None, upto: int | None = None
) -> DeletedTraces | None:
    """The latest traces that pass, before a position and up to a key if they are given: `LOT` at most, evaluators' own
    among them; the sessions that end with them; None if there are none.
    """
    chosen = plan_query(db, filter, judgements=True)
    if after is not None:
        chosen = chosen.after(*parse_cursor(after))
    sql = (
        f"SELECT t.trace_id, t.session_id, t.start_ns, t.id FROM {chosen.source} WHERE {chosen.where}"
        " AND +t.id <= ? ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    )
    rows, next = cut_page(
        db.execute(sql, (*chosen.values, INT_MAX if upto is None else upto, BATCH_TRACES + 1)).fetchall(),
        BATCH_TRACES,
        2,
        3,
    )
    return (
        DeletedTraces([row[0] for row in rows], _ending_sessions(db, [row[1] for row in rows]), next) if rows else None
    )


def _ending_sessions(db: sqlite3.Connection, sessions: Iterable[str | None]) -> list[str]:
    """Those of the sessions that traces belong to, one each, of which no others are there."""
    going = Counter(session for session in sessions if session is not None)
    counted = "SELECT session_id, count(*) FROM traces WHERE session_id IN (%s) GROUP BY session_id"
    return [session for session, count in select_many(db, counted, going) if count == going[session]]


class DeletionPace:
    """How many spans go in one transaction, so that it takes about a moment."""

    def __init__(self) -> None:
        self.spans = MIN_SPANS

    def pieces(self, db: sqlite3.Connection, traces: Sequence[str]) -> Iterator[list[str]]:
        """Traces that go together: so many that they have about as many spans, one at least."""
        sizes = dict(select_many(db, "SELECT trace_id, span_count FROM traces WHERE trace_id IN (%s)", traces))
        piece, spans = list[str](), 0
        for trace_id in traces:
            if piece and spans + sizes.get(trace_id, 0) > self.spans:
                yield piece
                piece, spans = [], 0
            piece.append(trace_id)
            spans += sizes.get(trace_id, 0) + 1
        yield piece

    def took(self, spans: int, seconds: float) -> None:
        """So many spans went in a time. What is far less than was asked for says little."""
        if 2 * spans >= self.spans:
            fitting = int(spans * TRANSACTION_SECONDS / max(seconds, 1e-6))
            self.spans = min(max((self.spans + fitting) // 2, MIN_SPANS), MAX_SPANS)


def delete_traces(
    appender: Appender, gone: DeletedTraces, pace: DeletionPace, db: sqlite3.Connection
) -> tuple[int, set[str]]:
    """Remove these traces, feedback on sessions that end with them, and the traces of evaluators that gave feedback
    which goes; returns how many of the first, and their tags.
    """
    began = time.perf_counter()
    rows = select_many(db, "SELECT id, tags, session_id, span_count FROM traces WHERE trace_id IN (%s)", gone.traces)
    keys = [row[0] for row in rows]
    linked = _linked_judgements(db, "trace", keys)
    appender.tombstones.put(gone.traces)  # first: after words were taken out FTS5 would write them out for it
    _delete_rows(appender, db, keys)
    appender.evict(gone.traces)
    ended = _empty_sessions(db, {row[2] for row in rows if row[2] is not None})
    linked |= _linked_judgements(db, "session_id", ended)
    delete_many(db, "feedback", "session_id", ended)
    delete_judgements(appender, db, linked)
    pace.took(sum(row[3] for row in rows), time.perf_counter() - began)
    return len(rows), {tag for row in rows if row[1] is not None for tag in loads(row[1])}


def delete_judgements(appender: Appender, db: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Remove those of the traces that are evaluators' own, and keep away those that are still on their way."""
    ids = set(ids)
    if not ids:
        return
    here = select_many(db, "SELECT id, trace_id, judgement FROM traces WHERE span_count > 0 AND trace_id IN (%s)", ids)
    gone = {key: trace_id for key, trace_id, judgement in here if judgement}
    _delete_rows(appender, db, list(gone))
    appender.tombstones.put([*gone.values(), *(ids - {row[1] for row in here})])
    appender.evict(gone.values())


def _delete_rows(appender: Appender, db: sqlite3.Connection, keys: Sequence[int]) -> None:
    appender.sums.gone(keys)
    appender.disturbed.update(keys)
    for key in keys:
        appender.held.drop(key)
    fulltext_index.remove_from_index(appender.reader, keys)
    pending_amendments.remove_response_ids(db, keys)
    for table in ("unindexed", "feedback", "spans", "states", "orphans", "local_roots"):
        delete_many(db, table, "trace", keys)
    delete_many(db, "open_runs", "(SELECT id FROM traces t WHERE t.trace_id = open_runs.trace_id)", keys)
    delete_many(db, "traces", "id", keys)


def _linked_judgements(db: sqlite3.Connection, column: str, values: Iterable[int | str]) -> set[str]:
    """The traces that feedback names as its judgements; people may name anything, so of theirs those that are here."""
    linked = (
        "SELECT judge_trace_id FROM feedback f WHERE %s IN (%%s) AND judge_trace_id IS NOT NULL AND (source <> 'human'"
        " OR EXISTS (SELECT 1 FROM traces t WHERE t.trace_id = f.judge_trace_id))"
    )
    return {row[0] for row in select_many(db, linked % column, values)}


def _empty_sessions(db: sqlite3.Connection, sessions: set[str]) -> set[str]:
    """Those of which no trace is left now: since `passing` has looked, some may have come, and others gone."""
    sql = "SELECT DISTINCT session_id FROM traces WHERE session_id IN (%s)"
    return sessions - {row[0] for row in select_many(db, sql, sessions)}


class UnusedTags(NamedTuple):
    """Tags that no trace had any more at a position of the feed of changes."""

    tags: set[str]
    change: int


_SELECT_TAGS = "SELECT DISTINCT value FROM traces, json_each(tags) WHERE tags IS NOT NULL"


def find_unused_tags(db: sqlite3.Connection, tags: set[str]) -> UnusedTags:
    """Those of the tags that no trace has. Looks at all traces, so it is for a reader."""
    [change] = db.execute("SELECT change FROM feed").fetchone()
    return UnusedTags(tags.difference(row[0] for row in db.execute(_SELECT_TAGS)), change)


def delete_tags(appender: Appender, unused: UnusedTags) -> None:
    """Take tags that no trace has any more out of the menus, for a tag may name a person; unless one has come since."""
    db = appender.reader.db
    since = {row[0] for row in db.execute(f"{_SELECT_TAGS} AND traces.change > ?", (unused.change,))}
    delete_many(db, "known", "field = 'tag' AND value", unused.tags - since)
    appender.forget()


_SELECT_ORPHANED = (
    "SELECT t.id FROM traces t WHERE t.span_count = 0 AND NOT EXISTS"
    " (SELECT 1 FROM feedback f WHERE f.trace = t.id AND f.created_ns >= ?)"
)


def find_orphaned_feedback(db: sqlite3.Connection, before_ns: int) -> list[int]:
    """Keys of traces that have never come, and of which all feedback is older than a time. For a reader, too."""
    return [row[0] for row in db.execute(_SELECT_ORPHANED, (before_ns,))]


def delete_orphaned_feedback(db: sqlite3.Connection, keys: Sequence[int], before_ns: int) -> None:
    """Remove such feedback, unless some has come since."""
    keys = [row[0] for row in select_many(db, _SELECT_ORPHANED + " AND t.id IN (%s)", keys, (before_ns,))]
    delete_many(db, "feedback", "trace", keys)
    delete_many(db, "traces", "id", keys)
