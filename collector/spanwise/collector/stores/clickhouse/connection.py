"""Connection to a ClickHouse server: queries, inserts and statements, with the errors of the store."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from spanwise.collector.errors import Closed, Refused, StoreError, TooSlow, Unavailable, require_extra
from spanwise.collector.stores.clickhouse import schema

with require_extra("clickhouse", __name__):
    import clickhouse_connect
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.exceptions import ClickHouseError
    from clickhouse_connect.driver.httputil import get_pool_manager

Row: TypeAlias = Sequence[Any]

CONNECT_SECONDS, REQUEST_SECONDS = 5, 60
MAX_CONNECTIONS = 32  # per process; further requests open connections that are closed afterwards
RETRY_SECONDS = 2.0

# Codes of errors that pass: the server is overloaded, out of memory or disk, read-only, or waits for its replicas
_TEMPORARY_CODES = frozenset(
    (
        *(3, 74, 75, 76, 159, 164, 173, 198, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 286),
        *(298, 319, 369, 373, 394, 439, 473, 519, 574, 667, 999),
    )
)
_TIMEOUT_CODES = frozenset((159, 160, 394, 307, 158))
# Codes of errors that an operator must repair: unknown user or database, no permission
_REFUSED_CODES = frozenset((81, 192, 193, 194, 195, 497, 516))
# The server must not acknowledge an insert before it is stored, and must let a mutation select from another table
_SETTINGS: Mapping[str, Any] = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "allow_nondeterministic_mutations": 1,
    "lightweight_deletes_sync": 2,
    "mutations_sync": 2,
    "max_execution_time": REQUEST_SECONDS - 5,
    # A search for the beginning of a word reads the posting lists of up to this many words, else all texts
    "text_index_like_max_postings_to_read": 100_000,
}
# In a cluster, an insert waits for a majority of the replicas, and a query for everything that was acknowledged
_CLUSTER_SETTINGS: Mapping[str, Any] = {
    "insert_quorum": "auto",
    "insert_quorum_parallel": 0,
    "select_sequential_consistency": 1,
    "distributed_foreground_insert": 1,
    "distributed_product_mode": "local",
}


_REASON = re.compile(r"\[Errno -?\d+\] [\w ]+|[Tt]imed out|Connection aborted|Name or service not known")
# Without any handler, Python would print the warnings of the client, which the errors of the store repeat
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())


class Connection:
    """Connection to one database on a server, for any number of threads, also after a fork.

    The address is `clickhouse://user:password@host:port/database`. Parameters are `secure=1` for HTTPS, `ca_cert=PATH`,
    and `cluster=NAME`. Nothing is sent before the first operation.
    """

    def __init__(self, url: str) -> None:
        """Raise `Refused` for an invalid address. No error contains the password."""
        address = urlsplit(url)
        options = dict(parse_qsl(address.query))
        self.cluster = options.pop("cluster", None)
        self._secure = options.pop("secure", "0") not in ("0", "false", "")
        self._ca_cert = options.pop("ca_cert", None)
        try:
            port = address.port or (8443 if self._secure else 8123)
        except ValueError:
            port = 0
        if address.scheme != "clickhouse" or not address.hostname or options or not port:
            shown = f"{address.scheme}://{address.hostname}{address.path}"
            raise Refused(
                f"invalid address {shown!r}; expected clickhouse://user:password@host:port/database, with the options"
                " secure, ca_cert and cluster"
            )
        if self.cluster is not None and not self.cluster.replace("_", "").isalnum():
            raise Refused(f"invalid cluster {self.cluster!r}; expected a name of letters, digits and underscores")
        self.database = unquote(address.path.strip("/")) or "default"
        self._host, self._port = address.hostname, port
        self._user, self._password = unquote(address.username or "default"), unquote(address.password or "")
        self.where = f"clickhouse://{self._user}@{self._host}:{port}/{self.database}"
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._owner = 0  # id of the process that opened `_client`
        self._is_closed = False

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query. `{name:Type}` in the query is replaced by the parameter of that name.

        Raise `Unavailable` if the server cannot answer now, and `TooSlow` if the query exceeds the server's limit of time.
        """
        try:
            result = self._open().query(sql, parameters=dict(parameters or {}), settings=dict(settings or {}))
        except ClickHouseError as error:
            raise self._translate(error, is_query=True) from None
        return list(map(tuple, result.result_rows))

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str | None = None) -> None:
        """Insert columns of values, and return when they are durable. All rows are of one partition.

        Repeating the insert with the same `token` stores nothing twice. Raise `Unavailable` if the server cannot store
        now. The rows may be stored then nevertheless.
        """
        if not columns or not len(next(iter(columns.values()))):
            return
        types = schema.get_column_types(table)
        try:
            self._open().insert(
                table,
                list(columns.values()),
                column_names=list(columns),
                column_type_names=[types[name] for name in columns],
                column_oriented=True,
                settings={"insert_deduplication_token": token} if token else {},
            )
        except ClickHouseError as error:
            raise self._translate(error) from None

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Execute a statement that returns no rows. Raise `Unavailable` as `query` does."""
        try:
            self._open().command(sql, parameters=dict(parameters or {}))
        except ClickHouseError as error:
            raise self._translate(error) from None

    def close(self) -> None:
        """Close the connections. Later operations raise `Closed`. Repeated calls do nothing."""
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None and self._owner == os.getpid():
            client.close()

    def _open(self) -> Client:
        """Return the client of this process. A child process must not use the sockets of its parent."""
        with self._lock:
            if self._is_closed:
                raise Closed(f"the store at {self.where} is closed")
            if self._client is None or self._owner != os.getpid():
                self._client, self._owner = self._connect(), os.getpid()
            return self._client

    def _connect(self) -> Client:
        settings = {**_SETTINGS, **(_CLUSTER_SETTINGS if self.cluster else {})}
        return clickhouse_connect.get_client(
            host=self._host,
            port=self._port,
            username=self._user,
            password=self._password,
            database=self.database,
            secure=self._secure,
            ca_cert=self._ca_cert,
            connect_timeout=CONNECT_SECONDS,
            send_receive_timeout=REQUEST_SECONDS,
            compress="lz4" if self._host not in ("localhost", "127.0.0.1", "::1") else False,
            autogenerate_session_id=False,
            autogenerate_query_id=False,
            settings=settings,
            pool_mgr=get_pool_manager(ca_cert=self._ca_cert, maxsize=MAX_CONNECTIONS, num_pools=1),
        )

    def _translate(self, error: ClickHouseError, *, is_query: bool = False) -> StoreError:
        """Return the error of the store for an error of the client, without the password."""
        code = getattr(error, "code", None)
        first_line = str(error).partition("\n")[0]
        text = (first_line.replace(self._password, "***") if self._password else first_line)[:500]
        if code is None:
            reason = found[0] if (found := _REASON.search(str(error))) else type(error).__name__
            return Unavailable(f"ClickHouse at {self.where} cannot be reached: {reason}", RETRY_SECONDS)
        if is_query and code in _TIMEOUT_CODES:
            return TooSlow(f"the query took longer than {REQUEST_SECONDS - 5} s; narrow it, for example by time")
        if code in _TEMPORARY_CODES:
            return Unavailable(f"ClickHouse at {self.where} cannot do this now: {text}", RETRY_SECONDS)
        if code in _REFUSED_CODES:
            return Refused(f"ClickHouse at {self.where} refuses: {text}")
        return StoreError(f"ClickHouse at {self.where} failed: {text}")
