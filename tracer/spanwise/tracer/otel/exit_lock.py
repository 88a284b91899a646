"""Lock with a bounded wait, for the time when the interpreter exits."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

_MAX_WAIT = 1.0  # seconds


class ExitLock:
    """Lock that waits for at most a second, and not at all while the interpreter is finalizing.

    While the interpreter is finalizing, daemon threads stop permanently, possibly while they hold a lock. A finalizer
    that traces in the main thread would wait for that lock. The exit handler therefore replaces each lock that a
    traced call takes. A thread may then proceed without the lock, but no other thread runs at that time.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        """Acquire the lock if it becomes free in time."""
        self._lock.acquire(timeout=0.0 if sys.is_finalizing() else _MAX_WAIT)

    def __exit__(self, *error: object) -> None:
        """Release the lock if it is held."""
        self.release()

    def release(self) -> None:
        """Release the lock if it is held."""
        with suppress(RuntimeError):
            self._lock.release()
