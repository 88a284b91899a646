"""SQLite cache files in the user's cache directory, and the cache of embedding vectors.

Whatever is wrong with it (damaged, locked, read-only, full, somebody else's) is said once and counted; who makes things
goes on without it.

Texts are not in it, only their hashes. A row that is not as it was written is no vector: the text is encoded anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from spanwise.tracer.cache_folder import cache_folder

if TYPE_CHECKING:
    from spanwise.evaluators.models.inference_batching import Vector


T = TypeVar("T")

log = logging.getLogger("spanwise.evaluators")

MAX_CACHE_BYTES = 512 << 20  # that a file may have; the oldest rows go first
LOCK_TIMEOUT_S = 2.0  # seconds to wait for a file that another process is writing
FAILURE_PAUSE_S = 30.0  # seconds without a file that has failed
_OFF_VALUES = ("", "0", "off", "none", "false", "no")


class ForeignDatabase(sqlite3.DatabaseError):
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

    def __init__(self, path: Path, size: int = MAX_CACHE_BYTES) -> None:
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
        self._rests_until = time.monotonic() + FAILURE_PAUSE_S
        if self._connection is not None and not isinstance(error, sqlite3.OperationalError):
            self._connection.close()
            self._connection = None
        if self.path not in _warned_paths:
            _warned_paths.add(self.path)
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
        connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S, check_same_thread=False)
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
            raise ForeignDatabase(
                "it is a newer version's" if newer else f"it is no cache of {self.OF}, but another database"
            )
        _enable_wal(connection)
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


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Have it a write-ahead log. SQLite itself does not wait for another process that writes at this moment."""
    until = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


_warned_paths: set[Path] = set()


def cache_path(variable: str, name: str) -> Path | None:
    """What a variable of the environment says (a path, or `off`: None), else a file in the user's cache directory."""
    given = os.environ.get(variable)
    if given is not None:
        return None if given.strip().lower() in _OFF_VALUES else Path(given).expanduser()
    return user_cache_path(name)


def user_cache_path(name: str) -> Path:
    """A file or folder in the user's cache directory."""
    return cache_folder() / name


MAX_AGE_S = 90 * 86_400.0  # seconds that a vector is kept
_KEYS_PER_QUERY = 500  # rows of a question: SQLite bounds the number of its values


class VectorStats(NamedTuple):
    """What the file holds: vectors per model, its bytes, when the oldest and the newest were made (seconds)."""

    vectors: int
    models: Mapping[str, int]
    bytes: int
    oldest: float | None
    newest: float | None


class VectorFile(CacheFile):
    """Rows of vectors. Only `stats` and `clear` raise."""

    APPLICATION = 0x53505643  # "SPVC"
    FORMER_APPLICATION = 0x41535643  # "ASVC"
    FORMAT = 1
    TABLE = "vectors"
    COLUMNS = "key BLOB PRIMARY KEY, made REAL NOT NULL, model TEXT NOT NULL, body BLOB NOT NULL"
    OF = "vectors"
    WITHOUT = "texts are encoded anew"
    VARIABLE = "SPANWISE_VECTORS"

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The bodies that are there and not too old, by key."""
        since = time.time() - MAX_AGE_S
        slices = (keys[start : start + _KEYS_PER_QUERY] for start in range(0, len(keys), _KEYS_PER_QUERY))
        return {key: body for some in slices for key, body in self._of(some, since)}

    def _of(self, keys: Sequence[bytes], since: float) -> list[tuple[bytes, bytes]]:
        question = f"SELECT key, body FROM vectors WHERE made >= ? AND key IN ({', '.join('?' * len(keys))})"
        return self._tried(lambda file: file.execute(question, (since, *keys)).fetchall()) or []

    def keep(self, bodies: Mapping[bytes, bytes], model: str) -> None:
        """Add rows, in one transaction; old ones go."""
        now = time.time()

        def write(file: sqlite3.Connection) -> None:
            with file:
                rows = ((key, now, model, body) for key, body in bodies.items())
                file.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)
                file.execute("DELETE FROM vectors WHERE made < ?", (now - MAX_AGE_S,))
                self._bounded(file)

        self._tried(write)

    def stats(self) -> VectorStats:
        """What it holds. Raises `sqlite3.Error` and `OSError`."""
        with self._lock:
            counted = self._opened().execute("SELECT model, count(*) FROM vectors GROUP BY model ORDER BY 2 DESC, 1")
            models = dict(counted.fetchall())
            oldest, newest = self._opened().execute("SELECT min(made), max(made) FROM vectors").fetchone()
        return VectorStats(sum(models.values()), models, self._bytes(), oldest, newest)

    def clear(self, *, older_than: float | None = None, model: str | None = None) -> int:
        """Forget vectors: all, or those made more than so many seconds ago, or of one model. Returns how many.

        Raises `sqlite3.Error` and `OSError`.
        """
        before = time.time() - older_than if older_than is not None else None
        where = "(:before IS NULL OR made < :before) AND (:model IS NULL OR model = :model)"
        return self._cleared(where, {"before": before, "model": model})


class VectorCache:
    """Those of one model in a file: `name` is for people, `digest` all that its vectors depend on."""

    def __init__(self, path: Path, name: str, digest: str) -> None:
        self._path, self._name, self._digest = path, name, digest.encode()

    def get(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Those that are there."""
        keys = {self._key(text): text for text in texts}
        rows = _get_vector_file(self._path).rows(list(keys))
        read = {keys[key]: vector for key, body in rows.items() if (vector := _decode_vector(body)) is not None}
        lengths = {len(vector) for vector in read.values()}
        return read if len(lengths) == 1 else {}

    def put(self, vectors: Mapping[str, Vector]) -> None:
        """Keep some."""
        _get_vector_file(self._path).keep(
            {self._key(text): _encode_vector(vector) for text, vector in vectors.items()}, self._name
        )

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(self._digest + b"\0" + text.encode(errors="surrogatepass")).digest()


def default_vector_path() -> Path | None:
    """SPANWISE_VECTORS (a path, or `off`), else a file in the user's cache directory; None: nowhere."""
    return cache_path("SPANWISE_VECTORS", "vectors.db")


def vector_path(cache: bool | str | os.PathLike[str] | None, paid: bool) -> Path | None:
    """Where vectors are kept. Where nothing is said: what the environment names, else only those that cost money."""
    if cache is None:
        return default_vector_path() if paid or "SPANWISE_VECTORS" in os.environ else None
    if isinstance(cache, bool):
        return default_vector_path() if cache else None
    return Path(cache).expanduser()


def folder_digest(folder: str | os.PathLike[str]) -> str:
    """Of a model's files: all of the small ones, of the large ones samples all over them, which training changes."""
    said = hashlib.sha256()
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file() and not file.name.startswith(".") and "__pycache__" not in file.parts:
            said.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode(errors="surrogateescape"))
            said.update(b"".join(file_samples(file)))
    return said.hexdigest()


_SAMPLE_BYTES, _SAMPLE_COUNT = 1 << 16, 32


def file_samples(path: Path) -> Iterator[bytes]:
    """All of a small file; of a large one parts all over it. Raises `OSError`."""
    size = path.stat().st_size
    step = max(_SAMPLE_BYTES, size // _SAMPLE_COUNT)
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            yield file.read(_SAMPLE_BYTES)


def _encode_vector(vector: Vector) -> bytes:
    raw = vector.astype("<f4").tobytes()
    return zlib.crc32(raw).to_bytes(4) + raw


def _decode_vector(body: object) -> Vector | None:
    """None for what is not as `_body` makes it."""
    import numpy

    if not isinstance(body, bytes) or len(body) < 8 or len(body) % 4 or zlib.crc32(body[4:]).to_bytes(4) != body[:4]:
        return None
    return numpy.frombuffer(body, dtype="<f4", offset=4).astype(numpy.float32, copy=False)  # read-only, as all are


_vector_files: dict[Path, VectorFile] = {}
_parent_files: list[VectorFile] = []  # of the parent, in a forked child: not to be closed there


def _get_vector_file(path: Path) -> VectorFile:
    return _vector_files.get(path) or _vector_files.setdefault(path, VectorFile(path))


def _forget_files_after_fork() -> None:
    _parent_files.extend(_vector_files.values())
    _vector_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_files_after_fork)
