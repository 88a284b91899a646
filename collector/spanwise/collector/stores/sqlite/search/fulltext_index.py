"""Full-text index: FTS5 entries per trace, re-indexing of growing traces, merging of segments.

Each trace has one entry in an FTS5 table that records which word is at which position in which trace, without the text.
Queries find words, beginnings of words, and phrases (see `searchable_text`). A background thread makes the entries: a write puts the trace's key into `unindexed` in the same transaction, so that pending work survives a crash.

The text of a new trace comes from memory (`searchable_text.TextBuffer`), else from its payloads, which are read in
parallel to the writer. An existing entry can only be rebuilt as a whole. This is done when the trace has grown by
`REINDEX_GROWTH`, or after a quiet time that increases with its size. Each character is thus read and written only a
few times, even in a trace that grows for long.

SQLite 3.40 cannot delete an entry of such a table by key: it requires the indexed text. That text is built again from
the payloads. `indexed.upto` is the row id up to which spans are indexed, and `replaced` holds the payloads that were
overwritten since.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, starmap
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from spanwise.collector.errors import StoreError
from spanwise.collector.records import JSON
from spanwise.collector.stores.search_terms import iterate_leaves
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.search.searchable_text import (
    LEAF_SEPARATOR,
    MAX_TRACE_CHARACTERS,
    TextBuffer,
    split_text,
)
from spanwise.collector.stores.table_rows import (
    build_upsert_clause,
    delete_many,
    insert_many,
    iterate_rows,
    select_many,
)

log = logging.getLogger("spanwise.collector")

T = TypeVar("T")

TRACES_PER_ROUND = 400  # traces read from payloads together
CHARACTERS_PER_ROUND = 2_000_000  # characters read from payloads in one round, unless a single trace has more
PAYLOADS_PER_READ = 50  # payloads read together
# Most traces of one INSERT, at whose end FTS5 writes a segment. An INSERT of more than `INSERT_MULTIPLE` traces takes
# a multiple of that number, because SQLite prepares and caches a statement for each number of rows.
TRACES_PER_INSERT, INSERT_MULTIPLE = 2_048, 128
# Bounds of the characters of one transaction, unless a single trace has more. Other writes wait for the transaction.
# Small transactions are costly, because FTS5 writes and later merges a segment for each. With 1,000 traces per
# transaction, a trace costs a third of what it costs with 40.
MIN_TRANSACTION_CHARACTERS, MAX_TRANSACTION_CHARACTERS = 25_000, 8_000_000
# Number of segments that are merged into one: the maximum that FTS5 allows, because each level of merges writes every
# word again. A query searches a few dozen segments; each takes microseconds. When a level has `CRISIS_SEGMENTS`
# segments, FTS5 merges it at once and blocks all writes. Segments arrive during a merge, so that limit is higher.
MERGE_SEGMENTS, CRISIS_SEGMENTS = 16, 64
# Pages of 4 KB that each transaction merges: a base, one more per this many characters, and a maximum. FTS5's
# automatic merge processes hundreds of pages at once, which blocks writes for thirty milliseconds.
MERGE_PAGES, CHARACTERS_PER_MERGE_PAGE, MAX_MERGE_PAGES = 8, 1_000, 100
TRANSACTION_SECONDS = 0.02  # target duration of a transaction, within these limits
SETTLE_NS = 1_000_000_000  # a trace is indexed after this time without spans
OVERDUE_NS = 20_000_000_000  # a trace is indexed at the latest after it has waited this long
REINDEX_GROWTH = 2  # growth of a trace, relative to its indexed size, after which it is indexed again
REINDEX_QUIET_NS = 10_000_000_000  # an indexed trace that has grown less is indexed again after this time without spans
REINDEX_QUIET_NS_PER_BYTE = 125_000  # the same for a small trace: one second per 8 KB of its payloads
NEVER_REINDEX_BYTES = 2**62  # value of `again` for a trace whose text has reached `MAX_TRACE_CHARACTERS`

# Number of waiting traces, and the time since which the first waits. Traces that have an entry and grow do not count
# for the time, because no delay is promised for them. The first 1,000 keys suffice: keys are in order of arrival,
# except for a few traces whose feedback arrived first.
SELECT_LAG = (
    "SELECT count(*), (SELECT min(since_ns) FROM (SELECT since_ns FROM unindexed u WHERE NOT EXISTS"
    " (SELECT 1 FROM indexed i WHERE i.trace = u.trace) ORDER BY u.trace LIMIT 1000)) FROM unindexed"
)


class DueTrace(NamedTuple):
    """A trace that is due for indexing."""

    trace: int
    upto: int | None  # row id up to which its spans are indexed
    again: int | None  # `traces.size` at which it is indexed again
    size: int
    runs_change: int | None


class IndexEntry(NamedTuple):
    """Index entry of a trace: its current text (None: not indexed), and the text to be written."""

    trace: int
    old: str | None
    text: str | None
    upto: int = 0
    again: int = 0
    runs_change: int | None = None  # `traces.runs_change` when the payloads were read

    @property
    def characters(self) -> int:
        """Return the number of characters to be written in the worst case."""
        return len(self.old or "") + len(self.text or "")


def find_due_traces(
    reader: Reader, now: int, buffered: Container[int] = frozenset(), *, overdue_only: bool = False
) -> list[DueTrace]:
    """Return the traces that are due for indexing at `now` (store time), except those whose text is in memory."""
    settled = 0 if overdue_only else now - SETTLE_NS
    keys = (key for (key,) in reader.db.execute("SELECT trace FROM unindexed ORDER BY trace") if key not in buffered)
    return [
        *islice(
            starmap(DueTrace, iterate_rows(reader.db, _SELECT_DUE, keys, (settled, now - OVERDUE_NS, now))),
            TRACES_PER_ROUND,
        )
    ]


def is_empty(reader: Reader) -> bool:
    """Return whether no trace waits for indexing."""
    return reader.db.execute("SELECT 1 FROM unindexed LIMIT 1").fetchone() is None


_IS_SETTLED = "(t.updated_ns < ? OR u.since_ns < ?)"
_SELECT_DUE = (
    "SELECT u.trace, i.upto, i.again, coalesce(t.size, 0), t.runs_change FROM unindexed u"
    " LEFT JOIN traces t ON t.id = u.trace LEFT JOIN indexed i ON i.trace = u.trace"
    f" WHERE (t.updated_ns IS NULL OR (coalesce(i.again, 0) <= t.size AND {_IS_SETTLED})"
    f" OR t.updated_ns < ? - min({REINDEX_QUIET_NS}, max({SETTLE_NS}, t.size * {REINDEX_QUIET_NS_PER_BYTE}))"
    f" OR (i.again = {NEVER_REINDEX_BYTES} AND NOT EXISTS (SELECT 1 FROM replaced r WHERE r.trace = u.trace)))"
    " AND u.trace IN (%s) ORDER BY u.trace"
)


def read_entries(reader: Reader, due: Iterable[DueTrace]) -> Iterator[IndexEntry]:
    """Yield the entries of traces, read from their payloads.

    Stops early, after `CHARACTERS_PER_ROUND` characters.
    """
    remaining = CHARACTERS_PER_ROUND
    for trace in due:
        if remaining <= 0:
            return
        entry = _read_entry(reader, trace)
        remaining -= entry.characters
        yield entry


def _read_entry(reader: Reader, due: DueTrace) -> IndexEntry:
    replaced = _replaced_payloads(reader.db, due.trace)
    if due.again == NEVER_REINDEX_BYTES and not replaced:  # the indexed text is full, so later spans cannot change it
        return IndexEntry(due.trace, None, None, runs_change=due.runs_change)
    rows = _span_rows(reader.db, due.trace)
    if not rows:
        return IndexEntry(due.trace, None, None, runs_change=due.runs_change)
    text, old = _trace_text(reader, rows, upto=due.upto)
    if replaced and due.upto is not None:
        old, _ = _trace_text(reader, [row for row in rows if row <= due.upto], replaced)
    again = NEVER_REINDEX_BYTES if len(text) >= MAX_TRACE_CHARACTERS else int(due.size * REINDEX_GROWTH)
    return IndexEntry(due.trace, old, text, rows[-1], again, due.runs_change)


def _span_rows(db: sqlite3.Connection, trace: int) -> list[int]:
    return sorted(row[0] for row in db.execute("SELECT id FROM spans WHERE trace = ?", (trace,)))


def _replaced_payloads(db: sqlite3.Connection, trace: int) -> dict[int, bytes]:
    return dict(db.execute("SELECT span, payload FROM replaced WHERE trace = ?", (trace,)).fetchall())


def _trace_text(
    reader: Reader, rows: Sequence[int], instead: Mapping[int, bytes] = MappingProxyType({}), upto: int | None = None
) -> tuple[str, str | None]:
    """Return the text of a trace, and the part of it that comes from rows up to `upto` (None if `upto` is None).

    The text holds each text and number of inputs and outputs once, in order. Reading stops at `MAX_TRACE_CHARACTERS`.
    `instead` maps row ids to payloads that replace the stored ones.
    """
    seen: dict[str, None] = {}
    size = before = 0
    for row, payload in _read_payloads(reader, rows, instead):
        for text in iterate_leaves((payload.get("inputs"), payload.get("outputs"))):
            if text not in seen:
                seen[text] = None
                size += len(text) + 1
        if upto is not None and row <= upto:
            before = size
        if size > MAX_TRACE_CHARACTERS:
            break
    whole = LEAF_SEPARATOR.join(seen)[:MAX_TRACE_CHARACTERS]
    return whole, None if upto is None else whole[: max(0, before - 1)]


def _read_payloads(
    reader: Reader, rows: Sequence[int], instead: Mapping[int, bytes]
) -> Iterator[tuple[int, dict[str, JSON]]]:
    for start in range(0, len(rows), PAYLOADS_PER_READ):
        chunk = rows[start : start + PAYLOADS_PER_READ]
        found = dict(select_many(reader.db, "SELECT id, payload FROM spans WHERE id IN (%s)", chunk))
        for row in chunk:
            yield row, _decode_or_empty(reader, instead.get(row) or found[row])


def _decode_or_empty(reader: Reader, payload: bytes) -> dict[str, JSON]:
    """Decode a payload; return an empty one if it is damaged.

    A damaged span must block neither the indexing of other traces nor the deletion of its own trace.
    """
    try:
        return reader.payload(payload)
    except StoreError as error:
        log.warning("a span is left out of the text index: %s", error)
        return {}


def split_by_size(sized: Iterable[tuple[T, int]], limit: int) -> Iterator[list[T]]:
    """Split items into transactions of at most `limit` characters, or of one item that has more."""
    batch, characters = list[T](), 0
    for item, size in sized:
        if batch and characters + size > limit:
            yield batch
            batch, characters = [], 0
        batch.append(item)
        characters += size
    if batch:
        yield batch


def write_entries(writer: Reader, entries: Sequence[IndexEntry], disturbed: set[int]) -> int:
    """Write index entries on the writer's connection and remove their traces from `unindexed`; return the number of
    characters written.

    Traces in `disturbed` changed after their entries were read and stay in `unindexed`, as do traces that got spans
    meanwhile. Unchanged entries count as 0 characters.
    """
    current = [entry for entry in entries if entry.trace not in disturbed]
    written = [entry for entry in current if entry.text is not None]
    # Deletes and inserts each trace in turn: FTS5 begins a new segment whenever a key is lower than the one before
    for entry in written:
        if entry.old is not None and entry.old != entry.text:
            _delete_texts(writer.db, [(entry.trace, entry.old)])
            _add_texts(writer.db, [(entry.trace, entry.text)])
    _add_texts(writer.db, [(entry.trace, entry.text) for entry in written if entry.old is None])
    delete_many(writer.db, "replaced", "trace", [entry.trace for entry in written if entry.old is not None])
    _record_entries(writer.db, [(entry.trace, entry.upto, entry.again) for entry in written])
    now = dict(
        select_many(
            writer.db, "SELECT id, runs_change FROM traces WHERE id IN (%s)", [entry.trace for entry in current]
        )
    )
    done = [entry.trace for entry in current if now.get(entry.trace) == entry.runs_change]
    delete_many(writer.db, "unindexed", "trace", done)
    characters = sum(entry.characters for entry in written if entry.old != entry.text)
    _merge_after_write(writer.db, characters)
    return characters


def write_buffered(writer: Reader, buffer: TextBuffer, limit: int, settled: float, overdue: float) -> int:
    """Write the entries of due traces in the buffer (see `TextBuffer.due`); return the number of characters, at most
    about `limit`.

    Runs in its own transaction, after all buffered text has been committed.
    """
    buffer.settle()
    due = buffer.due(limit, settled, overdue)
    if len(due) > INSERT_MULTIPLE:  # the remaining traces follow in the next round
        due = due[: len(due) // INSERT_MULTIPLE * INSERT_MULTIPLE]
    found = {key: taken for key in due if (taken := buffer.take(key)) is not None}
    _add_texts(writer.db, [(key, taken.text) for key, taken in found.items()])
    _record_entries(writer.db, [(key, taken.upto, int(taken.size * REINDEX_GROWTH)) for key, taken in found.items()])
    delete_many(writer.db, "unindexed", "trace", found)
    characters = sum(len(taken.text) for taken in found.values())
    _merge_after_write(writer.db, characters)
    return characters


def configure_merging(db: sqlite3.Connection) -> None:
    """Configure FTS5 to merge segments on request; the file stores the settings.

    A full disk or a damaged index leaves the settings unchanged.
    """
    with suppress(sqlite3.Error):
        found = dict(db.execute("SELECT k, v FROM words_config").fetchall())
        for name, value in (("automerge", 0), ("usermerge", MERGE_SEGMENTS), ("crisismerge", CRISIS_SEGMENTS)):
            if found.get(name) != value:
                db.execute("INSERT INTO words (words, rank) VALUES (?, ?)", (name, value))


def merge_segments(db: sqlite3.Connection, pages: int = MAX_MERGE_PAGES) -> bool:
    """Merge up to `pages` pages of segments; return whether there were any to merge."""
    before = db.total_changes
    db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return db.total_changes - before > 1  # FTS5 documents that the statement itself counts as one change


def count_pending_merges(characters: int) -> int:
    """Return the maximum number of merges (`MAX_MERGE_PAGES` pages each) that are due after one write of `characters`
    characters.
    """
    return characters // (CHARACTERS_PER_MERGE_PAGE * MAX_MERGE_PAGES)


def _merge_after_write(db: sqlite3.Connection, characters: int) -> None:
    """Merge as many pages as this number of characters requires, up to `MAX_MERGE_PAGES`."""
    if characters:
        merge_segments(db, min(MERGE_PAGES + characters // CHARACTERS_PER_MERGE_PAGE, MAX_MERGE_PAGES))


def _add_texts(db: sqlite3.Connection, rows: Sequence[tuple[int, str | None]]) -> None:
    split = [(trace, None if text is None else split_text(text)) for trace, text in rows]
    insert_many(db, "words", ("rowid", "text"), split, at_once=TRACES_PER_INSERT)


def _delete_texts(db: sqlite3.Connection, rows: Sequence[tuple[int, str]]) -> None:
    split = [(trace, split_text(text)) for trace, text in rows]
    db.executemany("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", split)


def _record_entries(db: sqlite3.Connection, rows: Sequence[tuple[int, int, int]]) -> None:
    insert_many(db, "indexed", _INDEXED, rows, build_upsert_clause(_INDEXED))


_INDEXED = ("trace", "upto", "again")


def keep_replaced_payload(db: sqlite3.Connection, row: int) -> None:
    """Keep the payload of an indexed span that is about to be overwritten, so that its index entry can be deleted
    later.
    """
    db.execute(
        "INSERT OR IGNORE INTO replaced (trace, span, payload) SELECT s.trace, s.id, s.payload FROM spans s"
        " JOIN indexed i ON i.trace = s.trace WHERE s.id = ? AND s.id <= i.upto",
        (row,),
    )


def remove_from_index(writer: Reader, keys: Iterable[int]) -> None:
    """Remove traces from the index. Must run before their payloads are deleted."""
    upto = dict(select_many(writer.db, "SELECT trace, upto FROM indexed WHERE trace IN (%s)", keys))
    for trace in sorted(upto):
        rows = [row for row in _span_rows(writer.db, trace) if row <= upto[trace]]
        text, _ = _trace_text(writer, rows, _replaced_payloads(writer.db, trace))
        _delete_texts(writer.db, [(trace, text)])
        _merge_after_write(writer.db, len(text))
    delete_many(writer.db, "indexed", "trace", upto)
    delete_many(writer.db, "replaced", "trace", upto)
