"""Migrations: numbered SQL files, which are applied in order under a lock.

All files that are missing run in one transaction. A process that is killed meanwhile, or a file that fails, changes
nothing. Two processes that open the database at once wait for each other, and the second one finds nothing to do.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from psycopg import errors

from spanwise.collector.errors import Refused
from spanwise.collector.stores.postgres.connection_pool import SCHEMA, ConnectionPool
from spanwise.collector.stores.postgres.postgres_connection import PostgresSession, hash_lock

log = logging.getLogger("spanwise.collector.migration")
MIGRATION_FOLDER = Path(__file__).parent / "migrations"
_FILE_NAME = re.compile(r"(\d{4})_\w+\.sql")
# A restored copy of the database lacks the lease numbers that were issued after the backup, and feedback with them may
# be in the trace backend. Therefore each opening continues from the present time in microseconds, if that is far
# higher. Small differences are left alone, because another process may take the next number at the same time
_RAISE_LEASE_NUMBERS = (
    "SELECT setval('lease_numbers', (extract(epoch FROM clock_timestamp()) * 1e6)::bigint) FROM lease_numbers"
    " WHERE (extract(epoch FROM clock_timestamp()) * 1e6)::bigint > last_value + 60000000"
)


class Migration(NamedTuple):
    """SQL file that brings the schema to the version of its number."""

    name: str
    sql: str


@cache
def read_migrations() -> Mapping[int, Migration]:
    """Return the migrations of this version of Spanwise by number, from 1 without gaps."""
    found = {
        int(match[1]): Migration(path.name, path.read_text("utf-8"))
        for path in sorted(MIGRATION_FOLDER.iterdir())
        if (match := _FILE_NAME.fullmatch(path.name))
    }
    assert list(found) == list(range(1, len(found) + 1)), "migrations are numbered without gaps"
    return found


def migrate(pool: ConnectionPool) -> None:
    """Create the tables in an empty database, or bring those of an older version of Spanwise up to date.

    Raise `Refused` if a newer Spanwise has migrated the database, or this user may not create the schema.
    """
    migrations = read_migrations()
    with pool.acquire("BEGIN") as session:
        try:
            if _read_version(session, pool.where) < len(migrations):
                session.execute("SELECT pg_advisory_xact_lock($1)", (hash_lock("migrations"),))
                _apply(session, migrations, _read_version(session, pool.where), pool.where)
            session.execute(_RAISE_LEASE_NUMBERS)
        except errors.InsufficientPrivilege as error:
            raise Refused(
                f"this user may not create the tables in {pool.where}: {error.diag.message_primary}; let an owner of the"
                f" database run: CREATE SCHEMA {SCHEMA} AUTHORIZATION the_user"
            ) from error
        session.execute("COMMIT")


def _read_version(session: PostgresSession, where: str) -> int:
    """Return the version of the schema, 0 if it does not exist. Raise `Refused` for one of a newer Spanwise."""
    [table] = session.execute("SELECT to_regclass($1)::text", (f"{SCHEMA}.schema_version",)).fetchone() or (None,)
    if table is None:
        return 0
    [version] = session.execute("SELECT version FROM schema_version").fetchone() or (0,)
    if version > len(read_migrations()):
        raise Refused(
            f"{where} was migrated by a newer Spanwise (schema version {version}, this one knows {len(read_migrations())});"
            " upgrade this installation"
        )
    return int(version)


def _apply(session: PostgresSession, migrations: Mapping[int, Migration], version: int, where: str) -> None:
    if version == 0:
        # CREATE SCHEMA IF NOT EXISTS needs the right to create one even if it exists
        if session.execute("SELECT to_regnamespace($1)::text", (SCHEMA,)).fetchone() == (None,):
            session.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        session.execute("CREATE TABLE schema_version (version BIGINT NOT NULL)")
        session.execute("INSERT INTO schema_version VALUES (0)")
    for number in range(version + 1, len(migrations) + 1):
        log.info("migrating %s: %s", where, migrations[number].name)
        session.execute(migrations[number].sql.encode(), prepare=False)
        session.execute("UPDATE schema_version SET version = $1", (number,))
