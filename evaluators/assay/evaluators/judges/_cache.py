"""Answers that were given before: one SQLite file, shared by the processes of a user, of successes only.

Whatever is wrong with the file (damaged, locked, read-only, full, somebody else's) is said once and counted; judges go
on without it. An answer is written before it is used, so that a run that was killed pays for no judgement twice.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from assay.collector.records import Usage
from assay.evaluators.judges._ask import Ask, Completion, Token

if TYPE_CHECKING:
    from assay.evaluators.judges._judge import Judge

T = TypeVar("T")

log = logging.getLogger("assay.evaluators")

FORMAT = 1  # of keys and bodies; a file of another one is left alone
OURS = 0x41534A43  # "ASJC": SQLite's application_id of a cache
BYTES = 512 << 20  # that the file may have; the oldest answers go first
LARGEST = 4 << 20  # bytes of one answer
PATIENCE = 2.0  # seconds to wait for a file that another process is writing
REST = 30.0  # seconds without a file that has failed
_OFF = ("", "0", "off", "none", "false", "no")
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, made REAL NOT NULL, model TEXT NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_made ON answers (made);
"""


class NotOurs(sqlite3.DatabaseError):
    """A database of something else, or of a newer version."""


class Stats(NamedTuple):
    """What a cache holds: answers per model, bytes of the file, when the oldest and the newest were made (seconds)."""

    answers: int
    models: Mapping[str, int]
    bytes: int
    oldest: float | None
    newest: float | None


def default_path() -> Path | None:
    """ASSAY_CACHE (a path, or `off`), else a file in the user's cache directory; None: no cache."""
    given = os.environ.get("ASSAY_CACHE")
    if given is not None:
        return None if given.strip().lower() in _OFF else Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "assay", "judges.db")


def path_of(judge: Judge) -> Path | None:
    """Where the answers of a judge are kept; None: nowhere. Those of functions and scripts only where that is asked."""
    if judge.cache is None:
        return default_path() if judge.backend is None else None
    if isinstance(judge.cache, bool):
        return default_path() if judge.cache else None
    return Path(judge.cache).expanduser()


def key_of(judge: Judge, ask: Ask) -> bytes:
    """What an answer depends on, hashed: endpoint, model, parameters, messages, schema, log-probabilities, sample."""
    asked = (ask.messages, ask.schema, ask.name, ask.logprobs, ask.sample)
    said = orjson.dumps([FORMAT, dict(judge.identity), *asked], default=repr, option=orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(said).digest()


class Cache:
    """One file, opened when it is first used; of one process, any thread. Only `stats` and `clear` raise."""

    def __init__(self, path: Path, size: int = BYTES) -> None:
        self.path = path
        self.failures = 0
        self._size = size
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._rests_until = 0.0

    def get(self, key: bytes, max_age: float) -> Completion | None:
        """The answer that was kept under a key, unless it was made more than `max_age` seconds ago."""
        row = self._tried(
            lambda connection: connection.execute(
                "SELECT body FROM answers WHERE key = ? AND made >= ?", (key, time.time() - max_age)
            ).fetchone()
        )
        try:
            return None if row is None else _completion(row[0])
        except (ValueError, TypeError, KeyError, AttributeError):  # not as we write it
            self.failures += 1
            return None

    def put(self, key: bytes, completion: Completion) -> None:
        """Keep an answer."""
        body = _body(completion)
        if len(body) > LARGEST:
            return
        row = (key, time.time(), completion.model or "", body)

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)
                _bounded(connection, self._size)

        self._tried(write)

    def stats(self) -> Stats:
        """What it holds. Raises `sqlite3.Error` and `OSError`."""
        with self._lock:
            counted = self._opened().execute("SELECT model, count(*) FROM answers GROUP BY model ORDER BY 2 DESC, 1")
            models = dict(counted.fetchall())
            oldest, newest = self._opened().execute("SELECT min(made), max(made) FROM answers").fetchone()
        size = sum(path.stat().st_size for path in self._files() if path.exists())
        return Stats(sum(models.values()), models, size, oldest, newest)

    def clear(self, *, older_than: float | None = None, model: str | None = None) -> int:
        """Forget answers: all, or those made more than so many seconds ago, or of one model. Returns how many.

        Raises `sqlite3.Error` and `OSError`.
        """
        before = time.time() - older_than if older_than is not None else None
        with self._lock, self._opened() as connection:
            cleared = connection.execute(
                "DELETE FROM answers WHERE (:before IS NULL OR made < :before) AND (:model IS NULL OR model = :model)",
                {"before": before, "model": model},
            ).rowcount
        with self._lock:
            self._opened().execute("VACUUM")
        return cleared

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
                "the judges' cache %s cannot be used (%s): judges are asked anew. Move the file away, or set "
                "ASSAY_CACHE to another path or to off",
                self.path,
                error,
            )

    def _files(self) -> tuple[Path, ...]:
        return tuple(Path(f"{self.path}{suffix}") for suffix in ("", "-wal", "-shm"))

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connected(self.path)
        return self._connection


_complained: set[Path] = set()


def _connected(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite would ask the umask
    connection = sqlite3.connect(path, timeout=PATIENCE, check_same_thread=False)
    try:
        _set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    """Tables where there are none. Raises `NotOurs` before anything is changed in somebody else's file."""
    (application,), (version,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version) != (OURS, FORMAT) and (application or version or tables):
        what = "a newer version's" if application == OURS else "no cache of judges, but another database"
        raise NotOurs(f"it is {what}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if not tables:
        connection.executescript(
            f"BEGIN IMMEDIATE; {_TABLE} PRAGMA application_id = {OURS}; PRAGMA user_version = {FORMAT}; COMMIT;"
        )


def _bounded(connection: sqlite3.Connection, size: int) -> None:
    """Let the oldest tenth go when the pages in use are more than the file may have."""
    pages, free, page = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    if (pages - free) * page > size:
        connection.execute(
            "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY made LIMIT "
            "(SELECT 1 + count(*) / 10 FROM answers))"
        )


def _body(completion: Completion) -> bytes:
    told = asdict(completion)
    del told["headers"]
    return orjson.dumps(told, default=repr)


def _completion(body: bytes) -> Completion:
    told: dict[str, Any] = orjson.loads(body)
    usage = told.pop("usage")
    logprobs = tuple(Token(token["text"], token["logprob"], token["top"]) for token in told.pop("logprobs"))
    notes = tuple(told.pop("notes"))
    return Completion(usage=Usage(**usage) if usage else None, logprobs=logprobs, notes=notes, **told)
