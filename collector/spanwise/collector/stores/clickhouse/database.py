"""Open database: creation of its tables, the server's clock, and inserts by month."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.stores.clickhouse import schema
from spanwise.collector.stores.clickhouse.connection import Connection

DAY_NS = 86_400 * 10**9
MAX_DAY = 65_000  # in the year 2147; a later start has this day
# Rate at which the clock continues without the server. It is slower than any clock, so that the server's time is higher
# again soon after it was set back, and clocks of several collectors do not diverge
_SLOWED = 0.999
# Without permission to read the running inserts, readers of the feed wait for as long as an insert may take
_SETTLE_NS = 2_000_000_000
_UNKNOWN_TABLE = "(UNKNOWN_TABLE)"


class Database(Connection):
    """Connection to a database with the tables of this version. Its time is that of the server, in nanoseconds.

    The time never goes back in one process, even if the server's clock does.
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
        self.identity = min(value for name, value in facts if name == "identity")
        last = "SELECT max(change) FROM traces UNION ALL SELECT max(number) FROM feedback UNION ALL SELECT max(number) FROM open_runs"
        self._advance(max(row[0] for row in self.query(last)))

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
            values = [str(schema.SCHEMA_VERSION), secrets.token_hex(8)]
            self.insert("database_facts", {"name": ["schema_version", "identity"], "value": values})
            facts = self._read_facts()
        return facts

    def _read_facts(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.query("SELECT name, value FROM database_facts")]

    def now(self) -> int:
        """Return the time of the server. What was inserted before the call was visible before this time."""
        [(now,)] = self.query("SELECT toUnixTimestamp64Nano(now64(9))")
        return self._advance(now)

    def floor(self) -> int:
        """Return a time that has passed, without asking the server: the lowest number for the next insert."""
        return self._advance(0)

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
            try:
                [(now, elapsed)] = self.query(sql)
            except Refused:
                self._can_read_processes = False
            else:
                # 10 ms: the start is computed from two measurements
                now = self._advance(now)
                return now - elapsed - 10_000_000 if elapsed else now
        return self.now() - _SETTLE_NS

    def _advance(self, server_ns: int) -> int:
        with self._clock:
            measured = time.monotonic_ns()
            self._time = max(server_ns, self._time + int((measured - self._measured) * _SLOWED))
            self._measured = measured
            return self._time

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
