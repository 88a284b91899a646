"""Restoring a database file from a backup.

The backup is checked and copied beside the file, the present file is moved away, and the copy takes its place. A
process that is killed meanwhile leaves the present file under its own or its new name.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite._backup import backup, settled
from spanwise.collector.stores.sqlite._beside import connect_beside
from spanwise.collector.stores.sqlite._lock import Lock, real
from spanwise.collector.stores.sqlite._schema import version_of

COPY = ".restoring"  # what the name of the copy ends in until it takes the place of the file


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: bytes of the database, and where the file is that it replaced (None if there was none)."""

    bytes: int
    replaced: str | None


def restore(source: str, target: str, check: Callable[[str], list[str]]) -> Restored:
    """Put a copy of the backup `source` in the place of the file `target`, which is moved away.

    `check` returns what is wrong with a file. Raises `Refused`, and leaves `target` as it is, if the backup is not
    sound or a process has `target` open.
    """
    target = real(target)
    if os.path.exists(target) and os.path.samefile(source, target):
        raise Refused(f"{source!r} is the file that would be replaced; name a backup of it")
    _refuse_unsound(source, check)
    there = os.path.exists(target) or os.path.exists(target + "-wal")  # a log is never left to another file
    lock = Lock(target)
    try:
        _copy(source, target + COPY, check)
        replaced = _move_away(target) if there else None
        try:
            os.replace(target + COPY, target)
            settled(target)
            _refuse_unsound(target, check)
        except BaseException:
            if replaced:
                _move(replaced, target)
            raise
    finally:
        lock.undo()  # the file is gone again that the lock made where there was none
        with suppress(OSError):
            os.unlink(target + COPY)
    return Restored(os.path.getsize(target), replaced)


def _refuse_unsound(path: str, check: Callable[[str], list[str]]) -> None:
    try:
        with closing(connect_beside(real(path))) as db:
            version_of(db, path)
    except sqlite3.Error as error:
        raise Refused(f"{path!r} cannot be read: {error}; restore another backup") from error
    if problems := check(path):
        more = f" and {len(problems) - 1} more problems" if len(problems) > 1 else ""
        raise Refused(
            f"{path!r} is not sound: {problems[0]}{more}; restore another backup, or see `spanwise db recover`"
        )


def _copy(source: str, copy: str, check: Callable[[str], list[str]]) -> None:
    with suppress(OSError):
        os.unlink(copy)  # of a process that was killed
    backup(source, copy)
    _refuse_unsound(copy, check)


def _move_away(target: str) -> str:
    """Rename the file, and its log, after the present time; return its new name."""
    name = f"{target}.replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    if os.path.lexists(name):
        raise Refused(f"{name!r} exists already; try again in a second")
    _move(target, name)
    return name


def _move(file: str, name: str) -> None:
    with suppress(FileNotFoundError):
        os.replace(file + "-wal", name + "-wal")
    with suppress(FileNotFoundError):
        os.unlink(file + "-shm")  # SQLite makes it anew from the log
    os.replace(file, name)
    settled(name)
