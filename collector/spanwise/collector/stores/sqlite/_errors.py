"""The driver's errors as the contract's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from spanwise.collector.errors import Halted, Refused, StoreError, Unavailable

FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
SHUT_CODES = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

DAMAGED = (
    "see what with `spanwise db check`, save what can be read with `spanwise db recover`, or restore a copy of the file"
)


def is_full(error: Exception) -> bool:
    """Whether there was no room."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in FULL_CODES


def translate(error: Exception) -> Exception:
    """What may work later is `Unavailable`, a damaged file `Halted`; what is no error of SQLite stays as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if is_full(error):
        return Unavailable(f"the database cannot be written now: {error}; make room on its disk", retry_after=5.0)
    if code in SHUT_CODES:
        way_out = "may this user write it and in its folder, and is its disk mounted for writing?"
        return Unavailable(f"the database cannot be written now: {error}; {way_out}", retry_after=5.0)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"the database is locked by another program: {error}")
    if extended == sqlite3.SQLITE_CORRUPT_VTAB:  # of an index, which holds nothing of its own
        return StoreError(f"the text index is damaged: {error}; {DAMAGED}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Halted(f"the database is damaged: {error}; {DAMAGED}")
    if "too large" in str(error) or "too many" in str(error) or "too deep" in str(error):  # for any later try as well
        return Refused(f"this is more than the database takes in one question: {error}")
    return StoreError(f"the database refused: {error}")


@contextmanager
def explained(path: str) -> Iterator[None]:
    """A driver's error about a file as one of the contract's, which names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise _about(path, error) from error


def _about(path: str, error: sqlite3.Error) -> Exception:
    if isinstance(error, sqlite3.OperationalError) and "unable to open" in str(error):
        return Refused(f"cannot open {path!r}: is its folder there, and may this user write in it?")
    translated = translate(error)
    kind = Refused if isinstance(translated, Halted) else type(translated)  # what does not open today never will
    return kind(f"{path!r}: {translated}") if isinstance(translated, StoreError) else error
