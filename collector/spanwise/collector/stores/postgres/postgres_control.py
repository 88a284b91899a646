"""Control backend on PostgreSQL."""

from __future__ import annotations

from spanwise.collector.errors import require_extra
from spanwise.collector.stores.control.control_operations import ControlOperations

with require_extra("postgres", "a store on PostgreSQL"):
    from spanwise.collector.stores.postgres.postgres_database import PostgresDatabase


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

    def is_full(self) -> bool:
        return self._postgres.was_full_lately

    def close(self) -> None:
        """Close all connections. Repeated calls, and calls in a forked child, do nothing."""
        self._postgres.close()
