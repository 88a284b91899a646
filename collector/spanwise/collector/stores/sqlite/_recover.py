"""Saving what can be read of a damaged file into a new one, table by table; the damaged one is not written.

What can be made again is: sums of traces from their spans, the text index, the ids of lost traces from what still names
them. What cannot be made sense of without its neighbour (a span without its trace) is lost, and counted.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.stores.sqlite._append import Appender
from spanwise.collector.stores.sqlite._beside import connect_beside
from spanwise.collector.stores.sqlite._clock import Clock
from spanwise.collector.stores.sqlite._codec import Compressor
from spanwise.collector.stores.sqlite._lock import Lock, real
from spanwise.collector.stores.sqlite._maintenance import check
from spanwise.collector.stores.sqlite._open import open_writable
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._salvage import Row, Table
from spanwise.collector.stores.sqlite._schema import APPLICATION_IDS, KNOW_VALUES, MIGRATIONS, SUMS, count_anew, migrate
from spanwise.collector.stores.sqlite._sql import delete_many, find_many

MADE_AGAIN = (
    *("indexed", "replaced", "unindexed"),
    *("states", "orphans", "local_roots"),
    *SUMS,
)


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a table: rows that are in the new file, and that are not; None where nothing says how many."""

    table: str
    saved: int
    lost: int | None


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was saved, and in words what is not as it was; `problems` are what `check` finds in the new file."""

    tables: Sequence[Saved]
    notes: Sequence[str]
    problems: Sequence[str]


def recover(damaged: str, target: str) -> Recovered:
    """Make the file `target` of what can be read of `damaged`. Raises `Refused` if it is there, or nothing can."""
    if os.path.exists(target):
        raise Refused(f"{target!r} is there already; name a new file to save into")
    if not os.path.exists(damaged):
        raise Refused(f"there is no file {damaged!r}")
    with closing(_source(damaged)) as source:
        lock = Lock(real(target))
        try:
            with closing(open_writable(lock.path, version=_version(source))) as db:
                recovered = _recover(source, db)
        except BaseException:
            lock.undo()
            raise
        lock.release()
    return recovered


def _source(path: str) -> sqlite3.Connection:
    try:
        db = connect_beside(real(path), cut_off=True)
        db.text_factory = lambda text: text.decode("utf-8", "replace")
        return db
    except sqlite3.Error as error:
        raise Refused(
            f"nothing can be read of {path!r}: {error}; its very beginning is gone, restore a copy of the file"
        ) from error


def _version(source: sqlite3.Connection) -> int:
    if source.execute("PRAGMA application_id").fetchone()[0] not in APPLICATION_IDS:
        raise Refused("this is not one of Spanwise's files")
    version = int(source.execute("PRAGMA user_version").fetchone()[0])
    return version if 0 < version <= len(MIGRATIONS) else len(MIGRATIONS)


def _recover(source: sqlite3.Connection, db: sqlite3.Connection) -> Recovered:
    tables = [_copied(source, db, name) for name in _tables(db)]
    migrate(db, "the new file")
    _have_a_feed(db)
    notes = list(_mended(source, db))
    _index_again(db)
    count_anew(db)
    return Recovered(tables, notes, check(Reader(db), deep=True))


def _tables(db: sqlite3.Connection) -> list[str]:
    sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'words%'"
    return [row[0] for row in db.execute(sql + " ORDER BY name") if row[0] not in MADE_AGAIN]


def _copied(source: sqlite3.Connection, db: sqlite3.Connection, name: str) -> Saved:
    """Copy the rows of a table in one transaction; rows that contradict others stay away."""
    columns = _columns(db, name)
    table = Table(source, name, columns)
    marks = ",".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {name} ({','.join(columns)}) VALUES ({marks})"
    db.execute("BEGIN IMMEDIATE")
    db.execute(f"DELETE FROM {name}")  # what a migration has put there
    saved = sum(_insert(db, insert, row) for row in table)
    db.execute("COMMIT")
    expected = table.count()
    lost = max(0, expected - saved) if expected is not None else None if table.damaged else 0
    return Saved(name, saved, lost)


def _columns(db: sqlite3.Connection, name: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({name})")]


def _insert(db: sqlite3.Connection, sql: str, row: Row) -> int:
    with suppress(sqlite3.IntegrityError):  # of a page that was overwritten by something that looks like rows
        return db.execute(sql, row).rowcount
    return 0


def _have_a_feed(db: sqlite3.Connection) -> None:
    """The counter of changes, beyond all that was given out."""
    columns, values = "id, change, clock_ns, identity", "1, 0, 0, lower(hex(randomblob(8)))"
    db.execute(f"INSERT OR IGNORE INTO feed ({columns}) VALUES ({values})")
    for numbered in ("SELECT max(change) FROM traces", "SELECT max(said) FROM feedback"):
        db.execute(f"UPDATE feed SET change = max(change, coalesce(({numbered}), 0))")


def _mended(source: sqlite3.Connection, db: sqlite3.Connection) -> Iterator[str]:
    appender = Appender(Reader(db), Clock(db))
    steps: tuple[tuple[str, Callable[[], int]], ...] = (
        ("traces were made again from their spans", lambda: _traces_again(source, db)),
        ("spans were given up, as nothing says of which trace they are", lambda: _without_trace(db)),
        ("spans have lost their resource", lambda: _resources_again(db)),
        ("spans have lost what they hold (inputs, outputs, attributes)", lambda: _contents_again(db)),
        ("feedbacks have lost their trace", lambda: _feedback_again(appender, db)),
        ("traces have lost spans", lambda: _sums_again(appender, db)),
        ("ids of models' answers have lost their span", lambda: _without_span(db)),
        ("values of menus and filters were found in traces", lambda: _values_again(db)),
    )
    for what, step in steps:
        db.execute("BEGIN IMMEDIATE")
        count = step()
        db.execute("COMMIT")
        if count:
            yield f"{count} {what}"


def _traces_again(source: sqlite3.Connection, db: sqlite3.Connection) -> int:
    """The index over ids of traces holds their keys, too, and may be whole where the table is not."""
    missing = {
        row[0] for row in db.execute("SELECT DISTINCT trace FROM spans WHERE trace NOT IN (SELECT id FROM traces)")
    }
    found: list[tuple[str, int]] = []
    for order in ("ASC", "DESC") if missing else ():
        sql = f"SELECT trace_id, id FROM traces INDEXED BY sqlite_autoindex_traces_1 ORDER BY trace_id {order}"
        with suppress(sqlite3.Error):
            found += [row for row in source.execute(sql) if row[1] in missing]
    return sum(_insert(db, "INSERT OR IGNORE INTO traces (trace_id, id) VALUES (?, ?)", row) for row in found)


def _without_trace(db: sqlite3.Connection) -> int:
    return db.execute("DELETE FROM spans WHERE trace NOT IN (SELECT id FROM traces)").rowcount


def _without_span(db: sqlite3.Connection) -> int:
    """A span that comes later may get the number of one that is lost, and must not answer to its id."""
    return db.execute("DELETE FROM responses WHERE span NOT IN (SELECT id FROM spans)").rowcount


def _values_again(db: sqlite3.Connection) -> int:
    return sum(db.execute(statement).rowcount for statement in KNOW_VALUES)


def _resources_again(db: sqlite3.Connection) -> int:
    missing = "resource NOT IN (SELECT id FROM resources)"
    [count] = db.execute(f"SELECT count(*) FROM spans WHERE {missing}").fetchone()
    if count:
        last = "max((SELECT max(resource) FROM spans), (SELECT coalesce(max(id), 0) FROM resources))"
        db.execute(f"INSERT OR IGNORE INTO resources (id, data) SELECT {last} + 1, '{{}}'")
        [empty] = db.execute("SELECT id FROM resources WHERE data = '{}'").fetchone()
        db.execute(f"UPDATE spans SET resource = ? WHERE {missing}", (empty,))
    return int(count)


def _contents_again(db: sqlite3.Connection) -> int:
    reader, nothing = Reader(db), Compressor().all([b'{"inputs":null,"outputs":null}'])[0]
    rows = db.execute("SELECT id, payload FROM spans")
    bad = [(nothing, row) for row, payload in rows if not _is_readable(reader, payload)]
    db.executemany("UPDATE spans SET payload = ? WHERE id = ?", bad)
    return len(bad)


def _is_readable(reader: Reader, payload: Any) -> bool:
    try:
        return isinstance(reader.payload(payload), Mapping)
    except (StoreError, TypeError):
        return False


def _feedback_again(appender: Appender, db: sqlite3.Connection) -> int:
    """Feedback names its trace by id, too: it waits for that one, as if it had come before it."""
    sql = "SELECT id, trace_id FROM feedback WHERE trace IS NOT NULL AND trace NOT IN (SELECT id FROM traces)"
    homeless = db.execute(sql).fetchall()
    appender.forget()  # traces were made again, whose keys it does not know
    keys = appender.keys(trace_id for _, trace_id in homeless if trace_id)
    moved = [(keys.get(trace_id), row) for row, trace_id in homeless]
    db.executemany("UPDATE feedback SET trace = ? WHERE id = ?", moved)
    return len(homeless)


_WRONG = (
    "SELECT trace_id FROM traces t WHERE span_count <> (SELECT count(*) FROM spans WHERE trace = t.id)"
    " OR running <> (SELECT count(*) FROM open_runs o WHERE o.trace_id = t.trace_id)"
    " OR (span_count > 0 AND (change IS NULL OR runs_change IS NULL OR change < runs_change"
    " OR NOT EXISTS (SELECT 1 FROM spans WHERE id = t.root)))"
)


def _sums_again(appender: Appender, db: sqlite3.Connection) -> int:
    """Sum up anew every trace whose sums are not those of its spans; one that has none any more is nobody's."""
    wrong = [row[0] for row in db.execute(_WRONG)]
    keyed = dict(find_many(db, "SELECT trace_id, id FROM traces WHERE trace_id IN (%s)", wrong))
    here = {row[0] for row in find_many(db, "SELECT DISTINCT trace FROM spans WHERE trace IN (%s)", keyed.values())}
    appender.sum_up([trace_id for trace_id, key in keyed.items() if key in here])
    gone = [key for key in keyed.values() if key not in here]
    delete_many(db, "traces", "id", gone)
    for trace_id, key in keyed.items():
        if key not in here and db.execute("SELECT 1 FROM feedback WHERE trace = ?", (key,)).fetchone():
            db.execute("INSERT INTO traces (id, trace_id) VALUES (?, ?)", (key, trace_id))
    return len(wrong)


def _index_again(db: sqlite3.Connection) -> None:
    """The words of all traces, by whoever opens the file next."""
    db.execute("INSERT OR IGNORE INTO unindexed (trace, since_ns) SELECT id, 0 FROM traces WHERE span_count > 0")
