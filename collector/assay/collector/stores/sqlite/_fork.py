"""A store does not survive a fork: its threads are the parent's, and SQLite's connections must not be shared."""

from __future__ import annotations

import os

from assay.collector.errors import Closed


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
