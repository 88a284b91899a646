"""Rows of exact sums: selected by place, changed by numbers that are added, and replaced.

A row has rounded sums, and in its column `exact` their exact parts as lists of floats, unless all sums are exact.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from spanwise.collector.statistics import exact_expansion
from spanwise.collector.stores.table_rows import insert_many

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[float]]).decode


def encode_parts(parts: Sequence[Sequence[float]]) -> bytes | None:
    """Return the value of the column `exact`: None if every sum has at most one part."""
    return _encode(parts) if any(len(part) > 1 for part in parts) else None


def read_parts(rounded: Sequence[float], exact: bytes | None) -> list[list[float]]:
    """Return the exact parts of a row's sums."""
    return _decode(exact) if exact is not None else [[value] if value else [] for value in rounded]


def change_parts(old: Sequence[Any] | None, added: Iterable[Sequence[float]]) -> list[list[float]]:
    """Return the exact sums of a row after numbers were added. `old` has its rounded sums, then their exact parts."""
    if old is None:
        return [expand(values) for values in added]
    *rounded, exact = old
    parts = read_parts(rounded, exact)
    return [
        (expand([*part, *values]) if part else expand(values)) if values else part
        for part, values in zip(parts, added, strict=True)
    ]


def expand(values: Sequence[float]) -> list[float]:
    """Return the values of `exact_expansion`, without computing them if the sum of one or two numbers is exact."""
    if len(values) <= 2:
        total = sum(values)
        if len(values) < 2 or (total - values[0] == values[1] and total - values[1] == values[0]):
            return [total] if total else []
    return exact_expansion(values)


def select_places(
    db: sqlite3.Connection, table: str, columns: Sequence[str], places: Iterable[Sequence[int]], at_once: int = 100
) -> Iterator[Any]:
    """Yield the rows of a table whose first four columns are one of the places."""
    rest = list(places)
    joined = " AND ".join(f"s.{name} = p.column{number}" for number, name in enumerate(columns[:4], 1))
    names = ",".join(f"s.{name}" for name in columns)
    for start in range(0, len(rest), at_once):
        chunk = rest[start : start + at_once]
        values = ",".join(["(?,?,?,?)"] * len(chunk))
        sql = f"SELECT {names} FROM (VALUES {values}) p CROSS JOIN {table} s ON {joined}"
        yield from db.execute(sql, list(chain.from_iterable(chunk)))


def replace_rows(db: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows, or overwrite those with the same first four columns (and label)."""
    insert_many(
        db,
        table,
        columns,
        rows,
        "ON CONFLICT DO UPDATE SET " + ",".join(f"{name}=excluded.{name}" for name in columns[4:]),
    )
