"""Control backend on PostgreSQL: the shared control operations over pooled connections of psycopg.

Modules, in the order in which data flows:

- `postgres_control`: Control backend on PostgreSQL.
- `postgres_database`: Transactions on a PostgreSQL database: reads in one snapshot, writes that are repeated after
  conflicts, the clock.
- `connection_pool`: Pool of connections to a PostgreSQL database: address, settings of sessions, time limits,
  translation of errors.
- `postgres_connection`: Connection within a transaction: statements of the shared SQL in PostgreSQL's form, values,
  locks, lease numbers.
- `schema_migrations`: Migrations: numbered SQL files, which are applied in order under a lock.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.collector.stores.postgres.postgres_control import PostgresControl
else:
    __getattr__, __dir__ = lazy(__name__, postgres_control="PostgresControl")

__all__ = ["PostgresControl"]
