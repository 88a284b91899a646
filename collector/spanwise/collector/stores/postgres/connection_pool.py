"""Pool of connections to a PostgreSQL database: address, settings of sessions, time limits, translation of errors.

A call opens a connection in its own thread, so that it learns at once why the server cannot be reached. The pool has no
threads, and forked children refuse to use it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import quote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from spanwise.collector.errors import Closed, Refused, StoreError, Unavailable
from spanwise.collector.request_context import CURRENT_QUERY, CancellableQuery
from spanwise.collector.stores.fork_protection import OwnerProcess, protect_from_fork
from spanwise.collector.stores.postgres.postgres_connection import ADAPTERS, PostgresSession

SCHEMA = "spanwise"  # of the database; holds all tables
MIN_SERVER_VERSION = 130_000
MAX_CONNECTIONS = 10
CONNECTION_WAIT_SECONDS = 10.0  # longest wait for a connection while all are in use
IDLE_SECONDS = 60.0  # connections that were not used for so long are closed
POLL_SECONDS = 0.1
CANCEL_SECONDS = 2.0
# Time limits of a session. A process that is stopped while it holds locks loses them after the last one
SESSION_SETTINGS = (
    f"SET search_path = {SCHEMA};"
    " SET statement_timeout = '60s'; SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s';"
    # Acknowledged means durable, whatever the default of the server
    " SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
# A broken network is noticed after some 20 seconds. The address may set other values
CONNECTION_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "spanwise",
}


class DatabaseAddress(NamedTuple):
    """Address of a database: parameters of connections, and the same without password, for display."""

    parameters: dict[str, str]
    where: str


def parse_address(url: str) -> DatabaseAddress:
    """Return the address that a URL such as `postgresql://user@host/database` names.

    Raise `Refused` for an invalid URL. The error does not repeat it, because it may contain a password.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise Refused("the address of a PostgreSQL database begins with postgresql://")
    try:
        parsed = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error:
        raise Refused(
            "the address of the PostgreSQL database is invalid; write postgresql://user:password@host:5432/database, and"
            " special characters of the password in percent-encoding"
        ) from None
    user = f"{quote(parsed['user'])}@" if "user" in parsed else ""
    hosts, ports = parsed.get("host", "").split(","), parsed.get("port", "").split(",")
    ports = ports if len(ports) == len(hosts) else ports * len(hosts)
    is_socket = hosts[0].startswith(("/", "@"))
    at = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True))
    where = f"postgresql://{user}{'' if is_socket else at}/{quote(parsed.get('dbname', ''))}"
    if is_socket:
        where += f"?host={hosts[0]}" + (f"&port={ports[0]}" if ports[0] else "")
    return DatabaseAddress({**CONNECTION_DEFAULTS, **parsed, "client_encoding": "UTF8"}, where)


class ConnectionPool:
    """Pool of at most `places` connections. A caller waits for up to `wait` seconds while all are in use.

    A thread must not take two connections at once.
    """

    def __init__(
        self, address: DatabaseAddress, places: int = MAX_CONNECTIONS, wait: float = CONNECTION_WAIT_SECONDS
    ) -> None:
        self.where = address.where
        self._parameters, self._max_connections, self._max_wait = address.parameters, places, wait
        self._origin = OwnerProcess()
        self._places, self._lock = threading.BoundedSemaphore(places), threading.Lock()
        self._idle: list[tuple[float, PostgresSession]] = []  # with the time of the last use; the latest is last
        self._closed = False
        protect_from_fork(self)

    @contextmanager
    def acquire(self, begin: str) -> Iterator[PostgresSession]:
        """Yield a connection in a transaction that the statement `begin` has begun. Roll back uncommitted changes.

        Raise `Unavailable` if no connection becomes free, or the server cannot be reached; `Closed` if the store is
        closed or was opened by a parent process; `TooSlow` and `Closed` if the current request is over.
        """
        self._origin.check()
        request = CURRENT_QUERY.get()
        self._wait_for_place(request)
        try:
            session = self._begin(begin)
            cancel = _Canceller(session)
            if request is not None:
                request.begin(cancel)
            try:
                yield session
            except psycopg.Error as error:
                if request is not None and request.is_over and isinstance(error, errors.QueryCanceled):
                    raise request.refusal() from error
                raise
            finally:
                if request is not None:
                    request.end(cancel)
                # A late cancellation must not stop the statement of another request
                self._give_back(session, is_reusable=request is None or not request.is_over)
        finally:
            self._places.release()

    def _wait_for_place(self, request: CancellableQuery | None) -> None:
        until = time.monotonic() + self._max_wait
        while not self._places.acquire(timeout=min(POLL_SECONDS, max(0.0, until - time.monotonic()))):
            if request is not None:
                request.check()
            if time.monotonic() >= until:
                raise Unavailable(
                    f"all {self._max_connections} connections to {self.where} have been busy for {self._max_wait:g}"
                    " seconds; retry in a moment",
                    retry_after=2.0,
                )

    def _begin(self, begin: str) -> PostgresSession:
        """Return a connection in a new transaction. Connections that the server has closed meanwhile are left out."""
        while True:
            with self._lock:
                if self._closed:
                    raise Closed("the store is closed")
                session = self._idle.pop()[1] if self._idle else None
            if session is None:
                session = self._connect()
                session.execute(begin.encode(), prepare=False)
                return session
            try:
                session.execute(begin.encode(), prepare=False)
                return session
            except psycopg.Error:
                session.close()

    def _connect(self) -> PostgresSession:
        try:
            session = psycopg.Connection.connect(
                **self._parameters,  # type: ignore[arg-type]
                autocommit=True,
                context=ADAPTERS,
                cursor_factory=psycopg.RawCursor,
            )
        except psycopg.Error as error:
            raise describe_connection_failure(error, self.where) from None
        try:
            _check_server(session)
            session.execute(SESSION_SETTINGS.encode(), prepare=False)
        except BaseException:
            session.close()
            raise
        return session

    def _give_back(self, session: PostgresSession, is_reusable: bool) -> None:
        if is_reusable and not session.closed and session.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                session.execute(b"ROLLBACK", prepare=False)
        now = time.monotonic()
        with self._lock:
            if (
                is_reusable
                and not self._closed
                and not session.closed
                and session.info.transaction_status == TransactionStatus.IDLE
            ):
                self._idle.append((now, session))
                session = None  # type: ignore[assignment]
            unused = [one for used, one in self._idle if used < now - IDLE_SECONDS]
            self._idle = self._idle[len(unused) :]
        for one in (*unused, *([session] if session is not None else [])):
            one.close()

    def close(self) -> None:
        """Close all idle connections, and refuse further use. Connections in use are closed when they are given back.

        Repeated calls, and calls in a forked child, do nothing.
        """
        if not self._origin.is_here:
            return
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()


class _Canceller:
    """Cancels the statement that runs on a connection. Calls that follow at once have no effect."""

    def __init__(self, session: PostgresSession) -> None:
        self._session, self._last = session, -CANCEL_SECONDS

    def __call__(self) -> None:
        if (now := time.monotonic()) >= self._last + CANCEL_SECONDS:
            self._last = now
            with suppress(psycopg.Error):
                self._session.cancel_safe(timeout=CANCEL_SECONDS)


def _check_server(session: PostgresSession) -> None:
    if session.info.server_version < MIN_SERVER_VERSION:
        raise Refused(
            f"the PostgreSQL server has version {session.info.server_version // 10_000}, and Spanwise needs"
            f" {MIN_SERVER_VERSION // 10_000} or newer"
        )
    [encoding] = session.execute("SELECT current_setting('server_encoding')").fetchone() or ("",)
    if encoding != "UTF8":
        raise Refused(
            f"the database has the encoding {encoding}, and Spanwise needs UTF8; create it with"
            " CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )


# Conditions that may pass: of connections (08), resources (53), operators (57), and waits for locks (55)
_PASSING_CLASSES = ("08", "53", "55", "57")
_INPUT_CLASSES = ("22", "23", "42", "54")
_WRONG_ADDRESS = ("28", "3D")  # authentication, unknown database


def describe_connection_failure(error: psycopg.Error, where: str) -> StoreError:
    """Return the error for a connection that could not be opened. The message of libpq does not contain the password."""
    reason = " ".join(str(error).split())
    # An error during the connection has no code, but the message of the server
    is_refused = (error.sqlstate or "")[:2] in _WRONG_ADDRESS or any(
        text in reason for text in ("authentication failed", "no pg_hba.conf entry", "does not exist", "no password")
    )
    if is_refused and "No such file" not in reason:
        return Refused(f"cannot connect to {where}: {reason}")
    return Unavailable(f"cannot connect to {where}: {reason}", retry_after=5.0)


def translate_error(error: psycopg.Error, where: str) -> StoreError:
    """Translate an error of PostgreSQL into an error of the store."""
    state = error.sqlstate or ""
    reason = (error.diag.message_primary or " ".join(str(error).split())) if error.diag else str(error)
    if isinstance(error, errors.DiskFull):
        return Unavailable(f"cannot write to {where}: {reason}; free space on its disk", retry_after=5.0)
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return Unavailable(f"{where} accepts no writes, because it is a standby: {reason}", retry_after=5.0)
    if isinstance(error, (errors.SerializationFailure, errors.DeadlockDetected)):
        return Unavailable(f"other writes to {where} prevent this one: {reason}; retry in a moment")
    if state[:2] in _PASSING_CLASSES or (not state and isinstance(error, psycopg.OperationalError)):
        return Unavailable(f"{where} cannot answer now: {reason}", retry_after=2.0)
    if state[:2] in _INPUT_CLASSES or not state:
        return Refused(f"{where} refuses this: {reason}")
    return StoreError(f"{where}: {reason}")
