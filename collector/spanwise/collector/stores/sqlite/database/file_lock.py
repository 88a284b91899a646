"""Inter-process lock of the database file, and detection of a replaced or changed file.

The lock is on one byte of the database file itself, far beyond its content. Therefore it also excludes a process that
opens the file through a link, and does not depend on a lock file that may be removed, replaced or copied. The file
`<file>.lock` only announces the process that writes and its address. That process writes it again if another program
removes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from spanwise.collector.errors import Halted, Refused

# Inter-process lock: one process may write the database; forked children do not inherit it.

FORKED_MESSAGE = (
    "{!r} was open in a parent of this process before the fork, and SQLite cannot open it again in a forked process;"
    " start the process without a fork (multiprocessing's 'spawn'), or fork before the store is opened"
)
ANNOUNCEMENT_CHARACTERS = 400  # length of the announcement file, in characters
PRIVATE_MODE = 0o600  # mode of all files that the store creates; a stricter umask still applies
# SQLite's own locks are at 2^30, and an SQLite file has at most 2^48 bytes
_LOCK_OFFSET = 2**62
FileIdentity = tuple[int, int]  # device and inode
# Locks of this process. Closing a second descriptor of a file would drop SQLite's locks.
_locks_held: dict[FileIdentity, FileLock] = {}
# Locks of the parent process, inherited with SQLite's in-memory state by a fork.
_locks_of_parents: set[FileIdentity] = set()
_registry_lock = threading.RLock()


def real_path(path: str | Path) -> str:
    """Return the file that a path leads to, as an absolute path without links.

    SQLite keeps its write-ahead log next to that file.
    """
    return os.path.realpath(path)


class FileLock:
    """Exclusive lock on the file at `path` (a real path) until `release`. Creates the file if it does not exist.

    Raises `Refused` if another process holds the lock (the error names it), if the file cannot be written, or if it
    has several hard links.
    """

    def __init__(self, path: str) -> None:
        self.path, self.made = path, False
        self._announcement_path = path + ".lock"
        self._url: str | None = None
        self._announcement: IO[str] | None = None
        with _registry_lock:
            self._descriptor = self._acquire()
            self.identity = _stat_identity(os.fstat(self._descriptor))
            _locks_held[self.identity] = self
        try:
            _refuse_hard_links(path, self._descriptor)
            self.announce(None)
        except BaseException:
            self.undo()
            raise

    def _acquire(self) -> int:
        if file_identity(self.path) in _locks_held:
            raise Refused(_locked_message(self.path))
        if file_identity(self.path) in _locks_of_parents:
            raise Refused(_locked_message(self.path) if holder(self.path) else FORKED_MESSAGE.format(self.path))
        try:
            descriptor = self._open_or_create()
        except OSError as error:
            raise Refused(f"cannot write {self.path!r}: {error.strerror}") from error
        try:
            if _lock_byte(descriptor) and _is_same_file(descriptor, self.path):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            raise Refused(f"cannot lock {self.path!r}: {error.strerror}; keep it on a local disk") from error
        os.close(descriptor)
        raise Refused(_locked_message(self.path))

    def _open_or_create(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        except FileExistsError:  # another process has created it meanwhile
            return os.open(self.path, os.O_RDWR)
        self.made = True
        return descriptor

    def announce(self, url: str | None) -> None:
        """Write the process id and the URL of this process to `<file>.lock`."""
        self._url = url
        if self._announcement is None or not _is_same_file(self._announcement.fileno(), self._announcement_path):
            self._announcement = self._open_announcement()
        with suppress(OSError):  # A full disk: other processes cannot find this one, but the lock still excludes them.
            content = json.dumps({"pid": os.getpid(), "url": url, "file": self.identity})
            # padded to a fixed length so that one write replaces all of it
            os.pwrite(self._announcement.fileno(), content.ljust(ANNOUNCEMENT_CHARACTERS).encode(), 0)

    def announce_again(self) -> None:
        """Restore the announcement if another program removed it. Without it clients cannot find this process."""
        if self._announcement is None or not _is_same_file(self._announcement.fileno(), self._announcement_path):
            with suppress(OSError, Refused):
                self.announce(self._url)

    def _open_announcement(self) -> IO[str]:
        """Open the announcement file and lock it for the lifetime of this process.

        A new file replaces the existing one if that is a symbolic link, because its target is not ours. It also
        replaces a file that the process of another database has locked through a hard link.
        """
        if self._announcement is not None:
            self._announcement.close()
            self._announcement = None
        try:
            for _ in range(2):
                if os.path.islink(self._announcement_path):
                    os.unlink(self._announcement_path)
                descriptor = os.open(self._announcement_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_MODE)
                file = os.fdopen(descriptor, "r+", encoding="utf-8")
                if _flock(file.fileno()) and _is_same_file(file.fileno(), self._announcement_path):
                    return file
                file.close()
                os.unlink(self._announcement_path)
        except OSError as error:
            raise Refused(f"cannot write {self._announcement_path!r}: {error.strerror}") from error
        raise Refused(f"cannot lock {self._announcement_path!r}: another process is using it")

    def release(self) -> None:
        """Release the lock.

        The announcement is removed first. After the release, another process may have announced itself in the same
        file.
        """
        with _registry_lock:
            if _locks_held.pop(self.identity, None) is not self:
                return
            if self._announcement is not None:
                if _is_same_file(self._announcement.fileno(), self._announcement_path):
                    _unlink_quietly(self._announcement_path)
                self._announcement.close()
            os.close(self._descriptor)

    def undo(self) -> None:
        """Release the lock of a file that turned out to hold no database, and remove the files that this process
        created.
        """
        if self.made and file_identity(self.path) == self.identity:
            for suffix in ("", "-wal", "-shm"):
                _unlink_quietly(self.path + suffix)
        self.release()

    def drop(self) -> None:
        """Close the descriptors in a forked child; the parent keeps the lock."""
        os.close(self._descriptor)
        if self._announcement is not None:
            self._announcement.close()


def drop_inherited_locks() -> None:
    """Drop, in a forked child, the locks that the parent holds."""
    global _registry_lock
    _registry_lock = threading.RLock()
    for lock in _locks_held.values():
        lock.drop()
    _locks_of_parents.update(_locks_held)
    _locks_held.clear()


def holder(path: str | Path) -> dict[str, Any] | None:
    """Return `{"pid": …, "url": … or None}` of the process that writes the database file at `path`, or None.

    The process announces itself in `<file>.lock`. Symbolic links to the database are followed; a hard link is not
    recognised.
    """
    path = real_path(path)
    try:
        with open(path + ".lock", encoding="utf-8") as file:
            announced = _read_announcement(file.fileno(), file.read())
            return announced if announced and announced.pop("file", None) == [*(file_identity(path) or ())] else None
    except OSError:
        return None


def _read_announcement(descriptor: int, text: str) -> dict[str, Any] | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        with suppress(ValueError):
            announced = json.loads(text)
            return announced if isinstance(announced, dict) else None
    return None


def _locked_message(path: str) -> str:
    process = holder(path)
    if process is None:
        return f"{path!r} is being written by another process, perhaps under another name; wait until it ends"
    problem = f"{path!r} is being written by process {process.get('pid')}"
    if process.get("url"):
        return f"{problem}, which answers at {process['url']}; use this address, or connect(), which finds it"
    return f"{problem}, which does not serve it; wait until it ends, or let both use a server: `spanwise serve --store {path}`"


def _refuse_hard_links(path: str, descriptor: int) -> None:
    """Raise `Refused` if the file has several names.

    SQLite finds the write-ahead log by the name under which the file was opened. A process that uses another name
    would not find the log.
    """
    names = os.fstat(descriptor).st_nlink
    if names > 1:
        raise Refused(
            f"{path!r} is one of {names} names (hard links) of the same file, but the latest changes are visible under only"
            " one of them; remove the others (`find -samefile`), or open a copy"
        )


def _lock_byte(descriptor: int) -> bool:
    """Lock the byte; return False if another process holds it.

    Raises `OSError` where locking is unsupported, as on some network file systems.
    """
    try:
        # An open file description lock is lost only with this descriptor, not when the process closes another one of
        # the same file.
        if hasattr(fcntl, "F_OFD_SETLK"):
            # struct flock: type, whence, start, length, pid
            lock_struct = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _LOCK_OFFSET, 1, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock_struct)
        else:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCK_OFFSET)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _flock(descriptor: int) -> bool:
    """Lock the announcement, with up to five attempts: a process that calls `holder` also locks it for an instant."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.02)
    return False


def _is_same_file(descriptor: int, path: str) -> bool:
    """Return whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def file_identity(path: str) -> FileIdentity | None:
    """Return device and inode of the file at a path, or None. They stay the same while any process has the file open."""
    try:
        return _stat_identity(os.stat(path))
    except OSError:
        return None


def _stat_identity(status: os.stat_result) -> FileIdentity:
    return status.st_dev, status.st_ino


def _unlink_quietly(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


os.register_at_fork(after_in_child=drop_inherited_locks)


# Detection of a replaced database file or write-ahead log, and of writes by other programs.
#
# The file lock keeps other collectors out. It does not stop anyone from moving, removing or replacing files, nor
# other programs such as the `sqlite3` shell from writing. The collector counts row ids in memory, so two writers
# would overwrite each other's rows.

FILE_REPLACED = "the database file was removed or replaced while it was open"
WAL_REPLACED = "the database's write-ahead log was removed or replaced while it was open"
FOREIGN_WRITER = "another program has written to the database while it was open"
# Byte ranges in the index of the write-ahead log (sqlite.org/walformat.html): the transaction counter, the number of
# frames, the number of pages of the database with the log, and the number of frames already copied into the database.
_COUNT, _FRAMES, _PAGES, _COPIED = slice(8, 12), slice(16, 20), slice(20, 24), slice(96, 100)
_FRAME = 24  # size of a frame header in bytes


class WalSize(NamedTuple):
    """Sizes in bytes: of the write-ahead log, of its part not yet copied into the database, of the database with it."""

    bytes: int
    waiting: int
    database: int


class FileWatch:
    """Watch over the writing connection of a locked file. Only `log` may be called outside the writer thread.

    `PRAGMA data_version` changes when another program writes, and also when it only empties the log. The transaction counter in the log's index changes only on writes, so both are compared.
    """

    def __init__(self, db: sqlite3.Connection, lock: FileLock) -> None:
        self._db, self._lock = db, lock
        self.log_path = lock.path + "-wal"
        self._log_identity = file_identity(self.log_path)
        # Must stay open until the database is closed: closing a descriptor of this file would drop the locks that
        # SQLite holds on it in this process.
        self._index = os.open(lock.path + "-shm", os.O_RDONLY)
        self._version, self._count = self._read_data_version(), self._read_transaction_count()
        self._frame = _FRAME + int(db.execute("PRAGMA page_size").fetchone()[0])

    def log(self) -> WalSize:
        """Return the size of the log. Safe to call from any thread."""
        index = os.pread(self._index, 100, 0)
        frames, pages, copied = (int.from_bytes(index[field], sys.byteorder) for field in (_FRAMES, _PAGES, _COPIED))
        waiting = max(0, frames - copied) * self._frame
        return WalSize(frames * self._frame, waiting, pages * (self._frame - _FRAME))

    def check_before_write(self) -> None:
        """Check, inside a transaction and before its first write, that no other program has written.

        Raises `Halted` if another program has written since the last transaction.
        """
        version = self._read_data_version()
        if version != self._version and self._read_transaction_count() != self._count:
            raise _halted_error(FOREIGN_WRITER)
        self._version = version

    def check_after_commit(self) -> None:
        """Check, after a commit and before it is acknowledged, that the files are still the opened ones.

        Raises `Halted` if the database file or the log was removed or replaced.
        """
        if file_identity(self._lock.path) != self._lock.identity:
            raise _halted_error(FILE_REPLACED)
        if (log := file_identity(self.log_path)) != self._log_identity:
            if self._log_identity is not None:
                raise _halted_error(WAL_REPLACED)
            self._log_identity = log
        # An empty transaction leaves the counter unchanged. Add exactly 1, so that a write by another program after
        # this commit is still detected.
        if self._read_transaction_count() != self._count:
            self._count += 1

    def accept_current_state(self) -> None:
        """Accept the current counters after a rollback or after work outside a transaction.

        SQLite may count its own cleanup as a write by another connection.
        """
        self._version, self._count = self._read_data_version(), self._read_transaction_count()

    def close(self) -> None:
        """Close the index of the log. The database must be closed before."""
        os.close(self._index)

    def _read_transaction_count(self) -> int:
        return int.from_bytes(os.pread(self._index, 12, 0)[_COUNT], sys.byteorder)

    def _read_data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])


def _halted_error(problem: str) -> Halted:
    return Halted(
        f"{problem}, so the store accepts no more data; stop the other program, run `spanwise db check`, then restart"
    )
