"""Detection of a replaced database file or write-ahead log, and of writes by other programs.

The file lock keeps other collectors out. It does not stop anyone from moving, removing or replacing files, nor other
programs such as the `sqlite3` shell from writing. The collector counts row ids in memory, so two writers would
overwrite each other's rows.
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
# Byte ranges in the index of the write-ahead log (sqlite.org/walformat.html): the transaction counter, the number of
# frames, and the number of frames already copied into the database.
_COUNT, _FRAMES, _COPIED = slice(8, 12), slice(16, 20), slice(96, 100)
_FRAME = 24  # size of a frame header in bytes


class WalSize(NamedTuple):
    """Size of the write-ahead log in bytes: in total, and the part not yet copied into the database."""

    bytes: int
    waiting: int


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
        frames, copied = (int.from_bytes(index[field], sys.byteorder) for field in (_FRAMES, _COPIED))
        return WalSize(frames * self._frame, max(0, frames - copied) * self._frame)

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
