"""SQLite cache files in the user's cache directory, and the cache of embedding vectors.

A cache file that cannot be used (damaged, locked, read-only, full, another program's) is logged once and counted. The
caller then works without the cache.

The vector cache stores hashes of texts, never the texts. A row that fails its checksum is ignored, and its text is
encoded again.
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

from spanwise.tracer.configuration import cache_folder

if TYPE_CHECKING:
    import numpy

    Vector = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]
    Vectors = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float32]]

T = TypeVar("T")

log = logging.getLogger("spanwise.evaluators")

MAX_CACHE_BYTES = 512 << 20  # maximum size of a file; the oldest rows are deleted first
LOCK_TIMEOUT_S = 2.0  # seconds to wait for a file that another process is writing
FAILURE_PAUSE_S = 30.0  # seconds for which a file is not used after it has failed
_OFF_VALUES = ("", "0", "off", "none", "false", "no")


class ForeignDatabase(sqlite3.DatabaseError):
    """Error for a database of another program, or of a newer version of the cache."""


class CacheFile:
    """SQLite cache file, opened on first use. Any thread of one process may use it.

    A subclass defines `TABLE`, the SQLite `APPLICATION` id and the `FORMAT` of its files. The table's column `made`
    is in seconds since the epoch. For warnings the subclass also defines the contents (`OF`) and the consequence of
    an unusable file (`WITHOUT`). A file with the `FORMER_APPLICATION` id was written before the product was renamed;
    it gets the present id.
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
        self._unused_until = 0.0

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _tried(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run `work` with the connection, and return its result. If the file causes an error, return None.

        The error is counted and logged once per path. For `FAILURE_PAUSE_S` seconds the file is not used again.
        """
        with self._lock:
            if time.monotonic() < self._unused_until:
                return None
            try:
                return work(self._opened())
            except (sqlite3.Error, OSError) as error:
                self._failed(error)
                return None

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._unused_until = time.monotonic() + FAILURE_PAUSE_S
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
        """Delete the rows that match a condition, and shrink the file. Return their number. Raises `sqlite3.Error` and
        `OSError`.
        """
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
        # create the file with these permissions: SQLite would apply the umask
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S, check_same_thread=False)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        """Create the tables if there are none. Raises `ForeignDatabase` before it changes another program's file."""
        # read the three values in one transaction, because another process may be creating the tables
        connection.execute("BEGIN")
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
                "it was written by a newer version" if newer else f"it is another database, not a cache of {self.OF}"
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
        """Delete the oldest tenth of the rows if the file's used pages exceed its maximum size."""
        pages, free, page = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * page > self._size:
            connection.execute(
                f"DELETE FROM {self.TABLE} WHERE key IN (SELECT key FROM {self.TABLE} ORDER BY made LIMIT "
                f"(SELECT 1 + count(*) / 10 FROM {self.TABLE}))"
            )


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log. SQLite does not wait here for another process that writes, so this function
    retries.
    """
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
    """Return the path that an environment variable names (None for `off`), or else a file in the user's cache
    directory.
    """
    given = os.environ.get(variable)
    if given is not None:
        return None if given.strip().lower() in _OFF_VALUES else Path(given).expanduser()
    return cache_folder() / name


MAX_AGE_S = 90 * 86_400.0  # seconds until a vector expires
_KEYS_PER_QUERY = 500  # keys per query: SQLite limits the number of parameters


class VectorStats(NamedTuple):
    """Statistics of the file: vectors per model, size in bytes, creation times of the oldest and newest vector (seconds
    since the epoch).
    """

    vectors: int
    models: Mapping[str, int]
    bytes: int
    oldest: float | None
    newest: float | None


class VectorFile(CacheFile):
    """Cache file of vectors. Only `stats` and `clear` raise."""

    APPLICATION = 0x53505643  # "SPVC" in ASCII
    FORMER_APPLICATION = 0x41535643  # "ASVC" in ASCII
    FORMAT = 1
    TABLE = "vectors"
    COLUMNS = "key BLOB PRIMARY KEY, made REAL NOT NULL, model TEXT NOT NULL, body BLOB NOT NULL"
    OF = "vectors"
    WITHOUT = "texts are encoded again"
    VARIABLE = "SPANWISE_VECTORS"

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored vectors by key as bytes, without expired ones."""
        since = time.time() - MAX_AGE_S
        slices = (keys[start : start + _KEYS_PER_QUERY] for start in range(0, len(keys), _KEYS_PER_QUERY))
        return {key: body for some in slices for key, body in self._select(some, since)}

    def _select(self, keys: Sequence[bytes], since: float) -> list[tuple[bytes, bytes]]:
        question = f"SELECT key, body FROM vectors WHERE made >= ? AND key IN ({', '.join('?' * len(keys))})"
        return self._tried(lambda file: file.execute(question, (since, *keys)).fetchall()) or []

    def keep(self, bodies: Mapping[bytes, bytes], model: str) -> None:
        """Store vectors in one transaction, and delete expired ones."""
        now = time.time()

        def write(file: sqlite3.Connection) -> None:
            with file:
                rows = ((key, now, model, body) for key, body in bodies.items())
                file.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)
                file.execute("DELETE FROM vectors WHERE made < ?", (now - MAX_AGE_S,))
                self._bounded(file)

        self._tried(write)

    def stats(self) -> VectorStats:
        """Return statistics of the file. Raises `sqlite3.Error` and `OSError`."""
        with self._lock:
            counted = self._opened().execute("SELECT model, count(*) FROM vectors GROUP BY model ORDER BY 2 DESC, 1")
            models = dict(counted.fetchall())
            oldest, newest = self._opened().execute("SELECT min(made), max(made) FROM vectors").fetchone()
        return VectorStats(sum(models.values()), models, self._bytes(), oldest, newest)

    def clear(self, *, older_than: float | None = None, model: str | None = None) -> int:
        """Delete all vectors, those older than `older_than` seconds, or those of one model. Return the number of
        deleted vectors.

        Raises `sqlite3.Error` and `OSError`.
        """
        before = time.time() - older_than if older_than is not None else None
        where = "(:before IS NULL OR made < :before) AND (:model IS NULL OR model = :model)"
        return self._cleared(where, {"before": before, "model": model})


class VectorCache:
    """Cached vectors of one model. `name` is the model's name for display, and `digest` identifies everything that the
    vectors depend on.
    """

    def __init__(self, path: Path, name: str, digest: str) -> None:
        self._path, self._name, self._digest = path, name, digest.encode()

    def get(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Return the cached vectors by text."""
        keys = {self._key(text): text for text in texts}
        rows = _get_vector_file(self._path).rows(list(keys))
        read = {keys[key]: vector for key, body in rows.items() if (vector := _decode_vector(body)) is not None}
        lengths = {len(vector) for vector in read.values()}
        return read if len(lengths) == 1 else {}

    def put(self, vectors: Mapping[str, Vector]) -> None:
        """Store vectors by text."""
        _get_vector_file(self._path).keep(
            {self._key(text): _encode_vector(vector) for text, vector in vectors.items()}, self._name
        )

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(self._digest + b"\0" + text.encode(errors="surrogatepass")).digest()


def default_vector_path() -> Path | None:
    """Return the path in SPANWISE_VECTORS (None for `off`), else a file in the user's cache directory."""
    return cache_path("SPANWISE_VECTORS", "vectors.db")


def vector_path(cache: bool | str | os.PathLike[str] | None, paid: bool) -> Path | None:
    """Return the path of the vector cache; None for no cache.

    If `cache` is None, the path comes from the environment variable SPANWISE_VECTORS. Without this variable, only
    vectors that cost money (`paid`) are cached.
    """
    if cache is None:
        return default_vector_path() if paid or "SPANWISE_VECTORS" in os.environ else None
    if isinstance(cache, bool):
        return default_vector_path() if cache else None
    return Path(cache).expanduser()


def folder_digest(folder: str | os.PathLike[str]) -> str:
    """Return a digest of a model's files.

    Small files are read in full. Of large files, samples across the file are read: training changes weights
    everywhere.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file() and not file.name.startswith(".") and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode(errors="surrogateescape"))
            digest.update(b"".join(file_samples(file)))
    return digest.hexdigest()


_SAMPLE_BYTES, _SAMPLE_COUNT = 1 << 16, 32


def file_samples(path: Path) -> Iterator[bytes]:
    """Yield a small file in full, or samples across a large file. Raises `OSError`."""
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
    """Return the vector stored in a row, or None if the row is not in the format of `_encode_vector`."""
    import numpy

    if not isinstance(body, bytes) or len(body) < 8 or len(body) % 4 or zlib.crc32(body[4:]).to_bytes(4) != body[:4]:
        return None
    # the array is read-only, like all cached vectors
    return numpy.frombuffer(body, dtype="<f4", offset=4).astype(numpy.float32, copy=False)


_vector_files: dict[Path, VectorFile] = {}
_parent_files: list[VectorFile] = []  # files of the parent process, which a forked child must not close


def _get_vector_file(path: Path) -> VectorFile:
    return _vector_files.get(path) or _vector_files.setdefault(path, VectorFile(path))


def forget_files_after_fork() -> None:
    """Drop references to the parent's open files in a forked child, without closing the files."""
    _parent_files.extend(_vector_files.values())
    _vector_files.clear()
