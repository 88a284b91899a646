"""Reading a database file without holding it: while a server writes it, or when something is wrong with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from spanwise.collector import format
from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.stores.sqlite import _maintenance
from spanwise.collector.stores.sqlite._backup import backup
from spanwise.collector.stores.sqlite._beside import connect_beside
from spanwise.collector.stores.sqlite._errors import translate
from spanwise.collector.stores.sqlite._lock import real
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._recover import Recovered, Saved, recover
from spanwise.collector.stores.sqlite._restore import Restored
from spanwise.collector.stores.sqlite._restore import restore as _restore
from spanwise.collector.stores.sqlite._schema import APPLICATION_IDS

__all__ = ["TABLES", "File", "Recovered", "Restored", "Saved", "backup", "check", "opened", "recover", "restore"]

TABLES = """
SELECT m.name AS "table", group_concat(c.name, ', ') AS columns FROM sqlite_schema m, pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name NOT LIKE 'words_%' GROUP BY m.name ORDER BY m.name
"""


class File:
    """A file opened for reading."""

    def __init__(self, path: str) -> None:
        self._path = real(path)
        self._reader = Reader(connect_beside(self._path))
        self._payloads = Reader(connect_beside(self._path))  # a function of a query cannot query on the same connection

    def is_ours(self) -> bool:
        """Whether Spanwise made the file."""
        return self._reader.db.execute("PRAGMA application_id").fetchone()[0] in APPLICATION_IDS

    def stats(self) -> dict[str, Any]:
        """Sizes in bytes, counts of rows, and projects with their share of the file."""
        return _maintenance.stats(self._reader.db, self._path)

    def check(self, *, deep: bool = False) -> list[str]:
        """What is wrong with the file, in words; empty if it is sound."""
        return _maintenance.check(self._reader, deep)

    def sql(self, query: str) -> Iterator[dict[str, Any]]:
        """Rows of one statement by column. Has `payload(id or blob)` and `iso(ns)`. Raises `Refused` for bad SQL."""
        db = self._reader.db
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # ATTACH would make the file that it names
        db.create_function("payload", 1, self._payload, deterministic=True)
        db.create_function("iso", 1, _iso, deterministic=True)
        try:
            rows = db.execute(query)
            names = [column[0] for column in rows.description or ()]
            for row in rows:
                yield dict(zip(names, row, strict=True))
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise Refused(f"SQLite says: {error}") from error

    def _payload(self, what: object) -> str | None:
        if isinstance(what, int):
            row = self._payloads.db.execute("SELECT payload FROM spans WHERE id = ?", (what,)).fetchone()
            what = row[0] if row else None
        if not isinstance(what, bytes):
            return None
        return self._payloads.decoder(what).raw(what).decode()

    def close(self) -> None:
        """Let go."""
        self._reader.db.close()
        self._payloads.db.close()


def _iso(time_ns: object) -> str | None:
    return format.utc(time_ns) if isinstance(time_ns, int) else None


@contextmanager
def opened(path: str) -> Iterator[File]:
    """A file for reading. Raises `Refused` if it is damaged or not one of Spanwise's."""
    try:
        with closing(File(path)) as file:
            if not file.is_ours():
                raise Refused(f"{path!r} is not one of Spanwise's files")
            yield file
    except sqlite3.Error as error:
        raise translate(error) from error


def check(path: str, *, deep: bool = False) -> list[str]:
    """What is wrong with a file, in words, also if it cannot be opened at all; empty if it is sound."""
    try:
        with opened(path) as file:
            return file.check(deep=deep)
    except StoreError as error:
        return [str(error)]


def restore(source: str, target: str) -> Restored:
    """Put a copy of the backup `source` in the place of the file `target`, which is moved away. Raises `Refused`."""
    return _restore(source, target, check)
