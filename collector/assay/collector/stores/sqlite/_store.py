"""The store on one SQLite file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay.collector.stores._both import Both
from assay.collector.stores.sqlite._behind import Behind
from assay.collector.stores.sqlite._control import SQLiteControl
from assay.collector.stores.sqlite._file import File
from assay.collector.stores.sqlite._traces import SQLiteTraces

if TYPE_CHECKING:
    from assay.collector.stores import Serving, Store

    class _Store(Both, SQLiteTraces, SQLiteControl):
        """What type checkers shall see in `Both`: the verbs of these two halves, which it takes from them."""

    def _keeps(store: SQLiteStore) -> tuple[Store, Serving]:
        return store, store

else:
    _Store = Both


class SQLiteStore(_Store):
    """Implements `assay.collector.stores.Store` and `Serving` on the file at `path`, which it makes if there is none.

    Raises `Refused` when another process (or another store in this one) writes the file, when the file is damaged,
    newer than this Assay, or not Assay's.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        file = File(path)
        self._origin = file.origin
        self.announce, self.health, self.trouble = file.announce, file.health, file.trouble
        self.stats, self.check, self.checkpoint = file.stats, file.check, file.checkpoint
        Both.__init__(self, SQLiteTraces(file), SQLiteControl(file))
        self._behind = Behind(file, self.prune_by_rules)

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"

    def __enter__(self) -> SQLiteStore:
        return self

    def close(self) -> None:
        """Write what is queued, then let go. Closing twice is harmless."""
        if self._origin.is_here:
            self._behind.close()
            Both.close(self)
