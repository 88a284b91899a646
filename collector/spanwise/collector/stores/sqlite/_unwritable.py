"""A file that this user may not write: a copy on a medium for reading, another user's. It is read as it stands."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from spanwise.collector._names import named
from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite._beside import connect_beside
from spanwise.collector.stores.sqlite._clock import Clock
from spanwise.collector.stores.sqlite._errors import explained
from spanwise.collector.stores.sqlite._file import File
from spanwise.collector.stores.sqlite._fork import Origin
from spanwise.collector.stores.sqlite._lock import real
from spanwise.collector.stores.sqlite._pool import Readers
from spanwise.collector.stores.sqlite._schema import MIGRATIONS, version_of
from spanwise.collector.stores.sqlite._writer import Job

T = TypeVar("T")


class Unwritable(File):
    """Reads the file at `path`. Raises `Refused` where it is damaged, not Spanwise's, or not of this version."""

    def __init__(self, path: str | Path) -> None:
        self.name, self.path, self.origin = named(path), real(path), Origin()
        with explained(self.name), closing(connect_beside(self.path)) as db:
            if (version := version_of(db, self.name)) < len(MIGRATIONS):
                raise Refused(
                    f"{self.name!r} is of file version {version}, and cannot be brought up to {len(MIGRATIONS)} where"
                    " it may not be written; copy it to where it may"
                )
            self.clock = Clock(db)
        self._readers = Readers(self.path, self.clock.now, connect_beside)

    def announce(self, url: str | None) -> None:
        """Nobody needs to ask this process: whoever may read the file can."""

    @property
    def is_full(self) -> bool:
        """No disk is meant here."""
        return False

    def put(self, job: Job) -> Future[Any]:
        raise self._refusal()

    def put_all(self, jobs: Sequence[Job]) -> list[Future[Any]]:
        raise self._refusal()

    def write(self, action: Callable[[sqlite3.Connection], T], *, patient: bool = False) -> T:
        raise self._refusal()

    def checkpoint(self) -> None:
        raise self._refusal()

    def vacuum(self) -> int:
        raise self._refusal()

    def _refusal(self) -> Refused:
        return Refused(
            f"{self.name!r} can only be read: this user may not write it, or not in its folder; copy it to where it may"
        )

    def trouble(self) -> str | None:
        """Nothing is ever kept here."""
        return "the database can only be read: this user may not write it"

    def health(self) -> dict[str, float]:
        """Numbers for whoever watches."""
        return {"writable": 0}

    def close(self) -> None:
        """Let go."""
        if self.origin.is_here:
            self._readers.close()
