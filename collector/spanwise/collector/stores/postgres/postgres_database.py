"""Transactions on a PostgreSQL database: reads in one snapshot, writes that are repeated after conflicts, the clock."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from spanwise.collector.errors import StoreError, Unavailable
from spanwise.collector.stores.control.control_database import WriteConnection
from spanwise.collector.stores.postgres.connection_pool import ConnectionPool, parse_address, translate_error
from spanwise.collector.stores.postgres.postgres_connection import PostgresConnection, PostgresSession
from spanwise.collector.stores.postgres.schema_migrations import migrate

T = TypeVar("T")
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
MAX_ATTEMPTS = 6  # runs of a write that conflicts with others, or whose connection is lost
PAUSE_SECONDS = 0.02  # longest pause before the second attempt; doubles with each
FULL_MEMORY_S = 300.0
# Two transactions have written the same rows, or have created the same row
_CONFLICTS = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.UniqueViolation,
    errors.ForeignKeyViolation,
)


class DatabaseClock:
    """Clock of the database server, so that processes on machines with other clocks agree.

    Between two readings of the server's clock, the time advances with the monotonic clock of this process, so that most
    operations need no extra round trip. It lags behind by one round trip at most. The time never goes back: the latest
    one that was stored is in a sequence of the database, which no transaction locks.
    """

    SYNC_SECONDS = 1.0  # between two readings by operations that write
    MAX_AGE_SECONDS = 30.0  # of the last reading, for operations that only read
    _READ = (
        "SELECT greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000, last_value) FROM store_clock"
    )
    _KEEP = (
        "SELECT setval('store_clock', greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000,"
        " last_value, ?)) FROM store_clock"
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now, self._ticked = 1, time.monotonic_ns()
        self._synced = float("-inf")

    def now(self) -> int:
        """Return nanoseconds since 1970."""
        with self._lock:
            return self._advance(0)

    def keep(self, db: Any) -> int:
        """Return the time. If the last reading is older than `SYNC_SECONDS`, read and store it."""
        if time.monotonic() - self._synced >= self.SYNC_SECONDS:
            self._set(db.execute(self._KEEP, (self.now(),)).fetchone()[0])
        return self.now()

    def refresh(self, db: PostgresConnection) -> None:
        """Read the server's clock if the last reading is older than `MAX_AGE_SECONDS`."""
        if time.monotonic() - self._synced >= self.MAX_AGE_SECONDS:
            self._set(db.execute(self._READ).fetchone()[0])

    def _set(self, server: int) -> None:
        with self._lock:
            self._advance(server)
            self._synced = time.monotonic()

    def _advance(self, least: int) -> int:
        ticked = time.monotonic_ns()
        self._now = max(least, self._now + ticked - self._ticked)
        self._ticked = ticked
        return self._now


class PostgresDatabase:
    """Database at a URL, migrated to the newest schema (see `ControlDatabase` in `stores.control`).

    Raise `Refused` for an invalid address, a wrong password, and a database of a newer Spanwise; `Unavailable` if the
    server cannot be reached.
    """

    def __init__(self, url: str) -> None:
        address = parse_address(url)
        self.where = address.where
        self.clock = DatabaseClock()
        self._last_full = float("-inf")
        self._pool = ConnectionPool(address)
        try:
            with self._translating():
                migrate(self._pool)
            with self.read():  # reads the clock
                pass
        except BaseException:
            self._pool.close()
            raise

    @contextmanager
    def read(self) -> Iterator[PostgresConnection]:
        """Yield a connection in one snapshot of the database."""
        with self._translating(), self._pool.acquire(BEGIN_READ) as session:
            connection = PostgresConnection(session)
            self.clock.refresh(connection)
            yield connection

    def write(self, action: Callable[[WriteConnection], T], /) -> T:
        """Run an action in a transaction, and return its result when it is durable.

        The action runs again after a conflict with another transaction, and if the connection is lost before COMMIT.
        Raise `Unavailable` if it is lost during COMMIT: the changes may be stored or not. A repetition by the caller
        finds out, as after a crash of this process.
        """
        with self._translating():
            for attempt in range(1, MAX_ATTEMPTS + 1):
                session: PostgresSession | None = None
                try:
                    with self._pool.acquire(BEGIN_WRITE) as session:
                        result = action(PostgresConnection(session))
                        self._commit(session)
                        return result
                except _CONFLICTS:
                    if attempt == MAX_ATTEMPTS:
                        raise
                except psycopg.OperationalError:
                    if session is None or not session.broken or attempt > 2:
                        raise
                time.sleep(random.uniform(0.0, PAUSE_SECONDS * 2**attempt))
        raise AssertionError

    def _commit(self, session: PostgresSession) -> None:
        try:
            if session.execute("COMMIT", prepare=False).statusmessage != "COMMIT":
                raise StoreError(f"{self.where} has rolled back a transaction in which a statement failed")
        except psycopg.OperationalError as error:
            raise Unavailable(
                f"the connection to {self.where} was lost during a commit: {error}; retry, because the changes may not"
                " be stored",
                retry_after=2.0,
            ) from error

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if isinstance(error, errors.DiskFull):
                self._last_full = time.monotonic()
            raise translate_error(error, self.where) from error

    @property
    def was_full_lately(self) -> bool:
        """Return whether a write of the last five minutes found the disk full."""
        return time.monotonic() - self._last_full < FULL_MEMORY_S

    def close(self) -> None:
        """Close all connections. Repeated calls, and calls in a forked child, do nothing."""
        self._pool.close()
