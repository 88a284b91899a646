"""Detection of a replaced database file or write-ahead log, and of writes by other programs.

The lock keeps other collectors out. It keeps nobody from moving, removing or replacing files, nor does it keep other
programs from writing: `sqlite3` in a shell knows nothing of it. Row ids are counted in memory here, so that what others
write would be overwritten, and theirs would overwrite ours.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from typing import NamedTuple

from spanwise.collector.errors import Halted
from spanwise.collector.stores.sqlite.database.file_lock import FileLock, file_identity

FILE_REPLACED = "the database file was removed or replaced while it was open"
WAL_REPLACED = "the database's write-ahead log was removed or replaced while it was open"
FOREIGN_WRITER = "another program has written to the database while it was open"
# Of the log's index (sqlite.org/walformat.html): its counter of transactions, its frames, and those copied already
_COUNT, _FRAMES, _COPIED = slice(8, 12), slice(16, 20), slice(96, 100)
_FRAME = 24  # bytes before each page in the log


class WalSize(NamedTuple):
    """The write-ahead log, in bytes: all of it, and what is not copied into the database yet."""

    bytes: int
    waiting: int


class FileWatch:
    """Over the writing connection of a locked file. For the writer's thread, but for `log`.

    `PRAGMA data_version` changes when another program writes, and when it only empties the log; of the two the index
    of the log counts the first alone.
    """

    def __init__(self, db: sqlite3.Connection, lock: FileLock) -> None:
        self._db, self._lock = db, lock
        self.log_path = lock.path + "-wal"
        self._log_is = file_identity(self.log_path)
        # Not closed before the database is: with it this process would lose the locks that SQLite has on that file
        self._index = os.open(lock.path + "-shm", os.O_RDONLY)
        self._version, self._count = self._seen(), self._counted()
        self._frame = _FRAME + int(db.execute("PRAGMA page_size").fetchone()[0])

    def log(self) -> WalSize:
        """How much is in the log. From any thread."""
        index = os.pread(self._index, 100, 0)
        frames, copied = (int.from_bytes(index[place], sys.byteorder) for place in (_FRAMES, _COPIED))
        return WalSize(frames * self._frame, max(0, frames - copied) * self._frame)

    def begun(self) -> None:
        """Within a transaction, before it writes. Raises `Halted` if anybody else has written since the last one."""
        seen = self._seen()
        if seen != self._version and self._counted() != self._count:
            raise _halted_error(FOREIGN_WRITER)
        self._version = seen

    def committed(self) -> None:
        """After a commit, before it is acknowledged. Raises `Halted` if the files are not those that were opened."""
        if file_identity(self._lock.path) != self._lock.identity:
            raise _halted_error(FILE_REPLACED)
        if (log := file_identity(self.log_path)) != self._log_is:
            if self._log_is is not None:
                raise _halted_error(WAL_REPLACED)
            self._log_is = log
        if self._counted() != self._count:  # unless it had nothing to write; by one, whoever may have come since
            self._count += 1

    def settled(self) -> None:
        """After a rollback, or work that no transaction surrounds: SQLite may count its clearing up as another's."""
        self._version, self._count = self._seen(), self._counted()

    def close(self) -> None:
        """Let go; the database is closed."""
        os.close(self._index)

    def _counted(self) -> int:
        return int.from_bytes(os.pread(self._index, 12, 0)[_COUNT], sys.byteorder)

    def _seen(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])


def _halted_error(what: str) -> Halted:
    return Halted(
        f"{what}, so nothing more is kept; stop the other program, see `spanwise db check`, then start this anew"
    )
