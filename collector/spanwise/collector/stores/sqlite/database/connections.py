"""Connections: settings, SQLite error translation, reader of stored runs, pool of read connections.

A query belongs to the request that its thread answers (`spanwise.collector.request_context`). It stops when the
request is cancelled or times out. SQLite's progress handler checks this between two steps of the query, in the thread
that runs it. One step can be long, such as the lookup of a word prefix in the full-text index. Therefore stopping a
request also interrupts the connection. The pool closes a connection whose request was stopped, so that a late
interrupt cannot affect the next request.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote

import zstandard

from spanwise.collector.errors import Closed, Halted, Refused, StoreError, Unavailable
from spanwise.collector.formatting import error_group
from spanwise.collector.records import JSON, Run
from spanwise.collector.request_context import CURRENT_QUERY, CancellableQuery
from spanwise.collector.stores.fork_protection import OwnerProcess
from spanwise.collector.stores.run_codec import SPAN_COLUMN_COUNT, Fact, decode_run, extract_fact
from spanwise.collector.stores.sqlite.database.schema import FILE_VERSION, PAGE_SIZE, migrate
from spanwise.collector.stores.sqlite.write.run_codec import PayloadDecoder
from spanwise.collector.stores.table_rows import iterate_rows, loads, select_many

FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
READONLY_CODES = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

DAMAGED_ADVICE = (
    "see what with `spanwise db check`, save what can be read with `spanwise db recover`, or restore a copy of the file"
)


def is_disk_full(error: Exception) -> bool:
    """Return whether the error means that the disk is full or failed."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in FULL_CODES


def translate_error(error: Exception) -> Exception:
    """Translate an SQLite error into an error of the store.

    A condition that may pass gives `Unavailable`, a damaged file gives `Halted`, and a query beyond SQLite's limits
    gives `Refused`. Other exceptions are returned unchanged.
    """
    if not isinstance(error, sqlite3.Error):
        return error
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if is_disk_full(error):
        return Unavailable(f"cannot write to the database: {error}; free space on its disk", retry_after=5.0)
    if code in READONLY_CODES:
        remedy = "check that this user may write the file and its folder, and that the disk is not mounted read-only"
        return Unavailable(f"cannot write to the database: {error}; {remedy}", retry_after=5.0)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"the database is locked by another program: {error}")
    if extended == sqlite3.SQLITE_CORRUPT_VTAB:  # only the full-text index is damaged, and it can be rebuilt
        return StoreError(f"the text index is damaged: {error}; {DAMAGED_ADVICE}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Halted(f"the database is damaged: {error}; {DAMAGED_ADVICE}")
    if "too large" in str(error) or "too many" in str(error) or "too deep" in str(error):  # a retry would fail as well
        return Refused(f"the query exceeds a limit of SQLite: {error}")
    return StoreError(f"database error: {error}")


@contextmanager
def translate_file_errors(path: str) -> Iterator[None]:
    """Translate SQLite errors within the block into errors of the store that name the file."""
    try:
        yield
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
            problem = f"cannot open {path!r}; check that its folder exists and that this user may write to it"
            raise Refused(problem) from error
        translated = translate_error(error)
        if not isinstance(translated, StoreError):
            raise
        # a damaged file will not open later either
        kind = Refused if isinstance(translated, Halted) else type(translated)
        raise kind(f"{path!r}: {translated}") from error


# per reader; the operating system caches other pages, and no measured query was slower than with a larger cache
READER_CACHE_KB = 2048


def connect_without_lock(path: str, *, cut_off: bool = False) -> sqlite3.Connection:
    """Open the file at a real path for reading, without the file lock, even while another process writes the file.

    A file without a write-ahead log is opened as immutable, so a read-only copy can be read. With `cut_off`, a file
    with fewer pages than its header states is accepted.

    Raises `Refused` if the write-ahead log cannot be read, because that requires write access to the folder. Raises
    `sqlite3.Error` if the file is no database.
    """
    if not os.path.exists(path + "-wal"):  # without a log, no process has the file open
        return _open_uri(path, "immutable=1", cut_off)
    try:
        return _open_uri(path, "mode=ro", cut_off)
    except sqlite3.OperationalError as error:
        raise Refused(
            f"{path!r} cannot be read: part of its data is in {path + '-wal'!r}, which SQLite can read only in a folder where"
            " this user may write; copy both files into such a folder"
        ) from error


def connect_beside_writer(path: str) -> sqlite3.Connection:
    """Open the file at a real path for reading for a long time, in which another process may begin to write it.

    Creates the file of an empty write-ahead log if this user may write the folder. Raises as `connect_without_lock`.
    """
    with suppress(sqlite3.OperationalError):
        return _open_uri(path, "mode=ro", False)
    return connect_without_lock(path)


def _open_uri(path: str, how: str, cut_off: bool) -> sqlite3.Connection:
    # `writable_schema` makes SQLite skip the check of the number of pages. The connection still writes nothing.
    first = ["PRAGMA writable_schema = ON"] if cut_off else []
    # The PRAGMA forces SQLite to open the log, so that a failure is raised here
    return connect_read_only(f"file:{quote(path)}?{how}", *first, "PRAGMA schema_version", uri=True)


def connect_read_only(address: str, *first: str, uri: bool = False) -> sqlite3.Connection:
    """Open a connection that cannot write, and run the statements `first` before the file is read.

    If `address` is a plain path, this process must hold the file lock.
    """
    db = sqlite3.connect(
        address, uri=uri, isolation_level=None, check_same_thread=False, timeout=5.0, cached_statements=256
    )
    try:
        for sql in ("PRAGMA query_only = ON", *first, f"PRAGMA cache_size = -{READER_CACHE_KB}"):
            db.execute(sql).fetchall()
    except sqlite3.Error:
        db.close()
        raise
    return db


def can_write(path: str) -> bool:
    """Return whether this user may write an existing file and its folder."""
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK)


MIN_SQLITE_VERSION = (3, 35, 0)
# Size of the log from which SQLite checkpoints within a commit: see `group_commit`
AUTOCHECKPOINT_BYTES = 256 * 2**20
# SQLite truncates the log file to this size when the log restarts, not to 0: overwriting is cheaper than growing a
# file.
WAL_SIZE_LIMIT = 32 * 2**20


def open_writable(
    path: str,
    version: int = FILE_VERSION,
    kind: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """Open the writing connection and migrate the file to the newest version.

    `version` creates a file of an older version, for recovery and tests. Raises `Refused` if the file cannot be used.
    """
    if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
        oldest = ".".join(map(str, MIN_SQLITE_VERSION))
        raise Refused(f"this Python is linked to SQLite {sqlite3.sqlite_version}, and Spanwise needs {oldest} or newer")
    with closing(sqlite3.connect(":memory:")) as probe:
        if not any(row[0] == "ENABLE_FTS5" for row in probe.execute("PRAGMA compile_options")):
            try:
                probe.execute("CREATE VIRTUAL TABLE words USING fts5 (text)")
            except sqlite3.OperationalError as error:
                raise Refused(
                    "this Python's SQLite was built without FTS5, which Spanwise's text index needs"
                ) from error
    with translate_file_errors(path):
        db = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=10.0, cached_statements=256, factory=kind
        )
        try:
            _configure(db)
            migrate(db, path, version)
        except BaseException:
            db.close()
            raise
        return db


def _configure(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # `group_commit.WalSync` syncs commits before they are acknowledged
    [page] = db.execute("PRAGMA page_size").fetchone()  # an older file keeps its page size
    db.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_BYTES // page}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_SIZE_LIMIT}")
    db.execute("PRAGMA cache_size = -32768")  # KB; twice as much was no faster when adding to a million spans
    db.execute("PRAGMA temp_store = MEMORY")
    # Deleted content is overwritten, even if SQLite was built with another default
    db.execute("PRAGMA secure_delete = ON")


# maximum number of cached resources, and maximum characters of each
CACHED_RESOURCES, CACHED_RESOURCE_CHARACTERS = 1_000, 4_000
_SPAN_COLUMNS = ",".join(f"s.{name}" for name in Fact._fields[:SPAN_COLUMN_COUNT])
_SELECT_RUNS = f"SELECT s.trace, s.resource, s.payload, {_SPAN_COLUMNS} FROM spans s WHERE s.trace IN (%s)"
# Columns as `Reader.run` expects them
SELECT_RUN = f"SELECT s.id, s.resource, s.payload, {_SPAN_COLUMNS} FROM spans s WHERE "


# Positions in a row of `_SELECT_RUNS`
_START_COLUMN, _END_COLUMN = (3 + Fact._fields.index(name) for name in ("start_ns", "end_ns"))


class StoredRun(NamedTuple):
    """A run with its row id, resource, and the values of its columns."""

    row: int
    resource: int  # row id in `resources`
    run: Run
    fact: Fact
    amended: dict[str, JSON]  # fields set by amendments, already applied to `run`


class Reader:
    """Read connection with the caches that decode rows into runs."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.question: CancellableQuery | None = None  # the current request, set by `ReaderPool`
        self._decoder = PayloadDecoder({})
        self._resources: dict[int, dict[str, JSON]] = {}

    @property
    def is_over(self) -> bool:
        """Return whether the request was cancelled or has timed out."""
        return self.question is not None and self.question.is_over

    def check_stopped(self) -> None:
        """Raise the errors of `CancellableQuery.check` if the current request was stopped. For loops that run no SQL."""
        if self.question is not None:
            self.question.check()

    def rows_of(self, keys: Sequence[int]) -> dict[int, list[Any]]:
        """Return the undecoded rows of all runs of traces, by start time. `run` decodes a row."""
        by_trace: dict[int, list[Any]] = {key: [] for key in keys}
        for row in select_many(self.db, _SELECT_RUNS, keys):
            by_trace[row[0]].append(row)
        for rows in by_trace.values():
            rows.sort(key=lambda row: (row[_START_COLUMN], -row[_END_COLUMN]))
        return by_trace

    def detach(self, rows: Iterable[Any]) -> DetachedReader:
        """Return a reader that can decode these rows later, without the connection."""
        dictionaries = dict(self.db.execute("SELECT id, data FROM dictionaries").fetchall())
        return DetachedReader(self.db, PayloadDecoder(dictionaries), {row[1]: self._resource(row[1]) for row in rows})

    def in_order(self, trace_id: str, key: int) -> list[StoredRun]:
        """Return the runs of a trace in order of arrival."""
        rows = self.db.execute(f"{SELECT_RUN} s.trace = ? ORDER BY s.id", (key,)).fetchall()
        return [self._stored(trace_id, row) for row in rows]

    def in_rows(self, trace_id: str, rows: Sequence[int]) -> list[StoredRun]:
        """Return the runs with these row ids, ordered by row id."""
        found = select_many(self.db, f"{SELECT_RUN} s.id IN (%s)", rows)
        return [self._stored(trace_id, row) for row in sorted(found, key=lambda row: row[0])]

    def stored(self, trace_id: str, row: int) -> StoredRun:
        """Return the run with this row id."""
        return self._stored(trace_id, self.db.execute(f"{SELECT_RUN} s.id = ?", (row,)).fetchone())

    def _stored(self, trace_id: str, row: Sequence[Any]) -> StoredRun:
        payload = self.payload(row[2])
        run = decode_run(trace_id, row[3:], payload, self._resource(row[1]))
        fact, (sent, amended) = extract_fact(run), payload.get("amended", (None, {}))
        if sent is not None:
            fact = fact._replace(size=row[3 + Fact._fields.index("size")], sent=sent)
        return StoredRun(row[0], row[1], run, fact, amended)

    def payloads(self, rows: Sequence[int]) -> Iterator[tuple[int, dict[str, JSON]]]:
        """Yield row ids and payloads of spans one at a time, because each payload may have megabytes."""
        for row, blob in self.encoded_payloads(rows):
            yield row, self.payload(blob)

    def encoded_payloads(self, rows: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield row ids and payloads of spans as they are stored, for `payload`."""
        yield from iterate_rows(self.db, "SELECT id, payload FROM spans WHERE id IN (%s)", rows)

    def run(self, trace_id: str, row: Sequence[Any]) -> Run:
        """Decode a row: trace key or row id, resource, payload, and the columns of `Fact`."""
        return decode_run(trace_id, row[3:], self.payload(row[2]), self._resource(row[1]))

    def payload(self, blob: bytes) -> dict[str, JSON]:
        """Decode the JSON object of a payload. Raises `StoreError` if it is damaged."""
        self.check_stopped()
        try:
            return self.decoder(blob).payload(blob)
        except (zstandard.ZstdError, KeyError, ValueError) as error:
            # Damaged data, a missing dictionary, or invalid JSON
            raise StoreError(
                f"the payload of a span cannot be read, so the database is damaged: {error}; {DAMAGED_ADVICE}"
            ) from error

    def decoder(self, blob: bytes) -> PayloadDecoder:
        """Return a decoder that has the dictionary of this payload."""
        if not self._decoder.knows_frame(blob):
            self._decoder = PayloadDecoder(dict(self.db.execute("SELECT id, data FROM dictionaries").fetchall()))
        return self._decoder

    def _resource(self, key: int) -> dict[str, JSON]:
        known = self._resources.get(key)
        if known is None:
            [data] = self.db.execute("SELECT data FROM resources WHERE id = ?", (key,)).fetchone() or ("{}",)
            known = loads(data)
            if len(data) <= CACHED_RESOURCE_CHARACTERS:
                if len(self._resources) > CACHED_RESOURCES:
                    self._resources.clear()
                self._resources[key] = known
        return known


class DetachedReader(Reader):
    """Reader of rows that were fetched before. It never uses the connection, which serves other requests by then.

    For one thread.
    """

    def __init__(self, db: sqlite3.Connection, decoder: PayloadDecoder, resources: dict[int, dict[str, JSON]]) -> None:
        super().__init__(db)
        self._decoder, self._resources = decoder, resources

    def decoder(self, blob: bytes) -> PayloadDecoder:
        """Return the decoder with the dictionaries read together with the rows."""
        return self._decoder


CLOSED_MESSAGE = "the store is closed"
INTERRUPT_STEPS = 200_000  # SQLite steps between two checks of the request; takes a few milliseconds
MAX_READERS = 8  # more readers would share the same cores, and each has a page cache
IDLE_READERS = 3  # readers kept open for later requests; others are closed, because each holds a page cache
# Longest wait for a free reader; interval of the checks for a cancelled request.
READER_WAIT_SECONDS, POLL_SECONDS = 30.0, 0.1


class ReaderPool:
    """Pool of at most `places` read connections. A caller waits for up to `wait` seconds while all are in use.

    A thread must not take two readers at once. `now` is the store's clock, available in SQL as `store_now()`. The
    pool calls `damaged` when the file turns out to be damaged.
    """

    def __init__(
        self,
        path: str,
        now: Callable[[], int],
        connect: Callable[[str], sqlite3.Connection] = connect_read_only,
        places: int = MAX_READERS,
        wait: float = READER_WAIT_SECONDS,
    ) -> None:
        self._path, self._now, self._origin = path, now, OwnerProcess()
        self._connect, self._max_readers, self._max_wait = connect, places, wait
        self.damaged: Callable[[Halted], object] = lambda _: None
        self._places = threading.BoundedSemaphore(places)
        self._lock = threading.Lock()
        self._free: list[Reader] = []
        self._closed = False

    @contextmanager
    def acquire(self) -> Iterator[Reader]:
        """Yield a reader in one consistent snapshot of the file.

        Raises `Unavailable` if no reader becomes free, `TooSlow` if the request takes too long, and `Closed` if the
        store is closed or the caller no longer waits. `TooSlow` and `Closed` may also interrupt a running query.
        """
        self._origin.check()
        question = CURRENT_QUERY.get()
        until = time.monotonic() + self._max_wait
        while not self._places.acquire(timeout=POLL_SECONDS):
            if question is not None:
                question.check()
            if time.monotonic() > until:
                problem = (
                    f"all {self._max_readers} readers of the database have been busy for {self._max_wait:g} seconds"
                )
                raise Unavailable(f"{problem}; retry in a moment", retry_after=2.0)
        try:
            with self._lock:
                if self._closed:
                    raise Closed(CLOSED_MESSAGE)
                reader = self._free.pop() if self._free else self._new()
            try:
                if question is not None:
                    question.begin(reader.db.interrupt)
                reader.question = question
                reader.check_stopped()
                reader.db.execute("BEGIN")
                yield reader
            except sqlite3.Error as error:
                raise self._translate(error, question) from error
            finally:
                self._give_back(reader, question)
        finally:
            self._places.release()

    def _new(self) -> Reader:
        try:
            db = self._connect(self._path)
        except sqlite3.Error as error:
            raise self._translate(error, None) from error
        db.create_function("store_now", 0, self._now)
        db.create_function("error_group", 1, error_group, deterministic=True)
        reader = Reader(db)
        db.set_progress_handler(lambda: self._closed or reader.is_over, INTERRUPT_STEPS)
        return reader

    def _give_back(self, reader: Reader, question: CancellableQuery | None) -> None:
        reader.question = None
        if question is not None:
            question.end(reader.db.interrupt)
        is_reusable = question is None or not question.is_over
        try:
            if is_reusable and reader.db.in_transaction:
                reader.db.execute("ROLLBACK")
        except sqlite3.Error:
            is_reusable = False
        with self._lock:
            if is_reusable and not self._closed and len(self._free) < IDLE_READERS:
                self._free.append(reader)
                return
        reader.db.close()

    def _translate(self, error: sqlite3.Error, question: CancellableQuery | None) -> Exception:
        if self._closed:
            return Closed(CLOSED_MESSAGE)
        if question is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            return question.refusal()
        translated = translate_error(error)
        if isinstance(translated, Halted):
            self.damaged(translated)
        return translated

    def close(self) -> None:
        """Close all idle connections and refuse further use.

        A connection in use is closed when it is given back. Closing it under a thread inside SQLite would crash the
        process.
        """
        with self._lock:
            self._closed = True
            while self._free:
                self._free.pop().db.close()
