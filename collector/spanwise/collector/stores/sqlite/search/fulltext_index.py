"""Full-text index: FTS5 entries per trace, re-indexing of growing traces, merging of segments.

One entry per trace, in an FTS5 table that keeps only which word is in which trace (no text, no positions): words can be
searched for, alone, together or by their beginning (`pay*`), phrases not. Entries are made behind the writer: `append`
leaves the trace's key in `unindexed`, in the same transaction, so that what is to be done survives a crash.

Texts come from memory (`_held`) where a trace is new, else from its payloads, read beside the writer. An entry that is
there is made anew as a whole, hence seldom: when the trace has grown by `GROWTH`, or rests for the longer the larger it
is. So each character is read and written a few times at most, however long a trace goes on.

SQLite 3.40 cannot delete from such a table by key alone: it wants the text that was indexed. That text is made again
from the payloads: `indexed.upto` says up to which row the spans were in, `replaced` has the payloads that were
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
from spanwise.collector.stores.sqlite.database.bulk_statements import (
    build_upsert_clause,
    delete_many,
    insert_many,
    iterate_rows,
    select_many,
)
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.search.searchable_text import MAX_TRACE_CHARACTERS, TextBuffer, iterate_leaves

log = logging.getLogger("spanwise.collector")

T = TypeVar("T")

TRACES_PER_ROUND = 400  # traces that are read back together
CHARACTERS_PER_ROUND = 2_000_000  # characters that are read back in one round, if no single trace has more
PAYLOADS_PER_READ = 50  # payloads that are read together
# Traces of one INSERT, at the end of which FTS5 writes a segment. A multiple of `LOT`, or fewer: SQLite prepares a
# statement anew for every other number of rows, and keeps it
TRACES_PER_INSERT, INSERT_MULTIPLE = 2_048, 128
# Characters of one transaction, if no single trace has more. Appends wait for it, but FTS5 writes a segment for each,
# and merges them: with 1,000 traces a transaction, a trace costs a third of what it does with 40
MIN_TRANSACTION_CHARACTERS, MAX_TRANSACTION_CHARACTERS = 25_000, 8_000_000
# Segments that are merged into one: as many as FTS5 lets be, as each word is written again with each level of merges. A
# question looks into each, some tens, which takes it microseconds. When as many as `TOO_MANY` stand in a level FTS5
# merges them all at once, whoever waits: new ones come while some are merged, hence it is above
MERGE_SEGMENTS, CRISIS_SEGMENTS = 16, 64
# Pages of 4 KB that each transaction merges, one more for so many characters, and at most. Left to itself FTS5 merges
# hundreds at once, now and then: thirty milliseconds, for which all others wait
MERGE_PAGES, CHARACTERS_PER_MERGE_PAGE, MAX_MERGE_PAGES = 8, 1_000, 100
TRANSACTION_SECONDS = 0.02  # seconds that it may take, within these bounds
SETTLE_NS = 1_000_000_000  # a trace is indexed when nothing has come for this long
OVERDUE_NS = 20_000_000_000  # or when it has waited for this long
REINDEX_GROWTH = 2  # times as many bytes as when it was indexed, and it is indexed anew
REINDEX_QUIET_NS = 10_000_000_000  # or when nothing has come for this long,
REINDEX_QUIET_NS_PER_BYTE = 125_000  # or for a second for each 8 KB of its payloads
NEVER_REINDEX_BYTES = 2**62  # bytes at which a trace of `CHARACTERS` is indexed anew

# How many wait, and since when; not of those that are in the index already, which grow and have no time promised. The
# first that came have the lowest keys, but for a few whose feedback came before them
SELECT_LAG = (
    "SELECT count(*), (SELECT min(since_ns) FROM (SELECT since_ns FROM unindexed u WHERE NOT EXISTS"
    " (SELECT 1 FROM indexed i WHERE i.trace = u.trace) ORDER BY u.trace LIMIT 1000)) FROM unindexed"
)


class DueTrace(NamedTuple):
    """A trace whose time it is."""

    trace: int
    upto: int | None  # row up to which it is in the index
    again: int | None  # `traces.size` from which on it is indexed anew
    size: int
    runs_change: int | None


class IndexEntry(NamedTuple):
    """What the index holds of a trace, None for nothing, and what it shall hold."""

    trace: int
    old: str | None
    text: str | None
    upto: int = 0
    again: int = 0
    runs_change: int | None = None  # of the trace as it was read

    @property
    def characters(self) -> int:
        """That are to be written, in the worst case."""
        return len(self.old or "") + len(self.text or "")


def find_due_traces(
    reader: Reader, now: int, held: Container[int] = frozenset(), *, overdue_only: bool = False
) -> list[DueTrace]:
    """Traces whose time it is, by the store's clock, but for those whose texts are in memory."""
    settled = 0 if overdue_only else now - SETTLE_NS
    keys = (key for (key,) in reader.db.execute("SELECT trace FROM unindexed ORDER BY trace") if key not in held)
    return [
        *islice(
            starmap(DueTrace, iterate_rows(reader.db, _SELECT_DUE, keys, (settled, now - OVERDUE_NS, now))),
            TRACES_PER_ROUND,
        )
    ]


def is_empty(reader: Reader) -> bool:
    """Whether nothing waits, nor will without anything being written."""
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
    """Entries of traces as they are now, read from their payloads; fewer than asked for if they are long."""
    left = CHARACTERS_PER_ROUND
    for one in due:
        if left <= 0:
            return
        entry = _read_entry(reader, one)
        left -= entry.characters
        yield entry


def _read_entry(reader: Reader, one: DueTrace) -> IndexEntry:
    replaced = _replaced_payloads(reader.db, one.trace)
    if one.again == NEVER_REINDEX_BYTES and not replaced:  # nothing of it changes any more
        return IndexEntry(one.trace, None, None, runs_change=one.runs_change)
    rows = _span_rows(reader.db, one.trace)
    if not rows:
        return IndexEntry(one.trace, None, None, runs_change=one.runs_change)
    text, old = _trace_text(reader, rows, upto=one.upto)
    if replaced and one.upto is not None:
        old, _ = _trace_text(reader, [row for row in rows if row <= one.upto], replaced)
    again = NEVER_REINDEX_BYTES if len(text) >= MAX_TRACE_CHARACTERS else int(one.size * REINDEX_GROWTH)
    return IndexEntry(one.trace, old, text, rows[-1], again, one.runs_change)


def _span_rows(db: sqlite3.Connection, trace: int) -> list[int]:
    return sorted(row[0] for row in db.execute("SELECT id FROM spans WHERE trace = ?", (trace,)))


def _replaced_payloads(db: sqlite3.Connection, trace: int) -> dict[int, bytes]:
    return dict(db.execute("SELECT span, payload FROM replaced WHERE trace = ?", (trace,)).fetchall())


def _trace_text(
    reader: Reader, rows: Sequence[int], instead: Mapping[int, bytes] = MappingProxyType({}), upto: int | None = None
) -> tuple[str, str | None]:
    """Every text and number of inputs and outputs once, in order, of so many rows as it takes; and how much of that
    the rows up to one have, None for none.
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
    whole = "\n".join(seen)[:MAX_TRACE_CHARACTERS]
    return whole, None if upto is None else whole[: max(0, before - 1)]


def _read_payloads(
    reader: Reader, rows: Sequence[int], instead: Mapping[int, bytes]
) -> Iterator[tuple[int, dict[str, JSON]]]:
    for start in range(0, len(rows), PAYLOADS_PER_READ):
        some = rows[start : start + PAYLOADS_PER_READ]
        found = dict(select_many(reader.db, "SELECT id, payload FROM spans WHERE id IN (%s)", some))
        for row in some:
            yield row, _decode_or_empty(reader, instead.get(row) or found[row])


def _decode_or_empty(reader: Reader, payload: bytes) -> dict[str, JSON]:
    """What a payload holds; nothing where it is damaged: no other trace waits for it, and its own can be deleted."""
    try:
        return reader.payload(payload)
    except StoreError as error:
        log.warning("a span is left out of the text index: %s", error)
        return {}


def split_by_size(sized: Iterable[tuple[T, int]], most: int) -> Iterator[list[T]]:
    """What to write in one transaction each: of so many characters at most, unless a single one has more."""
    some, characters = list[T](), 0
    for one, size in sized:
        if some and characters + size > most:
            yield some
            some, characters = [], 0
        some.append(one)
        characters += size
    if some:
        yield some


def write_entries(writer: Reader, entries: Sequence[IndexEntry], disturbed: set[int]) -> int:
    """Write the entries of traces, on the writer's connection, and take the traces off the list of those that wait;
    returns how many characters: none for what is in the index as it is.

    Traces in `disturbed` have changed since the entries were made; their turn comes again. So does that of traces to
    which spans have been added.
    """
    made = [entry for entry in entries if entry.trace not in disturbed]
    written = [entry for entry in made if entry.text is not None]
    for entry in written:  # each out and in at once: FTS5 begins a segment for a key that is lower than the last
        if entry.old is not None and entry.old != entry.text:
            _delete_texts(writer.db, [(entry.trace, entry.old)])
            _add_texts(writer.db, [(entry.trace, entry.text)])
    _add_texts(writer.db, [(entry.trace, entry.text) for entry in written if entry.old is None])
    delete_many(writer.db, "replaced", "trace", [entry.trace for entry in written if entry.old is not None])
    _record_entries(writer.db, [(entry.trace, entry.upto, entry.again) for entry in written])
    now = dict(
        select_many(writer.db, "SELECT id, runs_change FROM traces WHERE id IN (%s)", [one.trace for one in made])
    )
    done = [entry.trace for entry in made if now.get(entry.trace) == entry.runs_change]
    delete_many(writer.db, "unindexed", "trace", done)
    characters = sum(entry.characters for entry in written if entry.old != entry.text)
    _merge_after_write(writer.db, characters)
    return characters


def write_buffered(writer: Reader, held: TextBuffer, most: int, settled: float, overdue: float) -> int:
    """As `put`, for new traces whose texts are in memory still and whose time it is (see `Held.due`); returns how many
    characters, about `most` at most. In a transaction of its own, so that all that is in memory has been committed.
    """
    held.settle()
    due = held.due(most, settled, overdue)
    if len(due) > INSERT_MULTIPLE:  # the rest goes with what comes next
        due = due[: len(due) // INSERT_MULTIPLE * INSERT_MULTIPLE]
    found = {key: taken for key in due if (taken := held.take(key)) is not None}
    _add_texts(writer.db, [(key, taken.text) for key, taken in found.items()])
    _record_entries(writer.db, [(key, taken.upto, int(taken.size * REINDEX_GROWTH)) for key, taken in found.items()])
    delete_many(writer.db, "unindexed", "trace", found)
    characters = sum(len(taken.text) for taken in found.values())
    _merge_after_write(writer.db, characters)
    return characters


def configure_merging(db: sqlite3.Connection) -> None:
    """Have the index merge its segments when it is told to, which the file remembers; one that is full, or damaged
    there, goes on as it is.
    """
    with suppress(sqlite3.Error):
        found = dict(db.execute("SELECT k, v FROM words_config").fetchall())
        for name, value in (("automerge", 0), ("usermerge", MERGE_SEGMENTS), ("crisismerge", CRISIS_SEGMENTS)):
            if found.get(name) != value:
                db.execute("INSERT INTO words (words, rank) VALUES (?, ?)", (name, value))


def merge_segments(db: sqlite3.Connection, pages: int = MAX_MERGE_PAGES) -> bool:
    """Merge some of what was written before; whether there was anything to be merged."""
    before = db.total_changes
    db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return db.total_changes - before > 1  # the statement itself counts as one, as FTS5 documents it


def count_pending_merges(characters: int) -> int:
    """How often there is to be merged as much as goes at once, at most, after so many were written in one piece."""
    return characters // (CHARACTERS_PER_MERGE_PAGE * MAX_MERGE_PAGES)


def _merge_after_write(db: sqlite3.Connection, characters: int) -> None:
    """Merge as much as this many characters make necessary, and go at once."""
    if characters:
        merge_segments(db, min(MERGE_PAGES + characters // CHARACTERS_PER_MERGE_PAGE, MAX_MERGE_PAGES))


def _add_texts(db: sqlite3.Connection, rows: Sequence[tuple[int, str | None]]) -> None:
    insert_many(db, "words", ("rowid", "text"), rows, at_once=TRACES_PER_INSERT)


def _delete_texts(db: sqlite3.Connection, rows: Sequence[tuple[int, str]]) -> None:
    db.executemany("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", rows)


def _record_entries(db: sqlite3.Connection, rows: Sequence[tuple[int, int, int]]) -> None:
    insert_many(db, "indexed", _INDEXED, rows, build_upsert_clause(_INDEXED))


_INDEXED = ("trace", "upto", "again")


def keep_replaced_payload(db: sqlite3.Connection, row: int) -> None:
    """Keep the payload of a span that is about to be overwritten, if it is in the index, so that its words can go."""
    db.execute(
        "INSERT OR IGNORE INTO replaced (trace, span, payload) SELECT s.trace, s.id, s.payload FROM spans s"
        " JOIN indexed i ON i.trace = s.trace WHERE s.id = ? AND s.id <= i.upto",
        (row,),
    )


def remove_from_index(writer: Reader, keys: Iterable[int]) -> None:
    """Take traces out of the index, before their payloads go."""
    upto = dict(select_many(writer.db, "SELECT trace, upto FROM indexed WHERE trace IN (%s)", keys))
    for trace in sorted(upto):
        rows = [row for row in _span_rows(writer.db, trace) if row <= upto[trace]]
        text, _ = _trace_text(writer, rows, _replaced_payloads(writer.db, trace))
        _delete_texts(writer.db, [(trace, text)])
        _merge_after_write(writer.db, len(text))
    delete_many(writer.db, "indexed", "trace", upto)
    delete_many(writer.db, "replaced", "trace", upto)
