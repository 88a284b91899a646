"""Control backend on PostgreSQL."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from spanwise.collector.errors import StoreError, require_extra
from spanwise.collector.stores.control.control_database import WriteConnection
from spanwise.collector.stores.control.control_operations import ControlOperations
from spanwise.collector.stores.control.control_tables import ControlTables
from spanwise.collector.stores.table_rows import Connection

with require_extra("postgres", "a store on PostgreSQL"):
    from spanwise.collector.stores.postgres.connection_pool import SCHEMA
    from spanwise.collector.stores.postgres.postgres_database import PostgresDatabase

# Tables whose ids the database assigns
_NUMBERED_TABLES = "examples rules settings decisions backfills spend alerts alert_events notifications audit".split()


class PostgresTables(ControlTables):
    """Control tables of a PostgreSQL database."""

    def _list_columns(self, db: Connection, table: str) -> Sequence[str]:
        sql = "SELECT column_name::text FROM information_schema.columns WHERE table_schema = ? AND table_name = ?"
        return [row[0] for row in db.execute(sql, (SCHEMA, table)).fetchall()]

    def _read_lease_number(self, db: Connection) -> int:
        sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM lease_numbers"
        return int(db.execute(sql).fetchone()[0])

    def _restore_numbers(self, db: WriteConnection, lease_number: int) -> None:
        if lease_number:
            db.execute("SELECT setval('lease_numbers', ?)", (lease_number,))
        for table in _NUMBERED_TABLES:
            column = "number" if table in ("alert_events", "notifications") else "id"
            sequence = f"pg_get_serial_sequence('{SCHEMA}.{table}', '{column}')"
            db.execute(f"SELECT setval({sequence}, max({column})) FROM {table} HAVING max({column}) IS NOT NULL")


class PostgresControl(ControlOperations):
    """Control backend on the PostgreSQL database at a URL, such as `postgresql://user:password@host:5432/database`.

    The tables are in the schema `spanwise`, and are created or migrated when it is opened. Raise `Refused` for an invalid
    address, a wrong password, and a database of a newer Spanwise; `Unavailable` if the server cannot be reached. It has
    no sums of scores, because scores are in the trace backend.
    """

    def __init__(self, url: str) -> None:
        database = PostgresDatabase(url)
        super().__init__(database)
        self._postgres = database

    @property
    def where(self) -> str:
        """Return the URL without password."""
        return self._postgres.where

    def control_tables(self) -> ControlTables:
        """Return the tables of this backend as rows, for copies."""
        return PostgresTables(self._postgres)

    def shared_secret(self) -> bytes:
        """Return a random secret that all processes with this database share. The first one creates it."""

        def find(db: WriteConnection) -> bytes:
            sql = "INSERT INTO secrets (name, value) VALUES ('browser sessions', ?) ON CONFLICT (name) DO NOTHING"
            db.execute(sql, (secrets.token_bytes(32),))
            return bytes(db.execute("SELECT value FROM secrets WHERE name = 'browser sessions'").fetchone()[0])

        return self._postgres.write(find)

    def trouble(self) -> str | None:
        """Return the reason why nothing can be stored now, without addresses; None if the server answers."""
        try:
            with self._postgres.read():
                return None
        except StoreError as error:
            return f"PostgreSQL does not answer: {type(error).__name__}"

    def is_full(self) -> bool:
        return self._postgres.was_full_lately

    def close(self) -> None:
        """Close all connections. Repeated calls, and calls in a forked child, do nothing."""
        self._postgres.close()
