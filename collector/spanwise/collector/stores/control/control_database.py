"""Database of control records as its operations see it: transactions, connections, locks and the clock.

The SQL of this package is written once, for SQLite and for PostgreSQL:

- Parameters are `?` or `:name`. A parameter with unknown type is only compared, inserted, or tested by `? IS NULL`.
- `ON CONFLICT (columns)` instead of `INSERT OR …`; columns of the row that exists are qualified by the table.
- Columns of truth values are integers, and compared with 0 or 1. `GROUP BY` names all plain columns of its SELECT.
- A comment `/*pg … */` contains a clause for PostgreSQL alone, such as a row lock. `INDEXED BY` concerns only SQLite.
- `json_each`, `json_extract`, `instr` and `round` are those of SQLite; the PostgreSQL schema has functions of these names.

SQLite has one writer, so that its transactions run one after the other. PostgreSQL runs them at the same time, each
statement with all changes that are committed when it starts. An operation that reads what it changes locks it:

- A row lock, if the row exists: `FOR NO KEY UPDATE`, in the order of ids if there are several rows. Rows that another
  transaction has locked are either waited for, or left out (`SKIP LOCKED`, leases of decisions).
- `WriteConnection.lock`, if rows may not exist yet, or an operation concerns many.
- Two transactions that insert the same new row: the second one fails, and the backend runs it again.

Therefore an operation may run several times, and changes nothing but the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from spanwise.collector.records import Alert
from spanwise.collector.stores.table_rows import Connection

T = TypeVar("T")


class WriteConnection(Connection, Protocol):
    """Connection within a transaction that may write.

    The sums of scores depend on decisions. The last methods record what changes for a backend that
    stores these sums; for others, they do nothing.
    """

    def lock(self, kind: str, *names: str, shared: bool = False) -> None:
        """Wait until no other transaction has locked this name, and lock it until the end of the transaction.

        Any number of transactions may share a lock. They wait for those that do not share it, and the other way round.
        """

    def issue_numbers(self, count: int) -> Sequence[int]:
        """Return new numbers for leases, in ascending order. No two leases of any kind have the same number.

        All numbers that were issued before the call are lower. So the numbers of one resource rise if the caller has
        locked it.
        """

    def record_decision_changes(self, ids: Iterable[int]) -> None:
        """Record that the sampling probability of decisions changes."""

    def record_leases(self, leased: Iterable[tuple[int, int]]) -> None:
        """Record that decisions are leased, given their ids and former lease numbers (0: none)."""

    def record_deleted_decisions(self) -> None:
        """Record that decisions are deleted, while their scores may remain."""

    def register_live_sums(self, project: str, rule: str) -> None:
        """Keep the sums of a rule without its backfills, too."""

    def register_grouping(self, project: str, rule: str, by: str) -> None:
        """Keep the sums of a rule per value of a field from now on."""

    def remove_grouping(self, project: str, rule: str, by: str) -> None:
        """Stop keeping the sums of a rule per value of a field."""

    def remove_measure(self, alert: Alert, remaining: Sequence[Alert]) -> None:
        """Stop keeping the sums of an alert's measure of traces, unless a remaining alert of the project reads them."""


class Clock(Protocol):
    """Clock of the database. Its time never goes back."""

    def now(self) -> int:
        """Return nanoseconds since 1970."""

    def keep(self, db: Any) -> int:
        """Return the time, and store it in the transaction, so that it does not go back after a restart."""


class Snapshot(Protocol):
    """One consistent state of the database, for reading."""

    @property
    def db(self) -> Connection: ...


class ControlDatabase(Protocol):
    """Database that runs the transactions of control operations."""

    @property
    def clock(self) -> Clock: ...

    def read(self) -> AbstractContextManager[Snapshot]:
        """Return a consistent state of the database."""

    def write(self, action: Callable[[WriteConnection], T], /) -> T:
        """Run an action in a transaction, and return its result when it is durable. Roll back if it raises.

        Raise `Unavailable` if the database cannot run it now.
        """


P = ParamSpec("P")
H = TypeVar("H", bound="ControlOperationsBase")


class ControlOperationsBase:
    """Base class of the groups of control operations."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database


def read_operation(operation: Callable[Concatenate[H, Connection, P], T]) -> Callable[Concatenate[H, P], T]:
    """Wrap a read operation: its connection is in one consistent snapshot of the database."""

    def read(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._database.read() as snapshot:
            return operation(self, snapshot.db, *args, **kwargs)

    update_wrapper(read, operation)
    return read


def write_operation(operation: Callable[Concatenate[H, WriteConnection, P], T]) -> Callable[Concatenate[H, P], T]:
    """Wrap a write operation: its changes are durable when it returns, and are rolled back if it raises."""

    def write(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.write(lambda db: operation(self, db, *args, **kwargs))

    update_wrapper(write, operation)
    return write
