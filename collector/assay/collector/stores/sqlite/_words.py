"""The text index: which words occur in the inputs and outputs of a trace's runs.

One entry per trace, in an FTS5 table that keeps only which word is in which trace (no text, no positions): words can be
searched for, alone, together or by their beginning (`pay*`), phrases not. Entries are made behind the writer: `append`
leaves the trace's key in `unindexed`, in the same transaction, so that what is to be done survives a crash.

SQLite 3.40 cannot delete from such a table by key alone: it wants the text that was indexed. That text is made again
from the payloads: `indexed.upto` says up to which row the spans were in. Hence whoever deletes a trace, or overwrites
a run, calls `remove` first, while the old payloads are still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from assay.collector.records import JSON
from assay.collector.stores.sqlite._reader import Reader
from assay.collector.stores.sqlite._sql import delete_many, find_many, insert_many

CHARACTERS = 200_000  # of one trace that are indexed, counted from its first span
ROUND = 100  # traces that are read together
PIECE, MOST = 25_000, 500_000  # characters of one transaction, if no single trace has more: appends wait for it
MOMENT = 0.01  # seconds that it may take, within these bounds
SETTLED_NS = 1_000_000_000  # a trace is indexed when nothing has come for this long
OVERDUE_NS = 20_000_000_000  # or when it has waited for this long


class Entry(NamedTuple):
    """What the index holds of a trace, or shall hold."""

    trace: int
    upto: int
    text: str


def waiting(reader: Reader, now: int, *, overdue_only: bool = False) -> list[int]:
    """Keys of traces whose time it is, by the store's clock."""
    settled = 0 if overdue_only else now - SETTLED_NS
    sql = (
        "SELECT u.trace FROM unindexed u LEFT JOIN traces t ON t.id = u.trace"
        " WHERE t.updated_ns IS NULL OR t.updated_ns < ? OR u.since_ns < ? ORDER BY u.trace LIMIT ?"
    )
    return [row[0] for row in reader.db.execute(sql, (settled, now - OVERDUE_NS, ROUND))]


def entries(reader: Reader, keys: Sequence[int]) -> list[Entry]:
    """Entries of traces as they are now."""
    return list(_entries(reader, dict.fromkeys(keys, 2**62)))


def _entries(reader: Reader, upto: dict[int, int]) -> Iterator[Entry]:
    rows: dict[int, list[tuple[int, bytes]]] = {}
    for trace, row, payload in find_many(reader.db, "SELECT trace, id, payload FROM spans WHERE trace IN (%s)", upto):
        if row <= upto[trace]:
            rows.setdefault(trace, []).append((row, payload))
    for trace, stored in rows.items():
        stored.sort()
        yield Entry(trace, stored[-1][0], _text(reader, [payload for _, payload in stored]))


def _text(reader: Reader, payloads: Iterable[bytes]) -> str:
    """Every text and number of inputs and outputs once, in order."""
    seen: dict[str, None] = {}
    size = 0
    for blob in payloads:
        payload = reader.payload(blob)
        for text in _leaves((payload.get("inputs"), payload.get("outputs"))):
            if text not in seen:
                seen[text] = None
                size += len(text) + 1
        if size > CHARACTERS:
            break
    return "\n".join(seen)[:CHARACTERS]


def _leaves(value: JSON) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, (list, tuple)):
            stack.extend(reversed(item))
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            yield str(item)


def pieces(keys: Sequence[int], entries: Sequence[Entry], size: int) -> Iterator[tuple[list[int], list[Entry]]]:
    """What to `put` in one transaction each, of so many characters at most: keys, and the entries of these; first all
    that have none.
    """
    without = set(keys).difference(entry.trace for entry in entries)
    if without:
        yield sorted(without), []
    some, characters = list[Entry](), 0
    for entry in entries:
        if some and characters + len(entry.text) > size:
            yield [one.trace for one in some], some
            some, characters = [], 0
        some.append(entry)
        characters += len(entry.text)
    if some:
        yield [one.trace for one in some], some


def put(writer: Reader, keys: Sequence[int], new: Sequence[Entry], disturbed: set[int]) -> None:
    """Write the entries of traces, on the writer's connection, and take the traces off the list of those that wait.

    Traces in `disturbed` have changed since the entries were made; their turn comes again. So does that of traces to
    which spans have been added.
    """
    new = [entry for entry in new if entry.trace not in disturbed]
    remove(writer, [entry.trace for entry in new])
    insert_many(writer.db, "words", ("rowid", "text"), [(entry.trace, entry.text) for entry in new])
    insert_many(writer.db, "indexed", ("trace", "upto"), [entry[:2] for entry in new])
    last = dict(find_many(writer.db, "SELECT trace, max(id) FROM spans WHERE trace IN (%s) GROUP BY trace", keys))
    upto = {entry.trace: entry.upto for entry in new}
    done = [key for key in keys if key not in disturbed and last.get(key, 0) <= upto.get(key, 0)]
    delete_many(writer.db, "unindexed", "trace", done)


def remove(writer: Reader, keys: Iterable[int]) -> None:
    """Take traces out of the index. Their payloads must still be as they were when they were put in."""
    upto = dict(find_many(writer.db, "SELECT trace, upto FROM indexed WHERE trace IN (%s)", keys))
    gone = list(_entries(writer, upto)) if upto else []
    writer.db.executemany(
        "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", [(entry.trace, entry.text) for entry in gone]
    )
    delete_many(writer.db, "indexed", "trace", upto)
