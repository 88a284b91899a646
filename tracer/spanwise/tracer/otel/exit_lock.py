"""Lock with a bounded wait, for the time when the interpreter exits."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

_MAX_WAIT = 1.0  # seconds


class ExitLock:
    """A lock that waits for a second at most, and not at all while the interpreter is finalizing.

    Then daemon threads stop for ever where they are, perhaps while they hold a lock that a finalizer, which traces in
    the main thread, would wait for. The exit handler puts one in place of each lock that a traced call takes. To hold
    the lock is no longer certain, but then no other thread runs.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        """Take the lock, if it can be had in time."""
        self._lock.acquire(timeout=0.0 if sys.is_finalizing() else _MAX_WAIT)

    def __exit__(self, *error: object) -> None:
        """Release the lock, if it was taken."""
        self.release()

    def release(self) -> None:
        """Release the lock, if it was taken."""
        with suppress(RuntimeError):
            self._lock.release()
