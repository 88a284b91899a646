"""Connections that change nothing: neither the file, nor what lies beside it, nor who may write."""

from __future__ import annotations

import os
import sqlite3
from urllib.parse import quote

from spanwise.collector.errors import Refused

CACHE_KB = 2048  # of each reader; what it lacks the system has, and no question measured was slower for it


def connect_beside(path: str, *, cut_off: bool = False) -> sqlite3.Connection:
    """Reads the file at a real path beside whoever writes it. A copy that nobody may write is read as it stands.
    `cut_off`: even one that has fewer pages than it says.

    Raises `Refused` where there is a log that only who may write can read, `sqlite3.Error` where there is no database.
    """
    if not os.path.exists(path + "-wal"):  # while a process has the file open there is one
        return _connection(path, "immutable=1", cut_off)
    try:
        return _connection(path, "mode=ro", cut_off)
    except sqlite3.OperationalError as error:
        raise Refused(
            f"{path!r} cannot be read here: part of it is in {path + '-wal'!r}, and to read that in takes a folder in"
            " which this user may write; copy both files into one"
        ) from error


def _connection(path: str, how: str, cut_off: bool) -> sqlite3.Connection:
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
        for sql in ("PRAGMA query_only = ON", *first, f"PRAGMA cache_size = -{CACHE_KB}"):
            db.execute(sql).fetchall()
    except sqlite3.Error:
        db.close()
        raise
    return db


def may_write(path: str) -> bool:
    """Whether this user may write a file that is there, and beside it."""
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK)
