"""Read-only inspection of a database file for `spanwise db`: statistics, integrity check and SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from spanwise.collector import formatting
from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.stores.sqlite.database.connections import Reader, connect_without_lock, translate_error
from spanwise.collector.stores.sqlite.database.file_lock import real_path
from spanwise.collector.stores.sqlite.database.schema import APPLICATION_IDS
from spanwise.collector.stores.sqlite.maintenance import integrity
from spanwise.collector.stores.sqlite.maintenance.backup_restore import RestoreResult, backup
from spanwise.collector.stores.sqlite.maintenance.backup_restore import restore_backup as _restore
from spanwise.collector.stores.sqlite.maintenance.recovery import RecoveryReport, TableRecovery, recover

__all__ = [
    "LIST_TABLES_SQL",
    "DatabaseInspector",
    "RecoveryReport",
    "RestoreResult",
    "TableRecovery",
    "backup",
    "check_file",
    "open_any_database",
    "open_inspector",
    "recover",
    "restore",
]

LIST_TABLES_SQL = """
SELECT m.name AS "table", group_concat(c.name, ', ') AS columns FROM sqlite_schema m, pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name NOT LIKE 'words_%' GROUP BY m.name ORDER BY m.name
"""


class DatabaseInspector:
    """Database file opened for reading."""

    def __init__(self, path: str) -> None:
        self._path = real_path(path)
        self._reader = Reader(connect_without_lock(self._path))
        # an SQL function cannot query on the connection that calls it
        self._payloads = Reader(connect_without_lock(self._path))
        db = self._reader.db
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # ATTACH would create a missing file
        db.create_function("payload", 1, self._payload, deterministic=True)
        db.create_function("iso", 1, lambda ns: formatting.utc(ns) if isinstance(ns, int) else None, deterministic=True)

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the connection, which cannot write."""
        return self._reader.db

    def is_ours(self) -> bool:
        """Return whether Spanwise created the file."""
        return self._reader.db.execute("PRAGMA application_id").fetchone()[0] in APPLICATION_IDS

    def stats(self) -> dict[str, Any]:
        """Return sizes in bytes, row counts, and projects with their share of the file."""
        return integrity.collect_stats(self._reader.db, self._path)

    def check(self, *, deep: bool = False) -> list[str]:
        """Return a message for each problem of the file. `deep` also reads every payload."""
        return integrity.check_integrity(self._reader, deep)

    def sql(self, query: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of one statement by column name. Raise `Refused` for invalid SQL.

        The statement may call `payload(id or blob)` and `iso(ns)`.
        """
        names, rows = self.select(query)
        for row in rows:
            yield dict(zip(names, row, strict=True))

    def select(self, query: str, parameters: Mapping[str, str] | None = None) -> tuple[list[str], Iterator[Any]]:
        """Return the names of the columns and the rows of one statement, as `sql` does."""
        with _refuse_invalid_sql():
            rows = self._reader.db.execute(query, parameters or {})

        def iterate() -> Iterator[Any]:
            with _refuse_invalid_sql():
                yield from rows

        return [column[0] for column in rows.description or ()], iterate()

    def _payload(self, value: object) -> str | None:
        if isinstance(value, int):
            row = self._payloads.db.execute("SELECT payload FROM spans WHERE id = ?", (value,)).fetchone()
            value = row[0] if row else None
        if not isinstance(value, bytes):
            return None
        return self._payloads.decoder(value).raw(value).decode()

    def close(self) -> None:
        self._reader.db.close()
        self._payloads.db.close()


@contextmanager
def _refuse_invalid_sql() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise Refused(f"invalid SQL: {error}") from error


@contextmanager
def open_any_database(path: str) -> Iterator[DatabaseInspector]:
    """Open any SQLite file for reading. Raise `Refused` if it is damaged."""
    try:
        with closing(DatabaseInspector(path)) as file:
            yield file
    except sqlite3.Error as error:
        raise translate_error(error) from error


@contextmanager
def open_inspector(path: str) -> Iterator[DatabaseInspector]:
    """Open a file for reading. Raise `Refused` if it is damaged or not a Spanwise file."""
    try:
        with closing(DatabaseInspector(path)) as file:
            if not file.is_ours():
                raise Refused(f"{path!r} is not a Spanwise database")
            yield file
    except sqlite3.Error as error:
        raise translate_error(error) from error


def check_file(path: str, *, deep: bool = False) -> list[str]:
    """Return a message for each problem of a file, also if it cannot be opened."""
    try:
        with open_inspector(path) as file:
            return file.check(deep=deep)
    except StoreError as error:
        return [str(error)]


def restore(source: str, target: str) -> RestoreResult:
    """Replace the file `target` by a copy of the backup `source`, and move the old file away. Raise `Refused` on
    failure.
    """
    return _restore(source, target, check_file)
