"""SQL statements for many rows or values at once, and cursors of pages.

Each statement inserts many rows, because SQLite releases the interpreter lock for every statement. While other
threads compute, reacquiring the lock costs more than inserting a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from spanwise.collector.errors import Refused

ROWS_PER_INSERT = 50
VALUES_PER_IN = 500


def build_upsert_clause(columns: Sequence[str]) -> str:
    """Return the `ON CONFLICT` clause that replaces the row with the same key, the first column.

    An update touches only the indexes whose columns change.
    """
    return f"ON CONFLICT ({columns[0]}) DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in columns[1:])


def insert_many(
    db: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    conflict: str = "",
    at_once: int = ROWS_PER_INSERT,
) -> int:
    """Insert rows, at most `at_once` per statement; `conflict` is an `ON CONFLICT` clause.

    Return the number of rows inserted or overwritten, without those that triggers changed.
    """
    count = 0
    for start in range(0, len(rows), at_once):
        chunk = rows[start : start + at_once]
        marks = ",".join(["(" + ",".join("?" * len(columns)) + ")"] * len(chunk))
        sql = f"INSERT INTO {table} ({','.join(columns)}) VALUES {marks} {conflict}"
        count += db.execute(sql, list(chain.from_iterable(chunk))).rowcount
    return count


def select_many(db: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> list[Any]:
    """Return the rows of a SELECT with `IN (%s)` for any number of values; `before` binds the parameters before `IN`."""
    return [row for cursor in _execute_in_chunks(db, sql, values, before) for row in cursor.fetchall()]


def iterate_rows(db: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> Iterator[Any]:
    """Yield the rows that `select_many` returns, one at a time, so that only one row is in memory."""
    for cursor in _execute_in_chunks(db, sql, values, before):
        yield from cursor


def delete_many(db: sqlite3.Connection, table: str, column: str, values: Iterable[Any]) -> None:
    """Delete the rows whose column (or any expression) equals one of the values."""
    for _ in _execute_in_chunks(db, f"DELETE FROM {table} WHERE {column} IN (%s)", values):
        pass


def _execute_in_chunks(
    db: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()
) -> Iterator[sqlite3.Cursor]:
    rest = iter(values)  # not a list: the reader of the first rows may need no others
    while chunk := list(islice(rest, VALUES_PER_IN)):
        yield db.execute(sql % ",".join("?" * len(chunk)), (*before, *chunk))


def cut_page(rows: Sequence[Any], limit: int, time: int, key: int) -> tuple[Sequence[Any], str | None]:
    """Return the first `limit` rows, and the cursor of the next page or None.

    `time` and `key` are the positions of the columns that form the cursor.
    """
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], f"{last[time]}.{last[key]}"


def parse_cursor(cursor: str) -> tuple[int, int]:
    """Return the time and the integer key of a cursor. Raises `Refused` if the cursor is invalid."""
    time_ns, key = parse_text_cursor(cursor)
    try:
        return time_ns, int(key)
    except ValueError:
        raise _invalid_cursor(cursor) from None


def parse_text_cursor(cursor: str) -> tuple[int, str]:
    """Return the time and the text key of a cursor. Raises `Refused` if the cursor is invalid."""
    time_ns, _, key = cursor.partition(".")
    try:
        return int(time_ns), key
    except ValueError:
        raise _invalid_cursor(cursor) from None


def _invalid_cursor(cursor: str) -> Refused:
    return Refused(f"invalid cursor {cursor!r}; use `next` of the previous page")
