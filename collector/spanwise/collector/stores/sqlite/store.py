"""SQLite store: trace backend and control backend over one database file, read-only where it is not writable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import AlertResult, Lease, Retention
from spanwise.collector.stores.combined_store import CombinedStore
from spanwise.collector.stores.sqlite.control.control_backend import SQLiteControl
from spanwise.collector.stores.sqlite.database.connections import can_write
from spanwise.collector.stores.sqlite.database.file_lock import real_path
from spanwise.collector.stores.sqlite.database.schema import APPLICATION_IDS
from spanwise.collector.stores.sqlite.database_file import DatabaseFile, ReadOnlyFile, SnapshotFile
from spanwise.collector.stores.sqlite.maintenance.background_worker import BackgroundWorker
from spanwise.collector.stores.sqlite.trace_backend import SQLiteTraces

if TYPE_CHECKING:
    from spanwise.collector.stores import LocalStore, Store

    class _Store(CombinedStore, SQLiteTraces, SQLiteControl):
        """Type of the combined store for type checkers: it takes its operations from these two backends."""

    def _keeps(store: SQLiteStore) -> tuple[Store, LocalStore]:
        return store, store

else:
    _Store = CombinedStore


class SQLiteStore(_Store):
    """Store on the SQLite file at `path`, created if it does not exist.

    Implements `spanwise.collector.stores.Store` and `LocalStore`. Raises `Refused` if another process (or another
    store in this one) has the file open for writing. It also does so if the file is damaged, newer than this
    Spanwise, or not a Spanwise file.
    """

    def __init__(self, path: str | Path) -> None:
        self._over(DatabaseFile(path))
        self._behind = BackgroundWorker(self._file, self.prune_by_rules)

    def _over(self, file: DatabaseFile) -> None:
        self.path, self._file, self._origin = file.name, file, file.origin
        self.announce, self.health, self.trouble = file.announce, file.health, file.trouble
        self.stats, self.check, self.checkpoint = file.stats, file.check, file.checkpoint
        CombinedStore.__init__(self, SQLiteTraces(file), SQLiteControl(file))

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"

    def __enter__(self) -> SQLiteStore:
        return self

    def traced_destinations(self, project: str) -> Sequence[str]:
        return self._file.appender.destinations.of(project)

    # These operations free space, so they may use the disk reserve

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        with self._file.making_room():
            return CombinedStore.delete(self, filter, **conditions)

    def prune(self, rule: Retention) -> int:
        with self._file.making_room():
            return CombinedStore.prune(self, rule)

    def delete_experiment(self, id: str) -> bool:
        with self._file.making_room():
            return CombinedStore.delete_experiment(self, id)

    # A look at an alert is small, and may find that the disk is full

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        with self._file.making_room():
            return self._control.acquire(name, holder, seconds)

    def record_look(self, result: AlertResult) -> bool:
        with self._file.making_room():
            return self._control.record_look(result)

    def __exit__(self, *failed: object) -> None:
        if any(isinstance(error, Refused) for error in failed):  # for example, a port in use or a missing key
            self._file.was_in_vain()
        self.close()

    def close(self) -> None:
        """Write queued jobs, then close the file. Repeated calls do nothing."""
        if self._origin.is_here:
            self._behind.close()
            CombinedStore.close(self)


class ReadOnlySQLiteStore(SQLiteStore):
    """Store on a file that this user may not write. Operations that write raise `Refused`."""

    def __init__(self, path: str | Path) -> None:
        self._over(ReadOnlyFile(path))

    def close(self) -> None:
        CombinedStore.close(self)


class SnapshotSQLiteStore(ReadOnlySQLiteStore):
    """Store on one snapshot of a file: what the file held when it was opened. For one thread."""

    def __init__(self, path: str | Path) -> None:
        self._over(SnapshotFile(path))


def open_snapshot(path: str | Path) -> SQLiteStore:
    """Return the store at a path as it is now, for reading, even while another process writes the file.

    The file's write-ahead log grows until the snapshot is closed. Raise `Refused` as for a read-only store.
    """
    return SnapshotSQLiteStore(path)


def is_store_file(path: str) -> bool:
    """Return whether the file at a path is a Spanwise store, by its header."""
    with open(path, "rb") as file:
        header = file.read(72)
    return header.startswith(b"SQLite format 3\0") and int.from_bytes(header[68:72]) in APPLICATION_IDS


def open_store(path: str | Path) -> SQLiteStore:
    """Return the store at a path. It is read-only if this user may not write the existing file."""
    place = real_path(path)
    return ReadOnlySQLiteStore(path) if os.path.exists(place) and not can_write(place) else SQLiteStore(path)
