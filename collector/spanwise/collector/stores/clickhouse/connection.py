"""Connection to a ClickHouse server, with the errors of the store; open database with its tables and clock."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakSet

from spanwise.collector.errors import Closed, Refused, StoreError, TooSlow, Unavailable, require_extra
from spanwise.collector.stores.clickhouse import schema
from spanwise.collector.stores.table_rows import parse_text_cursor

with require_extra("clickhouse", __name__):
    import clickhouse_connect
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.exceptions import ClickHouseError
    from clickhouse_connect.driver.httputil import get_pool_manager

Row: TypeAlias = Sequence[Any]

CONNECT_SECONDS, REQUEST_SECONDS = 5, 60
MAX_CONNECTIONS = 32  # per process; further requests open connections that are closed afterwards
RETRY_SECONDS = 2.0
# A connection over which the server confirms nothing for so long is broken, and no idle one is kept unchecked for longer
SILENCE_SECONDS = 15
LITERAL_IDS = 20  # lists with more ids are part of the query's text, if they consist of letters and digits
REPEAT_SECONDS = 0.2  # until an insert whose answer was lost is repeated

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
    "max_query_size": 16 * 1024 * 1024,
    # A search for the beginning of a word reads the posting lists of up to this many words, else all texts
    "text_index_like_max_postings_to_read": 100_000,
    # Reads the columns of the key first. With `FINAL`, the engine moves only conditions on the key
    "optimize_move_to_prewhere_if_final": 1,
}
# In a cluster, an insert waits for a majority of the replicas, and a query for everything that was acknowledged
_CLUSTER_SETTINGS: Mapping[str, Any] = {
    "insert_quorum": "auto",
    "insert_quorum_parallel": 0,
    "select_sequential_consistency": 1,
    "distributed_foreground_insert": 1,
    "distributed_product_mode": "local",
}


_SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    *(  # macOS lacks some
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in {
            "TCP_KEEPIDLE": SILENCE_SECONDS // 3,
            "TCP_KEEPINTVL": SILENCE_SECONDS // 3,
            "TCP_KEEPCNT": 2,
            "TCP_USER_TIMEOUT": 1000 * SILENCE_SECONDS,
        }.items()
        if hasattr(socket, name)
    ),
]

_REASON = re.compile(r"\[Errno -?\d+\] [\w ]+|[Tt]imed out|Connection aborted|Name or service not known")
# Without any handler, Python would print the warnings of the client, which the errors of the store repeat
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())


_CONNECTIONS: WeakSet[Connection] = WeakSet()


def _reset_connections() -> None:
    for connection in _CONNECTIONS:
        connection.reset_after_fork()


os.register_at_fork(after_in_child=_reset_connections)


class QueryParameters(dict[str, Any]):
    """Values of a query by name. `bind` adds one and returns the SQL that refers to it.

    A condition that is compiled with `is_loose` may also hold for traces of which only replaced spans have what it asks
    for. One that is compiled after `limit_to` holds only for some traces.
    """

    def __init__(self, *, is_loose: bool = False) -> None:
        super().__init__()
        self.is_loose = is_loose
        self.within: str | None = None  # SQL of the list of trace ids outside of which nothing needs to be searched

    def limit_to(self, trace_ids: Iterable[str]) -> str:
        """Limit conditions to some traces, and return the SQL of the list of their ids."""
        self.within = self.texts(trace_ids)
        return self.within

    def rows_of(self, table: str) -> str:
        """Return the table from which a condition selects trace ids, with the beginning of its own condition."""
        final = "" if self.is_loose and table == "spans" else " FINAL"
        return f"{table}{final} WHERE {'1' if self.within is None else f'trace_id IN {self.within}'}"

    def bind(self, value: Any, type: str) -> str:
        """Add a value of a ClickHouse type."""
        name = f"p{len(self)}"
        self[name] = value
        return f"{{{name}:{type}}}"

    def text(self, value: str) -> str:
        """Add a text."""
        return self.bind(value, "String")

    def texts(self, values: Any) -> str:
        """Add a list of texts."""
        return self.bind(list(values), "Array(String)")

    def position(self, cursor: str) -> str:
        """Add the time and the key of a cursor, as a tuple. Raise `Refused` for an invalid cursor."""
        time_ns, key = parse_text_cursor(cursor)
        return f"({self.integer(time_ns)}, {self.text(key)})"

    def integer(self, value: int) -> str:
        """Add an integer of 64 bits."""
        return self.bind(value, "Int64")

    def number(self, value: float) -> str:
        """Add a float; all 64 bits arrive."""
        return self.bind(float(value), "Float64")


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return [_encodable(each) for each in value] if isinstance(value, list) else value


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
        self._is_closed = False
        _CONNECTIONS.add(self)

    def reset_after_fork(self) -> None:
        """Forget the client and the locks of the parent process, whose other threads do not exist in this one."""
        self._lock, self._client = threading.Lock(), None

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query. `{name:Type}` in the query is replaced by the parameter of that name.

        Text that UTF-8 cannot encode is replaced in parameters, so that it matches nothing. Raise `Unavailable` if the
        server cannot answer now, and `TooSlow` if the query exceeds the server's limit of time.
        """
        bound = {name: _encodable(value) for name, value in (parameters or {}).items()}
        for name, value in list(bound.items()):
            # The client escapes lists of texts letter by letter, which takes longer than the query for a thousand ids
            place = f"{{{name}:Array(String)}}"
            if place in sql and len(value) > LITERAL_IDS and is_plain("".join(value)):
                sql = sql.replace(place, "['" + "','".join(bound.pop(name)) + "']")
        try:
            result = self._open().query(sql, parameters=bound, settings=dict(settings or {}))
        except ClickHouseError as error:
            raise self._translate(error, is_query=True) from None
        return list(map(tuple, result.result_rows))

    def find(self, sql: str, ids: Collection[str | None], **others: Any) -> set[Any]:
        """Return the values of the first column of a query with the parameter `ids`; none for no ids."""
        return {row[0] for row in self.query(sql, {"ids": list(ids), **others})} if ids else set()

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str | None = None) -> None:
        """Insert columns of values, and return when they are durable. All rows are of one partition.

        Repeating the insert with the same `token` stores nothing twice. Raise `Unavailable` if the server cannot store
        now. The rows may be stored then nevertheless.
        """
        if not columns or not len(next(iter(columns.values()))):
            return
        types = schema.get_column_types(table)
        arguments: dict[str, Any] = {
            "column_names": list(columns),
            "column_type_names": [types[name] for name in columns],
            "column_oriented": True,
            "settings": {"insert_deduplication_token": token} if token else {},
        }
        for attempt in (1, 2):
            try:
                self._open().insert(table, list(columns.values()), **arguments)
                return
            except ClickHouseError as error:
                # the answer may have been lost after the server had stored the rows
                if attempt == 2 or token is None or getattr(error, "code", None) is not None:
                    raise self._translate(error) from None
                time.sleep(REPEAT_SECONDS)

    def insert_rows(
        self, table: str, names: Sequence[str], rows: Sequence[Row], token: str | None = None, **others: Any
    ) -> None:
        """Insert rows as `insert` does. `others` are columns with the same value in all rows."""
        columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=bool(rows)))
        self.insert(table, columns | {name: [value] * len(rows) for name, value in others.items()}, token)

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
        if client is not None:
            client.close()

    def _open(self) -> Client:
        """Return the client of this process."""
        with self._lock:
            if self._is_closed:
                raise Closed(f"the store at {self.where} is closed")
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Client:
        client = clickhouse_connect.get_client(
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
            pool_mgr=get_pool_manager(
                ca_cert=self._ca_cert, maxsize=MAX_CONNECTIONS, num_pools=1, socket_options=_SOCKET_OPTIONS
            ),
        )
        for name, value in {**_SETTINGS, **(_CLUSTER_SETTINGS if self.cluster else {})}.items():
            if name in client.server_settings:  # older servers do not know all of them
                client.set_client_setting(name, value)
        return client

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


def is_plain(text: str) -> bool:
    """Return whether a text consists of ASCII letters and digits, which need no escapes."""
    return text.isascii() and text.isalnum()


# Open database.

DAY_NS = 86_400 * 10**9
MAX_DAY = 65_000  # in the year 2147; a later start has this day
# Rate at which the clock continues without the server. It is slower than any clock, so that the server's time is higher
# again soon after it was set back, and clocks of several collectors do not diverge
_SLOWED = 0.999
# Readers of the feed wait for as long as an insert may take if they may not read the running inserts, or if the clock was
# set back
_SETTLE_NS = 2_000_000_000
_UNKNOWN_TABLE = "(UNKNOWN_TABLE)"


class Database(Connection):
    """Connection to a database with the tables of this version. Its time is that of the server, in nanoseconds.

    The time never goes back in one process, even if the server's clock does. Until the clock has caught up, the time is
    at least that of the latest row of any collector.
    """

    def __init__(self, url: str) -> None:
        """Connect, and create missing tables. Raise `Refused` for a database of a newer version, or if the database does
        not exist.
        """
        super().__init__(url)
        self._clock = threading.Lock()
        self._time, self._measured = 0, time.monotonic_ns()
        self._can_read_processes = True
        facts = self._prepare_tables()
        self.created_ns = min(int(value) for name, value in facts if name == "created_ns")
        self._advance(self._read_latest(0))

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        self._clock = threading.Lock()

    def _prepare_tables(self) -> list[tuple[str, str]]:
        """Create the tables unless they exist, and return the rows of `database_facts`. Processes may do so at once."""
        try:
            facts = self._read_facts()
        except StoreError as error:
            if _UNKNOWN_TABLE not in str(error):
                raise
            facts = []
        versions = [int(value) for name, value in facts if name == "schema_version"]
        if max(versions, default=0) > schema.SCHEMA_VERSION:
            raise Refused(
                f"the database at {self.where} has version {max(versions)} of the tables, this Spanwise knows"
                f" {schema.SCHEMA_VERSION}; upgrade Spanwise"
            )
        if schema.SCHEMA_VERSION not in versions:
            for statement in schema.create_statements(self.cluster):
                self.command(statement)
            values = [str(schema.SCHEMA_VERSION), secrets.token_hex(8), str(self.now())]
            self.insert("database_facts", {"name": ["schema_version", "identity", "created_ns"], "value": values})
            facts = self._read_facts()
        return facts

    def read_identity(self) -> str:
        """Return the random id of the database. Processes that created it at once agree as soon as all have done so."""
        return min(value for name, value in self._read_facts() if name == "identity")

    def _read_facts(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.query("SELECT name, value FROM database_facts")]

    def now(self) -> int:
        """Return the time of the server. Rows inserted before the call are older than this time."""
        floor = self.floor()
        [(now,)] = self.query("SELECT toUnixTimestamp64Nano(now64(9))")
        if now < floor:
            now = self._read_latest(floor)
        return self._advance(max(int(now), floor))

    def _read_latest(self, after: int) -> int:
        """Return the highest position in the change feed above another; 0 if there is none."""
        positions = {"traces": "change", "feedback": "number", "open_runs": "number"}
        rows = (f"SELECT max({name}) FROM {table} WHERE {name} > {after:d}" for table, name in positions.items())
        return max(int(row[0]) for row in self.query(" UNION ALL ".join(rows)))

    def floor(self) -> int:
        """Return a time that has passed on the server, without asking it: the lowest number for the next insert."""
        with self._clock:
            return self._time + int((time.monotonic_ns() - self._measured) * _SLOWED)

    def horizon(self) -> int:
        """Return the position in the change feed up to which no further change can appear.

        The server assigns the position of a change while it executes the insert. An insert that is being executed has a
        position after its start, so the horizon is the start of the earliest running insert, or the present time.
        """
        processes = f"clusterAllReplicas({self.cluster}, system.processes)" if self.cluster else "system.processes"
        # The time is a constant of the query's plan, so that it precedes the reading of the processes
        sql = (
            "SELECT toUnixTimestamp64Nano(now64(9)), toInt64(maxIf(elapsed, query_kind = 'Insert'"
            f" AND current_database = currentDatabase()) * 1e9) FROM {processes}"
        )
        if self._can_read_processes:
            floor = self.floor()  # before the query: a time that another thread learns meanwhile may be too late
            try:
                [(now, elapsed)] = self.query(sql)
            except Refused:
                self._can_read_processes = False
            else:
                # 10 ms: the start is computed from two measurements
                behind = int(elapsed) + 10_000_000 if elapsed else 0
                if now < floor:  # the clock was set back, and other collectors may know a lower time
                    return self.now() - max(behind, _SETTLE_NS)
                return self._advance(int(now)) - behind
        return self.now() - _SETTLE_NS

    def _advance(self, now_ns: int) -> int:
        """Record a time of the server, and return it."""
        with self._clock:
            measured = time.monotonic_ns()
            if now_ns > self._time + int((measured - self._measured) * _SLOWED):
                self._time, self._measured = now_ns, measured
        return now_ns

    def count_bytes(self) -> int:
        """Return the bytes on disk of all tables."""
        parts = f"clusterAllReplicas({self.cluster}, system.parts)" if self.cluster else "system.parts"
        [(count,)] = self.query(f"SELECT sum(bytes_on_disk) FROM {parts} WHERE active AND database = currentDatabase()")
        return int(count)

    def optimize(self, table: str) -> None:
        """Merge all parts of each partition of a table."""
        target = schema.get_mutation_target(table, self.cluster)
        name, _, cluster = target.partition(" ")
        self.command(f"OPTIMIZE TABLE {name} {cluster} FINAL")

    def insert_by_month(self, table: str, columns: Mapping[str, Sequence[Any]], token: str | None = None) -> None:
        """Insert rows with a column `day`, partition by partition: one insert may have at most 100 partitions."""
        months = list(map(get_month, columns["day"]))
        if len(distinct := set(months)) <= 1:
            self.insert(table, columns, token)
            return
        for month in sorted(distinct):
            chosen = [at for at, other in enumerate(months) if other == month]
            rows = {name: [values[at] for at in chosen] for name, values in columns.items()}
            self.insert(table, rows, token and f"{token}-{month}")


def get_day(start_ns: int) -> int:
    """Return the day of a time, as a value of the column `day`: days since 1970."""
    return max(0, min(start_ns // DAY_NS, MAX_DAY))


@lru_cache(maxsize=4096)
def get_month(day: int) -> int:
    """Return the month of a day, as the partition key has it."""
    found = date.fromordinal(day + date(1970, 1, 1).toordinal())
    return 100 * found.year + found.month
