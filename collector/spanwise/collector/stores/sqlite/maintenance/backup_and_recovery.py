"""Operations on a database file for `spanwise db`: inspection, backup, restore, recovery of damaged files."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from spanwise.collector import formatting
from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.stores.sqlite.database.connections import (
    Reader,
    connect_without_lock,
    open_writable,
    translate_error,
    translate_file_errors,
)
from spanwise.collector.stores.sqlite.database.file_lock import PRIVATE_MODE, FileLock, real_path
from spanwise.collector.stores.sqlite.database.schema import (
    APPLICATION_IDS,
    COLLECT_VALUES,
    FILE_VERSION,
    OLDEST_VERSION,
    ROLLUP_TABLES,
    mark_rollups_stale,
    migrate,
    outdated_file_error,
    read_version,
)
from spanwise.collector.stores.sqlite.database.score_sum_schema import (
    MEASURE_TABLE_NAMES,
    SCORE_SUM_TABLES,
    mark_score_sums_stale,
)
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.maintenance import integrity
from spanwise.collector.stores.sqlite.maintenance.integrity import check_integrity
from spanwise.collector.stores.sqlite.write.run_codec import PayloadCompressor
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.table_rows import delete_many, select_many

# Online backup of the database file, and restore from a backup.
#
# The backup uses SQLite's online backup API on a connection that stays in one snapshot. The writer continues, and its
# commits do not restart the copy. The copy has a temporary name until it is complete, durable and checked.
#
# A restore checks the backup, copies it into the folder of the target, moves the present file away, and renames the
# copy. If the process is killed meanwhile, the present file remains under its own or its new name.

STEP_PAGES = 256  # pages (4 MB) per step
PAUSE_SECONDS = 0.002  # seconds between two steps, because the writer needs the disk, too
PARTIAL_SUFFIX = ".part"  # suffix of an incomplete copy


def backup(source: str, target: str, step: Callable[[int, int], object] = lambda left, of: None) -> int:
    """Copy the file at `source` to the new file `target`, and return its bytes.

    `step` is called with the number of pages left and the total. Raise `Refused` if `target` exists, cannot be
    written, or the source is damaged. After an error, and if the process is killed, there is no file `target`.
    """
    if os.path.lexists(target):
        raise Refused(f"{target!r} already exists; name a new file for the backup")
    with translate_file_errors(source), closing(connect_without_lock(real_path(source))) as db:
        descriptor = create_partial(target + PARTIAL_SUFFIX)
        try:
            _copy_pages(db, target + PARTIAL_SUFFIX, step)
            os.fsync(descriptor)
            _refuse_damaged(target + PARTIAL_SUFFIX)
            os.link(target + PARTIAL_SUFFIX, target)  # fails if a file with this name was created meanwhile
            fsync_folder(target)
        finally:
            with suppress(OSError):
                os.unlink(target + PARTIAL_SUFFIX)
            os.close(descriptor)
    return os.path.getsize(target)


def create_partial(path: str) -> int:
    """Create or truncate the partial file and lock it. Raise `Refused` if another process is writing it.

    A partial file without a lock was left by a killed process.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_MODE)
    except OSError as error:
        raise Refused(f"cannot write {path!r}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise Refused(f"another process is writing {path!r}") from error
    return descriptor


def _copy_pages(db: sqlite3.Connection, path: str, step: Callable[[int, int], object]) -> None:
    def pause(status: int, remaining: int, of: int) -> None:
        step(remaining, of)
        time.sleep(PAUSE_SECONDS)

    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")  # one fsync at the end is enough
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the first read starts the snapshot
        try:
            db.backup(copy, pages=STEP_PAGES, progress=pause)
        except sqlite3.OperationalError as error:
            raise Refused(f"cannot write {path!r}: {error}") from error
        finally:
            db.execute("ROLLBACK")


def _refuse_damaged(path: str) -> None:
    with closing(connect_without_lock(real_path(path))) as copy:
        try:
            [result] = copy.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            result = str(error)
    if result != "ok":
        raise Refused(
            f"the file is damaged, and its copy would be ({result}): keep older backups, see `spanwise db check`"
        )


def fsync_folder(target: str) -> None:
    """Sync the folder, so that the file name is durable, too."""
    folder = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


COPY_SUFFIX = ".restoring"  # suffix of the copy until it replaces the file


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore: bytes of the database, and path of the file that it replaced (None if there was none)."""

    bytes: int
    replaced: str | None


def restore_backup(source: str, target: str, check: Callable[[str], list[str]]) -> RestoreResult:
    """Replace the file `target` by a copy of the backup `source`, and move the old file away.

    `check` returns the problems of a file. Raise `Refused`, and leave `target` as it is, if the backup is damaged or a
    process has `target` open.
    """
    target = real_path(target)
    if os.path.exists(target) and os.path.samefile(source, target):
        raise Refused(f"{source!r} is the file to be replaced; name a backup of it")
    _refuse_unsound(source, check)
    # a leftover WAL must not be applied to another file
    is_replaced = os.path.exists(target) or os.path.exists(target + "-wal")
    copy = target + COPY_SUFFIX
    lock = FileLock(target)
    try:
        with suppress(OSError):
            os.unlink(copy)  # left by a process that was killed
        backup(source, copy)
        _refuse_unsound(copy, check)
        replaced = _move_away(target) if is_replaced else None
        try:
            os.replace(copy, target)
            fsync_folder(target)
            _refuse_unsound(target, check)
        except BaseException:
            if replaced:
                _move_file(replaced, target)
            raise
    finally:
        lock.undo()  # also deletes the file if the lock created it
        with suppress(OSError):
            os.unlink(copy)
    return RestoreResult(os.path.getsize(target), replaced)


def _refuse_unsound(path: str, check: Callable[[str], list[str]]) -> None:
    try:
        with closing(connect_without_lock(real_path(path))) as db:
            read_version(db, path)
    except sqlite3.Error as error:
        raise Refused(f"{path!r} cannot be read: {error}; restore another backup") from error
    if problems := check(path):
        more = f" and {len(problems) - 1} more problems" if len(problems) > 1 else ""
        raise Refused(f"{path!r} is damaged: {problems[0]}{more}; restore another backup, or see `spanwise db recover`")


def _move_away(target: str) -> str:
    """Rename the file and its WAL, with the current time in the name, and return the new name."""
    name = f"{target}.replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    if os.path.lexists(name):
        raise Refused(f"{name!r} already exists; try again in a second")
    _move_file(target, name)
    return name


def _move_file(file: str, name: str) -> None:
    with suppress(FileNotFoundError):
        os.replace(file + "-wal", name + "-wal")
    with suppress(FileNotFoundError):
        os.unlink(file + "-shm")  # SQLite rebuilds it from the WAL
    os.replace(file, name)
    fsync_folder(name)


# Recovery of readable rows from a damaged database into a new file.
#
# Derived data is rebuilt: trace summaries from spans, the full-text index, and ids of lost traces from rows that name
# them. Rows without the row they depend on (such as a span without its trace) are dropped and counted.

TableRow = tuple[Any, ...]

MAX_ROWID = 2**63 - 1  # highest rowid; SQLite assigns rowids from 1
LOOKAHEAD_ROWS = 2**20  # rowids searched past the last known row if no index gives the maximum
MAX_TRIES = 50_000  # maximum number of reads within gaps (microseconds each); rows not found by then count as lost


class DamagedTable:
    """One-time iterator over the readable rows of a table. It sets `damaged` if some rows cannot be read."""

    def __init__(self, db: sqlite3.Connection, name: str, columns: Sequence[str]) -> None:
        self._db, self.name, self._columns = db, name, ",".join(columns)
        self.damaged = False

    def __iter__(self) -> Iterator[TableRow]:
        try:
            self._db.execute(f"SELECT rowid FROM {self.name} LIMIT 0")
        except sqlite3.OperationalError:  # the table has no rowid
            return self._from_both_ends()
        return self._by_number()

    def count(self) -> int | None:
        """Return the original number of rows; None if it cannot be read."""
        with suppress(sqlite3.Error):
            return int(self._db.execute(f"SELECT count(*) FROM {self.name}").fetchone()[0])
        return None

    def _by_number(self) -> Iterator[TableRow]:
        """Yield rows by rowid: ascending up to a damaged page, then descending from the end.

        The gap in between is halved, and both parts are read in the same way.
        """
        gaps, tries = deque([(0, MAX_ROWID)]), 0
        while gaps and tries < MAX_TRIES:
            low, high = gaps.popleft()
            tries += 1
            low = yield from self._walk(low, high, 1)
            if low > high:
                continue
            self.damaged = True
            high = yield from self._walk(low, high, -1)
            if high == MAX_ROWID:
                high = self._find_last_rowid(low)
            if low < high:
                middle = (low + high) // 2
                gaps += [(low, middle), (middle + 1, high)]

    def _walk(self, low: int, high: int, step: int) -> Generator[TableRow, None, int]:
        """Yield rows from one end of a gap until a row cannot be read, and return the new bound of the gap.

        If all rows were read, the bound is beyond the other end.
        """
        order = "ASC" if step > 0 else "DESC"
        sql = f"SELECT rowid, {self._columns} FROM {self.name} WHERE rowid BETWEEN ? AND ? ORDER BY rowid {order}"
        at = low if step > 0 else high
        with suppress(sqlite3.Error):
            for number, *row in self._db.execute(sql, (low, high)):
                # a damaged page that points back to an earlier one
                if not low <= number <= high or (number - at) * step < 0:
                    return at
                at = number + step
                yield tuple(row)
            return high + 1 if step > 0 else low - 1
        return at

    def _find_last_rowid(self, low: int) -> int:
        """Return the last rowid according to an index, or a guess if no index can be read."""
        indexes: list[str] = []
        with suppress(sqlite3.Error):
            indexes = [row[1] for row in self._db.execute(f"PRAGMA index_list({self.name})") if not row[4]]
        for index in indexes:
            with suppress(sqlite3.Error):
                sql = f"SELECT max(rowid) FROM {self.name} INDEXED BY {index}"
                return int(self._db.execute(sql).fetchone()[0] or low)
        return low + LOOKAHEAD_ROWS

    def _from_both_ends(self) -> Iterator[TableRow]:
        """Yield the rows of a table without rowids from both ends. A row may appear twice."""
        keys = [row[1] for row in self._db.execute(f"PRAGMA table_info({self.name})") if row[5]]
        for order in ("ASC", "DESC"):
            ordered = ",".join(f"{key} {order}" for key in keys)
            with suppress(sqlite3.Error):
                yield from self._db.execute(f"SELECT {self._columns} FROM {self.name} ORDER BY {ordered}")
                return
            self.damaged = True


REBUILT_TABLES = (
    *("indexed", "replaced", "unindexed"),
    *("states", "orphans", "local_roots"),
    *ROLLUP_TABLES,
    *SCORE_SUM_TABLES,
    *MEASURE_TABLE_NAMES,
    *("sums_latencies", "sums_said_of_days"),  # of older files
)


@dataclass(frozen=True, slots=True)
class TableRecovery:
    """Result for one table: rows saved and rows lost. `lost` is None if the original number is unknown."""

    table: str
    saved: int
    lost: int | None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of a recovery: rows saved per table, notes on changed data, and problems that `check` finds in the new
    file.
    """

    tables: Sequence[TableRecovery]
    notes: Sequence[str]
    problems: Sequence[str]


def recover(damaged: str, target: str) -> RecoveryReport:
    """Write all readable rows of `damaged` to the new file `target`.

    Raise `Refused` if `target` exists or nothing of `damaged` can be read.
    """
    if os.path.exists(target):
        raise Refused(f"{target!r} already exists; name a new file")
    if not os.path.exists(damaged):
        raise Refused(f"there is no file {damaged!r}")
    with closing(_open_damaged(damaged)) as source:
        lock = FileLock(real_path(target))
        try:
            with closing(open_writable(lock.path, version=_file_version(source))) as db:
                sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
                names = [row[0] for row in db.execute(f"{sql} AND name NOT LIKE 'words%' ORDER BY name")]
                tables = [_copy_table(source, db, name) for name in names if name not in REBUILT_TABLES]
                migrate(db, "the new file")
                # The change counter: created if it is missing, and advanced past all numbers in use
                columns, values = "id, change, clock_ns, identity", "1, 0, 0, lower(hex(randomblob(8)))"
                db.execute(f"INSERT OR IGNORE INTO feed ({columns}) VALUES ({values})")
                for numbered in ("SELECT max(change) FROM traces", "SELECT max(said) FROM feedback"):
                    db.execute(f"UPDATE feed SET change = max(change, coalesce(({numbered}), 0))")
                notes = list(_repair(source, db))
                # The next process that opens the file builds the full-text index
                db.execute(
                    "INSERT OR IGNORE INTO unindexed (trace, since_ns) SELECT id, 0 FROM traces WHERE span_count > 0"
                )
                mark_rollups_stale(db)
                mark_score_sums_stale(db)
                recovered = RecoveryReport(tables, notes, check_integrity(Reader(db), deep=True))
        except BaseException:
            lock.undo()
            raise
        lock.release()
    return recovered


def _open_damaged(path: str) -> sqlite3.Connection:
    try:
        db = connect_without_lock(real_path(path), cut_off=True)
        db.text_factory = lambda text: text.decode("utf-8", "replace")
        return db
    except sqlite3.Error as error:
        raise Refused(f"cannot read {path!r}: {error}; the start of the file is damaged, restore a backup") from error


def _file_version(source: sqlite3.Connection) -> int:
    if source.execute("PRAGMA application_id").fetchone()[0] not in APPLICATION_IDS:
        raise Refused("this is not a Spanwise database")
    version = int(source.execute("PRAGMA user_version").fetchone()[0])
    if 0 < version < OLDEST_VERSION:
        raise outdated_file_error("this file", version)
    return version if OLDEST_VERSION <= version <= FILE_VERSION else FILE_VERSION


def _copy_table(source: sqlite3.Connection, db: sqlite3.Connection, name: str) -> TableRecovery:
    """Copy the rows of a table in one transaction, except rows that violate constraints."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
    table = DamagedTable(source, name, columns)
    marks = ",".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {name} ({','.join(columns)}) VALUES ({marks})"
    db.execute("BEGIN IMMEDIATE")
    db.execute(f"DELETE FROM {name}")  # deletes rows that a migration inserted into the new file
    saved = sum(_insert_row(db, insert, row) for row in table)
    db.execute("COMMIT")
    expected = table.count()
    lost = max(0, expected - saved) if expected is not None else None if table.damaged else 0
    return TableRecovery(name, saved, lost)


def _insert_row(db: sqlite3.Connection, sql: str, row: TableRow) -> int:
    with suppress(sqlite3.IntegrityError):  # the row comes from a page overwritten with data that looks like rows
        return db.execute(sql, row).rowcount
    return 0


_DELETE_TRACELESS_SPANS = "DELETE FROM spans WHERE trace NOT IN (SELECT id FROM traces)"
_DELETE_SPANLESS_RESPONSES = "DELETE FROM responses WHERE span NOT IN (SELECT id FROM spans)"


def _repair(source: sqlite3.Connection, db: sqlite3.Connection) -> Iterator[str]:
    appender = Appender(Reader(db), StoreClock(db))
    steps: tuple[tuple[str, Callable[[], int]], ...] = (
        ("traces were restored from their spans", lambda: _restore_traces(source, db)),
        (
            "spans were deleted because their trace is unknown",
            lambda: db.execute(_DELETE_TRACELESS_SPANS).rowcount,
        ),
        ("spans have lost their resource", lambda: _repair_resources(db)),
        ("spans have lost their payload (inputs, outputs, attributes)", lambda: _repair_payloads(db)),
        ("feedback rows have lost their trace", lambda: _reattach_feedback(appender, db)),
        ("traces have lost spans", lambda: _rebuild_summaries(appender, db)),
        # A new span may get the row id of a lost one, and must not match its response id
        ("response ids have lost their span", lambda: db.execute(_DELETE_SPANLESS_RESPONSES).rowcount),
        (
            "values of filter menus were restored from traces",
            lambda: sum(db.execute(s).rowcount for s in COLLECT_VALUES),
        ),
    )
    for what, step in steps:
        db.execute("BEGIN IMMEDIATE")
        count = step()
        db.execute("COMMIT")
        if count:
            yield f"{count} {what}"


def _restore_traces(source: sqlite3.Connection, db: sqlite3.Connection) -> int:
    """Restore traces from the index on trace ids. It also holds their keys, and may be intact where the table is
    damaged.
    """
    missing = {
        row[0] for row in db.execute("SELECT DISTINCT trace FROM spans WHERE trace NOT IN (SELECT id FROM traces)")
    }
    found: list[tuple[str, int]] = []
    for order in ("ASC", "DESC") if missing else ():
        sql = f"SELECT trace_id, id FROM traces INDEXED BY sqlite_autoindex_traces_1 ORDER BY trace_id {order}"
        with suppress(sqlite3.Error):
            found += [row for row in source.execute(sql) if row[1] in missing]
    return sum(_insert_row(db, "INSERT OR IGNORE INTO traces (trace_id, id) VALUES (?, ?)", row) for row in found)


def _repair_resources(db: sqlite3.Connection) -> int:
    missing = "resource NOT IN (SELECT id FROM resources)"
    [count] = db.execute(f"SELECT count(*) FROM spans WHERE {missing}").fetchone()
    if count:
        last = "max((SELECT max(resource) FROM spans), (SELECT coalesce(max(id), 0) FROM resources))"
        db.execute(f"INSERT OR IGNORE INTO resources (id, data) SELECT {last} + 1, '{{}}'")
        [empty] = db.execute("SELECT id FROM resources WHERE data = '{}'").fetchone()
        db.execute(f"UPDATE spans SET resource = ? WHERE {missing}", (empty,))
    return int(count)


def _repair_payloads(db: sqlite3.Connection) -> int:
    """Replace payloads that cannot be read by an empty one."""
    reader, empty = Reader(db), PayloadCompressor().all([b'{"inputs":null,"outputs":null}'])[0]
    bad = []
    for row, payload in db.execute("SELECT id, payload FROM spans"):
        try:
            is_readable = isinstance(reader.payload(payload), Mapping)
        except (StoreError, TypeError):
            is_readable = False
        if not is_readable:
            bad.append((empty, row))
    db.executemany("UPDATE spans SET payload = ? WHERE id = ?", bad)
    return len(bad)


def _reattach_feedback(appender: Appender, db: sqlite3.Connection) -> int:
    """Attach feedback to its trace by trace id. If the trace is lost, the feedback waits for it to arrive."""
    sql = "SELECT id, trace_id FROM feedback WHERE trace IS NOT NULL AND trace NOT IN (SELECT id FROM traces)"
    homeless = db.execute(sql).fetchall()
    appender.forget()  # the cache lacks the keys of restored traces
    keys = appender.keys(trace_id for _, trace_id in homeless if trace_id)
    moved = [(keys.get(trace_id), row) for row, trace_id in homeless]
    db.executemany("UPDATE feedback SET trace = ? WHERE id = ?", moved)
    return len(homeless)


_SELECT_WRONG_TRACES = (
    "SELECT trace_id FROM traces t WHERE span_count <> (SELECT count(*) FROM spans WHERE trace = t.id)"
    " OR running <> (SELECT count(*) FROM open_runs o WHERE o.trace_id = t.trace_id)"
    " OR (span_count > 0 AND (change IS NULL OR runs_change IS NULL OR change < runs_change"
    " OR NOT EXISTS (SELECT 1 FROM spans WHERE id = t.root)))"
)


def _rebuild_summaries(appender: Appender, db: sqlite3.Connection) -> int:
    """Rebuild the summary of every trace that does not match its spans. Delete traces that have no spans left.

    Traces with feedback keep an empty row.
    """
    wrong = [row[0] for row in db.execute(_SELECT_WRONG_TRACES)]
    keyed = dict(select_many(db, "SELECT trace_id, id FROM traces WHERE trace_id IN (%s)", wrong))
    here = {row[0] for row in select_many(db, "SELECT DISTINCT trace FROM spans WHERE trace IN (%s)", keyed.values())}
    appender.sum_up([trace_id for trace_id, key in keyed.items() if key in here])
    gone = [key for key in keyed.values() if key not in here]
    delete_many(db, "traces", "id", gone)
    for trace_id, key in keyed.items():
        if key not in here and db.execute("SELECT 1 FROM feedback WHERE trace = ?", (key,)).fetchone():
            db.execute("INSERT INTO traces (id, trace_id) VALUES (?, ?)", (key, trace_id))
    return len(wrong)


# Read-only inspection of a database file for `spanwise db`: statistics, integrity check and SQL.

LIST_TABLES_SQL = """
SELECT m.name AS "table", group_concat(c.name, ', ') AS columns FROM sqlite_schema m, pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name NOT LIKE 'words_%' GROUP BY m.name ORDER BY m.name
"""


class DatabaseInspector:
    """Database file opened for reading."""

    def __init__(self, path: str) -> None:
        self._path = real_path(path)
        self._reader = Reader(connect_without_lock(self._path))
        # an SQL function cannot query on the connection that calls it
        self._payloads = Reader(connect_without_lock(self._path))
        db = self._reader.db
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # ATTACH would create a missing file
        db.create_function("payload", 1, self._payload, deterministic=True)
        db.create_function("iso", 1, lambda ns: formatting.utc(ns) if isinstance(ns, int) else None, deterministic=True)

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the connection, which cannot write."""
        return self._reader.db

    def is_ours(self) -> bool:
        """Return whether Spanwise created the file."""
        return self._reader.db.execute("PRAGMA application_id").fetchone()[0] in APPLICATION_IDS

    def stats(self) -> dict[str, Any]:
        """Return sizes in bytes, row counts, and projects with their share of the file."""
        return integrity.collect_stats(self._reader.db, self._path)

    def check(self, *, deep: bool = False) -> list[str]:
        """Return a message for each problem of the file. `deep` also reads every payload."""
        return integrity.check_integrity(self._reader, deep)

    def sql(self, query: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of one statement by column name. Raise `Refused` for invalid SQL.

        The statement may call `payload(id or blob)` and `iso(ns)`.
        """
        names, rows = self.select(query)
        for row in rows:
            yield dict(zip(names, row, strict=True))

    def select(self, query: str, parameters: Mapping[str, str] | None = None) -> tuple[list[str], Iterator[Any]]:
        """Return the names of the columns and the rows of one statement, as `sql` does."""
        with _refuse_invalid_sql():
            rows = self._reader.db.execute(query, parameters or {})

        def iterate() -> Iterator[Any]:
            with _refuse_invalid_sql():
                yield from rows

        return [column[0] for column in rows.description or ()], iterate()

    def _payload(self, value: object) -> str | None:
        if isinstance(value, int):
            row = self._payloads.db.execute("SELECT payload FROM spans WHERE id = ?", (value,)).fetchone()
            value = row[0] if row else None
        if not isinstance(value, bytes):
            return None
        return self._payloads.decoder(value).raw(value).decode()

    def close(self) -> None:
        self._reader.db.close()
        self._payloads.db.close()


@contextmanager
def _refuse_invalid_sql() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise Refused(f"invalid SQL: {error}") from error


@contextmanager
def open_any_database(path: str) -> Iterator[DatabaseInspector]:
    """Open any SQLite file for reading. Raise `Refused` if it is damaged."""
    try:
        with closing(DatabaseInspector(path)) as file:
            yield file
    except sqlite3.Error as error:
        raise translate_error(error) from error


@contextmanager
def open_inspector(path: str) -> Iterator[DatabaseInspector]:
    """Open a file for reading. Raise `Refused` if it is damaged or not a Spanwise file."""
    try:
        with closing(DatabaseInspector(path)) as file:
            if not file.is_ours():
                raise Refused(f"{path!r} is not a Spanwise database")
            yield file
    except sqlite3.Error as error:
        raise translate_error(error) from error


def check_file(path: str, *, deep: bool = False) -> list[str]:
    """Return a message for each problem of a file, also if it cannot be opened."""
    try:
        with open_inspector(path) as file:
            return file.check(deep=deep)
    except StoreError as error:
        return [str(error)]


def restore(source: str, target: str) -> RestoreResult:
    """Replace the file `target` by a copy of the backup `source`, and move the old file away. Raise `Refused` on
    failure.
    """
    return restore_backup(source, target, check_file)
