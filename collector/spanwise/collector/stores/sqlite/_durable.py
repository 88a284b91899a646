"""Has what was committed on the disk before it is acknowledged, beside the commit that follows.

SQLite would wait for the disk within COMMIT (`synchronous = FULL`), and the writer with it, for milliseconds. Here it
writes the log (`NORMAL`, with which it still waits wherever the order of log and file is at stake: before it copies
pages, and when the log begins anew), and the log is brought to the disk in a thread of its own while the writer goes
on, for all commits that came meanwhile at once. As the log is read in order and up to the first gap, a commit is never
kept without those before it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from spanwise.collector.errors import Halted

T = TypeVar("T")

_sync = getattr(os, "fdatasync", os.fsync)  # macOS knows only the other


class Durable(Generic[T]):
    """Syncs the log at `path`. `done` is told what has become durable, in order, or why nobody knows whether it has."""

    def __init__(self, path: str, done: Callable[[Sequence[T], Halted | None], object]) -> None:
        self._path, self._done = path, done
        self._log: int | None = None
        self._waiting: list[T] = []
        self._ready = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def now(self, one: T) -> None:
        """Sync in this thread. Not while others are under way in the other."""
        self._settle([one])

    def soon(self, one: T) -> None:
        """Sync in a thread of its own, and return at once; here where there can be none, as when the process ends."""
        if self._thread is None and not self._start():
            self.now(one)
            return
        with self._ready:
            self._waiting.append(one)
            self._ready.notify()

    def close(self) -> None:
        """Sync what waits, then end."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join()
        if self._log is not None:
            os.close(self._log)

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="spanwise-sync", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while some := self._taken():
            self._settle(some)

    def _taken(self) -> list[T]:
        """All that waits, once there is some; nothing at the end."""
        with self._ready:
            while not (self._waiting or self._closing):
                self._ready.wait()
            some, self._waiting = self._waiting, []
            return some

    def _settle(self, some: Sequence[T]) -> None:
        failed = None
        try:
            if self._log is None:
                self._log = os.open(self._path, os.O_RDWR)
            _sync(self._log)
        except OSError as error:  # what the system has failed to write it may have dropped: to ask again tells nothing
            told = f"the disk does not keep what is written to it: {error}"
            failed = Halted(f"{told}; see to the disk, then start this anew, and `spanwise db check`")
        self._done(some, failed)
