"""Table rows: column values, hashed ids, statements for many rows, cursors of pages."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

import orjson

from spanwise.collector import record_encoding
from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Example


class Cursor(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Connection of a database, within a transaction."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any: ...


# SQL statements for many rows or values at once, and cursors of pages.
#
# Each statement inserts many rows, because SQLite releases the interpreter lock for every statement. While other
# threads compute, reacquiring the lock costs more than inserting a row.

ROWS_PER_INSERT = 50
VALUES_PER_IN = 500


def build_upsert_clause(columns: Sequence[str]) -> str:
    """Return the `ON CONFLICT` clause that replaces the row with the same key, the first column.

    An update touches only the indexes whose columns change.
    """
    return f"ON CONFLICT ({columns[0]}) DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in columns[1:])


def insert_many(
    db: Connection,
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


def select_many(db: Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> list[Any]:
    """Return the rows of a SELECT with `IN (%s)` for any number of values; `before` binds the parameters before `IN`."""
    return [row for cursor in _execute_in_chunks(db, sql, values, before) for row in cursor.fetchall()]


def iterate_rows(db: Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> Iterator[Any]:
    """Yield the rows that `select_many` returns, one at a time, so that only one row is in memory."""
    for cursor in _execute_in_chunks(db, sql, values, before):
        yield from cursor


def delete_many(db: Connection, table: str, column: str, values: Iterable[Any]) -> None:
    """Delete the rows whose column (or any expression) equals one of the values."""
    for _ in _execute_in_chunks(db, f"DELETE FROM {table} WHERE {column} IN (%s)", values):
        pass


def _execute_in_chunks(db: Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> Iterator[Cursor]:
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


# Column values: JSON of plain values and records, hashes of ids.
#
# Rows may be older or newer than this version of Spanwise. Unknown fields are ignored, missing fields take their
# default.

INT_MAX = 2**63 - 1
DEPTH_MAX = 100


def dumps(value: JSON) -> str:
    """Return the value as JSON text. Never raises: `clean` replaces values that JSON cannot represent."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps(clean(value), option=orjson.OPT_NON_STR_KEYS).decode()


def loads(text: str | bytes) -> Any:
    """Parse JSON text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def clean(value: Any, depth: int = 0) -> Any:
    """Convert a value to the nearest one that JSON and SQLite can store.

    Lone surrogates are replaced, integers beyond 64 bits become text, non-finite floats become None, and objects of
    other types become their `repr`.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -INT_MAX <= value <= INT_MAX else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= DEPTH_MAX:
        return _safe_repr(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):  # sorted because the order of a set differs between processes
        return sorted((clean(item, depth + 1) for item in value), key=repr)
    if callable(getattr(type(value), "tolist", None)):  # NumPy scalars and arrays, pandas columns
        try:
            return clean(value.tolist(), depth + 1)
        except Exception:  # an unrelated method named `tolist`
            return _safe_repr(value)
    return _safe_repr(value)


def _safe_repr(value: Any) -> str:
    """Return the `repr` of a foreign object, at most 1,000 characters, even if `__repr__` raises."""
    try:
        return repr(value)[:1000].encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__name__}>"


def hash_id(text: str) -> int:
    """Return 48 bits of a BLAKE2b hash of the text.

    Different texts can have the same hash, also on purpose, so callers compare the text of the rows that they find.
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


T = TypeVar("T")


def encode_record(record: Any) -> str:
    """Return a record as JSON; equal records give equal text. Raises `Refused` if the record could not be read back."""
    try:
        text = _record_json(record)
        decode_record(type(record), text)
    except (ValueError, RecursionError) as error:  # RecursionError: the value contains itself
        raise Refused(f"{record!r:.200} cannot be stored: {error}") from error
    return text


_NO_EVALUATORS = ',"evaluators":[]}'


def _record_json(record: Any) -> str:
    try:
        text = orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        fields = asdict(record)
        if isinstance(record, Example) and not record.evaluators:
            del fields["evaluators"]
        return dumps(fields)
    # an example that names no evaluators keeps the text of versions without this field, so that saving it again is
    # no change
    if isinstance(record, Example) and text.endswith(_NO_EVALUATORS):
        return text.removesuffix(_NO_EVALUATORS) + "}"
    return text


def decode_record(kind: type[T], text: str) -> T:
    """Parse a record from its JSON."""
    return record_encoding.decode(kind, text)
