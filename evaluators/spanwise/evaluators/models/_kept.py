"""Vectors that outlive the process: one SQLite file of a user, shared by processes, by model and text.

Texts are not in it, only their hashes. A row that is not as it was written is no vector: the text is encoded anew.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spanwise.evaluators.models._cache_file import CacheFile, path_in

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vector

MAX_AGE = 90 * 86_400.0  # seconds that a vector is kept
_AT_ONCE = 500  # rows of a question: SQLite bounds the number of its values


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
        since = time.time() - MAX_AGE
        slices = (keys[start : start + _AT_ONCE] for start in range(0, len(keys), _AT_ONCE))
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
                file.execute("DELETE FROM vectors WHERE made < ?", (now - MAX_AGE,))
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


class KeptVectors:
    """Those of one model in a file: `name` is for people, `digest` all that its vectors depend on."""

    def __init__(self, path: Path, name: str, digest: str) -> None:
        self._path, self._name, self._digest = path, name, digest.encode()

    def get(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Those that are there."""
        keys = {self._key(text): text for text in texts}
        rows = _file(self._path).rows(list(keys))
        read = {keys[key]: vector for key, body in rows.items() if (vector := _vector(body)) is not None}
        lengths = {len(vector) for vector in read.values()}
        return read if len(lengths) == 1 else {}

    def put(self, vectors: Mapping[str, Vector]) -> None:
        """Keep some."""
        _file(self._path).keep({self._key(text): _body(vector) for text, vector in vectors.items()}, self._name)

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(self._digest + b"\0" + text.encode(errors="surrogatepass")).digest()


def default_path() -> Path | None:
    """SPANWISE_VECTORS (a path, or `off`), else a file in the user's cache directory; None: nowhere."""
    return path_in("SPANWISE_VECTORS", "vectors.db")


def path_for(cache: bool | str | os.PathLike[str] | None, paid: bool) -> Path | None:
    """Where vectors are kept. Where nothing is said: what the environment names, else only those that cost money."""
    if cache is None:
        return default_path() if paid or "SPANWISE_VECTORS" in os.environ else None
    if isinstance(cache, bool):
        return default_path() if cache else None
    return Path(cache).expanduser()


def digest_of(folder: str | os.PathLike[str]) -> str:
    """Of a model's files: all of the small ones, of the large ones samples all over them, which training changes."""
    said = hashlib.sha256()
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file() and not file.name.startswith(".") and "__pycache__" not in file.parts:
            said.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode(errors="surrogateescape"))
            said.update(b"".join(samples(file)))
    return said.hexdigest()


_SAMPLE, _SAMPLES = 1 << 16, 32


def samples(path: Path) -> Iterator[bytes]:
    """All of a small file; of a large one parts all over it. Raises `OSError`."""
    size = path.stat().st_size
    step = max(_SAMPLE, size // _SAMPLES)
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            yield file.read(_SAMPLE)


def _body(vector: Vector) -> bytes:
    raw = vector.astype("<f4").tobytes()
    return zlib.crc32(raw).to_bytes(4) + raw


def _vector(body: object) -> Vector | None:
    """None for what is not as `_body` makes it."""
    import numpy

    if not isinstance(body, bytes) or len(body) < 8 or len(body) % 4 or zlib.crc32(body[4:]).to_bytes(4) != body[:4]:
        return None
    return numpy.frombuffer(body, dtype="<f4", offset=4).astype(numpy.float32, copy=False)  # read-only, as all are


_files: dict[Path, VectorFile] = {}
_left: list[VectorFile] = []  # of the parent, in a forked child: not to be closed there


def _file(path: Path) -> VectorFile:
    return _files.get(path) or _files.setdefault(path, VectorFile(path))


def _after_fork() -> None:
    _left.extend(_files.values())
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
