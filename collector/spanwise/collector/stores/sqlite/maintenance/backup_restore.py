"""Online backup of the database file, and restore from a backup.

The backup uses SQLite's online backup API on a connection that stays in one snapshot. The writer continues, and its
commits do not restart the copy. The copy has a temporary name until it is complete, durable and checked.

A restore checks the backup, copies it into the folder of the target, moves the present file away, and renames the
copy. If the process is killed meanwhile, the present file remains under its own or its new name.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite.database.connections import connect_without_lock, translate_file_errors
from spanwise.collector.stores.sqlite.database.file_lock import PRIVATE_MODE, FileLock, real_path
from spanwise.collector.stores.sqlite.database.schema import read_version

STEP_PAGES = 256  # pages (4 MB) per step
PAUSE_SECONDS = 0.002  # seconds between two steps, because the writer needs the disk, too
PARTIAL_SUFFIX = ".part"  # suffix of an incomplete copy


def backup(source: str, target: str, step: Callable[[int, int], object] = lambda left, of: None) -> int:
    """Copy the file at `source` to the new file `target`, and return its bytes.

    `step` is called with the number of pages left and the total. Raise `Refused` if `target` exists, cannot be
    written, or the source is damaged. After an error, and if the process is killed, there is no file `target`.
    """
    if os.path.lexists(target):
        raise Refused(f"{target!r} already exists; name a new file for the backup")
    with translate_file_errors(source), closing(connect_without_lock(real_path(source))) as db:
        descriptor = create_partial(target + PARTIAL_SUFFIX)
        try:
            _copy_pages(db, target + PARTIAL_SUFFIX, step)
            os.fsync(descriptor)
            _refuse_damaged(target + PARTIAL_SUFFIX)
            os.link(target + PARTIAL_SUFFIX, target)  # fails if a file with this name was created meanwhile
            fsync_folder(target)
        finally:
            with suppress(OSError):
                os.unlink(target + PARTIAL_SUFFIX)
            os.close(descriptor)
    return os.path.getsize(target)


def create_partial(path: str) -> int:
    """Create or truncate the partial file and lock it. Raise `Refused` if another process is writing it.

    A partial file without a lock was left by a killed process.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_MODE)
    except OSError as error:
        raise Refused(f"cannot write {path!r}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise Refused(f"another process is writing {path!r}") from error
    return descriptor


def _copy_pages(db: sqlite3.Connection, path: str, step: Callable[[int, int], object]) -> None:
    def pause(status: int, remaining: int, of: int) -> None:
        step(remaining, of)
        time.sleep(PAUSE_SECONDS)

    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")  # one fsync at the end is enough
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the first read starts the snapshot
        try:
            db.backup(copy, pages=STEP_PAGES, progress=pause)
        except sqlite3.OperationalError as error:
            raise Refused(f"cannot write {path!r}: {error}") from error
        finally:
            db.execute("ROLLBACK")


def _refuse_damaged(path: str) -> None:
    with closing(connect_without_lock(real_path(path))) as copy:
        try:
            [result] = copy.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            result = str(error)
    if result != "ok":
        raise Refused(
            f"the file is damaged, and its copy would be ({result}): keep older backups, see `spanwise db check`"
        )


def fsync_folder(target: str) -> None:
    """Sync the folder, so that the file name is durable, too."""
    folder = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


COPY_SUFFIX = ".restoring"  # suffix of the copy until it replaces the file


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore: bytes of the database, and path of the file that it replaced (None if there was none)."""

    bytes: int
    replaced: str | None


def restore_backup(source: str, target: str, check: Callable[[str], list[str]]) -> RestoreResult:
    """Replace the file `target` by a copy of the backup `source`, and move the old file away.

    `check` returns the problems of a file. Raise `Refused`, and leave `target` as it is, if the backup is damaged or a
    process has `target` open.
    """
    target = real_path(target)
    if os.path.exists(target) and os.path.samefile(source, target):
        raise Refused(f"{source!r} is the file to be replaced; name a backup of it")
    _refuse_unsound(source, check)
    # a leftover WAL must not be applied to another file
    is_replaced = os.path.exists(target) or os.path.exists(target + "-wal")
    copy = target + COPY_SUFFIX
    lock = FileLock(target)
    try:
        with suppress(OSError):
            os.unlink(copy)  # left by a process that was killed
        backup(source, copy)
        _refuse_unsound(copy, check)
        replaced = _move_away(target) if is_replaced else None
        try:
            os.replace(copy, target)
            fsync_folder(target)
            _refuse_unsound(target, check)
        except BaseException:
            if replaced:
                _move_file(replaced, target)
            raise
    finally:
        lock.undo()  # also deletes the file if the lock created it
        with suppress(OSError):
            os.unlink(copy)
    return RestoreResult(os.path.getsize(target), replaced)


def _refuse_unsound(path: str, check: Callable[[str], list[str]]) -> None:
    try:
        with closing(connect_without_lock(real_path(path))) as db:
            read_version(db, path)
    except sqlite3.Error as error:
        raise Refused(f"{path!r} cannot be read: {error}; restore another backup") from error
    if problems := check(path):
        more = f" and {len(problems) - 1} more problems" if len(problems) > 1 else ""
        raise Refused(f"{path!r} is damaged: {problems[0]}{more}; restore another backup, or see `spanwise db recover`")


def _move_away(target: str) -> str:
    """Rename the file and its WAL, with the current time in the name, and return the new name."""
    name = f"{target}.replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    if os.path.lexists(name):
        raise Refused(f"{name!r} already exists; try again in a second")
    _move_file(target, name)
    return name


def _move_file(file: str, name: str) -> None:
    with suppress(FileNotFoundError):
        os.replace(file + "-wal", name + "-wal")
    with suppress(FileNotFoundError):
        os.unlink(file + "-shm")  # SQLite rebuilds it from the WAL
    os.replace(file, name)
    fsync_folder(name)
