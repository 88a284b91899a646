"""What was worth making once: one SQLite file, shared by the processes of a user.

Whatever is wrong with it (damaged, locked, read-only, full, somebody else's) is said once and counted; who makes things
goes on without it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, TypeVar

from spanwise.tracer.cache_folder import cache_folder

T = TypeVar("T")

log = logging.getLogger("spanwise.evaluators")

BYTES = 512 << 20  # that a file may have; the oldest rows go first
PATIENCE = 2.0  # seconds to wait for a file that another process is writing
REST = 30.0  # seconds without a file that has failed
_OFF = ("", "0", "off", "none", "false", "no")


class NotOurs(sqlite3.DatabaseError):
    """A database of something else, or of a newer version."""


class CacheFile:
    """One file, opened when it is first used; of one process, any thread.

    A kind of cache says its `TABLE`, of which `made` is in seconds since the epoch, the SQLite `APPLICATION` id and the
    `FORMAT` that its files bear, and for people what it is of and what follows where it cannot be used. A file with the
    `FORMER_APPLICATION` id, from before the product was renamed, gets the present one.
    """

    APPLICATION: ClassVar[int]
    FORMER_APPLICATION: ClassVar[int]
    FORMAT: ClassVar[int]
    TABLE: ClassVar[str]
    COLUMNS: ClassVar[str]
    OF: ClassVar[str]
    WITHOUT: ClassVar[str]
    VARIABLE: ClassVar[str]

    def __init__(self, path: Path, size: int = BYTES) -> None:
        self.path = path
        self.failures = 0
        self._size = size
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._rests_until = 0.0

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _tried(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """What comes of it. What goes wrong with the file is counted, said once, and it is left alone for a while."""
        with self._lock:
            if time.monotonic() < self._rests_until:
                return None
            try:
                return work(self._opened())
            except (sqlite3.Error, OSError) as error:
                self._failed(error)
                return None

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._rests_until = time.monotonic() + REST
        if self._connection is not None and not isinstance(error, sqlite3.OperationalError):
            self._connection.close()
            self._connection = None
        if self.path not in _complained:
            _complained.add(self.path)
            log.warning(
                "the cache of %s %s cannot be used (%s): %s. Move the file away, or set %s to another path or to off",
                self.OF,
                self.path,
                error,
                self.WITHOUT,
                self.VARIABLE,
            )

    def _cleared(self, where: str, values: dict[str, object]) -> int:
        """Forget rows, and give their room back. Raises `sqlite3.Error` and `OSError`."""
        with self._lock, self._opened() as connection:
            cleared = connection.execute(f"DELETE FROM {self.TABLE} WHERE {where}", values).rowcount
        with self._lock:
            self._opened().execute("VACUUM")
        return cleared

    def _bytes(self) -> int:
        files = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal", "-shm"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite would ask the umask
        connection = sqlite3.connect(self.path, timeout=PATIENCE, check_same_thread=False)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        """Tables where there are none. Raises `NotOurs` before anything is changed in somebody else's file."""
        connection.execute("BEGIN")  # all of it as it is at one moment: another process may be setting it up
        (application,), (version,), (tables,) = (
            connection.execute(sql).fetchone()
            for sql in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        connection.rollback()
        was_renamed = application == self.FORMER_APPLICATION
        if was_renamed:
            application = self.APPLICATION
        if (application, version) != (self.APPLICATION, self.FORMAT) and (application or version or tables):
            newer = application == self.APPLICATION
            raise NotOurs("it is a newer version's" if newer else f"it is no cache of {self.OF}, but another database")
        _log_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        if was_renamed:
            connection.execute(f"PRAGMA application_id = {self.APPLICATION}")
        if not tables:
            connection.executescript(
                f"BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS {self.TABLE} ({self.COLUMNS}) WITHOUT ROWID;"
                f"CREATE INDEX IF NOT EXISTS {self.TABLE}_made ON {self.TABLE} (made);"
                f"PRAGMA application_id = {self.APPLICATION}; PRAGMA user_version = {self.FORMAT}; COMMIT;"
            )

    def _bounded(self, connection: sqlite3.Connection) -> None:
        """Let the oldest tenth go when the pages in use are more than the file may have."""
        pages, free, page = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * page > self._size:
            connection.execute(
                f"DELETE FROM {self.TABLE} WHERE key IN (SELECT key FROM {self.TABLE} ORDER BY made LIMIT "
                f"(SELECT 1 + count(*) / 10 FROM {self.TABLE}))"
            )


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Have it a write-ahead log. SQLite itself does not wait for another process that writes at this moment."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


_complained: set[Path] = set()


def path_in(variable: str, name: str) -> Path | None:
    """What a variable of the environment says (a path, or `off`: None), else a file in the user's cache directory."""
    given = os.environ.get(variable)
    if given is not None:
        return None if given.strip().lower() in _OFF else Path(given).expanduser()
    return of_user(name)


def of_user(name: str) -> Path:
    """A file or folder in the user's cache directory."""
    return cache_folder() / name
