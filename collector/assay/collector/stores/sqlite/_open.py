"""Opening the file: settings, migrations, and a clear word on a file that cannot be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from assay.collector.errors import Refused, StoreError
from assay.collector.stores.sqlite._checkpoint import LAST_RESORT
from assay.collector.stores.sqlite._schema import PAGE_SIZE, migrate
from assay.collector.stores.sqlite._writer import translate

OLDEST = (3, 35, 0)


def open_writable(path: str) -> sqlite3.Connection:
    """The one writing connection, on a file of the newest version."""
    _check_library()
    with explained(path):
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0, cached_statements=256)
        try:
            _configure(db)
            migrate(db, path)
        except BaseException:
            db.close()
            raise
        return db


@contextmanager
def explained(path: str) -> Iterator[None]:
    """A driver's error about a file as one of the contract's, which names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, error) from error


def _check_library() -> None:
    """Raises `Refused` if this Python's SQLite is too old or was built without full-text search."""
    if sqlite3.sqlite_version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Refused(f"this Python is linked to SQLite {sqlite3.sqlite_version}, and Assay needs {oldest} or newer")
    with closing(sqlite3.connect(":memory:")) as db:
        if not any(row[0] == "ENABLE_FTS5" for row in db.execute("PRAGMA compile_options")):
            _try_fts5(db)


def _try_fts5(db: sqlite3.Connection) -> None:
    try:
        db.execute("CREATE VIRTUAL TABLE words USING fts5 (text)")
    except sqlite3.OperationalError as error:
        raise Refused("this Python's SQLite was built without FTS5, which Assay's text index needs") from error


def _configure(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # with group commit as fast as NORMAL, and an acknowledged span is on disk
    db.execute(f"PRAGMA wal_autocheckpoint = {LAST_RESORT}")
    db.execute("PRAGMA cache_size = -65536")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten, whatever SQLite was built with


def _explained(path: str, error: sqlite3.Error) -> Exception:
    if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
        return Refused(f"cannot open {path!r}: is its folder there, and may this user write in it?")
    found = translate(error)
    return type(found)(f"{path!r}: {found}") if isinstance(found, StoreError) else error
