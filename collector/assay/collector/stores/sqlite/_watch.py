"""Whether what was written is where it will be looked for: asked at each commit, for some microseconds.

The lock keeps other collectors out. It keeps nobody from moving, removing or replacing files, nor does it keep other
programs from writing: `sqlite3` in a shell knows nothing of it. Row ids are counted in memory here, so that what others
write would be overwritten, and theirs would overwrite ours.
"""

from __future__ import annotations

import sqlite3

from assay.collector.errors import Halted
from assay.collector.stores.sqlite._lock import Lock, identity

MOVED = "the database file was removed or replaced while it was open"
LOG = "the database's write-ahead log was removed or replaced while it was open"
FOREIGN = "another program has written to the database while it was open"


class Watch:
    """Over the writing connection of a locked file. For the writer's thread."""

    def __init__(self, db: sqlite3.Connection, lock: Lock) -> None:
        self._db, self._lock = db, lock
        self._log = lock.path + "-wal"
        self._log_is = identity(self._log)
        self._version = self._seen()

    def begun(self) -> None:
        """Within a transaction, before it writes. Raises `Halted` if anybody else has written since the last one."""
        if self._seen() != self._version:
            raise _halted(FOREIGN)

    def committed(self) -> None:
        """After a commit, before it is acknowledged. Raises `Halted` if the files are not those that were opened."""
        if identity(self._lock.path) != self._lock.identity:
            raise _halted(MOVED)
        if (log := identity(self._log)) != self._log_is:
            if self._log_is is not None:
                raise _halted(LOG)
            self._log_is = log

    def settled(self) -> None:
        """After a rollback, or work that no transaction surrounds: SQLite may count its clearing up as another's."""
        self._version = self._seen()

    def _seen(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])


def _halted(what: str) -> Halted:
    return Halted(
        f"{what}, so nothing more is kept; stop the other program, see `assay db check`, then start this anew"
    )
