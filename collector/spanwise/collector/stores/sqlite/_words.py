"""The text index: which words occur in the inputs and outputs of a trace's runs.

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
from spanwise.collector.stores.sqlite._held import Held
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._sql import delete_many, each, find_many, insert_many, overwrite
from spanwise.collector.stores.sqlite._texts import CHARACTERS, leaves

log = logging.getLogger("spanwise.collector")

T = TypeVar("T")

ROUND = 400  # traces that are read back together
READ = 2_000_000  # characters that are read back in one round, if no single trace has more
ROWS = 50  # payloads that are read together
# Traces of one INSERT, at the end of which FTS5 writes a segment. A multiple of `LOT`, or fewer: SQLite prepares a
# statement anew for every other number of rows, and keeps it
ROWS_OF_WORDS, LOT = 2_048, 128
# Characters of one transaction, if no single trace has more. Appends wait for it, but FTS5 writes a segment for each,
# and merges them: with 1,000 traces a transaction, a trace costs a third of what it does with 40
PIECE, MOST = 25_000, 8_000_000
# Segments that are merged into one: as many as FTS5 lets be, as each word is written again with each level of merges. A
# question looks into each, some tens, which takes it microseconds. When as many as `TOO_MANY` stand in a level FTS5
# merges them all at once, whoever waits: new ones come while some are merged, hence it is above
SEGMENTS, TOO_MANY = 16, 64
# Pages of 4 KB that each transaction merges, one more for so many characters, and at most. Left to itself FTS5 merges
# hundreds at once, now and then: thirty milliseconds, for which all others wait
MERGED, MERGED_A_PAGE, MERGED_AT_ONCE = 8, 1_000, 100
MOMENT = 0.02  # seconds that it may take, within these bounds
SETTLED_NS = 1_000_000_000  # a trace is indexed when nothing has come for this long
OVERDUE_NS = 20_000_000_000  # or when it has waited for this long
GROWTH = 2  # times as many bytes as when it was indexed, and it is indexed anew
RESTED_NS = 10_000_000_000  # or when nothing has come for this long,
RESTED_NS_A_BYTE = 125_000  # or for a second for each 8 KB of its payloads
FULL = 2**62  # bytes at which a trace of `CHARACTERS` is indexed anew

# How many wait, and since when; not of those that are in the index already, which grow and have no time promised. The
# first that came have the lowest keys, but for a few whose feedback came before them
LAG = (
    "SELECT count(*), (SELECT min(since_ns) FROM (SELECT since_ns FROM unindexed u WHERE NOT EXISTS"
    " (SELECT 1 FROM indexed i WHERE i.trace = u.trace) ORDER BY u.trace LIMIT 1000)) FROM unindexed"
)


class Waiting(NamedTuple):
    """A trace whose time it is."""

    trace: int
    upto: int | None  # row up to which it is in the index
    again: int | None  # `traces.size` from which on it is indexed anew
    size: int
    runs_change: int | None


class Entry(NamedTuple):
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


def waiting(
    reader: Reader, now: int, held: Container[int] = frozenset(), *, overdue_only: bool = False
) -> list[Waiting]:
    """Traces whose time it is, by the store's clock, but for those whose texts are in memory."""
    settled = 0 if overdue_only else now - SETTLED_NS
    keys = (key for (key,) in reader.db.execute("SELECT trace FROM unindexed ORDER BY trace") if key not in held)
    return [*islice(starmap(Waiting, each(reader.db, _WAITING, keys, (settled, now - OVERDUE_NS, now))), ROUND)]


def is_empty(reader: Reader) -> bool:
    """Whether nothing waits, nor will without anything being written."""
    return reader.db.execute("SELECT 1 FROM unindexed LIMIT 1").fetchone() is None


_SETTLED = "(t.updated_ns < ? OR u.since_ns < ?)"
_WAITING = (
    "SELECT u.trace, i.upto, i.again, coalesce(t.size, 0), t.runs_change FROM unindexed u"
    " LEFT JOIN traces t ON t.id = u.trace LEFT JOIN indexed i ON i.trace = u.trace"
    f" WHERE (t.updated_ns IS NULL OR (coalesce(i.again, 0) <= t.size AND {_SETTLED})"
    f" OR t.updated_ns < ? - min({RESTED_NS}, max({SETTLED_NS}, t.size * {RESTED_NS_A_BYTE}))"
    f" OR (i.again = {FULL} AND NOT EXISTS (SELECT 1 FROM replaced r WHERE r.trace = u.trace)))"
    " AND u.trace IN (%s) ORDER BY u.trace"
)


def entries(reader: Reader, due: Iterable[Waiting]) -> Iterator[Entry]:
    """Entries of traces as they are now, read from their payloads; fewer than asked for if they are long."""
    left = READ
    for one in due:
        if left <= 0:
            return
        entry = _entry(reader, one)
        left -= entry.characters
        yield entry


def _entry(reader: Reader, one: Waiting) -> Entry:
    replaced = _replaced(reader.db, one.trace)
    if one.again == FULL and not replaced:  # nothing of it changes any more
        return Entry(one.trace, None, None, runs_change=one.runs_change)
    rows = _rows(reader.db, one.trace)
    if not rows:
        return Entry(one.trace, None, None, runs_change=one.runs_change)
    text, old = _text(reader, rows, upto=one.upto)
    if replaced and one.upto is not None:
        old, _ = _text(reader, [row for row in rows if row <= one.upto], replaced)
    again = FULL if len(text) >= CHARACTERS else int(one.size * GROWTH)
    return Entry(one.trace, old, text, rows[-1], again, one.runs_change)


def _rows(db: sqlite3.Connection, trace: int) -> list[int]:
    return sorted(row[0] for row in db.execute("SELECT id FROM spans WHERE trace = ?", (trace,)))


def _replaced(db: sqlite3.Connection, trace: int) -> dict[int, bytes]:
    return dict(db.execute("SELECT span, payload FROM replaced WHERE trace = ?", (trace,)).fetchall())


def _text(
    reader: Reader, rows: Sequence[int], instead: Mapping[int, bytes] = MappingProxyType({}), upto: int | None = None
) -> tuple[str, str | None]:
    """Every text and number of inputs and outputs once, in order, of so many rows as it takes; and how much of that
    the rows up to one have, None for none.
    """
    seen: dict[str, None] = {}
    size = before = 0
    for row, payload in _payloads(reader, rows, instead):
        for text in leaves((payload.get("inputs"), payload.get("outputs"))):
            if text not in seen:
                seen[text] = None
                size += len(text) + 1
        if upto is not None and row <= upto:
            before = size
        if size > CHARACTERS:
            break
    whole = "\n".join(seen)[:CHARACTERS]
    return whole, None if upto is None else whole[: max(0, before - 1)]


def _payloads(
    reader: Reader, rows: Sequence[int], instead: Mapping[int, bytes]
) -> Iterator[tuple[int, dict[str, JSON]]]:
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        found = dict(find_many(reader.db, "SELECT id, payload FROM spans WHERE id IN (%s)", some))
        for row in some:
            yield row, _readable(reader, instead.get(row) or found[row])


def _readable(reader: Reader, payload: bytes) -> dict[str, JSON]:
    """What a payload holds; nothing where it is damaged: no other trace waits for it, and its own can be deleted."""
    try:
        return reader.payload(payload)
    except StoreError as error:
        log.warning("a span is left out of the text index: %s", error)
        return {}


def pieces(sized: Iterable[tuple[T, int]], most: int) -> Iterator[list[T]]:
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


def put(writer: Reader, entries: Sequence[Entry], disturbed: set[int]) -> int:
    """Write the entries of traces, on the writer's connection, and take the traces off the list of those that wait;
    returns how many characters: none for what is in the index as it is.

    Traces in `disturbed` have changed since the entries were made; their turn comes again. So does that of traces to
    which spans have been added.
    """
    made = [entry for entry in entries if entry.trace not in disturbed]
    written = [entry for entry in made if entry.text is not None]
    for entry in written:  # each out and in at once: FTS5 begins a segment for a key that is lower than the last
        if entry.old is not None and entry.old != entry.text:
            _forget(writer.db, [(entry.trace, entry.old)])
            _add(writer.db, [(entry.trace, entry.text)])
    _add(writer.db, [(entry.trace, entry.text) for entry in written if entry.old is None])
    delete_many(writer.db, "replaced", "trace", [entry.trace for entry in written if entry.old is not None])
    _note(writer.db, [(entry.trace, entry.upto, entry.again) for entry in written])
    now = dict(find_many(writer.db, "SELECT id, runs_change FROM traces WHERE id IN (%s)", [one.trace for one in made]))
    done = [entry.trace for entry in made if now.get(entry.trace) == entry.runs_change]
    delete_many(writer.db, "unindexed", "trace", done)
    characters = sum(entry.characters for entry in written if entry.old != entry.text)
    _merge(writer.db, characters)
    return characters


def put_held(writer: Reader, held: Held, most: int, settled: float, overdue: float) -> int:
    """As `put`, for new traces whose texts are in memory still and whose time it is (see `Held.due`); returns how many
    characters, about `most` at most. In a transaction of its own, so that all that is in memory has been committed.
    """
    held.settle()
    due = held.due(most, settled, overdue)
    if len(due) > LOT:  # the rest goes with what comes next
        due = due[: len(due) // LOT * LOT]
    found = {key: taken for key in due if (taken := held.take(key)) is not None}
    _add(writer.db, [(key, taken.text) for key, taken in found.items()])
    _note(writer.db, [(key, taken.upto, int(taken.size * GROWTH)) for key, taken in found.items()])
    delete_many(writer.db, "unindexed", "trace", found)
    characters = sum(len(taken.text) for taken in found.values())
    _merge(writer.db, characters)
    return characters


def settle(db: sqlite3.Connection) -> None:
    """Have the index merge its segments when it is told to, which the file remembers; one that is full, or damaged
    there, goes on as it is.
    """
    with suppress(sqlite3.Error):
        found = dict(db.execute("SELECT k, v FROM words_config").fetchall())
        for name, value in (("automerge", 0), ("usermerge", SEGMENTS), ("crisismerge", TOO_MANY)):
            if found.get(name) != value:
                db.execute("INSERT INTO words (words, rank) VALUES (?, ?)", (name, value))


def merge(db: sqlite3.Connection, pages: int = MERGED_AT_ONCE) -> bool:
    """Merge some of what was written before; whether there was anything to be merged."""
    before = db.total_changes
    db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return db.total_changes - before > 1  # the statement itself counts as one, as FTS5 documents it


def left(characters: int) -> int:
    """How often there is to be merged as much as goes at once, at most, after so many were written in one piece."""
    return characters // (MERGED_A_PAGE * MERGED_AT_ONCE)


def _merge(db: sqlite3.Connection, characters: int) -> None:
    """Merge as much as this many characters make necessary, and go at once."""
    if characters:
        merge(db, min(MERGED + characters // MERGED_A_PAGE, MERGED_AT_ONCE))


def _add(db: sqlite3.Connection, rows: Sequence[tuple[int, str | None]]) -> None:
    insert_many(db, "words", ("rowid", "text"), rows, at_once=ROWS_OF_WORDS)


def _forget(db: sqlite3.Connection, rows: Sequence[tuple[int, str]]) -> None:
    db.executemany("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", rows)


def _note(db: sqlite3.Connection, rows: Sequence[tuple[int, int, int]]) -> None:
    insert_many(db, "indexed", _INDEXED, rows, overwrite(_INDEXED))


_INDEXED = ("trace", "upto", "again")


def replace(db: sqlite3.Connection, row: int) -> None:
    """Keep the payload of a span that is about to be overwritten, if it is in the index, so that its words can go."""
    db.execute(
        "INSERT OR IGNORE INTO replaced (trace, span, payload) SELECT s.trace, s.id, s.payload FROM spans s"
        " JOIN indexed i ON i.trace = s.trace WHERE s.id = ? AND s.id <= i.upto",
        (row,),
    )


def remove(writer: Reader, keys: Iterable[int]) -> None:
    """Take traces out of the index, before their payloads go."""
    upto = dict(find_many(writer.db, "SELECT trace, upto FROM indexed WHERE trace IN (%s)", keys))
    for trace in sorted(upto):
        rows = [row for row in _rows(writer.db, trace) if row <= upto[trace]]
        text, _ = _text(writer, rows, _replaced(writer.db, trace))
        _forget(writer.db, [(trace, text)])
        _merge(writer.db, len(text))
    delete_many(writer.db, "indexed", "trace", upto)
    delete_many(writer.db, "replaced", "trace", upto)
