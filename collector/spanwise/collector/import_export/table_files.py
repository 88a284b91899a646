"""Files of flat tables: Parquet, CSV and JSON Lines, written page by page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from spanwise.collector import record_encoding
from spanwise.collector.errors import Forbidden, Refused, require_extra
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON
from spanwise.collector.stores.flat_tables import (
    EXAMPLES,
    TABLES,
    Column,
    Table,
    TableSource,
    find_table,
    iterate_pages,
)

ALL_TABLES = "all"
Pages = Iterator[list[Sequence[JSON]]]


def format_time(ns: JSON) -> str | None:
    """Return a time in nanoseconds since 1970 as text in UTC, with nine digits of the second."""
    if ns is None:
        return None
    seconds, fraction = divmod(int(ns), 10**9)
    return f"{_format_second(seconds)}.{fraction:09d}Z"


@lru_cache(maxsize=10_000)
def _format_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def iterate_allowed_pages(store: TableSource, table: Table, filter: Filter | None) -> Pages:
    """Yield the pages of a table. Examples, which belong to no project, are left out for a key of one project."""
    try:
        yield from iterate_pages(store, table, filter or Filter())
    except Forbidden:
        if table is not EXAMPLES:
            raise


def write_tables(
    store: TableSource, table: str, format: str, path: Path, filter: Filter | None = None
) -> dict[str, int]:
    """Write one table to a new file, or `all` tables to a new folder. Return the number of rows by table.

    File or folder have a temporary name until they are complete. Raise `Refused` if `path` exists, and for an unknown
    table or format.
    """
    if format not in TABLE_FORMATS:
        raise Refused(f"unknown format {format!r} of a table; expected one of: {', '.join(TABLE_FORMATS)}")
    tables = list(TABLES.values()) if table == ALL_TABLES else [find_table(table)]
    if os.path.lexists(path):
        raise Refused(f"{str(path)!r} already exists: choose another name")
    temporary = path.with_name(path.name + ".part")
    counts = {}
    try:
        if table == ALL_TABLES:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(mode=0o700)
        for each in tables:
            file_path = temporary / f"{each.name}.{format}" if table == ALL_TABLES else temporary
            pages = (iterate_allowed_pages if table == ALL_TABLES else iterate_pages)(store, each, filter or Filter())
            with open(os.open(file_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                counts[each.name] = TABLE_FORMATS[format](each, pages, file)
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        if table == ALL_TABLES:
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
    return counts


def write_stream(store: TableSource, table: str, format: str, file: BinaryIO, filter: Filter | None = None) -> int:
    """Write one table to an open file, and return the number of its rows. Raise `Refused`."""
    if format not in TABLE_FORMATS:
        raise Refused(f"unknown format {format!r} of a table; expected one of: {', '.join(TABLE_FORMATS)}")
    definition = find_table(table)
    return TABLE_FORMATS[format](definition, iterate_pages(store, definition, filter or Filter()), file)


def _write_parquet(table: Table, pages: Pages, file: BinaryIO) -> int:
    with require_extra("files", "writing Parquet"):
        from pyarrow.parquet import ParquetWriter

    from spanwise.collector.stores.data_frames import make_batches, make_schema

    count = 0
    with ParquetWriter(file, make_schema(table), compression="zstd") as writer:
        for batch in make_batches(table, pages):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_csv(table: Table, pages: Pages, file: BinaryIO) -> int:
    """Write CSV in which texts are quoted, so that an empty text differs from a null, which is an empty cell."""
    file.write(",".join(table.names).encode() + b"\r\n")
    count = 0
    for page in pages:
        cells = [_csv_cells(column, values) for column, values in zip(table.columns, page, strict=True)]
        for row in zip(*cells, strict=True):
            file.write(",".join(row).encode("utf-8", "replace") + b"\r\n")
        count += len(page[0])
    return count


def _csv_cells(column: Column, values: Sequence[JSON]) -> list[str]:
    if column.type == "time":
        return [format_time(value) or "" for value in values]
    if column.type == "boolean":
        return ["" if value is None else str(value).lower() for value in values]
    if column.type in ("integer", "real"):
        return ["" if value is None else repr(value) for value in values]
    return ["" if value is None else '"' + value.replace('"', '""') + '"' for value in values]


def _write_jsonl(table: Table, pages: Pages, file: BinaryIO) -> int:
    """Write one JSON object per row, in which JSON columns are values, not text."""
    count = 0
    for page in pages:
        columns: list[Sequence[Any]] = [
            [None if value is None else msgspec.Raw(value.encode()) for value in values]
            if column.type == "json"
            else list(map(format_time, values))
            if column.type == "time"
            else values
            for column, values in zip(table.columns, page, strict=True)
        ]
        for row in zip(*columns, strict=True):
            file.write(record_encoding.encode(dict(zip(table.names, row, strict=True))) + b"\n")
        count += len(page[0])
    return count


TABLE_FORMATS: dict[str, Callable[[Table, Pages, BinaryIO], int]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}
