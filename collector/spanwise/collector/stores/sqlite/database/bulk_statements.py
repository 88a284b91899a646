"""SQL statements for many rows or values at once, and cursors of pages.

Rows go in by statements of many rows each: SQLite gives up the interpreter's lock for every statement, and where other
threads compute, getting it back costs more than the row.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from spanwise.collector.errors import Refused

ROWS_PER_INSERT = 50  # of one INSERT
VALUES_PER_IN = 500  # of one IN


def _identity(value: Any) -> Any:
    return value


if sys.version_info < (3, 12):
    # Before 3.12 sqlite3 asks each None and each bytes by way of two errors how to adapt it, 0.4 µs a value: more than
    # it takes to insert it. Found in the table of adapters, it is taken at once; one of the host's own stays
    for _kind in (type(None), bytes):
        sqlite3.adapters.setdefault((_kind, sqlite3.PrepareProtocol), _identity)


def build_upsert_clause(columns: Sequence[str]) -> str:
    """The clause that puts a row in place of the one with its key (the first column), touching indexes where needed."""
    return f"ON CONFLICT ({columns[0]}) DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in columns[1:])


def insert_many(
    db: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    conflict: str = "",
    at_once: int = ROWS_PER_INSERT,
) -> None:
    """Insert rows, so many at a time; `conflict` is an `ON CONFLICT` clause."""
    for start in range(0, len(rows), at_once):
        chunk = rows[start : start + at_once]
        marks = ",".join(["(" + ",".join("?" * len(columns)) + ")"] * len(chunk))
        sql = f"INSERT INTO {table} ({','.join(columns)}) VALUES {marks} {conflict}"
        db.execute(sql, list(chain.from_iterable(chunk)))


def select_many(db: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> list[Any]:
    """Rows of a SELECT with `IN (%s)` for any number of values; `before` fills the marks that stand in front."""
    return [row for cursor in _execute_in_chunks(db, sql, values, before) for row in cursor.fetchall()]


def iterate_rows(db: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> Iterator[Any]:
    """The same rows one after the other, so that no more than one of them is in memory, however large they are."""
    for cursor in _execute_in_chunks(db, sql, values, before):
        yield from cursor


def delete_many(db: sqlite3.Connection, table: str, column: str, values: Iterable[Any]) -> None:
    """Delete the rows whose column (or any expression) is one of any number of values."""
    for _ in _execute_in_chunks(db, f"DELETE FROM {table} WHERE {column} IN (%s)", values):
        pass


def _execute_in_chunks(
    db: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()
) -> Iterator[sqlite3.Cursor]:
    rest = list(values)
    for start in range(0, len(rest), VALUES_PER_IN):
        chunk = rest[start : start + VALUES_PER_IN]
        yield db.execute(sql % ",".join("?" * len(chunk)), (*before, *chunk))


def cut_page(rows: Sequence[Any], limit: int, time: int, key: int) -> tuple[Sequence[Any], str | None]:
    """The first `limit` of rows, and the cursor of what follows if there are more; `time` and `key` are its columns."""
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], f"{last[time]}.{last[key]}"


def parse_cursor(cursor: str) -> tuple[int, int]:
    """Time and key that a cursor stands for. Raises `Refused`."""
    time_ns, key = parse_text_cursor(cursor)
    try:
        return time_ns, int(key)
    except ValueError:
        raise _invalid_cursor(cursor) from None


def parse_text_cursor(cursor: str) -> tuple[int, str]:
    """The same where keys are texts. Raises `Refused`."""
    time_ns, _, key = cursor.partition(".")
    try:
        return int(time_ns), key
    except ValueError:
        raise _invalid_cursor(cursor) from None


def _invalid_cursor(cursor: str) -> Refused:
    return Refused(f"{cursor!r} is no cursor; use the `next` of the page before")
