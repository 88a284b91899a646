"""A store does not survive a fork: its threads are the parent's, and SQLite's connections must not be shared."""

from __future__ import annotations

import os
import weakref

from spanwise.collector.errors import Closed

_open: weakref.WeakSet[object] = weakref.WeakSet()
_inherited: list[object] = []  # never let go: a connection that was in use when the process forked cannot be closed


def keep_in_forks(holder: object) -> None:
    """In a fork of this process, what `holder` refers to (connections) is neither used nor closed."""
    _open.add(holder)


def _forked() -> None:
    _inherited.extend(_open)


os.register_at_fork(after_in_child=_forked)


class Origin:
    """The process that opened something."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    def check(self) -> None:
        """Raises `Closed` in a fork of that process, where locks may be held by threads that are not there."""
        if os.getpid() != self.pid:
            raise Closed(
                f"this store was opened by process {self.pid}, of which this one is a fork: open one here, with"
                " connect(), after forking"
            )

    @property
    def is_here(self) -> bool:
        return os.getpid() == self.pid
