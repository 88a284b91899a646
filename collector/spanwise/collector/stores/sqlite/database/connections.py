"""Connections: settings, SQLite error translation, reader of stored runs, pool of read connections.

A query belongs to the question that its thread was asked (`spanwise.collector.request_context`), and ends with it. SQLite's
progress handler looks between two steps of a query, in the thread that runs it; what is one step to it, as a beginning
of a word that the text index looks up, ends when whoever keeps the question interrupts the connection. A connection
that was in use by a question that was stopped is closed: nobody else meets an interrupt that came late.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import zstandard

from spanwise.collector.errors import Closed, Halted, Refused, StoreError, Unavailable
from spanwise.collector.formatting import error_group
from spanwise.collector.records import JSON, Run
from spanwise.collector.request_context import CURRENT_QUERY, CancellableQuery
from spanwise.collector.stores.sqlite.database.bulk_statements import iterate_rows, select_many
from spanwise.collector.stores.sqlite.database.column_values import loads
from spanwise.collector.stores.sqlite.database.file_lock import OwnerProcess
from spanwise.collector.stores.sqlite.database.schema import MIGRATIONS, PAGE_SIZE, migrate
from spanwise.collector.stores.sqlite.write.run_codec import (
    SPAN_COLUMN_COUNT,
    Fact,
    PayloadDecoder,
    decode_run,
    extract_fact,
)

FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
READONLY_CODES = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

DAMAGED_ADVICE = (
    "see what with `spanwise db check`, save what can be read with `spanwise db recover`, or restore a copy of the file"
)


def is_disk_full(error: Exception) -> bool:
    """Whether there was no room."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in FULL_CODES


def translate_error(error: Exception) -> Exception:
    """What may work later is `Unavailable`, a damaged file `Halted`; what is no error of SQLite stays as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if is_disk_full(error):
        return Unavailable(f"the database cannot be written now: {error}; make room on its disk", retry_after=5.0)
    if code in READONLY_CODES:
        way_out = "may this user write it and in its folder, and is its disk mounted for writing?"
        return Unavailable(f"the database cannot be written now: {error}; {way_out}", retry_after=5.0)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"the database is locked by another program: {error}")
    if extended == sqlite3.SQLITE_CORRUPT_VTAB:  # of an index, which holds nothing of its own
        return StoreError(f"the text index is damaged: {error}; {DAMAGED_ADVICE}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Halted(f"the database is damaged: {error}; {DAMAGED_ADVICE}")
    if "too large" in str(error) or "too many" in str(error) or "too deep" in str(error):  # for any later try as well
        return Refused(f"this is more than the database takes in one question: {error}")
    return StoreError(f"the database refused: {error}")


@contextmanager
def translate_file_errors(path: str) -> Iterator[None]:
    """A driver's error about a file as one of the contract's, which names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise _file_error(path, error) from error


def _file_error(path: str, error: sqlite3.Error) -> Exception:
    if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
        return Refused(f"cannot open {path!r}: is its folder there, and may this user write in it?")
    translated = translate_error(error)
    kind = Refused if isinstance(translated, Halted) else type(translated)  # what does not open today never will
    return kind(f"{path!r}: {translated}") if isinstance(translated, StoreError) else error


READER_CACHE_KB = 2048  # of each reader; what it lacks the system has, and no question measured was slower for it


def connect_without_lock(path: str, *, cut_off: bool = False) -> sqlite3.Connection:
    """Reads the file at a real path beside whoever writes it. A copy that nobody may write is read as it stands.
    `cut_off`: even one that has fewer pages than it says.

    Raises `Refused` where there is a log that only who may write can read, `sqlite3.Error` where there is no database.
    """
    if not os.path.exists(path + "-wal"):  # while a process has the file open there is one
        return _open_uri(path, "immutable=1", cut_off)
    try:
        return _open_uri(path, "mode=ro", cut_off)
    except sqlite3.OperationalError as error:
        raise Refused(
            f"{path!r} cannot be read here: part of it is in {path + '-wal'!r}, and to read that in takes a folder in"
            " which this user may write; copy both files into one"
        ) from error


def _open_uri(path: str, how: str, cut_off: bool) -> sqlite3.Connection:
    # Nothing is written: with a schema that could be, SQLite does not ask how many pages there are
    first = ["PRAGMA writable_schema = ON"] if cut_off else []
    return connect_read_only(f"file:{quote(path)}?{how}", *first, "PRAGMA schema_version", uri=True)  # opens the log


def connect_read_only(address: str, *first: str, uri: bool = False) -> sqlite3.Connection:
    """A connection that cannot write; a path as address is for the process that holds the file. `first` is executed
    before the file is looked into.
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
    """Whether this user may write a file that is there, and beside it."""
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK)


MIN_SQLITE_VERSION = (3, 35, 0)
AUTOCHECKPOINT_BYTES = 256 * 2**20  # bytes of log after which SQLite checkpoints within a commit: see `_checkpoint`
WAL_SIZE_LIMIT = (
    32 * 2**20
)  # bytes that the log's file keeps when it begins anew: to overwrite them is cheaper than to grow


def open_writable(path: str, version: int = len(MIGRATIONS)) -> sqlite3.Connection:
    """The one writing connection, on a file of the newest version (or, if it is new, of an older one)."""
    _check_library()
    with translate_file_errors(path):
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0, cached_statements=256)
        try:
            _configure(db)
            migrate(db, path, version)
        except BaseException:
            db.close()
            raise
        return db


def _check_library() -> None:
    """Raises `Refused` if this Python's SQLite is too old or was built without full-text search."""
    if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
        oldest = ".".join(map(str, MIN_SQLITE_VERSION))
        raise Refused(f"this Python is linked to SQLite {sqlite3.sqlite_version}, and Spanwise needs {oldest} or newer")
    with closing(sqlite3.connect(":memory:")) as db:
        if not any(row[0] == "ENABLE_FTS5" for row in db.execute("PRAGMA compile_options")):
            _try_fts5(db)


def _try_fts5(db: sqlite3.Connection) -> None:
    try:
        db.execute("CREATE VIRTUAL TABLE words USING fts5 (text)")
    except sqlite3.OperationalError as error:
        raise Refused("this Python's SQLite was built without FTS5, which Spanwise's text index needs") from error


def _configure(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # `_durable` has on the disk what is acknowledged
    [page] = db.execute("PRAGMA page_size").fetchone()  # an older file keeps its own
    db.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_BYTES // page}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_SIZE_LIMIT}")
    db.execute("PRAGMA cache_size = -32768")  # KB; twice that was no faster onto a million spans
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten, whatever SQLite was built with


CACHED_RESOURCES, CACHED_RESOURCE_CHARACTERS = 1_000, 4_000  # that are remembered, and characters of one
_SPAN_COLUMNS = ",".join(f"s.{name}" for name in Fact._fields[:SPAN_COLUMN_COUNT])
_SELECT_RUNS = f"SELECT s.trace, s.resource, s.payload, {_SPAN_COLUMNS} FROM spans s WHERE s.trace IN (%s)"
SELECT_RUN = f"SELECT s.id, s.resource, s.payload, {_SPAN_COLUMNS} FROM spans s WHERE "  # as `Reader.run` takes a row


_START_COLUMN, _END_COLUMN = (3 + Fact._fields.index(name) for name in ("start_ns", "end_ns"))  # in a row of `_RUNS`


def _time_order(row: Sequence[Any]) -> tuple[int, int]:
    return row[_START_COLUMN], -row[_END_COLUMN]


class StoredRun(NamedTuple):
    """A run as the file has it."""

    row: int
    resource: int  # its row in `resources`
    run: Run
    fact: Fact
    amended: dict[str, JSON]  # fields that came later, which are in the run, too


class Reader:
    """A connection, and what it takes to turn rows into runs."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.question: CancellableQuery | None = None  # what it reads for; see `_pool`
        self._decoder = PayloadDecoder({})
        self._resources: dict[int, dict[str, JSON]] = {}

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more for what it reads."""
        return self.question is not None and self.question.is_over

    def look(self) -> None:
        """For loops that do not ask the file. Raises what `Question.check` raises."""
        if self.question is not None:
            self.question.check()

    def runs_of(self, traces: dict[int, str]) -> dict[int, list[Run]]:
        """All runs of traces (key: trace id), by start time."""
        by_trace: dict[int, list[Run]] = {key: [] for key in traces}
        for row in select_many(self.db, _SELECT_RUNS, traces):
            by_trace[row[0]].append(self.run(traces[row[0]], row))
        for runs in by_trace.values():
            runs.sort(key=lambda run: (run.start_ns, -run.end_ns))
        return by_trace

    def rows_of(self, keys: Sequence[int]) -> dict[int, list[Any]]:
        """The same as rows that nobody has read yet, as `run` takes them."""
        by_trace: dict[int, list[Any]] = {key: [] for key in keys}
        for row in select_many(self.db, _SELECT_RUNS, keys):
            by_trace[row[0]].append(row)
        for rows in by_trace.values():
            rows.sort(key=_time_order)
        return by_trace

    def apart(self, rows: Sequence[Any]) -> DetachedReader:
        """What reads these rows at any later time, without the file."""
        dictionaries = dict(self.db.execute("SELECT id, data FROM dictionaries").fetchall())
        return DetachedReader(self.db, PayloadDecoder(dictionaries), {row[1]: self._resource(row[1]) for row in rows})

    def in_order(self, trace_id: str, key: int) -> list[StoredRun]:
        """Runs of a trace in order of arrival."""
        rows = self.db.execute(f"{SELECT_RUN} s.trace = ? ORDER BY s.id", (key,)).fetchall()
        return [self._stored(trace_id, row) for row in rows]

    def in_rows(self, trace_id: str, rows: Sequence[int]) -> list[StoredRun]:
        """The runs in rows, in their order."""
        found = select_many(self.db, f"{SELECT_RUN} s.id IN (%s)", rows)
        return [self._stored(trace_id, row) for row in sorted(found, key=lambda row: row[0])]

    def stored(self, trace_id: str, row: int) -> StoredRun:
        """The run in a row."""
        return self._stored(trace_id, self.db.execute(f"{SELECT_RUN} s.id = ?", (row,)).fetchone())

    def _stored(self, trace_id: str, row: Sequence[Any]) -> StoredRun:
        payload = self.payload(row[2])
        run = decode_run(trace_id, row[3:], payload, self._resource(row[1]))
        fact, (sent, amended) = extract_fact(run), payload.get("amended", (None, {}))
        if sent is not None:
            fact = fact._replace(size=row[3 + Fact._fields.index("size")], sent=sent)
        return StoredRun(row[0], row[1], run, fact, amended)

    def payloads(self, rows: Sequence[int]) -> Iterator[tuple[int, dict[str, JSON]]]:
        """Payloads of spans with their row ids, one at a time: a thousand may each have megabytes."""
        for row, blob in iterate_rows(self.db, "SELECT id, payload FROM spans WHERE id IN (%s)", rows):
            yield row, self.payload(blob)

    def run(self, trace_id: str, row: Sequence[Any]) -> Run:
        """The run of a row: trace or id, resource, payload and the columns of a fact."""
        return decode_run(trace_id, row[3:], self.payload(row[2]), self._resource(row[1]))

    def payload(self, blob: bytes) -> dict[str, JSON]:
        """The JSON object of a payload. Raises `StoreError` if it is damaged."""
        self.look()
        try:
            return self.decoder(blob).payload(blob)
        except (zstandard.ZstdError, KeyError, ValueError) as error:  # of a dictionary that is gone, of JSON
            raise StoreError(
                f"what a span holds cannot be read, so the database is damaged: {error}; {DAMAGED_ADVICE}"
            ) from error

    def decoder(self, blob: bytes) -> PayloadDecoder:
        """A decoder that knows the dictionary of this payload."""
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
    """Reads rows that were fetched before, and never asks the connection, which is others' by now. For one thread."""

    def __init__(self, db: sqlite3.Connection, decoder: PayloadDecoder, resources: dict[int, dict[str, JSON]]) -> None:
        super().__init__(db)
        self._decoder, self._resources = decoder, resources

    def decoder(self, blob: bytes) -> PayloadDecoder:
        """The one that was made with the rows."""
        return self._decoder


CLOSED_MESSAGE = "the store is closed"
INTERRUPT_STEPS = 200_000  # of SQLite between two looks at whether it is to stop; some milliseconds
MAX_READERS = 8  # more would only share the same cores, and each has a page cache
IDLE_READERS = 3  # kept open for the next question; what a rush has opened beyond them would keep its cache for ever
READER_WAIT_SECONDS, POLL_SECONDS = (
    30.0,
    0.1,
)  # seconds for a reader to become free; between looks at whether anybody still waits


class ReaderPool:
    """A pool of at most `places` connections; who finds all in use waits. Not to be taken twice by one thread.

    `wait` is in seconds, `now` the store's clock, `store_now()` in SQL. `damaged` is called when the file turns out to
    be.
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
        self._connect, self._most, self._longest = connect, places, wait
        self.damaged: Callable[[Halted], object] = lambda _: None
        self._places = threading.BoundedSemaphore(places)
        self._lock = threading.Lock()
        self._free: list[Reader] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Reader]:
        """A reader in one consistent snapshot of the file.

        Raises `Unavailable` where none becomes free, `TooSlow` once the question has taken too long, and `Closed` once
        the store is, or nobody waits for the answer any more; the last two in mid-query, too.
        """
        self._origin.check()
        question = CURRENT_QUERY.get()
        self._wait(question)
        try:
            reader = self._take()
            try:
                self._begin(reader, question)
                yield reader
            except sqlite3.Error as error:
                raise self._why(error, question) from error
            finally:
                self._give_back(reader, question)
        finally:
            self._places.release()

    def _wait(self, question: CancellableQuery | None) -> None:
        until = time.monotonic() + self._longest
        while not self._places.acquire(timeout=POLL_SECONDS):
            if question is not None:
                question.check()
            if time.monotonic() > until:
                told = f"all {self._most} readers of the database have been busy for {self._longest:g} seconds"
                raise Unavailable(f"{told}; ask again in a moment", retry_after=2.0)

    def _take(self) -> Reader:
        with self._lock:
            if self._closed:
                raise Closed(CLOSED_MESSAGE)
            return self._free.pop() if self._free else self._new()

    def _new(self) -> Reader:
        try:
            db = self._connect(self._path)
        except sqlite3.Error as error:
            raise self._why(error, None) from error
        db.create_function("store_now", 0, self._now)
        db.create_function("error_group", 1, error_group, deterministic=True)
        reader = Reader(db)
        db.set_progress_handler(lambda: self._closed or reader.is_over, INTERRUPT_STEPS)
        return reader

    def _begin(self, reader: Reader, question: CancellableQuery | None) -> None:
        if question is not None:
            question.begin(reader.db.interrupt)
        reader.question = question
        reader.look()
        reader.db.execute("BEGIN")

    def _give_back(self, reader: Reader, question: CancellableQuery | None) -> None:
        reader.question = None
        if question is not None:
            question.end(reader.db.interrupt)
        sound = not (question is not None and question.is_over) and _end_snapshot(reader.db)
        with self._lock:
            if sound and not self._closed and len(self._free) < IDLE_READERS:
                self._free.append(reader)
                return
        reader.db.close()

    def _why(self, error: sqlite3.Error, question: CancellableQuery | None) -> Exception:
        if self._closed:
            return Closed(CLOSED_MESSAGE)
        if question is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            return question.refusal()
        translated = translate_error(error)
        if isinstance(translated, Halted):
            self.damaged(translated)
        return translated

    def close(self) -> None:
        """Close every connection, and give no more. One in use is closed by whoever gives it back, soon: closed under a
        thread that is inside of SQLite it would take the process with it.
        """
        with self._lock:
            self._closed = True
            while self._free:
                self._free.pop().db.close()


def _end_snapshot(db: sqlite3.Connection) -> bool:
    """End the snapshot; whether the connection is as it was before."""
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True
