"""Checkpoint thread: copies the write-ahead log into the database while the writer continues.

SQLite would checkpoint within a commit, and every caller that waits for that commit would wait for the disk. Here a
separate connection copies most pages. Then the writer copies the few that were added meanwhile, so that the log
restarts from its beginning.

A restart requires that no reader uses the log. The writer waits briefly for readers, and longer once the log is
large. If readers stay, the log grows; it is truncated to `connections.WAL_SIZE_LIMIT` after they leave. If the thread
falls behind, SQLite checkpoints within a commit at `connections.AUTOCHECKPOINT_BYTES`.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from functools import partial

from spanwise.collector.errors import StoreError
from spanwise.collector.stores.sqlite.database.file_lock import protect_from_fork
from spanwise.collector.stores.sqlite.database.file_watch import FileWatch
from spanwise.collector.stores.sqlite.database.group_commit import Writer

log = logging.getLogger("spanwise.collector")

DUE_BYTES = 16 * 2**20  # size of the log from which a checkpoint is due
RESTART_BYTES = 2 * 2**20  # maximum number of bytes that the writer copies itself; takes a few milliseconds
# the same for a large log, to which the writer adds pages faster than they are copied
LARGE_WAL_RESTART_BYTES = 8 * 2**20
COPY_ROUNDS = 4  # rounds of copying; each round finds fewer new pages
RESTART_WAIT_MS, LARGE_WAL_WAIT_MS = 20, 100  # longest wait of the writer for readers: normally, and for a large log
DUE_SECONDS = 30.0  # interval after which even a small log is copied
LARGE_WAL_BYTES = 2 * DUE_BYTES
# Seconds between two checks; the longest interval while readers keep the log from restarting; the same for a large
# log.
CHECK_SECONDS, MAX_BACKOFF_SECONDS, LARGE_WAL_BACKOFF_SECONDS = 0.1, 2.0, 0.5


class Checkpointer:
    """Checkpoint thread of the file at `path`, with its own connection. Runs until `close`."""

    def __init__(self, path: str, writer: Writer, watch: FileWatch) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._writer, self._watch = writer, watch
        protect_from_fork(self)
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spanwise-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the current checkpoint, stop the thread and close the connection."""
        self._stop.set()
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        wait = CHECK_SECONDS
        while not self._stop.wait(wait):
            now = self._watch.log()
            if not (now.waiting > 0 and (now.bytes > DUE_BYTES or time.monotonic() - self._last > DUE_SECONDS)):
                wait = CHECK_SECONDS
                continue
            wait = min(
                LARGE_WAL_BACKOFF_SECONDS if self._watch.log().bytes > LARGE_WAL_BYTES else MAX_BACKOFF_SECONDS,
                2 * wait,
            )
            try:
                # The log restarted, so check again soon. If readers prevented it, the interval stays longer.
                if self._move():
                    wait = CHECK_SECONDS
            except (StoreError, sqlite3.Error) as error:  # a full disk or a damaged file is reported by the writer
                log.debug("the log could not be copied: %s", error)

    def _move(self) -> bool:
        """Copy as many pages as possible; return whether all are copied.

        If no reader uses the log, the next commit restarts it.
        """
        self._last = time.monotonic()
        for _ in range(COPY_ROUNDS):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            now = self._watch.log()
            is_large = now.bytes > LARGE_WAL_BYTES
            if now.waiting <= (LARGE_WAL_RESTART_BYTES if is_large else RESTART_BYTES):
                self._writer.alone(partial(_restart_wal, LARGE_WAL_WAIT_MS if is_large else RESTART_WAIT_MS))
                return self._watch.log().waiting == 0
        return False


def _restart_wal(moment_ms: int, db: sqlite3.Connection) -> None:
    """Copy the remaining pages, and wait at most `moment_ms` for readers to leave the log.

    Readers that begin after the copying read the database file and do not use the log.
    """
    [patience] = db.execute("PRAGMA busy_timeout").fetchone()
    db.execute(f"PRAGMA busy_timeout = {moment_ms}").fetchall()
    try:
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    finally:
        db.execute(f"PRAGMA busy_timeout = {patience}").fetchall()
