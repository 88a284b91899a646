"""Flat tables in files: Parquet, CSV, JSON Lines, and a SQLite copy of a store for analysis."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from spanwise.collector import record_encoding
from spanwise.collector.errors import Forbidden, Refused, require_extra
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON
from spanwise.collector.stores.flat_tables import (
    EXAMPLES,
    TABLES,
    Column,
    ColumnType,
    Table,
    TableSource,
    find_table,
    iterate_pages,
)
from spanwise.collector.stores.sqlite import is_store_file
from spanwise.collector.stores.sqlite.maintenance.backup_and_recovery import (
    PARTIAL_SUFFIX,
    create_partial,
    fsync_folder,
)

if TYPE_CHECKING:
    from sqlite_utils import Database


# Files of flat tables: Parquet, CSV and JSON Lines, written page by page.

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

    from spanwise.collector.stores.flat_tables import make_batches, make_schema

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


# Copy of a store for analysis: a SQLite database with flat tables, full-text search and views, made by sqlite-utils.
#
# The copy has a temporary name until it is complete and durable, so that an error, a full disk or the death of the
# process leaves an existing copy as it is.

# arguments: table, number of its rows so far
ReportRows = Callable[[str, int], object]

CACHE_KB = 16_384
SEARCH_ROWS = 20_000  # rows that are added to a full-text index between two reports
_SQLITE_TYPES: dict[ColumnType, type] = {
    "text": str,
    "json": str,
    "integer": int,
    "boolean": int,
    "real": float,
    "time": str,
}
VIEWS = {
    "daily_traces": """
SELECT substr(start_time, 1, 10) AS day, project, count(*) AS traces, sum(status = 'error') AS errors,
  avg(latency_ms) AS mean_latency_ms, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
  sum(cost) AS cost
FROM traces GROUP BY 1, 2 ORDER BY 1 DESC, 2""",
    "model_usage": """
SELECT model, count(*) AS calls, sum(status = 'error') AS errors, avg(latency_ms) AS mean_latency_ms,
  sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, sum(cost) AS cost
FROM runs WHERE model IS NOT NULL GROUP BY model ORDER BY calls DESC""",
    "feedback_summary": """
SELECT "key", source, count(score) AS scores, avg(score) AS mean_score, count(label) AS labels,
  sum(outcome = 'error') AS errors, sum(outcome = 'skip') AS skips
FROM feedback GROUP BY "key", source ORDER BY "key", source""",
    "experiment_summary": """
SELECT experiment_id, experiment, dataset, dataset_version, "key", count(DISTINCT trace_id) AS runs,
  count(score) AS scores, avg(score) AS mean_score, sum(outcome = 'error') AS errors, sum(outcome = 'skip') AS skips
FROM experiment_results GROUP BY experiment_id, "key" ORDER BY experiment_id, "key\"""",
}


def write_analysis_copy(
    store: TableSource,
    target: str,
    filter: Filter | None = None,
    *,
    force: bool = False,
    report: ReportRows = lambda table, rows: None,
) -> dict[str, int]:
    """Write all flat tables of a store to a new SQLite database, and return the number of rows by table.

    With `force`, an existing copy is replaced. Raise `Refused` if the file exists, is a Spanwise store, is being
    written by another process, or cannot be written.
    """
    target = os.path.abspath(target)
    _check_target(target, force)
    partial = target + PARTIAL_SUFFIX
    descriptor = create_partial(partial)
    try:
        counts = _write_database(store, partial, filter or Filter(), report)
        os.fsync(descriptor)
        if force:
            os.replace(partial, target)
        else:
            os.link(partial, target)  # fails if a file with this name was created meanwhile
        fsync_folder(target)
    except (OSError, sqlite3.Error) as error:
        raise Refused(f"cannot write {target!r}: {error}; free space on its disk, or name another file") from error
    finally:
        with suppress(OSError):
            os.unlink(partial)
        os.close(descriptor)
    return counts


def _check_target(target: str, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not os.path.isfile(target):
        raise Refused(f"{target!r} is not a file; name another file for the copy")
    if is_store_file(target) or os.path.lexists(target + "-wal"):
        raise Refused(f"{target!r} is a Spanwise store, which a copy must not replace; name another file")
    if not force:
        raise Refused(f"{target!r} already exists; replace it with --force, or name another file")


def _write_database(store: TableSource, path: str, filter: Filter, report: ReportRows) -> dict[str, int]:
    from sqlite_utils import Database

    counts = {}
    with closing(sqlite3.connect(path)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KB}"):
            connection.execute(
                f"PRAGMA {setting}"
            )  # after an error, nobody uses the file; one fsync at the end is enough
        db = Database(connection, execute_plugins=False, recursive_triggers=False)
        db.register_function(unescape_json, deterministic=True)
        for table in TABLES.values():
            _create_table(db, table)
            counts[table.name] = _insert_rows(db, store, table, filter, report)
            for columns in table.indexes:
                db.table(table.name).create_index(columns)
            _fill_search_index(db, table, counts[table.name], report)
        for name, sql in VIEWS.items():
            db.create_view(name, sql)
        db.table("table_columns").insert_all(
            (
                {"table": table.name, "column": column.name, "type": column.type, "description": column.description}
                for table in TABLES.values()
                for column in table.columns
            ),
            pk=("table", "column"),
        )
        db.analyze()
    return counts


def _create_table(db: Database, table: Table) -> None:
    """Create a table with its keys and an empty full-text index."""
    made = db.table(table.name).create(
        {column.name: _SQLITE_TYPES[column.type] for column in table.columns},
        pk=(table.key if len(table.key) > 1 else table.key[0]) if table.key else None,
        foreign_keys=[
            (key.columns, key.table, key.key) if len(key.columns) > 1 else (key.columns[0], key.table, key.key[0])
            for key in table.foreign_keys
        ],
    )
    if table.searchable:
        made.enable_fts(table.searchable)


def _insert_rows(db: Database, store: TableSource, table: Table, filter: Filter, report: ReportRows) -> int:
    """Insert the rows of a table, each page in one transaction, and return their number.

    `insert_all` of sqlite-utils would take twice as long, because it looks for values that are not plain.
    """
    from sqlite_utils.db import quote_identifier as quote

    names, marks = ", ".join(map(quote, table.names)), ", ".join("?" * len(table.names))
    sql = f"INSERT INTO {quote(table.name)} ({names}) VALUES ({marks})"
    times = [position for position, column in enumerate(table.columns) if column.type == "time"]
    count = 0
    for page in iterate_allowed_pages(store, table, filter):
        for position in times:
            page[position] = list(map(format_time, page[position]))
        with db.conn:
            db.conn.executemany(sql, zip(*page, strict=True))
        count += len(page[0])
        report(table.name, count)
    return count


def _fill_search_index(db: Database, table: Table, rows: int, report: ReportRows) -> None:
    """Add the rows to the full-text index, with JSON escapes replaced so that they do not become part of words."""
    if not table.searchable:
        return
    from sqlite_utils.db import quote_identifier as quote

    names = ", ".join(map(quote, table.searchable))
    types = {column.name: column.type for column in table.columns}
    values = ", ".join(
        f"unescape_json({quote(name)})" if types[name] == "json" else quote(name) for name in table.searchable
    )
    select = f"SELECT rowid, {values} FROM {quote(table.name)} WHERE rowid BETWEEN ? AND ?"
    sql = f"INSERT INTO {quote(f'{table.name}_fts')} (rowid, {names}) {select}"
    for first in range(1, rows + 1, SEARCH_ROWS):
        with db.conn:
            db.execute(sql, (first, first + SEARCH_ROWS - 1))
        report(f"search index of {table.name}", min(rows, first + SEARCH_ROWS - 1))


_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def unescape_json(text: str | None) -> str | None:
    """Return JSON text with each escape sequence replaced by a space."""
    return text if text is None or "\\" not in text else _ESCAPE.sub(" ", text)
