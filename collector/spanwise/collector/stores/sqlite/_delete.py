"""Taking traces out, with everything of the trace half that speaks of them."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spanwise.collector.filters import Filter
from spanwise.collector.stores._halves import Gone
from spanwise.collector.stores.sqlite import _responses, _words
from spanwise.collector.stores.sqlite._append import Appender
from spanwise.collector.stores.sqlite._plan import plan
from spanwise.collector.stores.sqlite._sql import delete_many, find_many, page, position
from spanwise.collector.stores.sqlite._values import INT_MAX, loads

LOT = 200  # traces that are looked for together
LEAST, MOST = 250, 2_000  # spans that go in one transaction, unless a single trace has more: who appends waits for it
MOMENT = 0.02  # seconds that it may take, within these bounds
FEW = 10  # traces, where there is hardly any room left


def passing(db: sqlite3.Connection, filter: Filter, after: str | None = None, upto: int | None = None) -> Gone | None:
    """The latest traces that pass, before a position and up to a key if they are given: `LOT` at most, evaluators' own
    among them; the sessions that end with them; None if there are none.
    """
    chosen = plan(db, filter, judgements=True)
    if after is not None:
        chosen = chosen.after(*position(after))
    sql = (
        f"SELECT t.trace_id, t.session_id, t.start_ns, t.id FROM {chosen.source} WHERE {chosen.where}"
        " AND +t.id <= ? ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
    )
    rows, next = page(
        db.execute(sql, (*chosen.values, INT_MAX if upto is None else upto, LOT + 1)).fetchall(), LOT, 2, 3
    )
    return Gone([row[0] for row in rows], _ending(db, [row[1] for row in rows]), next) if rows else None


def _ending(db: sqlite3.Connection, sessions: Iterable[str | None]) -> list[str]:
    """Those of the sessions that traces belong to, one each, of which no others are there."""
    going = Counter(session for session in sessions if session is not None)
    counted = "SELECT session_id, count(*) FROM traces WHERE session_id IN (%s) GROUP BY session_id"
    return [session for session, count in find_many(db, counted, going) if count == going[session]]


class Pace:
    """How many spans go in one transaction, so that it takes about a moment."""

    def __init__(self) -> None:
        self.spans = LEAST

    def pieces(self, db: sqlite3.Connection, traces: Sequence[str]) -> Iterator[list[str]]:
        """Traces that go together: so many that they have about as many spans, one at least."""
        sizes = dict(find_many(db, "SELECT trace_id, span_count FROM traces WHERE trace_id IN (%s)", traces))
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
            fitting = int(spans * MOMENT / max(seconds, 1e-6))
            self.spans = min(max((self.spans + fitting) // 2, LEAST), MOST)


def remove(appender: Appender, gone: Gone, pace: Pace, db: sqlite3.Connection) -> tuple[int, set[str]]:
    """Remove these traces, feedback on sessions that end with them, and the traces of evaluators that gave feedback
    which goes; returns how many of the first, and their tags.
    """
    began = time.perf_counter()
    rows = find_many(db, "SELECT id, tags, session_id, span_count FROM traces WHERE trace_id IN (%s)", gone.traces)
    keys = [row[0] for row in rows]
    linked = _linked(db, "trace", keys)
    appender.tombstones.put(gone.traces)  # first: after words were taken out FTS5 would write them out for it
    _take_out(appender, db, keys)
    appender.evict(gone.traces)
    ended = _ended(db, {row[2] for row in rows if row[2] is not None})
    linked |= _linked(db, "session_id", ended)
    delete_many(db, "feedback", "session_id", ended)
    judgements(appender, db, linked)
    pace.took(sum(row[3] for row in rows), time.perf_counter() - began)
    return len(rows), {tag for row in rows if row[1] is not None for tag in loads(row[1])}


def judgements(appender: Appender, db: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Remove those of the traces that are evaluators' own, and keep away those that are still on their way."""
    ids = set(ids)
    if not ids:
        return
    here = find_many(db, "SELECT id, trace_id, judgement FROM traces WHERE span_count > 0 AND trace_id IN (%s)", ids)
    gone = {key: trace_id for key, trace_id, judgement in here if judgement}
    _take_out(appender, db, list(gone))
    appender.tombstones.put([*gone.values(), *(ids - {row[1] for row in here})])
    appender.evict(gone.values())


def _take_out(appender: Appender, db: sqlite3.Connection, keys: Sequence[int]) -> None:
    appender.sums.gone(keys)
    appender.disturbed.update(keys)
    for key in keys:
        appender.held.drop(key)
    _words.remove(appender.reader, keys)
    _responses.remove(db, keys)
    for table in ("unindexed", "feedback", "spans", "states", "orphans", "local_roots"):
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


class Unused(NamedTuple):
    """Tags that no trace had any more at a position of the feed of changes."""

    tags: set[str]
    change: int


_TAGS = "SELECT DISTINCT value FROM traces, json_each(tags) WHERE tags IS NOT NULL"


def unused(db: sqlite3.Connection, tags: set[str]) -> Unused:
    """Those of the tags that no trace has. Looks at all traces, so it is for a reader."""
    [change] = db.execute("SELECT change FROM feed").fetchone()
    return Unused(tags.difference(row[0] for row in db.execute(_TAGS)), change)


def forget_tags(appender: Appender, unused: Unused) -> None:
    """Take tags that no trace has any more out of the menus, for a tag may name a person; unless one has come since."""
    db = appender.reader.db
    since = {row[0] for row in db.execute(f"{_TAGS} AND traces.change > ?", (unused.change,))}
    delete_many(db, "known", "field = 'tag' AND value", unused.tags - since)
    appender.forget()


_ORPHANED = (
    "SELECT t.id FROM traces t WHERE t.span_count = 0 AND NOT EXISTS"
    " (SELECT 1 FROM feedback f WHERE f.trace = t.id AND f.created_ns >= ?)"
)


def without_trace(db: sqlite3.Connection, before_ns: int) -> list[int]:
    """Keys of traces that have never come, and of which all feedback is older than a time. For a reader, too."""
    return [row[0] for row in db.execute(_ORPHANED, (before_ns,))]


def feedback_without_trace(db: sqlite3.Connection, keys: Sequence[int], before_ns: int) -> None:
    """Remove such feedback, unless some has come since."""
    keys = [row[0] for row in find_many(db, _ORPHANED + " AND t.id IN (%s)", keys, (before_ns,))]
    delete_many(db, "feedback", "trace", keys)
    delete_many(db, "traces", "id", keys)
