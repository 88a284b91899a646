"""Checkpoint thread: copies the write-ahead log into the database beside the writer.

SQLite would do it within a commit, and whoever waits for that commit would wait for the disk, too. Here another
connection copies what is there while the writer goes on, and the writer copies the little that has come since, so that
the log begins anew. It does so only when no reader looks into the log any more. The writer waits a moment for those who
soon have done, a longer one where the log has become large; for others the log grows, and is cut (`_open.LOG_KEPT`)
when they have gone. Should this ever fall behind, SQLite does it as it always would (`_open.LAST_RESORT`).
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

DUE_BYTES = 16 * 2**20  # of log
RESTART_BYTES = 2 * 2**20  # that the writer copies itself: some milliseconds
LARGE_WAL_RESTART_BYTES = (
    8 * 2**20
)  # the same where the log has become large, as the writer was faster than the copying
COPY_ROUNDS = 4  # of copying, in each of which less comes
RESTART_WAIT_MS, LARGE_WAL_WAIT_MS = 20, 100  # that the writer waits for readers; where the log has become large
DUE_SECONDS = 30.0  # after which the little that has been written is copied, too
LARGE_WAL_BYTES = 2 * DUE_BYTES
# Seconds between two looks; at most where readers keep the log from beginning anew, and where it has become large
CHECK_SECONDS, MAX_BACKOFF_SECONDS, LARGE_WAL_BACKOFF_SECONDS = 0.1, 2.0, 0.5


class Checkpointer:
    """Of the file at `path`, until `close`. It has a connection of its own."""

    def __init__(self, path: str, writer: Writer, watch: FileWatch) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._writer, self._watch = writer, watch
        protect_from_fork(self)
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spanwise-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after what is under way, and let go."""
        self._stop.set()
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        wait = CHECK_SECONDS
        while not self._stop.wait(wait):
            if not self._is_due():
                wait = CHECK_SECONDS
                continue
            wait = min(
                LARGE_WAL_BACKOFF_SECONDS if self._watch.log().bytes > LARGE_WAL_BYTES else MAX_BACKOFF_SECONDS,
                2 * wait,
            )
            try:
                if self._move():  # but for readers who were in the log: they may have left by then
                    wait = CHECK_SECONDS
            except (StoreError, sqlite3.Error) as error:  # a full disk, a damaged file: others say so
                log.debug("the log could not be copied: %s", error)

    def _is_due(self) -> bool:
        """Whether anything waits to be copied, and the log has grown, or some time has passed."""
        now = self._watch.log()
        return now.waiting > 0 and (now.bytes > DUE_BYTES or time.monotonic() - self._last > DUE_SECONDS)

    def _move(self) -> bool:
        """Copy what can be; whether that is all. If nobody looks into the log, the next commit begins it anew."""
        self._last = time.monotonic()
        for _ in range(COPY_ROUNDS):
            _copy_pages(self._db)
            now = self._watch.log()
            is_large = now.bytes > LARGE_WAL_BYTES
            if now.waiting <= (LARGE_WAL_RESTART_BYTES if is_large else RESTART_BYTES):
                self._writer.alone(partial(_restart_wal, LARGE_WAL_WAIT_MS if is_large else RESTART_WAIT_MS))
                return self._watch.log().waiting == 0
        return False


def _copy_pages(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _restart_wal(moment_ms: int, db: sqlite3.Connection) -> None:
    """Copy the rest, and wait so long at most for readers to leave the log: those who come now do not enter it."""
    [patience] = db.execute("PRAGMA busy_timeout").fetchone()
    db.execute(f"PRAGMA busy_timeout = {moment_ms}").fetchall()
    try:
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    finally:
        db.execute(f"PRAGMA busy_timeout = {patience}").fetchall()
