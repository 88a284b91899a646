"""Moving pages from the write-ahead log into the file, beside the writer.

SQLite would do it within a commit, and whoever waits for that commit would wait for the disk, too. Here another
connection copies what is there while the writer goes on, and the writer copies the little that has come since, so that
the log begins anew. Should this ever fall behind, SQLite does it as it always would (`_open.LAST_RESORT` pages).
"""

from __future__ import annotations

import sqlite3
import time

from assay.collector.stores.sqlite._fork import keep_in_forks
from assay.collector.stores.sqlite._writer import Writer

DUE_SPANS = 4_000
DUE_SECONDS = 30.0


class Checkpointer:
    """Has a connection of its own to the file at `path`. For one thread."""

    def __init__(self, path: str, writer: Writer) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._writer = writer
        keep_in_forks(self)
        self._written = self._commits = 0
        self._last = time.monotonic()

    def run_if_due(self) -> None:
        """Copy if enough has been written, or if something has and some time has passed."""
        late = time.monotonic() - self._last > DUE_SECONDS and self._writer.commits > self._commits
        if late or self._writer.written - self._written > DUE_SPANS:
            self._last = time.monotonic()
            self._written, self._commits = self._writer.written, self._writer.commits
            _copy(self._db)
            self._writer.alone(_copy)

    def close(self) -> None:
        """Let go."""
        self._db.close()


def _copy(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
