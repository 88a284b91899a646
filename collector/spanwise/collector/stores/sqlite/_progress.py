"""How far a migration is, said to the logger `spanwise.collector.migration`: what shows it is the application's choice.

Each record's `done` is the percentage. Nothing is said of a migration of less than a second.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from types import TracebackType

log = logging.getLogger("spanwise.collector.migration")

Report = Callable[[int, int], None]  # of a step: how much is done, of how much
QUIET = 1.0  # seconds in which nothing is said
EVERY = 0.2  # seconds between two records
TICK = 100_000  # of SQLite's steps, some milliseconds


class Progress:
    """Of the file at `path`, from one version to another; each version's step counts as much as any other."""

    def __init__(self, path: str, version: int, upto: int, quiet: float = QUIET) -> None:
        self._what = f"bringing {os.path.basename(path)!r} from version {version} to {upto}"
        self._first, self._steps = version, max(1, upto - version)
        self._share = 0.0
        self._due = time.monotonic() + quiet
        self._said = False

    def begin(self, step: int) -> None:
        """A step begins, named by the version that it makes of the one before."""
        self._share = (step - self._first) / self._steps
        self.tick()

    def of(self, step: int) -> Report:
        """What a step reports to, whatever it counts in."""

        def report(done: int, of: int) -> None:
            self._share = (step - self._first + min(1.0, done / max(1, of))) / self._steps
            self.tick()

        return report

    def tick(self) -> None:
        """Say how far it is, if it is time."""
        if (now := time.monotonic()) >= self._due:
            self._due, self._said = now + EVERY, True
            self._say(int(100 * self._share))

    def _say(self, done: int) -> None:
        log.info("%s: %d %%", self._what, done, extra={"done": done})

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._said and error is None:
            self._say(100)
        elif self._said:
            log.info("%s: stopped at %d %%", self._what, int(100 * self._share), extra={"done": 100})
