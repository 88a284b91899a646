"""Connection within a transaction: statements of the shared SQL in PostgreSQL's form, values, locks, lease numbers.

PostgreSQL's text cannot contain U+0000, and SQLite's can. Therefore U+0000 and U+0001 are escaped where text enters the
database, and restored where it leaves: U+0000 is stored as two U+0001, and U+0001 as U+0001 U+0002. Escaped text has the
same order, and the same prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.types.numeric import Int8Dumper

from spanwise.collector.errors import Refused
from spanwise.collector.records import Alert

PostgresSession: TypeAlias = psycopg.Connection[tuple[Any, ...]]


class Statement(NamedTuple):
    """Statement with `$1` and so on, and the names of its parameters; None: they are positions."""

    text: bytes
    names: tuple[str, ...] | None

    def arrange(self, parameters: Any) -> Sequence[Any]:
        """Return the values in the order of the statement. A name may occur several times."""
        return parameters if self.names is None else [parameters[name] for name in self.names]


_SQL_PARTS = re.compile(
    r"""
      (?P<literal>'(?:[^']|'')*')
    | /\*pg(?P<clause>.*?)\*/
    | (?P<hint>\s*INDEXED\ BY\ \w+)
    | (?:\?|(?<![:\w]):(?P<name>\w+))(?P<null_test>\ IS\ NULL)?
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=2_000)
def translate_statement(sql: str) -> Statement:
    """Translate a statement of the shared SQL (see `stores.control.control_database`)."""
    names: list[str | None] = []

    def replace(match: re.Match[str]) -> str:
        if match["literal"] is not None:
            return match["literal"]
        if match["clause"] is not None:
            return match["clause"]
        if match["hint"] is not None:
            return ""
        names.append(match["name"])
        # Each occurrence is a parameter of its own: PostgreSQL derives one type for each
        return f"${len(names)}" + ("::text IS NULL" if match["null_test"] else "")

    text = _SQL_PARTS.sub(replace, sql).encode()
    named = tuple(name for name in names if name is not None)
    return Statement(text, named or None)


class _TextDumper(Dumper):
    oid = psycopg.adapters.types["text"].oid

    def dump(self, value: str) -> Buffer:
        if "\0" in value or "\1" in value:
            value = value.replace("\1", "\1\2").replace("\0", "\1\1")
        return value.encode()


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        text = str(data, "utf-8")
        return re.sub("\1([\1\2])", lambda pair: "\0" if pair[1] == "\1" else "\1", text) if "\1" in text else text


class _TruthDumper(Dumper):
    oid = Int8Dumper.oid

    def dump(self, value: bool) -> Buffer:
        return b"1" if value else b"0"


class _SumLoader(Loader):
    """Loads sums of integers, which have another type than integers."""

    def load(self, data: Buffer) -> int | float:
        text = str(data, "ascii")
        return int(text) if text.lstrip("-").isdigit() else float(text)


# One type for all integers and one for text, so that PostgreSQL prepares a statement once
ADAPTERS = AdaptersMap(psycopg.adapters)
ADAPTERS.register_dumper(str, _TextDumper)
ADAPTERS.register_dumper(int, Int8Dumper)
ADAPTERS.register_dumper(bool, _TruthDumper)
ADAPTERS.register_loader("text", _TextLoader)
ADAPTERS.register_loader("numeric", _SumLoader)


class Rows:
    """Result of a statement. All rows are in memory."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self.rowcount = cursor.rowcount
        result = cursor.pgresult  # `cursor.description` would cost more than the query
        self._rows = iter(cursor.fetchall() if result is not None and result.nfields else ())

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


class PostgresConnection:
    """Connection within a transaction (see `WriteConnection` in `stores.control`). There are no sums of scores."""

    def __init__(self, session: PostgresSession) -> None:
        self._cursor = session.cursor()

    @property
    def db(self) -> PostgresConnection:
        return self

    def execute(self, sql: str, parameters: Any = (), /) -> Rows:
        statement = translate_statement(sql)
        try:
            return Rows(self._cursor.execute(statement.text, statement.arrange(parameters)))
        except UnicodeEncodeError as error:
            raise _refuse_surrogates(error) from error

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> None:
        statement = translate_statement(sql)
        if rows := [statement.arrange(values) for values in parameters]:
            try:
                if len(rows) == 1:
                    self._cursor.execute(statement.text, rows[0])
                else:
                    self._cursor.executemany(statement.text, rows)  # in one round trip
            except UnicodeEncodeError as error:
                raise _refuse_surrogates(error) from error

    def lock(self, kind: str, *names: str, shared: bool = False) -> None:
        # An advisory lock has a queue: a transaction that shares it waits behind one that waits for it alone
        name = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
        self.execute(f"SELECT {name}(?)", (hash_lock(kind, *names),))

    def issue_numbers(self, count: int) -> Sequence[int]:
        """Return numbers of a sequence.

        A sequence does not wait for other transactions, so numbers may be committed in another order. That is no harm,
        because a number is taken after the lock of its resource: the row of the decision, or the name of the lease.
        A lease of a decision also shares the lock of its rule, so that a newer version comes into force before or after it.
        """
        if not count:
            return ()
        rows = self.execute("SELECT nextval('lease_numbers') FROM generate_series(1, ?)", (count,)).fetchall()
        return sorted(row[0] for row in rows)

    def record_decision_changes(self, ids: Iterable[int]) -> None: ...

    def record_leases(self, leased: Iterable[tuple[int, int]]) -> None: ...

    def record_deleted_decisions(self) -> None: ...

    def register_live_sums(self, project: str, rule: str) -> None: ...

    def register_grouping(self, project: str, rule: str, by: str) -> None: ...

    def remove_grouping(self, project: str, rule: str, by: str) -> None: ...

    def remove_measure(self, alert: Alert, remaining: Sequence[Alert]) -> None: ...


def _refuse_surrogates(error: UnicodeEncodeError) -> Refused:
    return Refused(f"{error.object!r:.200} cannot be stored: it has a lone surrogate, which is no character")


def hash_lock(kind: str, *names: str) -> int:
    """Return the number of an advisory lock. Names with the same number wait for each other, which is no harm."""
    name = "\0".join(("spanwise", kind, *names))
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)
