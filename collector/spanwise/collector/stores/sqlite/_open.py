"""Opening the file: settings, migrations, and a clear word on a file that cannot be used."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite._errors import explained
from spanwise.collector.stores.sqlite._schema import MIGRATIONS, PAGE_SIZE, migrate

OLDEST = (3, 35, 0)
LAST_RESORT = 256 * 2**20  # bytes of log after which SQLite checkpoints within a commit: see `_checkpoint`
LOG_KEPT = 32 * 2**20  # bytes that the log's file keeps when it begins anew: to overwrite them is cheaper than to grow


def open_writable(path: str, version: int = len(MIGRATIONS)) -> sqlite3.Connection:
    """The one writing connection, on a file of the newest version (or, if it is new, of an older one)."""
    _check_library()
    with explained(path):
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
    if sqlite3.sqlite_version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
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
    db.execute(f"PRAGMA wal_autocheckpoint = {LAST_RESORT // page}")
    db.execute(f"PRAGMA journal_size_limit = {LOG_KEPT}")
    db.execute("PRAGMA cache_size = -32768")  # KB; twice that was no faster onto a million spans
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten, whatever SQLite was built with
