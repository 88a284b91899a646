"""Tables of a control backend as rows, for copies between databases: names, keys, export and import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanwise.collector.stores.control.control_database import ControlDatabase, WriteConnection
from spanwise.collector.stores.table_rows import Connection

# Columns of the primary key by table. The order is that of a copy: rules come last but for decisions, so that a copy that
# was interrupted has no rule without its datasets and budgets
CONTROL_TABLES: Mapping[str, Sequence[str]] = {
    "datasets": ("name", "version"),
    "examples": ("id",),
    "experiments": ("id",),
    "retention": ("project",),
    "queue": ("id",),
    "keys": ("id",),
    "audit": ("id",),
    "workers": ("holder",),
    "budgets": ("budget", "period", "start_ns"),
    "bookings": ("id",),
    "spend": ("id",),
    "notifications": ("number",),
    "deliveries": ("notification", "target"),
    "alerts": ("id",),
    "alert_groups": ("alert", "is_group", "name"),
    "alert_events": ("number",),
    "backfills": ("id",),
    "decisions": ("id",),
    "backfill_draws": ("decision", "backfill"),
    "outcomes": ("rule", "block"),
    "counts": ("rule", "hour_ns"),
    "settings": ("id",),
    "rules": ("id",),
    "leases": ("name",),
}

Row = tuple[Any, ...]


class ControlTables(ABC):
    """Tables of a control backend. Both engines have the same tables, columns and ids, so rows need no conversion."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    @abstractmethod
    def _list_columns(self, db: Connection, table: str) -> Sequence[str]:
        """Return the names of a table's columns."""

    @abstractmethod
    def _read_lease_number(self, db: Connection) -> int: ...

    @abstractmethod
    def _restore_numbers(self, db: WriteConnection, lease_number: int) -> None:
        """Continue with the lease numbers after `lease_number`, and with ids after those that were imported."""

    def read_lease_number(self) -> int:
        """Return the latest number of a lease."""
        with self._database.read() as reader:
            return self._read_lease_number(reader.db)

    def finish_import(self, lease_number: int) -> None:
        """Continue with the lease numbers after `lease_number`, once all tables are imported."""
        self._database.write(lambda db: self._restore_numbers(db, lease_number))

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns, in alphabetical order."""
        with self._database.read() as reader:
            return sorted(self._list_columns(reader.db, table))

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        with self._database.read() as reader:
            return int(reader.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def export_rows(self, table: str, columns: Sequence[str], after: Row | None, limit: int) -> list[Row]:
        """Return at most `limit` rows after the one with the key `after`, in the order of keys.

        Text keys are compared by their bytes on both engines.
        """
        key = CONTROL_TABLES[table]
        where = f"WHERE ({', '.join(key)}) > ({', '.join('?' * len(key))})" if after is not None else ""
        sql = f"SELECT {', '.join(columns)} FROM {table} {where} ORDER BY {', '.join(key)} LIMIT ?"
        with self._database.read() as reader:
            return [tuple(row) for row in reader.db.execute(sql, (*(after or ()), limit)).fetchall()]

    def get_key(self, table: str, columns: Sequence[str], row: Row) -> Row:
        """Return the primary key of an exported row."""
        return tuple(row[columns.index(name)] for name in CONTROL_TABLES[table])

    def import_rows(self, table: str, columns: Sequence[str], rows: Iterable[Row], *, first: bool) -> None:
        """Insert exported rows in one transaction. The first batch of a table replaces all rows that it has."""
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        values = [tuple(row) for row in rows]

        def put(db: WriteConnection) -> None:
            if first:
                db.execute(f"DELETE FROM {table}")
            if values:
                db.executemany(sql, values)

        self._database.write(put)
