"""A copy of a file as it is at one moment, made beside whoever writes it.

SQLite's online backup, from a connection that stays in one snapshot: the writer goes on, and nothing that it commits
meanwhile makes the copy begin anew. Until the copy is whole, on disk and sound it stands under another name.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite._beside import connect_beside
from spanwise.collector.stores.sqlite._errors import explained
from spanwise.collector.stores.sqlite._lock import PRIVATE, real

STEP = 256  # pages (4 MB) at once
PAUSE = 0.002  # seconds between two steps: the disk is the writer's, too
PART = ".part"  # what a copy's name ends in until it is one


def backup(source: str, target: str, step: Callable[[int, int], object] = lambda left, of: None) -> int:
    """Copy the file at `source` to `target`, which must not be there; returns its bytes. `step` is told how many pages
    are left, of how many. Raises `Refused`; then, and if the process is killed, there is no file `target`.
    """
    if os.path.lexists(target):
        raise Refused(f"{target!r} is there already; name a new file for the backup")
    with explained(source), closing(connect_beside(real(source))) as db:
        descriptor = _begun(target + PART)
        try:
            _copy(db, target + PART, step)
            os.fsync(descriptor)
            _refuse_damaged(target + PART)
            os.link(target + PART, target)  # not over what has come meanwhile
            settled(target)
        finally:
            with suppress(OSError):
                os.unlink(target + PART)
            os.close(descriptor)
    return os.path.getsize(target)


def _begun(part: str) -> int:
    """What a killed process left is begun anew; what a live one is at is left to it."""
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
    except OSError as error:
        raise Refused(f"cannot write {part!r}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise Refused(f"another backup is at {part!r}") from error
    return descriptor


def _copy(db: sqlite3.Connection, part: str, step: Callable[[int, int], object]) -> None:
    def pause(status: int, left: int, of: int) -> None:
        step(left, of)
        time.sleep(PAUSE)

    with closing(sqlite3.connect(part, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")  # it is made durable once, at the end
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the snapshot begins
        try:
            db.backup(copy, pages=STEP, progress=pause)
        except sqlite3.OperationalError as error:
            raise Refused(f"cannot write {part!r}: {error}") from error
        finally:
            db.execute("ROLLBACK")


def _refuse_damaged(part: str) -> None:
    with closing(connect_beside(real(part))) as copy:
        try:
            [said] = copy.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            said = str(error)
    if said != "ok":
        raise Refused(
            f"the file is damaged, and its copy would be ({said}): keep older backups, see `spanwise db check`"
        )


def settled(target: str) -> None:
    """Make the name durable, too."""
    folder = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
